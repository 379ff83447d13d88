//! A reboot without the API server: a node of 110 pods and 500 objects, with the identity of a node, against either API
//! server. Everything that was in place before is restored, and after the API server returns every file has its
//! content.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use larder_agent::{
    TaskError,
    agent::{Agent, AgentHandle},
    checkpoint::ClusterId,
    config::{CheckpointConfig, Config, Flags, Host},
    root_dir::RootDir,
};
use larder_checkpoint::KeySource;
use larder_e2e::{Files, Identity, NODE, Server, pod_files, reboot};
use larder_projection::disk::VolumeHost;
use larder_transport::ClusterSource;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::connect::connect;

/// Longer than anything here takes, restarts of a real server included.
const PATIENCE: Duration = Duration::from_mins(3);
/// Pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const PODS: usize = 110;
const CONFIG_MAPS: usize = 400;
const SECRETS: usize = 100;
/// Requests of the test at a time.
const AT_ONCE: usize = 16;
/// The budget of a start, after the wait for the API server. A build without optimization has none.
const BUDGET: Option<Duration> = if cfg!(debug_assertions) {
    None
} else {
    Some(Duration::from_secs(1))
};

/// An agent with a checkpoint.
struct Offline {
    agent: AgentHandle,
    shutdown: CancellationToken,
    tasks: JoinSet<Result<(), TaskError>>,
}

impl Offline {
    async fn start(server: &Server, root: &Path, key: &Path) -> Self {
        let kubeconfig = server.kubeconfig(Identity::Node).unwrap();
        let source = ClusterSource::Kubeconfig {
            path: kubeconfig.clone(),
            context: None,
        };
        let (authority, name) = source.server_identity().unwrap();
        let flags = Flags {
            node_name: Some(NODE.to_owned()),
            root_dir: Some(root.to_owned()),
            ..Flags::default()
        };
        let (mut config, _) = Config::load(None, flags, &Host::current()).unwrap();
        config.checkpoint = Some(CheckpointConfig::new(vec![KeySource::File(key.to_owned())]));
        let volumes = VolumeHost::open_without_mounts(root).unwrap();
        let client = connect(kubeconfig).await;
        let agent = Agent::builder(config, RootDir::lock(root).unwrap(), volumes, client)
            .cluster(ClusterId::new(&authority, &name))
            .build()
            .unwrap();
        let (handle, shutdown) = (agent.handle(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.run(shutdown.clone()));
        Self {
            agent: handle,
            shutdown,
            tasks,
        }
    }

    async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.join_next().await.unwrap().unwrap().unwrap();
    }

    /// Waits until `look` returns true.
    async fn wait(&self, what: &str, mut look: impl FnMut(&AgentHandle) -> bool) {
        let waited = timeout(PATIENCE, async {
            while !look(&self.agent) {
                sleep(POLL_INTERVAL).await;
            }
        });
        let done = waited.await;
        assert!(
            done.is_ok(),
            "waited in vain for {what}: {:?}",
            self.agent.status().checkpoint
        );
    }
}

fn value(seed: &str) -> String {
    seed.bytes().cycle().take(1024).map(char::from).collect()
}

fn config_map(number: usize, seed: &str) -> Value {
    json!({"metadata": {"name": format!("map-{number}")}, "data": {"settings": value(seed)}})
}

fn secret(number: usize, seed: &str) -> Value {
    json!({"metadata": {"name": format!("secret-{number}")}, "stringData": {"password": value(seed)}})
}

/// A pod with its share of the objects: each of them in a volume, and one of each kind in the environment.
fn pod(number: usize) -> Value {
    let of = |count: usize| (number..count).step_by(PODS);
    let maps = of(CONFIG_MAPS).map(
        |map| json!({"name": format!("map-{map}"), "configMap": {"name": format!("map-{map}")}}),
    );
    let secrets = of(SECRETS).map(|secret| {
        let source = json!({"secretName": format!("secret-{secret}"), "defaultMode": 0o400});
        json!({"name": format!("secret-{secret}"), "secret": source})
    });
    let volumes: Vec<_> = maps.chain(secrets).collect();
    let mounts = volumes.iter().map(|volume| {
        json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap())})
    });
    let mounts: Vec<_> = mounts.collect();
    let reference = json!({"name": format!("map-{number}")});
    json!({
        "metadata": {"name": format!("pod-{number}")},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{
                "name": "main", "image": "i", "volumeMounts": mounts,
                "envFrom": [{"configMapRef": reference}],
            }],
            "volumes": volumes,
        },
    })
}

/// Creates objects, several at a time.
async fn create<K>(client: &Client, objects: impl Iterator<Item = Value>)
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + serde::de::DeserializeOwned
        + serde::Serialize
        + Clone
        + std::fmt::Debug,
{
    let api: Api<K> = Api::default_namespaced(client.clone());
    let requests = objects.map(|object| {
        let api = api.clone();
        async move {
            let object = serde_json::from_value(object).unwrap();
            api.create(&PostParams::default(), &object).await.map(drop)
        }
    });
    let created = stream::iter(requests).buffer_unordered(AT_ONCE);
    created.try_collect::<()>().await.unwrap();
}

/// Either everything is in place again, or nothing more will arrive.
async fn settled(node: &Offline) {
    node.wait("everything", |agent| {
        let status = agent.status();
        agent.is_ready()
            && status.pods.len() == PODS
            && status.objects.len() == CONFIG_MAPS + SECRETS
    })
    .await;
}

fn say(text: &str) {
    // Straight to the stream, which no test runner captures.
    io::stderr().write_all(text.as_bytes()).unwrap();
}

/// Creates the Node, its pods and their objects.
async fn fill(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
    // The embedded server may know it already.
    let _ = nodes.create(&PostParams::default(), &node).await;
    create::<ConfigMap>(
        client,
        (0..CONFIG_MAPS).map(|number| config_map(number, "old")),
    )
    .await;
    create::<Secret>(client, (0..SECRETS).map(|number| secret(number, "old"))).await;
    create::<Pod>(client, (0..PODS).map(pod)).await;
}

/// Changes ten objects of each kind, and deletes a pod and a Secret.
async fn change(client: &Client) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let changed = json!({"data": {"settings": value("new")}});
    for number in 0..10 {
        let patch = Patch::Merge(&changed);
        let name = format!("map-{number}");
        maps.patch(&name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let changed = json!({"stringData": {"password": value("new")}});
    for number in 0..10 {
        let patch = Patch::Merge(&changed);
        let name = format!("secret-{number}");
        secrets
            .patch(&name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }
    let now = DeleteParams::default().grace_period(0);
    pods.delete("pod-109", &now).await.unwrap();
    secrets.delete("secret-50", &now).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reboot_without_the_api_server_restores_a_full_node() {
    // offline 1 to 4
    let mut server = Server::start().await.unwrap();
    let client = server.client().await.unwrap();
    fill(&client).await;
    let (root, keys) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let key = keys.path().join("key");
    let node = Offline::start(&server, root.path(), &key).await;
    settled(&node).await;
    node.wait("the checkpoint", |agent| {
        let copies = agent.status().checkpoint.unwrap().entries;
        copies == PODS + CONFIG_MAPS + SECRETS + 2
    })
    .await;
    let before = pod_files(root.path());
    assert!(
        before.len() >= CONFIG_MAPS + SECRETS + PODS,
        "{}",
        before.len()
    );
    node.stop().await;
    let sealed = fs::read_dir(root.path().join("checkpoint")).unwrap();
    let size: u64 = sealed
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();

    // The machine reboots while the API server is down.
    server.kill().await;
    reboot(root.path());
    let start = Instant::now();
    let node = Offline::start(&server, root.path(), &key).await;
    node.wait("all pods from the checkpoint", |agent| {
        let status = agent.status();
        status.pods.len() == PODS
            && status
                .pods
                .iter()
                .all(|pod| pod.delivery.phase == larder_agent::status::Phase::Stale)
    })
    .await;
    let took = start.elapsed().saturating_sub(Duration::from_secs(1));
    say(&format!(
        "{}: {PODS} pods and {} objects in place {} ms after `checkpoint.after`; {} KiB on disk\n",
        server.name(),
        CONFIG_MAPS + SECRETS,
        took.as_millis(),
        size / 1024
    ));
    assert!(BUDGET.is_none_or(|budget| took <= budget), "{took:?}");
    assert!(
        pod_files(root.path()) == before,
        "some file differs from before the reboot"
    );

    // Objects change and are deleted unseen by the agent: the server returns for the test before it does for the agent.
    node.stop().await;
    server.restart().await.unwrap();
    change(&client).await;
    server.kill().await;
    let node = Offline::start(&server, root.path(), &key).await;
    node.wait("the checkpoint to be served", |agent| {
        let checkpoint = agent.status().checkpoint.unwrap();
        checkpoint
            .serving
            .is_some_and(|serving| serving.pods == PODS)
    })
    .await;
    server.restart().await.unwrap();
    node.wait("the return", |agent| {
        let status = agent.status();
        let stale = status.objects.iter().any(|object| object.state == "stale");
        !stale && status.pods.len() == PODS - 1 && status.checkpoint.unwrap().serving.is_none()
    })
    .await;
    // `secret-50` was deleted; its files stay, like those of any deleted required object.
    let expected = expected(&before);
    node.wait("every file to be what the API server has", |_| {
        pod_files(root.path()) == expected
    })
    .await;
    node.stop().await;
}

/// The previous files, with the changes of the test.
fn expected(before: &Files) -> Files {
    let gone = before
        .keys()
        .find(|path| path.to_str().unwrap().contains("~configmap/map-109/"));
    let gone: PathBuf = gone.unwrap().components().take(2).collect();
    let mut expected = before.clone();
    expected.retain(|path, _| !path.starts_with(&gone));
    for (path, (_, content)) in &mut expected {
        let text = path.to_str().unwrap();
        let is_of = |volume: &str, number: usize| text.contains(&format!("~{volume}-{number}/"));
        if (0..10).any(|number| is_of("configmap/map", number) || is_of("secret/secret", number)) {
            *content = value("new").into_bytes();
        }
    }
    // The variables of the first ten pods come from the first ten ConfigMaps.
    let pods: Vec<PathBuf> = (0..10)
        .map(|number| {
            let volume = format!("~configmap/map-{number}/");
            let path = before
                .keys()
                .find(|path| path.to_str().unwrap().contains(&volume));
            path.unwrap().components().take(2).collect()
        })
        .collect();
    for (path, (_, content)) in &mut expected {
        if path.ends_with("env.json") && pods.iter().any(|pod| path.starts_with(pod)) {
            let text = String::from_utf8(content.clone()).unwrap();
            *content = text.replace(&value("old"), &value("new")).into_bytes();
        }
    }
    expected
}
