//! A node under test: the agent, the embedded API server, and a root directory of their own.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream};
use http::Request;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use jiff::SignedDuration;
use kube::Client;
use larder::Strategy;
use larder_agent::{
    TaskError,
    agent::{Agent, AgentHandle, PodDeletion},
    checkpoint::ClusterId,
    clock::Clock,
    config::{CheckpointConfig, Config, Flags, Host, SubPathUpdates},
    local_api::{self, Program, Router},
    on_change::{OnChangeConfig, PodChange},
    root_dir::RootDir,
    status::{AgentStatus, HookStatus, PodStatus, VolumeStatus},
};
use larder_apiserver::{ApiKind, ApiServer, ApiService, AuditLog, AuditRecord, Cut, Options, User};
use larder_e2e::pods::PodBuilder;
use larder_objects::manifest::{HiddenObjects, KeptObjects};
use larder_on_change::{Hook, Paths, parse::PodSelector};
use larder_pods::static_pod::ApiReferences;
use larder_projection::disk::VolumeHost;
use larder_transport::{Carrier, Link, Probing};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::{ServiceExt as _, service_fn};

/// Longest wait before a test fails.
const PATIENCE: Duration = Duration::from_mins(1);
/// Pause between two reads of the agent's status.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub(crate) const NODE: &str = "node-1";
/// The agent cannot decode an object that has this text in a field.
pub(crate) const UNDECODABLE: &str = "undecodable";

/// The objects that manifests hide, and those that they keep.
type Manifests = (
    watch::Receiver<Arc<HiddenObjects>>,
    watch::Receiver<Arc<KeptObjects>>,
);

/// A node under test.
pub(crate) struct Node {
    pub(crate) server: ApiServer,
    root: TempDir,
    /// On a file system in memory.
    memory: TempDir,
    /// The directory of static pods.
    pub(crate) static_pods: TempDir,
    /// Whether static pods are read.
    pub(crate) follow_static_pods: bool,
    /// What the manifests hide and keep that fill the API server.
    pub(crate) manifests: Option<Manifests>,
    /// Whether static pods may reference API objects, as on hosts that are no nodes of a cluster.
    pub(crate) api_references: ApiReferences,
    /// If external, the agent posts events.
    pub(crate) pod_deletion: PodDeletion,
    /// The agent's change detection strategy.
    pub(crate) strategy: Strategy,
    /// Time between two repair passes of the agent; `None` leaves the default.
    pub(crate) sync_frequency: Option<Duration>,
    /// A reader of an answer from a path with this text panics.
    pub(crate) poisoned: Option<&'static str>,
    /// Watches of a path with this text hang from a second after the start on.
    pub(crate) hung: Option<&'static str>,
    /// If it is there, connections for Secrets have no PING, and nothing comes over them while it is set.
    pub(crate) without_ping: Option<watch::Sender<bool>>,
    /// Which mounts by `subPath` are updated.
    pub(crate) sub_path_updates: SubPathUpdates,
    /// Settings of hooks.
    pub(crate) on_change: OnChangeConfig,
    /// A hook of the test, and the channel on which its rounds arrive with a sender for the answer.
    pub(crate) program: Option<ProgramHook>,
    /// Seed of random choices, in tests with a hook.
    pub(crate) seed: u64,
    /// If the agent has a checkpoint, its settings.
    pub(crate) checkpoint: Option<CheckpointConfig>,
    /// The directory of the checkpoint, if it is not the default.
    pub(crate) checkpoint_dir: Option<PathBuf>,
    pub(crate) clock: Clock,
    /// How far the wall clock of the node is ahead of tokio's, in seconds.
    clock_offset: Arc<AtomicI64>,
    running: Option<Running>,
}

/// A hook whose rounds a test receives and answers.
#[derive(Clone)]
pub(crate) struct ProgramHook {
    pub(crate) hook: Hook,
    pub(crate) rounds: mpsc::UnboundedSender<ReceivedRound>,
}

/// A round, which ends with the answer.
pub(crate) struct ReceivedRound {
    pub(crate) change: PodChange,
    pub(crate) answer: oneshot::Sender<Result<(), String>>,
}

struct Running {
    handle: AgentHandle,
    program: Program,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), TaskError>>,
}

impl Node {
    /// A node whose agent runs.
    pub(crate) fn start() -> Self {
        let mut node = Self::prepare();
        node.run();
        node
    }

    /// A node whose agent does not run yet.
    pub(crate) fn prepare() -> Self {
        Self::prepare_with(Options::default())
    }

    /// The same with an API server with these options. If the server authorizes requests, the agent has the node's
    /// identity.
    pub(crate) fn prepare_with(options: Options) -> Self {
        let server = ApiServer::new(options.audit(AuditLog::in_memory()));
        let clock_offset = Arc::new(AtomicI64::new(0));
        let (start, offset) = (Instant::now(), clock_offset.clone());
        let start_wall = Clock::system().now();
        let clock = Clock::new(move || {
            let offset = SignedDuration::from_secs(offset.load(Ordering::Relaxed));
            start_wall + start.elapsed() + offset
        });
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        server.apply(&node).unwrap();
        Self {
            server,
            root: tempfile::tempdir().unwrap(),
            static_pods: tempfile::tempdir().unwrap(),
            api_references: ApiReferences::Allow,
            follow_static_pods: true,
            manifests: None,
            pod_deletion: PodDeletion::ByAgent,
            strategy: Strategy::default(),
            sync_frequency: None,
            poisoned: None,
            hung: None,
            without_ping: None,
            sub_path_updates: SubPathUpdates::default(),
            on_change: OnChangeConfig::default(),
            program: None,
            seed: 1,
            memory: tempfile::tempdir_in("/dev/shm").unwrap(),
            checkpoint: None,
            checkpoint_dir: None,
            clock,
            clock_offset,
            running: None,
        }
    }

    /// The agent's configuration.
    fn config(&self) -> Config {
        let host = Host {
            name: NODE.to_owned(),
            uid: 1000,
            runtime_dir: None,
            temp_dir: "/tmp".into(),
        };
        let flags = Flags {
            root_dir: Some(self.root.path().to_owned()),
            ..Flags::default()
        };
        let (mut config, _) = Config::load(None, flags, &host).unwrap();
        config.change_detection = self.strategy;
        config.sync_frequency = self.sync_frequency.unwrap_or(config.sync_frequency);
        config.static_pod_path = self
            .follow_static_pods
            .then(|| self.static_pods.path().to_owned());
        config.static_pod_api_references = self.api_references;
        config.sub_path_updates = self.sub_path_updates;
        config.on_change = self.on_change.clone();
        config.checkpoint.clone_from(&self.checkpoint);
        config.checkpoint_dir.clone_from(&self.checkpoint_dir);
        config
    }

    /// Reloads the running agent with the node's settings.
    pub(crate) fn reload(&self) {
        self.handle().reload(&self.config());
    }

    /// Starts the agent, for the first time or again.
    pub(crate) fn run(&mut self) {
        let config = self.config();
        let root = RootDir::lock(&config.root_dir).unwrap();
        let volumes = VolumeHost::open_without_mounts(root.path()).unwrap();
        let user = User {
            name: format!("system:node:{NODE}"),
            groups: vec!["system:nodes".to_owned()],
        };
        let service = self.server.service_as(user);
        let client = match (self.poisoned, self.hung, &self.without_ping) {
            (Some(path), ..) => poisoned(service, path),
            (None, Some(path), _) => hung(service, path),
            (None, None, Some(silent)) => without_ping(service, silent.subscribe()),
            (None, None, None) => client(service),
        };
        let program = Program::new(config.clone());
        let mut builder = Agent::builder(config, root, volumes, client)
            .pod_deletion(self.pod_deletion)
            .clock(self.clock.clone())
            .cluster(ClusterId::new(b"authority", "embedded"));
        if let Some((hidden, kept)) = self.manifests.clone() {
            builder = builder.hidden_objects(hidden).kept_objects(kept);
        }
        if let Some(ProgramHook { hook, rounds }) = self.program.clone() {
            let all = PodSelector::Names(Paths::default());
            builder = builder.seed(self.seed).on_change(all, hook, move |change| {
                let (answer, answered) = oneshot::channel();
                // A test that has ended gives its agent no answer.
                let _ = rounds.send(ReceivedRound { change, answer });
                async move {
                    answered
                        .await
                        .unwrap_or_else(|_| Err("no answer".to_owned()))
                }
            });
        }
        let agent = builder.build().unwrap();
        let (handle, shutdown) = (agent.handle(), CancellationToken::new());
        #[expect(
            clippy::disallowed_methods,
            reason = "the task is owned by `Running` and awaited in `stop`"
        )]
        let task = tokio::spawn(agent.run(shutdown.clone()));
        self.running = Some(Running {
            handle,
            program,
            shutdown,
            task,
        });
    }

    /// The API of the running agent over HTTP.
    pub(crate) fn http_api(&self) -> Router {
        let running = self.running.as_ref().unwrap();
        local_api::router(running.handle.clone(), running.program.clone())
    }

    /// The API of the running agent on its socket.
    pub(crate) fn socket_api(&self) -> Router {
        let running = self.running.as_ref().unwrap();
        local_api::socket_router(running.handle.clone(), running.program.clone())
    }

    /// Shuts the agent down.
    pub(crate) async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.shutdown.cancel();
        timeout(PATIENCE, running.task)
            .await
            .expect("the agent ends")
            .unwrap()
            .unwrap();
    }

    /// Ends the agent like a crash: nothing is finished.
    pub(crate) async fn kill(&mut self) {
        let running = self.running.take().unwrap();
        running.task.abort();
        assert!(running.task.await.unwrap_err().is_cancelled());
    }

    /// Waits until the agent ends by itself.
    pub(crate) async fn failure(&mut self) -> TaskError {
        let running = self.running.take().unwrap();
        let ended = timeout(PATIENCE, running.task).await;
        ended.expect("the agent ends").unwrap().unwrap_err()
    }

    /// Sets the node's wall clock this far ahead of the true time; that of the API server stays right.
    pub(crate) fn set_clock_ahead(&self, seconds: i64) {
        self.clock_offset.store(seconds, Ordering::Relaxed);
        self.clock.jumped();
    }

    /// Number of requests with this verb and this end of their path.
    pub(crate) fn requests(&self, verb: &str, path_end: &str) -> usize {
        let records = self.server.audit().records();
        let fits = |record: &&AuditRecord| record.verb == verb && record.path.ends_with(path_end);
        records.iter().filter(fits).count()
    }

    /// Creates or replaces an object.
    pub(crate) fn apply(&self, object: &Value) {
        self.server.apply(object).unwrap();
    }

    /// The manifest of a static pod; its file.
    pub(crate) fn static_pod(&self, mut pod: Value) -> PathBuf {
        let metadata = pod["metadata"]["name"].as_str().unwrap();
        let file = self.static_pods.path().join(format!("{metadata}.json"));
        pod["spec"]["nodeName"] = json!(null);
        fs::write(&file, pod.to_string()).unwrap();
        file
    }

    pub(crate) fn delete(&self, kind: ApiKind, name: &str) {
        self.server.delete(kind, "default", name).unwrap();
    }

    /// Deletes an object of cluster scope.
    pub(crate) fn delete_global(&self, kind: ApiKind, name: &str) {
        self.server.delete(kind, "", name).unwrap();
    }

    pub(crate) fn status(&self) -> AgentStatus {
        self.running.as_ref().unwrap().handle.status()
    }

    pub(crate) fn metrics(&self) -> String {
        self.running.as_ref().unwrap().handle.metrics()
    }

    pub(crate) fn handle(&self) -> AgentHandle {
        self.running.as_ref().unwrap().handle.clone()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.running.as_ref().unwrap().handle.is_ready()
    }

    /// A directory on a file system in memory.
    pub(crate) fn memory(&self) -> &Path {
        self.memory.path()
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// Waits until `look` returns a value.
    pub(crate) async fn wait<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain for {what}; the agent says {:#?}",
                self.status()
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the agent has tried every pod.
    pub(crate) async fn settled(&self) {
        self.wait("the agent to settle", |node| node.is_ready().then_some(()))
            .await;
    }

    /// Waits until `volume` of `pod` holds exactly `files`.
    pub(crate) async fn until(&self, pod: &str, volume: &str, files: &[(&str, &str)]) {
        let expected: BTreeMap<_, _> = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect();
        self.wait(&format!("{pod}/{volume} to hold {expected:?}"), |node| {
            (node.files(pod, volume)? == expected).then_some(())
        })
        .await;
    }

    /// Waits until `volume` of `pod` fails for `reason`.
    pub(crate) async fn until_failing(&self, pod: &str, volume: &str, reason: &str) {
        self.wait(&format!("{pod}/{volume} to fail with {reason}"), |node| {
            let status = node.volume(pod, volume)?;
            (status.delivery.phase == larder_agent::status::Phase::Failing
                && status.delivery.reason == reason)
                .then_some(())
        })
        .await;
    }

    /// Waits until the environment of the container `main` of `pod` fails for `reason`.
    pub(crate) async fn until_environment_failing(&self, pod: &str, reason: &str) {
        self.wait(&format!("{pod} to fail with {reason}"), |node| {
            let containers = node.pod(pod)?.containers;
            let main = containers.iter().find(|found| found.name == "main")?;
            (main.delivery.phase == larder_agent::status::Phase::Failing
                && main.delivery.reason == reason)
                .then_some(())
        })
        .await;
    }

    pub(crate) fn pod(&self, name: &str) -> Option<PodStatus> {
        self.status().pods.into_iter().find(|pod| pod.name == name)
    }

    /// The hook of this name of the pod.
    pub(crate) fn hook(&self, pod: &str, name: &str) -> Option<HookStatus> {
        let hooks = self.pod(pod)?.on_change;
        hooks.into_iter().find(|hook| hook.name == name)
    }

    pub(crate) fn volume(&self, pod: &str, volume: &str) -> Option<VolumeStatus> {
        let volumes = self.pod(pod)?.volumes;
        volumes.into_iter().find(|found| found.name == volume)
    }

    pub(crate) fn volume_path(&self, pod: &str, volume: &str) -> Option<PathBuf> {
        Some(self.volume(pod, volume)?.path.into())
    }

    /// The files that a reader sees in a volume now; `None` if the volume does not exist.
    pub(crate) fn files(&self, pod: &str, volume: &str) -> Option<BTreeMap<String, String>> {
        let path = self.volume_path(pod, volume)?;
        let data = fs::canonicalize(path.join("..data")).ok()?;
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&data).ok()? {
            let name = entry.ok()?.file_name().into_string().unwrap();
            files.insert(name.clone(), fs::read_to_string(path.join(name)).ok()?);
        }
        let links = fs::read_dir(&path).ok()?.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            !name.to_string_lossy().starts_with("..")
        });
        (links.count() == files.len()).then_some(files)
    }

    /// The environment of a container, as delivered.
    pub(crate) fn environment(
        &self,
        pod: &str,
        container: &str,
    ) -> Option<BTreeMap<String, String>> {
        let pod = PathBuf::from(self.pod(pod)?.path);
        let text = fs::read(pod.join("containers").join(container).join("env.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

pub(crate) fn config_map(name: &str, data: &[(&str, &str)]) -> Value {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub(crate) fn secret(name: &str, data: &[(&str, &str)]) -> Value {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

/// A pod of the node with one container, `main`.
pub(crate) fn pod(name: &str) -> PodBuilder {
    PodBuilder::new(NODE, name)
}

/// A client of `service`. What has the text [`UNDECODABLE`] has a number in its place.
fn client(service: ApiService) -> Client {
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let answer = service.clone().oneshot(request);
        async move {
            Ok::<_, Cut>(
                answer
                    .await?
                    .map(|body| body.map_frame(|frame| frame.map_data(without_text))),
            )
        }
    });
    Client::new(service, "default")
}

fn without_text(data: Bytes) -> Bytes {
    let text = format!("\"{UNDECODABLE}\"");
    match str::from_utf8(&data) {
        Ok(json) if json.contains(&text) => json.replace(&text, "7").into(),
        _ => data,
    }
}

/// A client of `service`. Answers from paths that contain `path` make their reader panic.
fn poisoned(service: ApiService, path: &'static str) -> Client {
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let is_poisoned = request.uri().path().contains(path);
        let answer = service.clone().oneshot(request);
        async move {
            let answer = answer.await?;
            Ok::<_, Cut>(answer.map(|body| {
                body.map_frame(move |frame| {
                    assert!(!is_poisoned, "hunter2");
                    frame
                })
            }))
        }
    });
    Client::new(service, "default")
}

/// A client of `service`. After a second, no further bytes of answers from paths that contain `path` arrive, nor their
/// end.
fn hung(service: ApiService, path: &'static str) -> Client {
    let start = Instant::now();
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let is_hung = request.uri().path().contains(path);
        let hang = move || async move {
            if is_hung && start.elapsed() > Duration::from_secs(1) {
                std::future::pending::<()>().await;
            }
        };
        let answer = service.clone().oneshot(request);
        async move {
            hang().await;
            let answer = answer.await?;
            Ok::<_, Cut>(answer.map(|body| {
                let frames = BodyStream::new(body).then(move |frame| hang().map(|()| frame));
                let end = stream::once(hang()).filter_map(async |()| None);
                StreamBody::new(frames.chain(end))
            }))
        }
    });
    Client::new(service, "default")
}

/// A connection that sends no PINGs.
struct WithoutPing {
    last_heard: Mutex<Instant>,
}

impl Carrier for WithoutPing {
    fn last_heard(&self) -> Instant {
        *self.last_heard.lock()
    }

    fn probing(&self) -> Probing {
        Probing::None
    }

    fn distrust(&self) {}
}

/// A client of `service` over connections without PINGs. Nothing comes over those of Secrets while they are `silent`.
fn without_ping(service: ApiService, silent: watch::Receiver<bool>) -> Client {
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let is_silent = request.uri().path().contains("/secrets");
        let silent = silent.clone();
        let wait = move || {
            let mut silent = silent.clone();
            async move {
                if is_silent {
                    let _ = silent.wait_for(|silent| !silent).await;
                }
            }
        };
        let answer = service.clone().oneshot(request);
        async move {
            wait().await;
            let connection = Arc::new(WithoutPing {
                last_heard: Mutex::new(Instant::now()),
            });
            let mut answer = answer.await?;
            answer
                .extensions_mut()
                .insert(Link::new(connection.clone()));
            Ok::<_, Cut>(answer.map(|body| {
                let frames = BodyStream::new(body).then(move |frame| {
                    let connection = Arc::clone(&connection);
                    wait().map(move |()| {
                        *connection.last_heard.lock() = Instant::now();
                        frame
                    })
                });
                StreamBody::new(frames)
            }))
        }
    });
    Client::new(service, "default")
}
