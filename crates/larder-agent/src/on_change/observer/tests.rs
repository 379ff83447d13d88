use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use fastrand::Rng;
use larder_actions::processes::Processes;
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
const PATIENCE: Duration = Duration::from_mins(1);
const UID: &str = "00000000-0000-4000-8000-000000000001";
/// The volume that each hook looks at.
const VOLUME: &str = "config";
/// Another one.
const OTHER: &str = "other";
const KIND: VolumeKind = VolumeKind::ConfigMap;

/// A machine on which agents run one after another.
struct Machine {
    root: TempDir,
    /// A directory in memory; `None` if the machine has none, so that the key of an agent ends with it.
    memory: Option<TempDir>,
    /// The hooks of the pod: the volumes and the quiet period of each.
    hooks: Vec<(&'static [&'static str], &'static str)>,
    mount_point: PathBuf,
}

impl Machine {
    fn new(memory: Option<TempDir>, debounce: &'static str) -> Self {
        Self {
            root: tempfile::tempdir().unwrap(),
            memory,
            hooks: vec![(&[VOLUME], debounce)],
            mount_point: "/etc/app".into(),
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
            hooks.add(&hook).unwrap();
        }
        let memory = self.memory.iter().map(|memory| memory.path().to_owned());
        let on_change = OnChange::new(OnChangeParts {
            config: OnChangeConfig {
                hooks: hooks.into_hooks(),
                key_dirs: memory.collect(),
                ..OnChangeConfig::default()
            },
            program: Vec::new(),
            host: Arc::new(VolumeHost::open_without_mounts(self.root.path()).unwrap()),
            kubelet: None,
            processes: Processes::new("/proc", self.root.path().canonicalize().unwrap()),
            clock: Clock::system(),
            events: None,
            registry: &mut Registry::default(),
            rng: Rng::with_seed(1),
        });
        let pod = pod(&self.mount_point);
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
        observer.begin(&self.pod.decode(), parts.into_iter());
        observer.before_volume(volume, KIND, &payload(text));
        observer
    }

    /// The same up to its end, with `volume` written as `text`.
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
        let set_up = self.on_change.host().set_up(&volume, &payload, now);
        observer.volume(name, KIND, &payload, set_up.unwrap().written.swapped);
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
        self.swap(text).finish(&self.pod.decode());
    }

    fn state(&self) -> String {
        self.on_change.statuses(UID)[0].state.clone()
    }
}

fn payload(text: &str) -> Payload<'_> {
    let file = File {
        data: FileData::Borrowed(text.as_bytes()),
        mode: 0o644,
        owner: None,
    };
    BTreeMap::from([(VolumePath::parse("app.conf").unwrap(), file)])
}

fn pod(mount_point: &Path) -> Arc<StoredPod> {
    let pod = json!({
        "metadata": {"namespace": "web", "name": "nginx", "uid": UID},
        "spec": {
            "containers": [{"name": "main", "volumeMounts": [{"name": VOLUME, "mountPath": mount_point}]}],
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
        assert_eq!(agent.state(), "Running");
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
        // The disk has the content of the last success again.
        drop(agent.swap("1"));
        assert_eq!(machine.state_after_restart("1"), "Waiting");
    }
}

// on-change 59
#[tokio::test]
async fn crash_of_an_agent_that_put_the_content_back_leaves_the_attempt_uncertain() {
    for machine in Machine::of_each_kind("0s") {
        machine.deliver().pass("2");
        drop(machine.start_agent().swap("1"));
        assert_eq!(machine.state_after_restart("1"), "Waiting");
    }
}

// on-change 59
#[tokio::test(start_paused = true)]
async fn attempt_that_was_due_when_another_hook_fired_is_uncertain_in_any_case() {
    let mut machine = Machine::with_memory("30s");
    machine.hooks.push((&[OTHER], "0s"));
    let agent = machine.deliver();
    agent.swap_in(OTHER, "1").finish(&agent.pod.decode());
    agent.pass("2");
    tokio::time::advance(Duration::from_secs(30)).await;
    agent.swap_in(OTHER, "2").finish(&agent.pod.decode());
    let states = agent.on_change.statuses(UID);
    assert!(
        states.iter().all(|hook| hook.state == "Running"),
        "{states:?}"
    );
    // The first hook does not fire at once, so this change is not announced.
    drop(agent.swap("1"));
    assert_eq!(machine.state_after_restart("1"), "Waiting");
}

// on-change 59
#[tokio::test]
async fn attempt_is_uncertain_once_the_key_is_gone() {
    let mut machine = Machine::with_memory("0s");
    machine.deliver().pass("2");
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

#[tokio::test]
async fn record_of_an_announced_change_is_not_written_again_before_the_attempt() {
    for machine in Machine::of_each_kind("0s") {
        let agent = machine.deliver();
        let delivered = machine.record();
        let observer = agent.swap("2");
        let announced = machine.record();
        assert_ne!(announced, delivered);
        observer.finish(&agent.pod.decode());
        assert_eq!(agent.state(), "Running");
        assert_eq!(machine.record(), announced);
    }
}

// Where the key is kept, the next agent can compare: nothing is written before an attempt begins.
#[test]
fn change_that_waits_for_its_quiet_period_leaves_the_record_alone() {
    let machine = Machine::with_memory("30s");
    let agent = machine.deliver();
    let delivered = machine.record();
    let observer = agent.swap("2");
    assert_eq!(machine.record(), delivered);
    observer.finish(&agent.pod.decode());
    assert_eq!(agent.state(), "Waiting");
    assert_eq!(machine.record(), delivered);
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
    for mut machine in Machine::of_each_kind("0s") {
        let at = tempfile::tempdir().unwrap();
        let at = at.path().canonicalize().unwrap();
        machine.mount_point.clone_from(&at);
        let agent = machine.deliver();
        let volume = agent.on_change.host().volume_path(UID, KIND, VOLUME);
        let script = "mount --bind \"$0\" \"$1\" && mount -t tmpfs none \"$2\" || exit; trap 'echo signaled' HUP; echo ready
        while read -r line; do echo \"$line\"; done";
        let started = Command::new("unshare")
            .args(["-m", "bash", "-c", script])
            .args([&volume, &at, agent.on_change.host().path()])
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
        agent.pass("2");
        let began = Instant::now();
        loop {
            let state = agent.state();
            if state == "Idle" {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "still {state}");
            yield_now().await;
        }
        assert_eq!(output.next().as_deref(), Some("signaled"));
        // The task has no thread before this test waits.
        agent.pass("3");
        let mut input = container.0.stdin.take().unwrap();
        writeln!(input, "end").unwrap();
        assert_eq!(output.next().as_deref(), Some("signaled"));
        assert_eq!(output.next().as_deref(), Some("end"));
    }
}
