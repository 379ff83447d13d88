//! The arguments of `larder diff`.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};

use super::{
    kubectl::{KubectlArgs, ManifestPath},
    manifests::ReadingArgs,
    values::{OF_KUBECTL, at_least_2000, kubeconfig},
};

/// Show what changes for each container between two sets of manifests, and which containers must restart
///
/// A side is a set of files, a git revision of a directory, or what an API server has. For each pod: the variables,
/// files and mounts that are added, removed or changed, the hooks that would run, and a verdict for each container. A
/// container `live` sees the change without a restart; `restart` needs one, because a variable, a subPath file or a mount
/// differs; `starts` did not start before; `fails` would not start any more. A workload rolls out by itself if its pod
/// template differs, or if a known reloader acts on an object; otherwise its pods must be restarted by hand. ConfigMaps
/// and Secrets that change and that no pod references come last.
///
/// With --kubeconfig, larder reads the pods and workloads of the manifests, and the ConfigMaps and Secrets that they
/// reference, each by its name. Manifests are applied three-way, as by `kubectl apply`: what it did not apply before, and
/// the manifests lack, stays as it is in the API server. Variables of Services are not compared then. The Node of a pod is
/// read if the pod reads facts of it.
///
/// Values of Secrets are hidden, unless --show-secrets is given.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("origin").args(["from", "from_file", "kubeconfig"]).required(true),
    after_help = "Examples:
  larder diff -f k8s/ --from main                       the working tree, compared with a branch
  larder diff -f k8s/ --from v1.2 --to v1.3 -o json
  larder diff --from-file old.yaml --to-file new.yaml
  larder diff -f k8s/ --kubeconfig ~/.kube/config       before `kubectl apply -f k8s/`
  larder diff -R -f apps/ --from main --exclude 'flux-system' --exclude '*.enc.yaml'
  larder diff -f k8s/ --from main --fail-on fails,unless     a gate: exit code 1 only for these
  larder diff -f k8s/ --from main -o markdown --title production

Exit codes:
  0  no difference, or with --fail-on none of those
  1  differences, or with --fail-on one of those
  2  an error; differences that were found are printed"
)]
pub(crate) struct DiffArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json), or with --kubeconfig - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", num_args = 1.., value_parser = ManifestPath, value_hint = ValueHint::AnyPath, conflicts_with = "from_file", required_unless_present = "from_file")]
    pub(crate) filenames: Vec<PathBuf>,

    /// Compare from this git revision of the files
    #[arg(long, value_name = "REV")]
    pub(crate) from: Option<String>,

    /// Compare to this git revision [default: the working tree]
    #[arg(long, value_name = "REV", requires = "from", conflicts_with_all = ["from_file", "to_file", "kubeconfig", "context"])]
    pub(crate) to: Option<String>,

    /// Compare from these manifests or directories
    #[arg(long, value_name = "PATH", num_args = 1.., value_parser = ManifestPath, value_hint = ValueHint::AnyPath, requires = "to_file")]
    pub(crate) from_file: Vec<PathBuf>,

    /// Compare to these manifests or directories
    #[arg(long, value_name = "PATH", num_args = 1.., value_parser = ManifestPath, value_hint = ValueHint::AnyPath, requires = "from_file", conflicts_with_all = ["filenames", "from", "kubeconfig", "context"])]
    pub(crate) to_file: Vec<PathBuf>,

    /// Compare from what the API server in this kubeconfig has. Without FILE, it is that of KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = OF_KUBECTL, value_parser = kubeconfig(), value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig", conflicts_with_all = ["from", "from_file"])]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) kubectl: KubectlArgs,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = DiffOutput::Tree)]
    pub(crate) output: DiffOutput,

    /// Differences that make the exit code 1, separated by commas: a container that would not start (fails), or only if
    /// something is there that no document has (unless), whose verdict is open (unknown), or that needs a restart; or
    /// any difference. An error is 2 in each case
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        value_delimiter = ',',
        default_value = "any"
    )]
    pub(crate) fail_on: Vec<FailOn>,

    /// Heading of the tree, the Markdown and the page, such as the name of an overlay
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,

    /// Most bytes of the Markdown, from 2000: what has no room is left out, and counted. A comment on GitHub has at most
    /// 65536
    #[arg(long, value_name = "BYTES", default_value_t = 60_000, value_parser = at_least_2000)]
    pub(crate) max_bytes: usize,

    /// Show the values of Secrets
    #[arg(long)]
    pub(crate) show_secrets: bool,
}

/// Differences that `--fail-on` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    /// A container that would not start any more
    Fails,
    /// A container that would not start unless something is there that no document has
    Unless,
    /// A container whose verdict depends on what is not known
    Unknown,
    /// A container that needs a restart
    Restart,
    /// Any difference
    Any,
}

/// Output formats of `diff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffOutput {
    /// A tree for people
    #[value(alias = "wide")]
    Tree,
    /// One JSON object
    Json,
    /// The same as YAML
    Yaml,
    /// Markdown, for a comment on a change
    Markdown,
    /// A page of HTML in one file, for a browser
    Html,
}
