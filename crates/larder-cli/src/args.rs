//! The parsed command line.

mod values;

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use clap::{Parser, Subcommand, ValueEnum, ValueHint};
use larder::{Strategy, WatchScope};

pub(crate) use self::values::{OnChange, PodName};
use self::values::{namespace, on_change};

/// The hidden subcommand that becomes the command of `larder exec`.
pub(crate) const STAGE: &str = "exec-stage";

/// The hidden subcommand that is process 1 of a command's PID namespace.
pub(crate) const ANCHOR: &str = "exec-anchor";

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
    Run(RunArgs),
    Status(StatusArgs),
    Render(RenderArgs),
    Refs(RefsArgs),
    Apiserver(ApiserverArgs),
    Exec(ExecArgs),
    #[command(hide = true, name = STAGE)]
    ExecStage(ExecStageArgs),
    #[command(hide = true, name = ANCHOR)]
    ExecAnchor,
    #[command(hide = true)]
    Completion(CompletionArgs),
    #[command(hide = true)]
    Man(ManArgs),
}

/// Deliver ConfigMaps and Secrets to the pods of a node, and keep them fresh
///
/// Pods come from an API server (--kubeconfig, or the cluster around this process), or from a directory of manifests (--manifests),
/// whose edits are followed. Their volumes lie below the root directory as the kubelet has them, and by name:
/// ROOT/by-name/NAMESPACE/POD/volumes/…/VOLUME. On Ctrl-C or SIGTERM the agent ends; the volumes stay for those who read them, and the next
/// run goes on from there. Volumes of pods that are gone are removed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder run --manifests examples/                    no cluster needed: edit the files and watch the volumes
  larder run --kubeconfig ~/.kube/config --node-name edge-7
  larder run --config /etc/larder/agent.yaml --listen 127.0.0.1:10290")]
pub(crate) struct RunArgs {
    /// Serve the pods of the manifests in this directory; those that name no node are bound to this one
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["kubeconfig", "context"])]
    pub(crate) manifests: Option<PathBuf>,

    /// Serve the pods of the API server that this file names
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig to use instead of its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,

    /// Name of the node [default: the host name in lower case]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Serve /healthz, /readyz, /metrics and /status over HTTP
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,

    /// How changes of ConfigMaps and Secrets are noticed: Get, Cache or Watch [default: Watch]
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) change_detection: Option<Strategy>,

    /// What one watch covers: an Object, a Namespace for identities that may list and watch it, or, with Auto, a namespace
    /// wherever the API server grants that [default: Object]
    #[arg(long, value_name = "SCOPE")]
    pub(crate) watch_scope: Option<WatchScope>,

    /// Form of the log on standard error; LARDER_LOG selects what is in it, as in debug or larder=trace
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// Where an agent keeps its files.
#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Directory of the volumes [default: /var/lib/larder for root, else $XDG_RUNTIME_DIR/larder]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) root_dir: Option<PathBuf>,

    /// Configuration: YAML with the kubelet's field names, or a KubeletConfiguration
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

/// Forms of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object for each event
    Json,
}

/// Show what a running agent delivers, to whom, and what it waits for
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder status
  larder status -o json | jq '.pods[] | select(.phase != \"Delivered\")'")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Form of the output
    #[arg(short, long, value_enum, default_value_t = StatusOutput::Table)]
    pub(crate) output: StatusOutput,
}

/// Forms of what `status` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// Tables for people
    Table,
    /// One JSON object
    Json,
}

/// Where manifests come from.
#[derive(Debug, clap::Args)]
pub(crate) struct ManifestArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json; not its subdirectories), or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true, num_args = 1.., value_hint = ValueHint::AnyPath)]
    pub(crate) filenames: Vec<PathBuf>,

    /// Namespace of the objects that name none
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default", value_parser = namespace)]
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

/// Run a command that sees what a container of a pod would see
///
/// The pod comes from manifests (-f), or from the agent that runs with the same root directory. The command gets the container's variables,
/// and the volumes at their mount paths, in namespaces of its own: the files of this machine are not touched, and nothing is left behind on
/// disk, nor any process that it started, also after a kill. As root it becomes the user and the groups of the pod; an ordinary user
/// appears as them in a user namespace. What an image would set (PATH, HOME, TERM, LANG) comes from the caller if the container does not
/// set it. Volumes stay fresh while the command runs; what is mounted by subPath stays as it was at the start.
///
/// With -f, service account tokens are placeholders, and emptyDir volumes are empty and private. hostPath volumes are this machine's;
/// other types are not provided. A pod of an agent is for the user that runs the agent, and for root. The files of an agent that is not
/// root all belong to that user: what a mode lets the pod's user and groups do with root's files does not show there.
///
/// The exit code is the command's, or 128 and the signal that ended it; 127 if there is no such command, 126 if it cannot be executed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder exec -f app.yaml --pod prod/web -c web -- ./server --port 8080
  larder exec -f app.yaml -- sh -c 'env; cat /etc/app/*'
  larder exec --pod prod/web -- sh                 as the pod of the running agent sees it
  larder exec -f app.yaml --on-change signal:SIGHUP -- nginx -g 'daemon off;'")]
pub(crate) struct ExecArgs {
    /// Manifest, directory of manifests, or - for standard input; without any, the running agent is asked
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", num_args = 1.., value_hint = ValueHint::AnyPath, conflicts_with_all = ["root_dir", "config"])]
    pub(crate) filenames: Vec<PathBuf>,

    /// Namespace of the pod and of objects that name none
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default", value_parser = namespace)]
    pub(crate) namespace: String,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// The pod; not needed if there is only one in the manifests
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(crate) pod: Option<PodName>,

    /// The container. Default: the first that is not an init container
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,

    /// When its volumes change: none, signal:NAME, or restart (also when its variables would change)
    #[arg(long, value_name = "ACTION", default_value = "none", value_parser = on_change)]
    pub(crate) on_change: OnChange,

    /// The command. Default: the container's
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Become the command of `larder exec`
#[derive(Debug, clap::Args)]
pub(crate) struct ExecStageArgs {
    /// The plan
    pub(crate) plan: PathBuf,
}

/// Serve Namespaces, Nodes, Pods, ConfigMaps, Secrets, Services, ServiceAccounts, Events, ClusterTrustBundles and
/// PodCertificateRequests as an API server, over TLS
///
/// Everything is in memory and gone when the server ends, on Ctrl-C or SIGTERM. kubectl works with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder apiserver --kubeconfig-out kubeconfig
  larder apiserver --manifests k8s/ --kubeconfig-out kubeconfig --audit-log audit.jsonl
  kubectl --kubeconfig kubeconfig get pods -A")]
pub(crate) struct ApiserverArgs {
    /// Address and port; port 0 takes a free one, which is printed and stands in the kubeconfig
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,

    /// Write a kubeconfig of an administrator; it appears, whole, when the server answers, and goes with it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Fill the server from the manifests of a directory, and follow their edits
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) manifests: Option<PathBuf>,

    /// Append one JSON object for each request: time, verb, path, query, user_agent, status
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) audit_log: Option<PathBuf>,

    /// Form of the log on standard error; LARDER_LOG selects what is in it, as in debug or larder=trace
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn clap_accepts_the_definition() {
        Args::command().debug_assert();
    }
}
