//! What the user typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum, ValueHint};

/// ConfigMaps and Secrets as the kubelet would deliver them, without a kubelet.
#[derive(Debug, Parser)]
#[command(
    name = "larder",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Render(RenderArgs),
    Refs(RefsArgs),
    #[command(hide = true)]
    Completion(CompletionArgs),
    #[command(hide = true)]
    Man(ManArgs),
}

/// Where manifests come from.
#[derive(Debug, clap::Args)]
pub(crate) struct ManifestArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json; not its subdirectories), or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true, num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub(crate) filenames: Vec<PathBuf>,

    /// Namespace of the objects that name none
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    pub(crate) namespace: String,
}

/// Show what each container would see: variables, files, and why it would not start
///
/// Computed offline from manifests alone. Pods are taken as they are, and out of the templates of Deployments, StatefulSets,
/// DaemonSets, ReplicaSets, ReplicationControllers, Jobs and CronJobs. Missing fields get the API server's defaults. A Node among the manifests
/// gives the node's facts; service account tokens are placeholders.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder render -f app.yaml                       all pods of a file, for reading
  larder render -f k8s/ --pod prod/web            one pod
  kustomize build . | larder render -f - -o json  everything, for programs
  larder render -f app.yaml --to out/             also write the volumes below out/")]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    pub(crate) manifests: ManifestArgs,

    /// Only this pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(crate) pod: Option<PodName>,

    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = RenderOutput::Tree)]
    pub(crate) output: RenderOutput,

    /// Show the values of Secrets in the tree. (In JSON they always appear.)
    #[arg(long)]
    pub(crate) show_secrets: bool,

    /// Also write the volumes, each to DIR/NAMESPACE/POD/VOLUME
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) to: Option<PathBuf>,
}

/// Forms of what `render` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RenderOutput {
    /// A tree for people
    Tree,
    /// One JSON object
    Json,
}

/// Show the ConfigMaps and Secrets that each pod refers to
///
/// These are exactly the objects that the node of the pod may read, optional ones and image pull secrets included.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder refs -f app.yaml
  larder refs -f k8s/ -n prod -o json")]
pub(crate) struct RefsArgs {
    #[command(flatten)]
    pub(crate) manifests: ManifestArgs,

    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = RefsOutput::Table)]
    pub(crate) output: RefsOutput,
}

/// Forms of what `refs` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RefsOutput {
    /// One line for each reference
    Table,
    /// One JSON object
    Json,
}

/// Print a completion script
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page of the command, or of one of its subcommands
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The subcommand
    pub(crate) subcommand: Option<String>,
}

/// `NAMESPACE/NAME`, or `NAME` in the namespace of `-n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    namespace: Option<String>,
    name: String,
}

impl PodName {
    /// The namespace, which is `default` if the user named none.
    pub(crate) fn namespace<'a>(&'a self, default: &'a str) -> &'a str {
        self.namespace.as_deref().unwrap_or(default)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl std::str::FromStr for PodName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace == Some("") {
            return Err("expected NAMESPACE/NAME");
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_pod_is_named_with_or_without_namespace() {
        let parse = |text: &str| text.parse::<PodName>();
        assert_eq!(parse("prod/web").unwrap().namespace("x"), "prod");
        assert_eq!(parse("web").unwrap().namespace("x"), "x");
        for bad in ["", "/", "prod/", "/web", "a/b/c"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
