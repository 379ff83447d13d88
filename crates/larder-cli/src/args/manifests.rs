//! The arguments of the commands that read manifests: `larder render` and `larder refs`, and what others share.

use std::path::PathBuf;

use clap::{ValueEnum, ValueHint};
use larder_objects::manifest::Exclusion;

use super::{
    kubectl::{KubectlArgs, ManifestPath},
    values::{OF_KUBECTL, PodName, kubeconfig, namespace},
};

/// Sources of manifests.
#[derive(Debug, clap::Args)]
pub(crate) struct ManifestArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json), or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true, num_args = 1.., value_parser = ManifestPath, value_hint = ValueHint::AnyPath)]
    pub(crate) filenames: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// How manifests are read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ReadingArgs {
    /// Also read the subdirectories of directories
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    /// Leave out files and subdirectories of the directories that match GLOB, which is relative to each of them; without
    /// a slash, it is a name at any depth. May be given several times
    #[arg(long, value_name = "GLOB")]
    pub(crate) exclude: Vec<Exclusion>,

    /// Namespace of objects that name none [default: that of the kubeconfig's context if one is given, else default]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    pub(crate) namespace: Option<String>,
}

/// Show the variables and files of each container, and why it would not start
///
/// Works offline, from manifests alone. Pods also come from the templates of Deployments, StatefulSets, DaemonSets,
/// ReplicaSets, ReplicationControllers, Jobs and CronJobs. Missing fields get the API server's defaults. A Node among
/// the manifests provides the facts of the node. Service account tokens are placeholders. So is the ConfigMap
/// kube-root-ca.crt, which a cluster puts into every namespace; with -o json it is missing unless --assume-cluster is
/// given.
///
/// With --kubeconfig, larder reads the ConfigMaps and Secrets that pods use and the manifests lack, each by its name.
/// Values of those that it may not read are not known, and named. If a pod reads facts of its node, larder asks on which
/// node it runs, and for that Node. Variables of Services are those of the manifests.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder render -f app.yaml                       all pods of a file, as trees
  larder render -f k8s/ --pod prod/web            one pod
  kustomize build . | larder render -f - -o json  all pods, for programs
  larder render -f app.yaml -o env --pod prod/web > web.env    for docker run --env-file
  larder render -f app.yaml -o html > app.html    a page to read, search, print or pass on
  larder render -f app.yaml --to out/             also write the volumes below out/
  larder render -R -f k8s/ --exclude flux-system --strict    a check before apply
  larder render -f app.yaml --kubeconfig ~/.kube/config")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own on the command line"
)]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    pub(crate) manifests: ManifestArgs,

    #[command(flatten)]
    pub(crate) kubectl: KubectlArgs,

    /// Read objects that the manifests lack, and the node of each pod, from the API server in this kubeconfig, by name.
    /// Without FILE, it is that of KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = OF_KUBECTL, value_parser = kubeconfig(), value_hint = ValueHint::FilePath, conflicts_with = "assume_cluster")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,

    /// Render only this pod, also by its workload; NAMESPACE/KIND/NAME where several workloads have the name
    #[arg(long, value_name = "NAMESPACE/NAME", required_if_eq("output", "env"))]
    pub(crate) pod: Option<PodName>,

    /// The container of -o env [default: the only one that is not an init container]
    #[arg(short, long, value_name = "CONTAINER", requires = "pod")]
    pub(crate) container: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = RenderOutput::Tree)]
    pub(crate) output: RenderOutput,

    /// Show the values of Secrets in the tree and the page; JSON and env files always have them
    #[arg(long)]
    pub(crate) show_secrets: bool,

    /// Assume what every cluster has (the ConfigMap kube-root-ca.crt, the service account default) in JSON, too
    #[arg(long)]
    pub(crate) assume_cluster: bool,

    /// Take objects that are not among the manifests as there, with unknown keys and values
    #[arg(long)]
    pub(crate) assume_missing: bool,

    /// Exit with 1 also for what deserves a look: warnings of manifests and pods
    #[arg(long)]
    pub(crate) strict: bool,

    /// Also write each volume to DIR/NAMESPACE/POD/VOLUME
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) to: Option<PathBuf>,
}

/// Output formats of `render`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RenderOutput {
    /// A tree for people
    #[value(alias = "wide")]
    Tree,
    /// One JSON object
    Json,
    /// The same as YAML
    Yaml,
    /// A page of HTML in one file, for a browser
    Html,
    /// The variables of one container as an env file that docker reads; Secrets are in it
    Env,
}

/// List the ConfigMaps and Secrets that each pod references
///
/// Under the node authorizer, the pod's node may read only these, including optional ones and image pull secrets.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder refs -f app.yaml
  larder refs -f k8s/ -n prod -o json
  larder refs -R -f k8s/ --exclude '*.enc.yaml'")]
pub(crate) struct RefsArgs {
    #[command(flatten)]
    pub(crate) manifests: ManifestArgs,

    #[command(flatten)]
    pub(crate) kubectl: KubectlArgs,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = RefsOutput::Table)]
    pub(crate) output: RefsOutput,
}

/// Output formats of `refs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RefsOutput {
    /// One line for each reference
    #[value(alias = "wide")]
    Table,
    /// One JSON object
    Json,
    /// The same as YAML
    Yaml,
}
