//! An API server in memory, a folder, and a sidecar of the label form between them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use larder_apiserver::{ApiKind, ApiServer, AuditLog, AuditRecord, Options};
use larder_sidecar::{Health, LabelSettings, RunError, run_label};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Longer than anything takes where time is paused, and where it is real.
const PATIENCE: Duration = Duration::from_mins(30);
const REAL_PATIENCE: Duration = Duration::from_mins(1);

pub(crate) struct World {
    pub(crate) api: ApiServer,
    pub(crate) root: TempDir,
    variables: BTreeMap<String, String>,
}

pub(crate) struct Sidecar {
    pub(crate) health: Arc<Health>,
    task: JoinSet<Result<(), RunError>>,
    shutdown: CancellationToken,
}

impl World {
    /// With the variables of an ordinary sidecar for namespace `n`.
    pub(crate) fn new() -> Self {
        let options = Options::default()
            .fill_namespaces(true)
            .audit(AuditLog::in_memory());
        let root = TempDir::new().unwrap();
        let path = |name: &str| root.path().join(name).display().to_string();
        let variables = [
            ("LABEL", "l".to_owned()),
            ("NAMESPACE", "n".to_owned()),
            ("FOLDER", path("f")),
            ("LARDER_STATE_DIR", path("state")),
            ("HEALTH_PORT", "0".to_owned()),
            ("LARDER_DEBOUNCE", "20ms:1s".to_owned()),
        ];
        Self {
            api: ApiServer::new(options),
            variables: variables
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            root,
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.set(name, value);
        self
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.root.path().join("f")
    }

    pub(crate) fn settings(&self) -> LabelSettings {
        let find = |name: &str| self.variables.get(name).cloned();
        larder_cli::label_settings(find).unwrap()
    }

    pub(crate) fn client(&self) -> kube::Client {
        kube::Client::new(self.api.service(), "default")
    }

    pub(crate) fn start(&self) -> Sidecar {
        self.start_with(self.client())
    }

    pub(crate) fn start_with(&self, client: kube::Client) -> Sidecar {
        let (health, shutdown) = (Arc::<Health>::default(), CancellationToken::new());
        let mut task = JoinSet::new();
        let shared = (Arc::clone(&health), shutdown.clone());
        task.spawn(run_label(
            self.settings(),
            client,
            Vec::new(),
            shared.0,
            shared.1,
        ));
        Sidecar {
            health,
            task,
            shutdown,
        }
    }

    /// A started sidecar whose first sync is complete.
    pub(crate) async fn ready(&self) -> Sidecar {
        let sidecar = self.start();
        until(|| sidecar.health.is_ready()).await;
        sidecar
    }

    /// Creates or replaces a labeled ConfigMap.
    pub(crate) fn config_map(&self, namespace: &str, name: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<_, _> = data.iter().copied().collect();
        self.object("ConfigMap", namespace, name, &json!({ "data": data }));
    }

    /// Creates or replaces a labeled Secret.
    pub(crate) fn secret(&self, namespace: &str, name: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<_, _> = data
            .iter()
            .map(|(key, value)| (*key, STANDARD.encode(value)))
            .collect();
        self.object("Secret", namespace, name, &json!({ "data": data }));
    }

    /// An object with the label and these fields besides.
    pub(crate) fn object(&self, kind: &str, namespace: &str, name: &str, fields: &Value) {
        let mut object = json!({
            "apiVersion": "v1", "kind": kind,
            "metadata": {"namespace": namespace, "name": name, "labels": {"l": "1"}},
        });
        merge(&mut object, fields);
        self.api.apply(&object).unwrap();
    }

    pub(crate) fn delete(&self, kind: ApiKind, namespace: &str, name: &str) {
        self.api.delete(kind, namespace, name).unwrap();
    }

    /// The files of the folder with their content: `a=1 sub/b=2`.
    pub(crate) fn files(&self) -> String {
        tree(&self.folder())
    }

    pub(crate) async fn until_files(&self, expected: &str) {
        let found = wait(|| self.files() == expected).await;
        assert!(found, "expected {expected}, found {}", self.files());
    }

    /// The requests so far, as verb, path and decoded query.
    pub(crate) fn requests(&self) -> Vec<AuditRecord> {
        self.api.audit().records()
    }
}

impl Sidecar {
    /// Ends it, and returns how it ended.
    pub(crate) async fn stop(mut self) -> Result<(), RunError> {
        self.shutdown.cancel();
        self.ended().await
    }

    /// Waits until readiness names this state of the requests to the application.
    pub(crate) async fn until_request(&self, state: &str) {
        until(|| {
            self.health
                .ready(tokio::time::Instant::now())
                .body
                .contains(state)
        })
        .await;
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> Result<(), RunError> {
        let ended = timeout(PATIENCE, self.task.join_next()).await;
        ended.expect("it ends").unwrap().unwrap()
    }

    /// Ends it as a kill does.
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
    }
}

/// A check that a thread repeats until `end`.
pub(crate) struct Meanwhile {
    ended: Sender<()>,
    thread: JoinHandle<()>,
}

/// Repeats `check` some thousand times a second, and at least once: as often as an application looks, and not as often
/// as a processor can.
pub(crate) fn meanwhile(check: impl Fn() + Send + 'static) -> Meanwhile {
    let (ended, end) = channel();
    let thread = thread::spawn(move || {
        loop {
            check();
            match end.recv_timeout(Duration::from_micros(100)) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
        }
    });
    Meanwhile { ended, thread }
}

impl Meanwhile {
    /// Panics if a check has.
    pub(crate) fn end(self) {
        drop(self.ended);
        self.thread.join().unwrap();
    }
}

/// Polls until something holds. Where time is paused, that costs none.
#[track_caller]
pub(crate) fn until(holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move { assert!(wait(holds).await, "{place}: it does not come true") }
}

async fn wait(mut holds: impl FnMut() -> bool) -> bool {
    let (began, really_began) = (tokio::time::Instant::now(), std::time::Instant::now());
    while !holds() {
        if began.elapsed() > PATIENCE || really_began.elapsed() > REAL_PATIENCE {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
    true
}

fn merge(object: &mut Value, fields: &Value) {
    match (object, fields) {
        (Value::Object(object), Value::Object(fields)) => {
            for (name, value) in fields {
                merge(object.entry(name).or_insert(Value::Null), value);
            }
        }
        (object, value) => *object = value.clone(),
    }
}

pub(crate) fn tree(folder: &Path) -> String {
    let mut found = BTreeMap::new();
    walk(folder, folder, &mut found);
    let lines = found.iter().map(|(path, text)| format!("{path}={text}"));
    lines.collect::<Vec<_>>().join(" ")
}

fn walk(root: &Path, directory: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(root, &path, found);
        } else if let Ok(bytes) = fs::read(&path) {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.insert(name, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
