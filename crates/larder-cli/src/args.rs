//! The parsed command line.

mod diff;
mod kubectl;
mod on_change;
pub(crate) mod sidecar;
mod values;

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::{ArgAction, Parser, Subcommand, ValueEnum, ValueHint};
use larder::{Strategy, WatchScope};
use larder_agent::config::listen_address;
use larder_exec::{ANCHOR, STAGE};
use larder_objects::manifest::Exclusion;

pub(crate) use self::{
    diff::{DiffArgs, DiffOutput, FailOn},
    kubectl::{KubectlArgs, KubectlCommand, TerminalArgs},
    on_change::OnChangeArgs,
    sidecar::{ReloadArgs, SidecarArgs},
    values::{PodName, kubectl_kubeconfig},
};
use self::{
    kubectl::ManifestPath,
    values::{OF_KUBECTL, duration, kubeconfig, loopback, namespace, variable},
};

/// Deliver ConfigMaps and Secrets to pods as the kubelet does, without a kubelet
#[derive(Debug, Parser)]
#[command(
    name = "larder",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Exit codes:
  0  everything succeeded
  1  something requested failed, and the rest was done
  2  bad usage, or unreadable input

Examples:
  larder render -f app.yaml --pod prod/web     see what a container will see; works offline
  larder diff -f k8s/ --from main              see what changes for each container, and what must restart
  larder run --manifests examples/             serve the volumes, and follow edits of the manifests
  larder status                                show what is delivered, and what is pending
  larder exec -f app.yaml -- ./server          run a program with a container's view"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Status(StatusArgs),
    Ui(UiArgs),
    Checkpoint(CheckpointArgs),
    Clean(CleanArgs),
    LogLevel(LogLevelArgs),
    Render(RenderArgs),
    Diff(DiffArgs),
    Refs(RefsArgs),
    #[cfg(feature = "manifests")]
    Apiserver(ApiserverArgs),
    Exec(ExecArgs),
    Sidecar(Box<SidecarArgs>),
    /// Become the command of `larder exec`; started by it
    #[command(hide = true, name = STAGE)]
    ExecStage {
        /// File with the plan
        plan: PathBuf,
    },
    #[command(hide = true, name = ANCHOR)]
    ExecAnchor,
    Completion(CompletionArgs),
    Man(ManArgs),
    #[command(hide = true)]
    Describe(KubectlCommand),
    #[command(hide = true)]
    Get(KubectlCommand),
}

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

/// Log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object for each event
    Json,
}

/// Show what a running agent delivers, to which pods, and what is still pending
///
/// Without names, it shows all pods, and those of their volumes and environments that are not delivered. A
/// NAMESPACE/POD shows that pod in full: paths, reasons and objects. Only agents of root and of the caller are trusted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder status
  larder status prod/web                          one pod in full
  larder status --watch
  larder status --wait --timeout 2m               exit code 1 if not everything is delivered by then
  larder status -n prod -o name                   names of pods, for scripts
  larder status -o jsonpath='{range .pods[?(@.phase!=\"Delivered\")]}{.name}: {.reason}{\"\\n\"}{end}'")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own on the command line"
)]
pub(crate) struct StatusArgs {
    /// Pods to show in full [default: an overview of all pods]
    #[arg(value_name = "NAMESPACE/POD")]
    pub(crate) pods: Vec<PodName>,

    /// Show only the pods of this namespace; also the namespace of pods that are given without one [default: default]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    pub(crate) namespace: Option<String>,

    /// Show the pods of all namespaces, as is the default
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "pods"])]
    pub(crate) all_namespaces: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Output format: table, wide, json, yaml, name, or jsonpath=TEMPLATE as in kubectl
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: StatusOutput,

    /// Keep showing changes: redrawn in place on a terminal, as changed lines in a pipe
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) watch: bool,

    /// Wait until all pods, or those given, are delivered and their hooks have succeeded, for half a second
    #[arg(long)]
    pub(crate) wait: bool,

    /// With --wait, content that is in place is enough, though it may be out of date: for a start during an outage
    #[arg(long, requires = "wait")]
    pub(crate) allow_stale: bool,

    /// Print the agent's answer to a health check instead; exit code 1 unless it is ok. For probes
    #[arg(long, value_enum, value_name = "CHECK", conflicts_with_all = ["watch", "wait", "pods", "output"])]
    pub(crate) check: Option<HealthCheck>,

    /// Longest wait, e.g. 500ms, 30s or 2m
    #[arg(long, value_name = "DURATION", default_value = "30s", requires = "wait", value_parser = duration)]
    pub(crate) timeout: Duration,
}

/// Health checks of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HealthCheck {
    /// Whether the agent works
    Healthz,
    /// Whether all sources have reported and every pod has been tried
    Readyz,
}

/// Output formats of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatusOutput {
    /// Tables for people.
    Table,
    /// Tables with every volume, watch scope and object.
    Wide,
    /// One JSON object.
    Json,
    /// The same as YAML.
    Yaml,
    /// `NAMESPACE/POD` on a line of its own.
    Name,
    /// Text made from the JSON object by this template.
    JsonPath(String),
}

impl FromStr for StatusOutput {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "table" => Self::Table,
            "wide" => Self::Wide,
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            "name" => Self::Name,
            _ => {
                let template = text.strip_prefix("jsonpath=");
                let expected = "expected table, wide, json, yaml, name or jsonpath=TEMPLATE";
                Self::JsonPath(template.ok_or(expected)?.to_owned())
            }
        })
    }
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

/// Sources of manifests.
#[derive(Debug, clap::Args)]
pub(crate) struct ManifestArgs {
    /// Manifest, directory of manifests (*.yaml, *.yml, *.json), or - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true, num_args = 1.., value_parser = ManifestPath, value_hint = ValueHint::AnyPath)]
    pub(crate) filenames: Vec<PathBuf>,

    /// Also read the subdirectories of directories
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,

    #[command(flatten)]
    pub(crate) exclude: ExcludeArgs,

    /// Namespace of objects that name none [default: that of the kubeconfig's context if one is given, else default]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    pub(crate) namespace: Option<String>,
}

/// What is left out of directories.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ExcludeArgs {
    /// Leave out files and subdirectories of the directories that match GLOB, which is relative to each of them; without
    /// a slash, it is a name at any depth. May be given several times
    #[arg(long = "exclude", value_name = "GLOB")]
    pub(crate) globs: Vec<Exclusion>,
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

    /// Render only this pod
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

/// Run a command with the variables and volumes of a container
///
/// The pod comes from manifests (-f), or from the agent with the same root directory. The command runs in namespaces of
/// its own, with the container's variables, and the volumes at their mount paths. The files of this machine are not
/// changed, and neither files nor processes remain, even after a kill. PATH, HOME, TERM and LANG come from the caller
/// if the container does not set them. Volumes are kept up to date while the command runs. So are subPath mounts, on
/// Linux 6.5 or later: an open file keeps its content, and the next open sees the new one.
///
/// --on-change selects the action after a change: a signal to the command, its restart, a program in the command's view
/// as its user, or an HTTP request to a port of this machine or to any URL. It may be given several times. A list of
/// hooks in YAML, also as @FILE, has filters, several steps and its own timing; docs/on-change.md describes it.
///
/// As root, the command becomes the user and groups of the pod; an ordinary user appears as them in a user namespace.
/// Capabilities are those of a container if the pod adds or drops any, or sets runAsUser: 0; else the caller's. allowPrivilegeEscalation,
/// readOnlyRootFilesystem and runAsNonRoot apply. A warning names other fields of the security context that are set,
/// such as seccompProfile.
///
/// With -f, service account tokens and the ConfigMap kube-root-ca.crt are placeholders (with --kubeconfig, the latter is
/// read), and emptyDir volumes are empty and private; commands of a pod of the agent share them. hostPath volumes are this machine's, and mount points that they lack are made in them; other types are
/// ignored. Without -f, the agent must be run by root or by the caller. Files of an agent that is not root belong to the
/// agent's user, so their owners and groups differ from those of a kubelet.
///
/// When the command ends, so does larder. But if it fails after larder has restarted it, larder waits for the next
/// change and starts it again, so that a mistake in a Secret or ConfigMap can be corrected; --on-exit exit is for
/// supervisors that restart larder themselves.
///
/// The exit code is the command's, or 128 plus the number of the signal that ended it; 127 if the command is not found,
/// 126 if it cannot be executed, 125 if larder itself failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder exec -f app.yaml --pod prod/web -c web -- ./server --port 8080
  larder exec -f app.yaml -- sh -c 'env; cat /etc/app/*'
  larder exec -f app.yaml --kubeconfig ~/.kube/config -- ./server    with the Secrets of a cluster
  larder exec --pod prod/web -- sh                 with what the running agent delivered
  larder exec -f app.yaml --on-change signal:SIGHUP -- nginx -g 'daemon off;'
  larder exec -f app.yaml --on-change http:9090/-/reload --on-change-debounce 1s -- prometheus
  larder exec -f app.yaml --on-change signal:SIGHUP --on-change restart:environment -- ./server
  larder exec -f app.yaml --on-change '{steps: [{exec: [nginx, -t]}, {signal: SIGHUP}]}' -- nginx -g 'daemon off;'
  larder exec -f app.yaml --on-change @hooks.yaml -- ./server")]
pub(crate) struct ExecArgs {
    /// Manifest, directory of manifests, or - for standard input; without -f, the pod is taken from the running agent
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", num_args = 1.., value_parser = ManifestPath, value_hint = ValueHint::AnyPath, conflicts_with_all = ["root_dir", "config"])]
    pub(crate) filenames: Vec<PathBuf>,

    /// Namespace of the pod and of objects that name none [default: that of the kubeconfig's context if one is given,
    /// else default]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    pub(crate) namespace: Option<String>,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// The pod; optional if the manifests contain only one
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,

    /// The pod, as kubectl takes it
    #[arg(value_name = "POD", conflicts_with = "pod", hide = true)]
    positional_pod: Option<PodName>,

    #[command(flatten)]
    terminal: TerminalArgs,

    /// The container [default: the first that is not an init container]
    #[arg(short, long, value_name = "CONTAINER")]
    pub(crate) container: Option<String>,

    /// Take objects that are not among the manifests as there, with empty values
    #[arg(long, requires = "filenames")]
    pub(crate) assume_missing: bool,

    /// Read objects that the manifests lack, and the node of the pod, from the API server in this kubeconfig, by name.
    /// Without FILE, it is that of KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = OF_KUBECTL, value_parser = kubeconfig(), value_hint = ValueHint::FilePath, requires = "filenames")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,

    /// Set a variable of the container, in place of its own of that name; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) on_change: OnChangeArgs,

    /// Reaction when the command fails after larder has restarted it
    #[arg(long, value_enum, value_name = "REACTION", default_value_t = OnExit::Wait)]
    pub(crate) on_exit: OnExit,

    /// Keep files that are mounted by subPath up to date, too; false for the kubelet's behavior
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    pub(crate) subpath_updates: bool,

    /// The command [default: the container's]
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl ExecArgs {
    /// The pod, if one is named.
    pub(crate) fn pod(&self) -> Option<&PodName> {
        self.pod.as_ref().or(self.positional_pod.as_ref())
    }

    /// The word in the place of the pod, if it is that of a file or directory.
    pub(crate) fn path_as_pod(&self) -> Option<String> {
        let word = self.positional_pod.as_ref()?.as_written();
        Path::new(&word).exists().then_some(word)
    }
}

/// What follows when a command fails that larder has restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// Wait for the next change, and start the command again
    Wait,
    /// Exit with its exit code
    Exit,
}

impl From<OnExit> for larder_exec::OnExit {
    fn from(reaction: OnExit) -> Self {
        match reaction {
            OnExit::Wait => Self::Wait,
            OnExit::Exit => Self::Exit,
        }
    }
}

#[cfg(feature = "manifests")]
/// Run the embedded API server over TLS, for tests and for kubectl
///
/// It serves Namespaces, Nodes, Pods, ConfigMaps, Secrets, Services, ServiceAccounts, Events, ClusterTrustBundles,
/// PodCertificateRequests, Leases and CSIDrivers. All objects are in memory, and are lost when the server exits on
/// Ctrl-C or SIGTERM.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder apiserver --kubeconfig-out kubeconfig
  larder apiserver --manifests k8s/ --kubeconfig-out kubeconfig --audit-log audit.jsonl
  kubectl --kubeconfig kubeconfig get pods -A")]
pub(crate) struct ApiserverArgs {
    /// Address and port to listen on; with port 0, a free port is chosen, printed and written to the kubeconfig
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = listen_address)]
    pub(crate) listen: SocketAddr,

    /// Write an administrator's kubeconfig to FILE, atomically, once the server is ready; remove it on exit
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Load the manifests in DIR, and follow their edits
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) manifests: Option<PathBuf>,

    /// Append one JSON object to FILE for each request: time, verb, path, query, user_agent, status
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) audit_log: Option<PathBuf>,

    /// Log format on standard error; LARDER_LOG sets the filter, e.g. debug or larder=trace
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// Print a completion script
///
/// It completes subcommands, flags and values, and the names of pods, containers, namespaces, contexts and revisions: of
/// the manifests after -f, else of the running agent; of the kubeconfig; of the repository. No cluster is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder completion bash > /etc/bash_completion.d/larder
  source <(larder completion zsh)
  larder completion kubectl > /usr/local/bin/kubectl_complete-larder")]
pub(crate) struct CompletionArgs {
    /// The shell; or kubectl, for the program kubectl_complete-larder that completes `kubectl larder`
    pub(crate) shell: CompletedShell,
}

/// What scripts of completion are printed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletedShell {
    Bash,
    Elvish,
    Fish,
    Kubectl,
    Powershell,
    Zsh,
}

impl CompletedShell {
    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Elvish => "elvish",
            Self::Fish => "fish",
            Self::Kubectl => "kubectl",
            Self::Powershell => "powershell",
            Self::Zsh => "zsh",
        }
    }
}

/// Print the manual page of larder, or of one of its subcommands
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder man | man -l -
  larder man render > larder-render.1")]
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
