use fastrand::Rng;
use larder_projection::{
    File, FileData, VolumePath,
    disk::{PodVolume, VolumeHost},
};
use prometheus_client::registry::Registry;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{
    clock::Clock,
    on_change::{HookList, OnChangeConfig, OnChangeParts},
};

const UID: &str = "00000000-0000-4000-8000-000000000001";
const VOLUME: (&str, VolumeKind) = ("config", VolumeKind::ConfigMap);

/// An agent whose key ends with it, as on a machine without a directory in memory.
struct KeylessAgent {
    on_change: OnChange,
    hooks: Arc<PodHooks>,
}

fn agent(root: &TempDir) -> KeylessAgent {
    let mut hooks = HookList::default();
    hooks
        .add(&json!({"pods": ["web/*"], "signal": "SIGHUP"}))
        .unwrap();
    let on_change = OnChange::new(OnChangeParts {
        config: OnChangeConfig {
            hooks: hooks.into_hooks(),
            ..OnChangeConfig::default()
        },
        program: Vec::new(),
        host: Arc::new(VolumeHost::open_without_mounts(root.path()).unwrap()),
        beside: None,
        clock: Clock::system(),
        events: None,
        registry: &mut Registry::default(),
        rng: Rng::with_seed(1),
    });
    let hooks = on_change.hooks(&pod(), None, None).unwrap();
    KeylessAgent { on_change, hooks }
}

fn pod() -> Arc<StoredPod> {
    let pod = json!({
        "metadata": {"namespace": "web", "name": "nginx", "uid": UID},
        "spec": {
            "containers": [{"name": "main", "volumeMounts": [{"name": VOLUME.0, "mountPath": "/etc/app"}]}],
            "volumes": [{"name": VOLUME.0, "configMap": {"name": "c"}}],
        },
    });
    Arc::new(StoredPod::new(serde_json::from_value(pod).unwrap()).unwrap())
}

/// A pass up to its end, with the volume written as `text`.
fn swap(agent: &KeylessAgent, text: &str) -> Observer {
    let KeylessAgent { on_change, hooks } = agent;
    let pod = pod();
    let is_new = on_change.statuses(UID).is_empty();
    let (name, kind) = VOLUME;
    let file = File {
        data: FileData::Borrowed(text.as_bytes()),
        mode: 0o644,
        owner: None,
    };
    let payload = BTreeMap::from([(VolumePath::parse("app.conf").unwrap(), file)]);
    let mut observer = on_change.observer(&pod, hooks, is_new);
    let part = PartKey::Volume(name.into(), kind);
    observer.begin(&pod.decode(), std::iter::once(part));
    observer.before_volume(name, kind, &payload);
    let volume = PodVolume {
        pod_uid: UID,
        name,
        kind,
        fs_group: None,
        size_limit: None,
        mount_points: &[],
    };
    let now = Clock::system().now();
    let set_up = on_change.host().set_up(&volume, &payload, now).unwrap();
    observer.volume(name, kind, &payload, set_up.written.swapped);
    observer
}

/// An agent that has delivered `1`, and its root directory.
fn delivered() -> (TempDir, KeylessAgent) {
    let root = tempfile::tempdir().unwrap();
    let agent = agent(&root);
    swap(&agent, "1").finish(&pod().decode());
    (root, agent)
}

/// The state of the hook after the first pass of a new agent, which finds the volume as `text`.
fn state_after_restart(root: &TempDir, text: &str) -> String {
    let agent = agent(root);
    swap(&agent, text).finish(&pod().decode());
    agent.on_change.statuses(UID)[0].state.clone()
}

// on-change 59
#[test]
fn crash_between_a_swap_and_the_end_of_its_pass_is_a_change() {
    let (root, first) = delivered();
    drop(swap(&first, "2"));
    assert_eq!(state_after_restart(&root, "2"), "Waiting");
}

// on-change 59
#[test]
fn crash_in_the_first_pass_after_a_restart_is_a_change() {
    let (root, _) = delivered();
    drop(swap(&agent(&root), "2"));
    assert_eq!(state_after_restart(&root, "2"), "Waiting");
}

// on-change 57, 62
#[test]
fn restart_without_a_change_is_none() {
    let (root, first) = delivered();
    // The pass has found the same content.
    drop(swap(&first, "1"));
    assert_eq!(state_after_restart(&root, "1"), "Idle");
    assert_eq!(state_after_restart(&root, "1"), "Idle");
}

// on-change 16
#[test]
fn content_that_goes_back_within_the_quiet_period_leaves_nothing_uncertain() {
    let (root, first) = delivered();
    for text in ["2", "1"] {
        swap(&first, text).finish(&pod().decode());
    }
    assert_eq!(state_after_restart(&root, "1"), "Idle");
}
