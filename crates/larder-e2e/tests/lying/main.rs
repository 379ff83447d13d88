//! Clients against an API server that lies: managers and pod source on the real transport.
//!
//! Connections are pipes, so time is paused and thousands of answers with all their delays take seconds. A seed, which
//! is printed, determines all that the server invents. `LARDER_SEED` repeats a run, up to the order in which tokio
//! polls ready tasks.
//!
//! Invariants that the test protects:
//! 1. No answer ends a client or makes it panic.
//! 2. Memory stays below [`MAX_RESIDENT_BYTES`], the server's included.
//! 3. While the server lies about some objects, clients have the others. Once it is honest, they have all.

#![expect(clippy::unwrap_used, reason = "a test panics with what it saw")]
#![expect(clippy::print_stdout, reason = "the seed repeats a run")]

mod inventions;
mod liar;

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use larder::{ConfigMapManager, ManagerConfig, SecretManager, WatchScope};
use larder_objects::{ConfigMap, Secret};
use larder_pods::{
    FullName, PodUid, SourcePods,
    source::{ApiSource, SourceEvent},
};
use larder_transport::{ClusterSource, Config, Metrics};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinSet};

use liar::Liar;

/// Answers with lies in them, for each protocol, unless `LARDER_LIES` says otherwise.
const ANSWERS: usize = 1000;
/// Objects of each kind, and pods.
const OBJECTS: usize = 6;
/// Most memory that the process may take at any time. The server's share is in it.
const MAX_RESIDENT_BYTES: u64 = 100 << 20;

fn object(kind: &str, index: usize, value: &str) -> Value {
    let (field, value) = match kind {
        "Secret" => ("data", json!({"key": "dmFsdWU="})),
        _ => ("data", json!({"key": value})),
    };
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {"namespace": "n", "name": format!("true-{index}")}, field: value,
    })
}

fn pod(index: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "n", "name": format!("pod-{index}"), "uid": format!("uid-{index}")},
        "spec": {"nodeName": "node", "containers": [{"name": "c", "image": "i"}], "volumes": [
            {"name": "m", "configMap": {"name": format!("true-{index}")}},
            {"name": "s", "secret": {"secretName": format!("true-{index}")}},
        ]},
    })
}

fn seed() -> u64 {
    let seed = std::env::var("LARDER_SEED").ok();
    seed.map_or_else(|| fastrand::u64(..), |seed| seed.parse().unwrap())
}

/// Held by each test: memory and panics are counted for the whole process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The most memory that this process has taken since the last call of [`forget_peak`].
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Number of panics of any task since the hook was set.
fn count_panics() -> Arc<AtomicUsize> {
    let panics = Arc::new(AtomicUsize::new(0));
    let (counted, print) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        counted.fetch_add(1, Ordering::SeqCst);
        print(panic);
    }));
    panics
}

/// The pods that a source has reported.
async fn follow(
    mut reports: mpsc::Receiver<larder_pods::source::SourceReport>,
    pods: Arc<Mutex<BTreeMap<FullName, PodUid>>>,
) {
    while let Some(report) = reports.recv().await {
        let SourceEvent::Pods(reported) = report.event else {
            continue;
        };
        let mut pods = pods.lock();
        let entry = |pod: &larder_pods::StoredPod| {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            (FullName::of(&pod.metadata), PodUid::new(uid))
        };
        match reported {
            SourcePods::All(all) => *pods = all.iter().map(entry).collect(),
            SourcePods::One(pod) => pods.extend([entry(&pod)]),
            SourcePods::Gone(name, uid) => {
                if pods.get(&name) == Some(&uid) {
                    pods.remove(&name);
                }
            }
        }
    }
    panic!("the pod source has ended");
}

/// The clients of one node.
struct Node {
    /// With one watch per object, and with one per namespace.
    config_maps: [ConfigMapManager; 2],
    secrets: [SecretManager; 2],
    pods: Arc<Mutex<BTreeMap<FullName, PodUid>>>,
    tasks: JoinSet<()>,
    panics: Arc<AtomicUsize>,
    /// Has the kubeconfig.
    _directory: TempDir,
}

impl Node {
    async fn start(liar: &Liar, http2: bool) -> Self {
        let panics = count_panics();
        let config = Config::default()
            .connector(liar.connector())
            .http2_prior_knowledge(http2);
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("kubeconfig");
        let kubeconfig = r#"{"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://localhost:6443"}}]}"#;
        fs::write(&path, kubeconfig).unwrap();
        let context = None;
        let source = ClusterSource::Kubeconfig { path, context };
        let connected = larder_transport::connect(source, config, Metrics::default());
        let (client, _) = connected.await.unwrap();
        let configs = [WatchScope::Object, WatchScope::Namespace]
            .map(|scope| ManagerConfig::default().watch_scope(scope));
        let (sender, reports) = mpsc::channel(16);
        let pods = Arc::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(ApiSource::new(client.clone(), "node").run(sender));
        tasks.spawn(follow(reports, Arc::clone(&pods)));
        let node = Self {
            config_maps: configs
                .each_ref()
                .map(|config| ConfigMapManager::new(client.clone(), config).unwrap()),
            secrets: configs
                .each_ref()
                .map(|config| SecretManager::new(client.clone(), config).unwrap()),
            pods,
            tasks,
            panics,
            _directory: directory,
        };
        for index in 0..OBJECTS {
            let pod: Pod = serde_json::from_value(pod(index)).unwrap();
            for (config_maps, secrets) in node.config_maps.iter().zip(&node.secrets) {
                config_maps.register_pod(&pod);
                secrets.register_pod(&pod);
            }
        }
        node
    }

    /// Reads an object from all managers. Returns the value that the first one has.
    async fn read(&self, name: &str) -> Option<String> {
        for secrets in &self.secrets {
            // Lies may be believed.
            let _ = secrets.get("n", name).await;
        }
        let _ = self.config_maps[1].get("n", name).await;
        let read = self.config_maps[0].get("n", name).await;
        Some(read.ok()?.data.get("key")?.to_string())
    }

    fn check_alive(&mut self) {
        let ended = self.tasks.try_join_next();
        assert!(ended.is_none(), "the pod source has ended");
        assert_eq!(self.panics.load(Ordering::SeqCst), 0);
    }

    /// Waits until every manager has `value` and the pods are those of the server. `awaited` names the expected state.
    async fn has(&self, value: &str, awaited: &Mutex<String>) {
        let second = Duration::from_secs(1);
        for index in 0..OBJECTS {
            let name = format!("true-{index}");
            for (scope, manager) in self.config_maps.iter().enumerate() {
                let has = |map: &ConfigMap| map.data.get("key").is_some_and(|held| held == value);
                loop {
                    let read = manager.get("n", &name).await;
                    if read.as_ref().is_ok_and(|map| has(map)) {
                        break;
                    }
                    *awaited.lock() = format!("scope {scope}, ConfigMap {name}: {read:?}");
                    tokio::time::sleep(second).await;
                }
            }
            for (scope, manager) in self.secrets.iter().enumerate() {
                let has = |secret: &Secret| secret.data.contains_key("key");
                loop {
                    let read = manager.get("n", &name).await;
                    if read.as_ref().is_ok_and(|secret| has(secret)) {
                        break;
                    }
                    *awaited.lock() = format!("scope {scope}, Secret {name}: {read:?}");
                    tokio::time::sleep(second).await;
                }
            }
        }
        "pods".clone_into(&mut awaited.lock());
        let pods: BTreeMap<_, _> = (0..OBJECTS)
            .map(|index| {
                let name = format!("pod-{index}_n").parse::<FullName>().unwrap();
                (name, PodUid::new(format!("uid-{index}")))
            })
            .collect();
        while *self.pods.lock() != pods {
            tokio::time::sleep(second).await;
        }
    }
}

async fn survives(http2: bool) {
    let seed = seed();
    println!("LARDER_SEED={seed}");
    let answers = std::env::var("LARDER_LIES").map_or(ANSWERS, |count| count.parse().unwrap());
    // The clients' delays come from here.
    fastrand::seed(seed);
    let liar = Liar::new(seed);
    for index in 0..OBJECTS {
        for kind in ["ConfigMap", "Secret"] {
            liar.api.apply(&object(kind, index, "value")).unwrap();
        }
        liar.api.apply(&pod(index)).unwrap();
    }
    let mut node = Node::start(&liar, http2).await;
    forget_peak();
    let (mut reads, mut answered) = (0, 0);
    for round in 0.. {
        if liar.answers() >= answers {
            break;
        }
        // Objects that are not read are not watched for long, and a silent watch lasts as long as the server likes.
        let name = format!("true-{}", round % OBJECTS);
        let value = node.read(&name).await;
        if name == liar::HONEST_NAME {
            reads += 1;
            answered += usize::from(value.is_some());
            assert!(value.is_none_or(|value| value == "value"));
        }
        if round % 60 == 59 {
            liar.cut();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        node.check_alive();
    }
    let peak = peak_bytes();
    println!(
        "{} answers, {answered} of {reads} reads, {} MiB at most",
        liar.answers(),
        peak >> 20
    );
    assert!(peak < MAX_RESIDENT_BYTES, "{} MiB", peak >> 20);
    assert!(answered > reads / 2, "{answered} of {reads} reads");

    liar.be_honest();
    for index in 0..OBJECTS {
        let object = object("ConfigMap", index, "truth");
        liar.api.apply(&object).unwrap();
    }
    // A lie with a valid version is undetectable until the client lists again.
    liar.api.compact();
    liar.cut();
    let awaited = Mutex::new(String::new());
    let has = tokio::time::timeout(Duration::from_hours(6), node.has("truth", &awaited)).await;
    assert!(
        has.is_ok(),
        "six hours after the last lie: {}; {:?}",
        awaited.lock(),
        node.pods.lock()
    );
    node.check_alive();
}

#[tokio::test(start_paused = true)]
async fn clients_survive_a_lying_server_over_http2() {
    let _alone = ALONE.lock().await;
    survives(true).await;
}

#[tokio::test(start_paused = true)]
async fn clients_survive_a_lying_server_over_http1() {
    let _alone = ALONE.lock().await;
    survives(false).await;
}
