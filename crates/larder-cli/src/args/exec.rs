//! The arguments of `larder exec`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{ArgAction, ValueEnum, ValueHint};

use super::{
    agent::PlaceArgs,
    kubectl::{ManifestPath, TerminalArgs},
    on_change::OnChangeArgs,
    values::{OF_KUBECTL, PodName, kubeconfig, namespace, variable},
};

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

    /// The pod, or of manifests its workload; NAMESPACE/KIND/NAME where several workloads have the name. Optional if the
    /// manifests contain only one pod
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
