//! The mode beside a kubelet; the test writes the files in place of a kubelet. The scenarios that need the order and
//! the periods of a kubelet are in `larder-e2e`.

use larder_agent::{
    beside::BesideConfig,
    status::{Phase, VolumeStatus},
};
use larder_kubelet::{kubelet_dir::Mounts, swaps::SwapDetection};
use larder_projection::{
    File, FileData, Payload, VolumePath,
    disk::{PodVolume, VolumeHost, VolumeKind},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{NODE, Node, config_map, pod, secret};

/// A node whose volumes a kubelet writes.
struct Beside {
    node: Node,
    /// The kubelet's root directory.
    root: TempDir,
    _locks: TempDir,
}

/// The Node, as its kubelet reports it.
fn ready(status: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "status": {
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "v1.36.2", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    })
}

impl Beside {
    fn prepare() -> Self {
        let mut node = Node::prepare();
        node.apply(&ready("True"));
        let (root, locks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut config = BesideConfig::new(root.path());
        config.mounts = Mounts::NotExpected;
        config.swaps = SwapDetection::Inotify;
        config.lock_dir = locks.path().join("lock");
        node.beside = Some(config);
        Self {
            node,
            root,
            _locks: locks,
        }
    }

    /// Creates `pod`, and returns its UID.
    fn create(&self, pod: &Value) -> String {
        self.node.server.apply(pod).unwrap();
        let name = pod["metadata"]["name"].as_str().unwrap();
        self.uid(name)
    }

    fn uid(&self, name: &str) -> String {
        let pod = self
            .node
            .server
            .get(larder_apiserver::Kind::Pod, "default", name);
        let pod = pod.expect("the pod exists");
        pod["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The kubelet writes a volume.
    fn write(&self, uid: &str, kind: VolumeKind, name: &str, files: &[(&str, &str)]) {
        let files = files.iter().map(|(path, text)| {
            let file = File {
                data: FileData::Borrowed(text.as_bytes()),
                mode: 0o644,
                owner: None,
            };
            (VolumePath::parse(path).unwrap(), file)
        });
        let payload: Payload<'_> = files.collect();
        let host = VolumeHost::open_without_mounts(self.root.path()).unwrap();
        let volume = PodVolume {
            pod_uid: uid,
            name,
            kind,
            fs_group: None,
            size_limit: None,
            mount_points: &[],
        };
        let now = self.node.clock.now();
        host.set_up(&volume, &payload, now).unwrap();
    }

    fn touches(&self, pod: &str) -> usize {
        self.node.requests("patch", &format!("/pods/{pod}/status"))
    }

    async fn volume(&self, pod: &str, volume: &str, phase: Phase) -> VolumeStatus {
        self.node
            .wait(&format!("{pod}/{volume} to be {phase:?}"), |node| {
                node.volume(pod, volume)
                    .filter(|found| found.delivery.phase == phase)
            })
            .await
    }
}

// beside-kubelet 1, 6
#[tokio::test]
async fn change_is_touched_once_and_verified() {
    let mut beside = Beside::prepare();
    beside.node.apply(&config_map("app", &[("level", "info")]));
    let uid = beside.create(&pod("web").config_map("config", "app").build());
    beside.write(&uid, VolumeKind::ConfigMap, "config", &[("level", "info")]);
    beside.node.run();
    let volume = beside.volume("web", "config", Phase::Delivered).await;
    assert!(
        volume
            .path
            .starts_with(beside.root.path().to_str().unwrap())
    );
    assert_eq!(beside.touches("web"), 0, "it was up to date");

    beside.node.apply(&config_map("app", &[("level", "debug")]));
    beside
        .node
        .wait("the touch", |_| (beside.touches("web") == 1).then_some(()))
        .await;
    beside.write(&uid, VolumeKind::ConfigMap, "config", &[("level", "debug")]);
    let volume = beside.volume("web", "config", Phase::Delivered).await;
    assert!(volume.verified_in_ms.is_some());

    for line in [
        "beside_touches_total{result=\"ok\"} 1",
        "beside_verifications_total{result=\"swapped\"} 1",
        "beside_volumes{state=\"Delivered\"} 1",
        "beside_delivery_seconds_count 1",
    ] {
        // The swap may be noticed before the answer to the touch.
        beside
            .node
            .wait(line, |node| node.metrics().contains(line).then_some(()))
            .await;
    }
    assert_eq!(beside.touches("web"), 1);
    let status = beside.node.status().beside.unwrap();
    assert_eq!(status.kubelet_version, "v1.36.2");
    assert_eq!(status.ttl_secs, 0);
    // larder's own directory contains no files of pods, and nothing was added to the kubelet's.
    assert!(!beside.node.path().join("by-name").exists());
    beside.node.stop().await;
}

// beside-kubelet 10
#[tokio::test]
async fn node_that_is_not_ready_is_not_touched() {
    let mut beside = Beside::prepare();
    beside.node.apply(&ready("Unknown"));
    beside.node.apply(&secret("tls", &[("key", "2")]));
    let uid = beside.create(&pod("web").secret("keys", "tls").build());
    beside.write(&uid, VolumeKind::Secret, "keys", &[("key", "1")]);
    beside.node.run();
    let wait = beside.node.wait("its reason", |node| {
        let reason = node.volume("web", "keys")?.delivery.reason;
        reason.starts_with("kubelet not ready since").then_some(())
    });
    wait.await;
    let volume = beside.volume("web", "keys", Phase::Waiting).await;
    assert_eq!(volume.files, 1);
    // The pod was looked at.
    beside.node.settled().await;
    assert_eq!(beside.touches("web"), 0);
}

// beside-kubelet 11
#[tokio::test]
async fn missing_object_is_reported_in_the_kubelets_words_and_not_touched() {
    let mut beside = Beside::prepare();
    beside.create(&pod("web").config_map("config", "app").build());
    beside.node.run();
    let volume = beside.volume("web", "config", Phase::Failing).await;
    assert_eq!(volume.delivery.reason, "configmap \"app\" not found");
    assert_eq!(beside.touches("web"), 0);
}

#[tokio::test]
async fn excluded_pod_is_not_watched() {
    let mut beside = Beside::prepare();
    beside.node.apply(&config_map("app", &[("level", "info")]));
    let excluded = pod("web")
        .config_map("config", "app")
        .annotation("larder.dev/refresh-policy", "never")
        .build();
    beside.create(&excluded);
    beside.node.run();
    beside.node.settled().await;
    let status = beside.node.pod("web").unwrap();
    assert_eq!(status.delivery.phase, Phase::Excluded);
    assert_eq!(beside.node.status().objects, []);
}

// beside-kubelet 32
#[tokio::test]
async fn volume_that_is_mounted_by_sub_path_only_is_not_touched() {
    let mut beside = Beside::prepare();
    beside.node.apply(&config_map("app", &[("level", "debug")]));
    let mut pod = pod("web").config_map("config", "app").build();
    pod["spec"]["containers"][0]["volumeMounts"][0]["subPath"] = json!("level");
    let uid = beside.create(&pod);
    beside.write(&uid, VolumeKind::ConfigMap, "config", &[("level", "info")]);
    beside.node.run();
    let wait = beside.node.wait("its reason", |node| {
        let reason = node.volume("web", "config")?.delivery.reason;
        (reason == "left to the kubelet: level differs").then_some(())
    });
    wait.await;
    // The pod was looked at.
    beside.node.settled().await;
    assert_eq!(beside.touches("web"), 0);
}

#[tokio::test]
async fn dry_run_shows_what_it_would_touch() {
    let mut beside = Beside::prepare();
    beside.node.beside.as_mut().unwrap().dry_run = true;
    beside.node.apply(&config_map("app", &[("level", "debug")]));
    let uid = beside.create(&pod("web").config_map("config", "app").build());
    beside.write(&uid, VolumeKind::ConfigMap, "config", &[("level", "info")]);
    beside.node.run();
    let wait = beside.node.wait("its reason", |node| {
        let reason = node.volume("web", "config")?.delivery.reason;
        (reason == "would touch the pod: level differs").then_some(())
    });
    wait.await;
    assert_eq!(beside.touches("web"), 0);
}
