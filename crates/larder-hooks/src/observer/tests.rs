use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _};

use fastrand::Rng;
use larder_containers::processes::Processes;
use larder_inputs::clock::Clock;
use larder_on_change::{LeftOut, parse::HookList};
use larder_projection::{
    File, Payload, Value, VolumeKind, VolumePath,
    disk::{PodVolume, VolumeHost},
};
use prometheus_client::registry::Registry;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{HookNode, OnChangeConfig, round};

const UID: &str = "00000000-0000-4000-8000-000000000001";
/// The volume that each hook looks at.
const VOLUME: &str = "config";
/// Another one.
const OTHER: &str = "other";
const KIND: VolumeKind = VolumeKind::ConfigMap;

fn files<'a>(payload: &'a Payload<'_>) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let files = payload.iter();
    files.map(|(path, file)| (path.as_str(), &*file.data))
}

/// A machine on which agents run one after another.
struct Machine {
    root: TempDir,
    /// A directory in memory; `None` if the machine has none, so that the key of an agent ends with it.
    memory: Option<TempDir>,
    /// The hooks of the pod: the volumes and the quiet period of each.
    hooks: Vec<(&'static [&'static str], &'static str)>,
}

impl Machine {
    fn new(memory: Option<TempDir>, debounce: &'static str) -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            memory,
            hooks: vec![(&[VOLUME], debounce)],
        }
    }

    /// No agent knows the key of an earlier one.
    fn without_memory(debounce: &'static str) -> Self {
        Self::new(None, debounce)
    }

    /// All agents have the same key.
    fn with_memory(debounce: &'static str) -> Self {
        Self::new(Some(tempfile::tempdir_in("/dev/shm").unwrap()), debounce)
    }

    fn of_each_kind(debounce: &'static str) -> [Self; 2] {
        [Self::without_memory(debounce), Self::with_memory(debounce)]
    }

    /// An agent that has not made a pass yet.
    fn start_agent(&self) -> OnePodAgent {
        let mut hooks = HookList::default();
        for (volumes, debounce) in &self.hooks {
            let hook = json!({
                "pods": ["web/*"],
                "signal": "SIGHUP",
                "volumes": volumes,
                "debounce": debounce,
            });
            hooks.add(serde_json::from_value(hook).unwrap()).unwrap();
        }
        let memory = self.memory.iter().map(|memory| memory.path().to_owned());
        let on_change = OnChange::new(
            OnChangeConfig {
                hooks: hooks.into_hooks(),
                key_dirs: memory.collect(),
                ..OnChangeConfig::default()
            },
            Vec::new(),
            HookNode {
                host: Arc::new(VolumeHost::open_without_mounts(self.root.path()).unwrap()),
                kubelet: None,
                processes: Processes::new("/proc", self.root.path().canonicalize().unwrap()),
                serves_manifests: false,
                clock: Clock::system(),
                events: None,
                changed: Arc::new(|_| {}),
            },
            &mut Registry::default(),
            Rng::with_seed(1),
        );
        let pod = pod();
        let hooks = on_change.hooks(&pod, None, None).unwrap();
        OnePodAgent {
            on_change,
            pod,
            hooks,
        }
    }

    /// An agent that has delivered `1`.
    fn deliver(&self) -> OnePodAgent {
        let agent = self.start_agent();
        agent.pass("1");
        agent
    }

    /// The state of the hook after the first pass of a new agent, which finds that the volume should be `text`.
    fn state_after_restart(&self, text: &str) -> String {
        let agent = self.start_agent();
        agent.pass(text);
        agent.state()
    }

    /// Identifies the record of the pod on disk: the next one is another file.
    fn record(&self) -> u64 {
        let path = self.root.path().join("pods").join(UID);
        fs::metadata(path.join("on-change.json")).unwrap().ino()
    }
}

/// An agent with one pod.
struct OnePodAgent {
    on_change: OnChange,
    pod: Arc<StoredPod>,
    hooks: Arc<PodHooks>,
}

impl OnePodAgent {
    /// A pass until `volume` is about to be written as `text`.
    fn announce_to(&self, volume: &str, text: &str) -> Observer {
        let is_new = self.on_change.statuses(UID).is_empty();
        let mut observer = self.on_change.observer(&self.pod, &self.hooks, is_new);
        let parts = [VOLUME, OTHER].map(|name| PartKey::Volume(name.into(), KIND));
        observer.begin(parts.into_iter());
        let (left_out, of) = (LeftOut::default(), |_: &str| None);
        let objects = ItemObjects {
            left_out: &left_out,
            of: &of,
        };
        let part = PartKey::Volume(volume.into(), KIND);
        observer.announce(&part, files(&payload(text)), &objects);
        observer
    }

    /// A pass up to its end, with `volume` written as `text`.
    fn swap_in(&self, name: &str, text: &str) -> Observer {
        let mut observer = self.announce_to(name, text);
        let volume = PodVolume {
            pod_uid: UID,
            name,
            kind: KIND,
            fs_group: None,
            size_limit: None,
            mount_points: &[],
        };
        let (payload, now) = (payload(text), Clock::system().now());
        let set_up = self.on_change.node().host.set_up(&volume, &payload, now);
        let part = PartKey::Volume(name.into(), KIND);
        let (left_out, of) = (LeftOut::default(), |_: &str| None);
        let objects = ItemObjects {
            left_out: &left_out,
            of: &of,
        };
        let swapped = set_up.unwrap().written.swapped;
        observer.add(part, files(&payload), &objects, swapped);
        observer
    }

    fn announce(&self, text: &str) -> Observer {
        self.announce_to(VOLUME, text)
    }

    fn swap(&self, text: &str) -> Observer {
        self.swap_in(VOLUME, text)
    }

    /// A whole pass, with the volume written as `text`.
    fn pass(&self, text: &str) {
        self.swap(text).finish();
    }

    /// Begins the attempts that are due, up to their first step. Returns their number.
    async fn begin_attempts(&self) -> usize {
        let (due, _) = self.on_change.due();
        for attempt in &due {
            round::record(&self.on_change, &attempt.uid).await;
        }
        due.len()
    }

    fn state(&self) -> String {
        self.on_change.statuses(UID)[0].state.clone()
    }
}

fn payload(text: &str) -> Payload<'_> {
    let file = File {
        data: Value::Borrowed(text.as_bytes()),
        mode: 0o644,
        owner: None,
    };
    BTreeMap::from([(VolumePath::parse("app.conf").unwrap(), file)])
}

fn pod() -> Arc<StoredPod> {
    let pod = json!({
        "metadata": {"namespace": "web", "name": "nginx", "uid": UID},
        "spec": {
            "containers": [{"name": "main", "volumeMounts": [{"name": VOLUME, "mountPath": "/etc/app"}]}],
            "volumes": [
                {"name": VOLUME, "configMap": {"name": "c"}},
                {"name": OTHER, "configMap": {"name": "d"}},
            ],
        },
    });
    Arc::new(StoredPod::new(serde_json::from_value(pod).unwrap()).unwrap())
}

// on-change 59
#[test]
fn crash_between_a_swap_and_the_end_of_its_pass_is_a_change() {
    for machine in Machine::of_each_kind("0s") {
        drop(machine.deliver().swap("2"));
        assert_eq!(machine.state_after_restart("2"), "Waiting");
    }
    let machine = Machine::without_memory("30s");
    drop(machine.deliver().swap("2"));
    assert_eq!(machine.state_after_restart("2"), "Waiting");
}

// on-change 59
#[test]
fn crash_in_the_first_pass_after_a_restart_is_a_change() {
    for machine in Machine::of_each_kind("0s") {
        machine.deliver();
        drop(machine.start_agent().swap("2"));
        assert_eq!(machine.state_after_restart("2"), "Waiting");
    }
}

// on-change 57
#[test]
fn crash_before_the_swap_is_no_change_where_the_key_is_kept() {
    let machine = Machine::with_memory("0s");
    drop(machine.deliver().announce("2"));
    assert_eq!(machine.state_after_restart("1"), "Idle");
}

// on-change 59
#[tokio::test]
async fn crash_during_an_attempt_is_a_change_even_if_the_content_goes_back() {
    for machine in Machine::of_each_kind("0s") {
        let agent = machine.deliver();
        agent.pass("2");
        assert_eq!(agent.begin_attempts().await, 1);
        drop(agent);
        assert_eq!(machine.state_after_restart("1"), "Waiting");
    }
}

// on-change 59
#[tokio::test]
async fn content_that_goes_back_during_an_attempt_leaves_it_uncertain() {
    for machine in Machine::of_each_kind("0s") {
        let agent = machine.deliver();
        agent.pass("2");
        assert_eq!(agent.begin_attempts().await, 1);
        // The disk has the content of the last success again.
        drop(agent.swap("1"));
        assert_eq!(machine.state_after_restart("1"), "Waiting");
    }
}

// on-change 59
#[tokio::test]
async fn crash_of_an_agent_that_put_the_content_back_leaves_the_attempt_uncertain() {
    for machine in Machine::of_each_kind("0s") {
        let agent = machine.deliver();
        agent.pass("2");
        assert_eq!(agent.begin_attempts().await, 1);
        drop(machine.start_agent().swap("1"));
        assert_eq!(machine.state_after_restart("1"), "Waiting");
    }
}

// on-change 59
#[tokio::test]
async fn attempt_is_uncertain_once_the_key_is_gone() {
    let mut machine = Machine::with_memory("0s");
    let agent = machine.deliver();
    agent.pass("2");
    assert_eq!(agent.begin_attempts().await, 1);
    machine.memory = None;
    assert_eq!(machine.state_after_restart("2"), "Waiting");
}

// on-change 57, 62
#[test]
fn restart_without_a_change_is_none() {
    for machine in Machine::of_each_kind("30s") {
        // The second pass has found the same content.
        drop(machine.deliver().swap("1"));
        assert_eq!(machine.state_after_restart("1"), "Idle");
        assert_eq!(machine.state_after_restart("1"), "Idle");
    }
}

// on-change 16
#[test]
fn content_that_goes_back_within_the_quiet_period_leaves_nothing_uncertain() {
    for machine in Machine::of_each_kind("30s") {
        let agent = machine.deliver();
        agent.pass("2");
        agent.pass("1");
        assert_eq!(machine.state_after_restart("1"), "Idle");
    }
}

// on-change 57
#[test]
fn content_that_goes_back_while_no_agent_runs_is_no_change_where_the_key_is_kept() {
    let machine = Machine::with_memory("30s");
    machine.deliver().pass("2");
    assert_eq!(machine.state_after_restart("1"), "Idle");
}

// Where the key is kept, the next agent can compare: nothing is written before an attempt begins.
#[test]
fn change_that_waits_for_its_quiet_period_leaves_the_record_alone() {
    let machine = Machine::with_memory("30s");
    let agent = machine.deliver();
    let delivered = machine.record();
    let observer = agent.swap("2");
    assert_eq!(machine.record(), delivered);
    observer.finish();
    assert_eq!(agent.state(), "Waiting");
    assert_eq!(machine.record(), delivered);
}
