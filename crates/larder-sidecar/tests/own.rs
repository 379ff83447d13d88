//! The own form against the API server in memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "shared/granted.rs"]
mod granted;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::stream;
use larder_apiserver::{ApiKind, ApiServer, AuditLog, Fault, Options};
use larder_objects::PodIdentity;
use larder_sidecar::{
    Health, MAX_SILENCE, OwnSettings, OwnVolume, RunError, join_volumes, run_own,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

struct World {
    api: ApiServer,
    root: TempDir,
}

struct Sidecar {
    health: Arc<Health>,
    hangups: mpsc::Sender<()>,
    shutdown: CancellationToken,
    task: JoinSet<Result<(), RunError>>,
}

impl World {
    fn new() -> Self {
        let options = Options::default()
            .fill_namespaces(true)
            .audit(AuditLog::in_memory());
        Self {
            api: ApiServer::new(options),
            root: TempDir::new().unwrap(),
        }
    }

    fn apply(&self, kind: &str, name: &str, data: &serde_json::Value) {
        let mut object = json!({
            "apiVersion": "v1", "kind": kind, "metadata": {"namespace": "n", "name": name},
        });
        let fields = data.as_object().unwrap();
        for (field, value) in fields {
            object[field] = value.clone();
        }
        self.api.apply(&object).unwrap();
    }

    fn config_map(&self, name: &str, key: &str, value: &str) {
        self.apply("ConfigMap", name, &json!({"data": {key: value}}));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Volumes whose paths are in the root of this test.
    fn settings(&self, volumes: &[(&str, Value)]) -> OwnSettings {
        let volumes = volumes.iter().map(|(path, source)| OwnVolume {
            name: (*path).into(),
            path: self.path(path),
            sources: vec![serde_json::from_value(source.clone()).unwrap()],
        });
        OwnSettings {
            volumes: join_volumes(volumes.collect()).unwrap(),
            hooks: Vec::new(),
            once: None,
            max_silence: MAX_SILENCE,
            listen: None,
            pod: PodIdentity::default(),
            state_dir: self.path("state"),
        }
    }

    fn start(&self, settings: OwnSettings) -> Sidecar {
        Self::start_with(settings, kube::Client::new(self.api.service(), "default"))
    }

    fn start_with(settings: OwnSettings, client: kube::Client) -> Sidecar {
        let (hangups, mut receiver) = mpsc::channel(1);
        let receiver = stream::poll_fn(move |context| receiver.poll_recv(context));
        let (health, shutdown) = (Arc::<Health>::default(), CancellationToken::new());
        let mut task = JoinSet::new();
        let shared = (Arc::clone(&health), shutdown.clone());
        task.spawn(run_own(settings, client, shared.0, receiver, shared.1));
        Sidecar {
            health,
            hangups,
            shutdown,
            task,
        }
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }
}

impl Sidecar {
    async fn ended(&mut self) -> Result<(), RunError> {
        let ended = timeout(Duration::from_hours(1), self.task.join_next()).await;
        ended.expect("it ends").unwrap().unwrap()
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = timeout(Duration::from_mins(10), wait).await;
    waited.expect("it comes true");
}

fn map(name: &str) -> Value {
    json!({"name": "v", "configMap": {"name": format!("n/{name}"), "defaultMode": 0o644}})
}

fn secret(name: &str) -> Value {
    json!({"name": "v", "secret": {"secretName": format!("n/{name}"), "defaultMode": 0o644}})
}

// sidecar 4
#[tokio::test(start_paused = true)]
async fn directory_has_the_layout_and_modes_of_a_kubelets_volume() {
    let world = World::new();
    let data = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AAEC"}});
    world.apply("ConfigMap", "app", &data);
    world.apply("Secret", "tls", &json!({"data": {"key": "aHVudGVyMg=="}}));
    let (mut app, mut tls, mut none) = (map("app"), secret("tls"), map("none"));
    let items = json!([{"key": "a", "path": "x/y", "mode": 0o400}, {"key": "c", "path": "c"}]);
    app["configMap"]["items"] = items;
    tls["secret"]["defaultMode"] = json!(0o440);
    none["configMap"]["optional"] = json!(true);
    let volumes = [("app", app), ("tls", tls), ("tls", none)];
    let sidecar = world.start(world.settings(&volumes));
    until(|| sidecar.health.is_ready()).await;
    let data = fs::read_link(world.path("app/..data")).unwrap();
    assert!(data.to_str().unwrap().starts_with(".."));
    let link = fs::read_link(world.path("app/x")).unwrap();
    assert_eq!(link, Path::new("..data/x"));
    assert_eq!(fs::read(world.path("app/x/y")).unwrap(), b"1");
    assert_eq!(fs::read(world.path("app/c")).unwrap(), [0, 1, 2]);
    assert!(!world.path("app/b").exists());
    let mode = |path| fs::metadata(world.path(path)).unwrap().mode() & 0o7777;
    assert_eq!(
        (mode("app/x/y"), mode("app/c"), mode("tls/key")),
        (0o400, 0o644, 0o440)
    );
    assert_eq!(world.read("tls/key"), "hunter2");
}

// sidecar 5
#[tokio::test(start_paused = true)]
async fn later_volume_wins_and_a_directory_is_swapped_at_once() {
    let world = World::new();
    world.config_map("a", "k", "of a");
    world.config_map("b", "k", "of b");
    let sidecar = world.start(world.settings(&[("d", map("a")), ("d", map("b"))]));
    until(|| sidecar.health.is_ready()).await;
    assert_eq!(world.read("d/k"), "of b");
    let sets = fs::read_dir(world.path("d")).unwrap();
    let names = sets.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<_> = names.filter(|name| name.starts_with("..2")).collect();
    assert_eq!(names.len(), 1);
}

// sidecar 6
#[tokio::test(start_paused = true)]
async fn missing_required_object_is_the_reason_until_it_is_created() {
    let world = World::new();
    let sidecar = world.start(world.settings(&[("d", map("app"))]));
    sleep(Duration::from_secs(5)).await;
    let ready = sidecar.health.ready(Instant::now());
    assert!(!ready.is_ok);
    assert!(
        ready.body.contains("configmap") && ready.body.contains("n/app"),
        "{}",
        ready.body
    );
    let created = Instant::now();
    world.config_map("app", "k", "1");
    until(|| sidecar.health.is_ready()).await;
    assert!(
        created.elapsed() <= Duration::from_millis(20),
        "{:?}",
        created.elapsed()
    );
    assert_eq!(world.read("d/k"), "1");
}

// sidecar 7
#[tokio::test(start_paused = true)]
async fn object_that_goes_missing_later_leaves_the_set_and_readiness() {
    let world = World::new();
    world.config_map("app", "k", "1");
    let sidecar = world.start(world.settings(&[("d", map("app"))]));
    until(|| sidecar.health.is_ready()).await;
    world.api.delete(ApiKind::ConfigMap, "n", "app").unwrap();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.read("d/k"), "1");
    assert!(sidecar.health.ready(Instant::now()).is_ok);
    world.config_map("app", "k", "2");
    until(|| world.read("d/k") == "2").await;
}

// sidecar 8
#[tokio::test(start_paused = true)]
async fn every_request_names_its_object() {
    let world = World::new();
    world.config_map("app", "k", "1");
    world.apply("Secret", "tls", &json!({"data": {}}));
    let sidecar = world.start(world.settings(&[("d", map("app")), ("e", secret("tls"))]));
    until(|| sidecar.health.is_ready()).await;
    world.config_map("app", "k", "2");
    until(|| world.read("d/k") == "2").await;
    for request in world.api.audit().records() {
        assert!(["list", "watch"].contains(&request.verb), "{request:?}");
        assert!(
            request.query.contains("fieldSelector=metadata.name%3D"),
            "{request:?}"
        );
    }
}

// sidecar 8, 62
#[tokio::test(start_paused = true)]
async fn roles_of_named_objects_are_enough_and_a_verb_less_is_named() {
    for (file, once) in [
        ("named.yaml", None),
        ("named-once.yaml", Some(Duration::from_mins(5))),
    ] {
        let world = World::new();
        world.config_map("app", "k", "1");
        world.apply("Secret", "tls", &json!({"data": {"key": "aHVudGVyMg=="}}));
        let mut settings = world.settings(&[("d", map("app")), ("e", secret("tls"))]);
        settings.once = once;
        let granted = granted::rights(file);
        let mut all_used = BTreeSet::new();
        // API servers with streaming lists, and without.
        for streams_lists in [true, false] {
            let (client, used) = granted::client(&world.api, granted.clone(), streams_lists);
            let mut sidecar = World::start_with(settings.clone(), client);
            if once.is_some() {
                assert_eq!(sidecar.ended().await, Ok(()));
            } else {
                until(|| sidecar.health.is_ready()).await;
                // Each watch is open, too.
                until(|| world.api.open_watches() == 2).await;
            }
            assert_eq!(world.read("d/k") + &world.read("e/key"), "1hunter2");
            all_used.extend(used.lock().clone());
            drop(sidecar);
            until(|| world.api.open_watches() == 0).await;
        }
        assert_eq!(all_used, granted, "{file}");
        for right in &granted {
            let mut less = granted.clone();
            less.remove(right);
            let (client, _) = granted::client(&world.api, less, false);
            let mut sidecar = World::start_with(settings.clone(), client);
            let (verb, resource, name) = right;
            let name = name.as_deref().unwrap();
            let expected = format!("cannot {verb} {resource} {name} in namespace n: ");
            if once.is_some() {
                let error = sidecar.ended().await.unwrap_err().to_string();
                assert!(error.starts_with(&expected), "{error}");
                continue;
            }
            until(|| {
                let live = sidecar.health.live(None, Instant::now());
                live.body.contains(&expected)
            })
            .await;
        }
    }
}

// sidecar 48
#[tokio::test(start_paused = true)]
async fn once_ends_when_all_is_there_or_with_the_reason() {
    let world = World::new();
    let mut settings = world.settings(&[("d", map("app"))]);
    settings.once = Some(Duration::from_mins(5));
    let mut sidecar = world.start(settings.clone());
    let began = Instant::now();
    let error = sidecar.ended().await.unwrap_err().to_string();
    assert!(error.contains("n/app"), "{error}");
    assert!(began.elapsed() >= Duration::from_mins(5));

    let mut sidecar = world.start(settings.clone());
    sleep(Duration::from_secs(30)).await;
    world.config_map("app", "k", "1");
    assert_eq!(sidecar.ended().await, Ok(()));
    assert_eq!(world.read("d/k"), "1");
    let verbs: BTreeSet<_> = world
        .api
        .audit()
        .records()
        .iter()
        .map(|one| one.verb)
        .collect();
    assert_eq!(verbs, BTreeSet::from(["list"]));

    let _fault = world.api.faults().inject(Fault::on_any().status(403));
    let began = Instant::now();
    let error = world.start(settings).ended().await.unwrap_err().to_string();
    assert!(
        error.starts_with("cannot list configmaps app in namespace n"),
        "{error}"
    );
    assert!(began.elapsed() < Duration::from_secs(1));
}

// sidecar 50
#[tokio::test(start_paused = true)]
async fn end_leaves_the_files_and_is_soon() {
    let world = World::new();
    world.config_map("app", "k", "1");
    let mut sidecar = world.start(world.settings(&[("d", map("app"))]));
    until(|| sidecar.health.is_ready()).await;
    let began = Instant::now();
    sidecar.shutdown.cancel();
    assert_eq!(sidecar.ended().await, Ok(()));
    assert!(began.elapsed() <= Duration::from_secs(1));
    assert_eq!(world.read("d/k"), "1");
}

// sidecar 51
#[tokio::test(start_paused = true)]
async fn hangup_brings_back_what_somebody_has_changed() {
    let world = World::new();
    world.config_map("app", "k", "1");
    let sidecar = world.start(world.settings(&[("d", map("app"))]));
    until(|| sidecar.health.is_ready()).await;
    fs::remove_file(world.path("d/..data")).unwrap();
    sidecar.hangups.send(()).await.unwrap();
    until(|| world.read("d/k") == "1").await;
    assert!(sidecar.health.ready(Instant::now()).is_ok);
    world.config_map("app", "k", "2");
    until(|| world.read("d/k") == "2").await;
}

#[tokio::test(start_paused = true)]
async fn endless_times_count_as_a_year() {
    let world = World::new();
    world.config_map("app", "k", "1");
    let mut settings = world.settings(&[("d", map("app"))]);
    settings.max_silence = Duration::MAX;
    let sidecar = world.start(settings.clone());
    until(|| sidecar.health.is_ready()).await;
    assert!(sidecar.health.live(None, Instant::now()).is_ok);
    settings.once = Some(Duration::MAX);
    assert_eq!(world.start(settings).ended().await, Ok(()));
}
