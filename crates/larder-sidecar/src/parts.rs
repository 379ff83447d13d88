//! Parts that the forms share: the server's task, the surroundings of steps, and how a run fails.

use std::{
    collections::BTreeMap,
    fs, io,
    os::{fd::AsFd as _, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use larder_actions::{exec::Machine, processes::Processes};
use larder_connections::log_panic;
use larder_files::{replace, sys};
use larder_on_change::{Action, Hook, PodIdentity};
use prometheus_client::registry::Registry;
use smol_str::SmolStr;
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    metrics::Metrics,
    server::{self, Probed},
    settings::own_namespace,
    steps::StepContext,
};

/// The token of the pod's service account.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Time for open connections when the sidecar ends.
const END: Duration = Duration::from_millis(500);

/// Why a sidecar that runs once has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The first sync: the reason, and the missing right.
    #[error("{0}")]
    Sync(String),
    /// A directory that is to be watched or written.
    #[error("{0}")]
    Directory(String),
}

/// The server of health and metrics, if there is one.
#[derive(Debug)]
pub(crate) struct Server {
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Server {
    pub(crate) fn none() -> Self {
        Self {
            tasks: JoinSet::new(),
            shutdown: CancellationToken::new(),
        }
    }

    pub(crate) fn start(
        listener: TcpListener,
        probed: Probed,
        registry: Registry,
        shutdown: CancellationToken,
    ) -> Self {
        if let Ok(address) = listener.local_addr() {
            info!(%address, "listening");
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(server::serve(
            listener,
            probed,
            Arc::new(registry),
            shutdown.clone(),
        ));
        Self { tasks, shutdown }
    }

    pub(crate) async fn stop(mut self) {
        self.shutdown.cancel();
        if let Ok(Some(ended)) = timeout(END, self.tasks.join_next()).await {
            log_panic(ended);
        }
    }
}

/// Whether a sidecar can carry out the hook.
///
/// # Errors
///
/// What it cannot do, and what can be done instead.
pub fn check_hook(hook: &Hook) -> Result<(), &'static str> {
    for step in &hook.steps {
        match step {
            Action::Restart(_) => {
                return Err("a sidecar cannot restart containers; send a signal to a process");
            }
            Action::Signal(target) if target.process.is_none() => {
                return Err(
                    "a signal takes shareProcessNamespace in the pod, and the name of a process: {signal: SIGHUP, process: nginx}",
                );
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes a kubeconfig for the API server of this cluster that accepts any certificate, and returns its path.
///
/// # Errors
///
/// This is no pod, or the file cannot be written.
pub fn unverified_kubeconfig(directory: &Path) -> io::Result<PathBuf> {
    let variable = |name: &str| std::env::var(name).map_err(io::Error::other);
    let (host, port) = (
        variable("KUBERNETES_SERVICE_HOST")?,
        variable("KUBERNETES_SERVICE_PORT")?,
    );
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host
    };
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pod",
        "clusters": [{"name": "pod", "cluster": {
            "server": format!("https://{host}:{port}"), "insecure-skip-tls-verify": true,
        }}],
        "users": [{"name": "pod", "user": {"tokenFile": TOKEN}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
    });
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    let open = sys::open_dir(rustix::fs::CWD, directory)?;
    let text = text.to_string();
    replace::replace_file(
        open.as_fd(),
        "kubeconfig",
        "kubeconfig.new",
        0o600,
        text.as_bytes(),
    )?;
    Ok(directory.join("kubeconfig"))
}

/// The surroundings of steps. Scripts of the label form have the whole environment of this process.
pub(crate) fn step_context(
    state_dir: &Path,
    volumes: BTreeMap<SmolStr, PathBuf>,
    metrics: &Metrics,
    whole_environment: bool,
) -> Arc<StepContext> {
    let memory = if state_dir.is_dir() {
        state_dir.to_owned()
    } else {
        std::env::temp_dir()
    };
    let mut machine = Machine::new(memory);
    if whole_environment {
        let all = std::env::vars_os();
        let text = all.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        machine.base = text.collect();
    }
    let variable = |name| std::env::var(name).unwrap_or_default();
    Arc::new(StepContext {
        pod: PodIdentity {
            namespace: own_namespace().unwrap_or_default().to_string(),
            name: variable("HOSTNAME"),
            uid: variable("POD_UID"),
        },
        processes: Processes::new("/proc", "/nonexistent"),
        machine,
        volumes,
        metrics: metrics.clone(),
    })
}
