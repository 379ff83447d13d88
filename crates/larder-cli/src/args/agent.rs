//! The arguments of `larder run`, and of the commands for an agent but `larder status`.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{ValueEnum, ValueHint};
use larder::{Strategy, WatchScope};
use larder_agent::config::listen_address;

use super::values::{LogFormat, loopback};

/// Deliver ConfigMaps and Secrets to the pods of a node, and keep them up to date
///
/// Pods come from an API server (--kubeconfig, or the cluster around this process), or from a directory of manifests
/// (--manifests), whose edits are followed. Volumes are below the root directory in the kubelet's layout, and by name:
/// ROOT/by-name/NAMESPACE/POD/volumes/…/VOLUME. On Ctrl-C or SIGTERM the agent exits and leaves the volumes in place;
/// the next run continues with them. Volumes of deleted pods are removed; `larder clean` removes all of them.
///
/// With --beside-kubelet, an ordinary kubelet runs the pods and writes their volumes. larder makes it refresh a volume
/// as soon as its ConfigMap or Secret has changed, and verifies the files; docs/beside-kubelet.md describes it. Without
/// --kubeconfig, the service account of the container is used, or else the kubelet's own kubeconfig.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  larder run --manifests examples/                    no cluster needed; edit the files
  larder run --kubeconfig ~/.kube/config --node-name edge-7
  larder run --config /etc/larder/agent.yaml --listen 127.0.0.1:10290
  larder run --beside-kubelet --kubeconfig /etc/kubernetes/kubelet.conf --dry-run

SIGHUP reloads the configuration file; no watch is lost.")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own on the command line"
)]
pub(crate) struct RunArgs {
    /// Serve the pods from the manifests in DIR; pods without a nodeName are bound to this node
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["kubeconfig", "context"])]
    pub(crate) manifests: Option<PathBuf>,

    /// Serve the pods of the API server in this kubeconfig
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,

    /// Name of the node [default: the host name in lower case]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Serve no volumes: make the kubelet of this node refresh those that are out of date
    #[arg(long, conflicts_with = "manifests")]
    pub(crate) beside_kubelet: bool,

    /// With --manifests: let kubectl in, too. The API server listens on loopback over TLS; FILE is an administrator's
    /// kubeconfig (mode 0600), whole as soon as it exists, and removed on exit
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "manifests")]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// With --manifests: the address of pods whose manifest states none (status.podIP), as nothing here gives them one,
    /// such as 127.0.0.1. Without it, environments that read it wait
    #[arg(long, value_name = "IP", conflicts_with_all = ["kubeconfig", "beside_kubelet"])]
    pub(crate) pod_address: Option<IpAddr>,

    /// Delete pods from the API server once their deletion was requested and their volumes are gone, as nothing here
    /// runs them. With --manifests, that is always so
    #[arg(long, conflicts_with = "beside_kubelet")]
    pub(crate) end_pods: bool,

    /// Say what is wrong with the configuration and the manifests (unknown fields, misspelled annotations, rejected
    /// documents, invalid hooks), and start nothing; exit code 1 if anything is
    #[arg(long)]
    pub(crate) check: bool,

    /// Root directory of the kubelet, with --beside-kubelet [default: where the kubelet's kubeconfig is found, else
    /// /var/lib/kubelet]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) kubelet_root_dir: Option<PathBuf>,

    /// With --beside-kubelet: log which pods would be touched and why, and touch none
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Serve health, metrics and status over HTTP, without authentication; ADDRESS:PORT, localhost:PORT, or
    /// :PORT for all addresses
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub(crate) listen: Option<SocketAddr>,

    /// Change detection strategy for ConfigMaps and Secrets: Get, Cache or Watch [default: Watch]
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) change_detection: Option<Strategy>,

    /// Scope of a watch: Object, Namespace (needs list and watch on the namespace), or Auto (Namespace where permitted,
    /// else Object) [default: Object]
    #[arg(long, value_name = "SCOPE")]
    pub(crate) watch_scope: Option<WatchScope>,

    /// Log format on standard error; LARDER_LOG sets the filter, e.g. debug or larder=trace
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// Root directory and configuration of an agent.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    /// Directory of the volumes [default: /var/lib/larder for root, else $XDG_RUNTIME_DIR/larder or /tmp/larder-UID]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) root_dir: Option<PathBuf>,

    /// Configuration file: YAML with the kubelet's field names, or a KubeletConfiguration. Without --root-dir and
    /// --config, commands that ask an agent read /etc/larder/agent.yaml if root runs them
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
}

/// Serve a live page with the pods and volumes of the agent of this machine
///
/// The page shows the same as `larder status`, and follows changes: pods, volumes and variables with their last swap,
/// what is pending and since when, hooks, the freshness of objects, and a feed of changes. It never shows a value, and
/// changes nothing. If the agent restarts, the page goes on.
///
/// The command prints the address with a token that works once: the first browser that opens it gets a session, until
/// the command ends on Ctrl-C or SIGTERM.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder ui
  larder ui --root-dir /tmp/try-larder --listen 127.0.0.1:8900")]
pub(crate) struct UiArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Address and port to listen on, on loopback; with port 0, a free port is chosen
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub(crate) listen: SocketAddr,
}

/// Unmount and remove the files that a stopped agent left in its root directory
///
/// Only what larder creates is removed: volumes, environments, links by name, copies of manifests, the checkpoint, the
/// socket and the lock. Other files stay, and so does the directory then. A checkpoint in a directory of its own
/// (`checkpointDir`) stays, too; `larder checkpoint erase` removes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder clean --dry-run                   show what would be removed
  larder clean --root-dir /tmp/try-larder

Exit code 1 if an agent runs with that directory.")]
pub(crate) struct CleanArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Print what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Show or set the log level of a running agent
///
/// The level applies until it is set again or the agent restarts; LARDER_LOG sets it at startup.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder log-level                    show it
  larder log-level debug
  larder log-level larder_watch=trace,info")]
pub(crate) struct LogLevelArgs {
    /// off, error, warn, info, debug or trace; or a filter with targets
    #[arg(value_name = "LEVEL")]
    pub(crate) level: Option<String>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// List, verify or erase an agent's encrypted checkpoint
///
/// An agent starts from these copies of pods and objects while the API server is unreachable. They are in
/// `checkpointDir` of the configuration or in ROOT/checkpoint/, if `checkpoint.key` names a key. They open only with
/// that key, and only for the cluster and the node that wrote them: give the agent's configuration and kubeconfig. No
/// value is shown. The agent may run meanwhile; after `erase` it writes a new checkpoint at the next change.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder checkpoint --config /etc/larder/agent.yaml --kubeconfig /etc/larder/kubeconfig
  larder checkpoint verify --config agent.yaml       exit code 1 if a file does not open
  larder checkpoint erase --root-dir /var/lib/larder")]
pub(crate) struct CheckpointArgs {
    /// Action
    #[arg(value_enum, default_value_t = CheckpointAction::List)]
    pub(crate) action: CheckpointAction,

    /// Kubeconfig of the agent [default: the cluster around this process]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,

    /// Name of the node [default: the host name in lower case]
    #[arg(long, value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Output format of `list` and `verify`
    #[arg(short, long, value_enum, default_value_t = CheckpointOutput::Table)]
    pub(crate) output: CheckpointOutput,
}

/// What `checkpoint` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckpointAction {
    /// List the copies with their ages
    List,
    /// Open every file
    Verify,
    /// Remove every file
    Erase,
}

/// Output formats of `checkpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckpointOutput {
    /// A table for people
    Table,
    /// One JSON object
    Json,
}
