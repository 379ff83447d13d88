use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use fastrand::Rng;
use larder_projection::{
    File, FileData, VolumePath,
    disk::{PodVolume, VolumeHost},
};
use prometheus_client::registry::Registry;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    task::{JoinSet, yield_now},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    clock::Clock,
    on_change::{HookList, OnChangeConfig, OnChangeParts},
};

/// Longest wait for a search.
const PATIENCE: Duration = Duration::from_secs(20);
const UID: &str = "00000000-0000-4000-8000-000000000001";
const VOLUME: (&str, VolumeKind) = ("config", VolumeKind::ConfigMap);

/// An agent whose key ends with it, as on a machine without a directory in memory.
struct KeylessAgent {
    on_change: OnChange,
    pod: Arc<StoredPod>,
    hooks: Arc<PodHooks>,
}

fn agent(root: &TempDir) -> KeylessAgent {
    agent_with(root, "30s", Path::new("/etc/app"))
}

/// An agent whose hook waits for `debounce`; the pod mounts its volume at `mount_point`.
fn agent_with(root: &TempDir, debounce: &str, mount_point: &Path) -> KeylessAgent {
    let mut hooks = HookList::default();
    hooks
        .add(&json!({"pods": ["web/*"], "signal": "SIGHUP", "debounce": debounce}))
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
    let pod = pod(mount_point);
    let hooks = on_change.hooks(&pod, None, None).unwrap();
    KeylessAgent {
        on_change,
        pod,
        hooks,
    }
}

fn pod(mount_point: &Path) -> Arc<StoredPod> {
    let pod = json!({
        "metadata": {"namespace": "web", "name": "nginx", "uid": UID},
        "spec": {
            "containers": [{"name": "main", "volumeMounts": [{"name": VOLUME.0, "mountPath": mount_point}]}],
            "volumes": [{"name": VOLUME.0, "configMap": {"name": "c"}}],
        },
    });
    Arc::new(StoredPod::new(serde_json::from_value(pod).unwrap()).unwrap())
}

/// A pass up to its end, with the volume written as `text`.
fn swap(agent: &KeylessAgent, text: &str) -> Observer {
    let KeylessAgent {
        on_change,
        pod,
        hooks,
    } = agent;
    let is_new = on_change.statuses(UID).is_empty();
    let (name, kind) = VOLUME;
    let file = File {
        data: FileData::Borrowed(text.as_bytes()),
        mode: 0o644,
        owner: None,
    };
    let payload = BTreeMap::from([(VolumePath::parse("app.conf").unwrap(), file)]);
    let mut observer = on_change.observer(pod, hooks, is_new);
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

/// A whole pass, with the volume written as `text`.
fn pass(agent: &KeylessAgent, text: &str) {
    swap(agent, text).finish(&agent.pod.decode());
}

/// An agent that has delivered `1`, and its root directory.
fn delivered() -> (TempDir, KeylessAgent) {
    let root = tempfile::tempdir().unwrap();
    let agent = agent(&root);
    pass(&agent, "1");
    (root, agent)
}

/// The state of the hook after the first pass of a new agent, which finds the volume as `text`.
fn state_after_restart(root: &TempDir, text: &str) -> String {
    let agent = agent(root);
    pass(&agent, text);
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
        pass(&first, text);
    }
    assert_eq!(state_after_restart(&root, "1"), "Idle");
}

#[tokio::test]
async fn record_of_an_announced_change_is_not_written_again_before_the_attempt() {
    let root = tempfile::tempdir().unwrap();
    let agent = agent_with(&root, "0s", Path::new("/etc/app"));
    pass(&agent, "1");
    // Each record is another file.
    let record = || {
        let path = root.path().join("pods").join(UID).join("on-change.json");
        fs::metadata(path).unwrap().ino()
    };
    let delivered = record();
    let observer = swap(&agent, "2");
    let announced = record();
    assert_ne!(announced, delivered);
    observer.finish(&agent.pod.decode());
    assert_eq!(agent.on_change.statuses(UID)[0].state, "Running");
    assert_eq!(record(), announced);
}

/// A process in a mount namespace of its own. Dropped, it is killed.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// Invariant 4 of `task`: no switch of threads lies between a swap and a signal to a known process.
#[tokio::test]
async fn pass_itself_signals_a_known_process() {
    let (root, at) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = at.path().canonicalize().unwrap();
    let agent = agent_with(&root, "0s", &at);
    pass(&agent, "1");
    let (name, kind) = VOLUME;
    let volume = agent.on_change.host().volume_path(UID, kind, name);
    let script = "mount --bind \"$0\" \"$1\" || exit; trap 'echo signaled' HUP; echo ready
        while read -r line; do echo \"$line\"; done";
    let started = Command::new("unshare")
        .args(["-m", "bash", "-c", script])
        .args([&volume, &at])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut container = Container(started.unwrap());
    let output = container.0.stdout.take().unwrap();
    let mut output = BufReader::new(output).lines().map(Result::unwrap);
    if output.next().as_deref() != Some("ready") {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI must be able to make mount namespaces");
        return;
    }
    // The first round has to search, which the task does.
    let mut task = JoinSet::new();
    task.spawn(agent.on_change.clone().run(CancellationToken::new()));
    pass(&agent, "2");
    let began = Instant::now();
    loop {
        let state = agent.on_change.statuses(UID)[0].state.clone();
        if state == "Idle" {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "still {state}");
        yield_now().await;
    }
    assert_eq!(output.next().as_deref(), Some("signaled"));
    // The task has no thread before this test waits.
    pass(&agent, "3");
    let mut input = container.0.stdin.take().unwrap();
    writeln!(input, "end").unwrap();
    assert_eq!(output.next().as_deref(), Some("signaled"));
    assert_eq!(output.next().as_deref(), Some("end"));
}
