//! The agent is killed repeatedly while content changes. In the end each process has been notified of its last content.
//!
//! `LARDER_SOAK_SEED` repeats the decisions of a run, not its timing.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use fastrand::Rng;
use larder_e2e::{ScratchDir, rounds};
use tokio::time::{Instant, sleep};

use crate::agent::command;

/// Containers, each with an object of its own.
const CONTAINERS: usize = 3;
/// Edits in all, times `LARDER_ROUNDS`.
const EDITS: usize = 40;
/// Edits for each kill, which comes after one of them.
const EDITS_PER_KILL: usize = 5;
/// Longest wait for what follows an edit. Rounds that are due at a start get a random pause of up to 10 s.
const PATIENCE: Duration = Duration::from_mins(1);

/// A container: a process in mount and PID namespaces of its own that reads its file again when it gets HUP.
struct Container {
    child: Child,
    /// The file to which it writes the content that it has read.
    seen: PathBuf,
}

impl Container {
    fn start(folder: &Path, volume: &Path, number: usize) -> Self {
        let (at, seen) = (
            mount_point(folder, number),
            folder.join(format!("seen-{number}")),
        );
        let script = folder.join(format!("script-{number}"));
        let root = folder.join("root");
        let root = root.display();
        let (volume, at, shown) = (volume.display(), at.display(), seen.display());
        let text = format!(
            "set -e; mount --bind '{volume}' '{at}'
             # No container shows the directory of the agent.
             mount -t tmpfs none '{root}'
             # A path that is looked up while the set is swapped may go with the old set. A signal in between reads newer
             # content and moves it.
             read_again() {{ until cat '{at}/f' > '{shown}.tmp'; do :; done; mv '{shown}.tmp' '{shown}' || :; }}
             trap read_again HUP; read_again
             while :; do sleep 1000 & wait $! || :; done"
        );
        fs::write(&script, text).unwrap();
        let child = Command::new("unshare")
            .args(["-p", "-f", "--kill-child", "unshare", "-m", "bash"])
            .arg(script)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, seen }
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mount_point(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("at-{number}"))
}

/// The agent, and what it serves.
struct Machine {
    folder: ScratchDir,
    agent: Option<Child>,
}

impl Machine {
    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn start(&mut self) {
        let child = command(self.folder.path())
            .arg("--manifests")
            .arg(self.folder.path().join("manifests"))
            .spawn();
        self.agent = Some(child.unwrap());
    }

    fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        let ended = agent.try_wait().unwrap();
        assert!(
            ended.is_none(),
            "the agent has ended by itself: {}",
            self.log()
        );
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Replaces the manifest of an object in one step.
    fn edit(&self, number: usize, text: &str) {
        let object = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: c-{number}}}, data: {{f: \"{text}\"}}}}\n"
        );
        let path = self
            .folder
            .path()
            .join(format!("manifests/c-{number}.yaml"));
        let new = self.folder.path().join("new");
        fs::write(&new, object).unwrap();
        fs::rename(new, path).unwrap();
    }

    fn pod(&self, number: usize) {
        let at = mount_point(self.folder.path(), number);
        fs::create_dir(&at).unwrap();
        let hook = "[{signal: SIGHUP, debounce: {min: 5ms, max: 20ms}, retry: {min: 1s, max: 1m}}]";
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p-{number}\n  annotations: {{larder.dev/on-change: '{hook}'}}\nspec:\n  \
             containers:\n  - name: main\n    image: i\n    volumeMounts: [{{name: v, mountPath: {}}}]\n  \
             volumes: [{{name: v, configMap: {{name: c-{number}}}}}]\n",
            at.display()
        );
        fs::write(
            self.folder
                .path()
                .join(format!("manifests/p-{number}.yaml")),
            pod,
        )
        .unwrap();
    }

    fn volume(&self, number: usize) -> PathBuf {
        let pod = self.root().join(format!("by-name/default/p-{number}"));
        pod.join("volumes/kubernetes.io~configmap/v")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            // It may have ended already.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

async fn until(what: &str, machine: &Machine, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(
            Instant::now() < deadline,
            "waited in vain for {what}: {}",
            machine.log()
        );
        sleep(Duration::from_millis(5)).await;
    }
}

// on-change 58 to 60: real processes, and an agent that dies at any moment.
#[tokio::test]
async fn every_process_is_notified_of_its_last_content_whenever_the_agent_dies() {
    let probe = Command::new("unshare")
        .args(["-m", "-p", "-f", "true"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI must be able to make mount and PID namespaces");
        return;
    }
    let seed = std::env::var("LARDER_SOAK_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    let mut rng = Rng::with_seed(seed);
    let mut machine = Machine {
        folder: ScratchDir::with_prefix("larder-on-change-").unwrap(),
        agent: None,
    };
    fs::create_dir(machine.folder.path().join("manifests")).unwrap();
    let mut last = vec!["0".to_owned(); CONTAINERS];
    for (number, text) in last.iter().enumerate() {
        machine.edit(number, text);
        machine.pod(number);
    }
    machine.start();
    let mut containers = Vec::new();
    for number in 0..CONTAINERS {
        let volume = machine.volume(number);
        until("the volumes", &machine, || volume.join("f").exists()).await;
        let volume = fs::canonicalize(volume).unwrap();
        let container = Container::start(machine.folder.path(), &volume, number);
        until("the containers", &machine, || container.seen.exists()).await;
        containers.push(container);
    }
    let mut killing = 0;
    for edit in 0..rounds(EDITS) {
        let number = rng.usize(..CONTAINERS);
        // Some edits restore earlier content.
        last[number] = rng.u8(..4).to_string();
        machine.edit(number, &last[number]);
        sleep(Duration::from_micros(rng.u64(..30_000))).await;
        if edit % EDITS_PER_KILL == 0 {
            killing = rng.usize(edit..edit + EDITS_PER_KILL);
        }
        if edit == killing {
            machine.kill();
            if rng.bool() {
                let number = rng.usize(..CONTAINERS);
                last[number] = rng.u8(..4).to_string();
                machine.edit(number, &last[number]);
            }
            machine.start();
            sleep(Duration::from_micros(rng.u64(..400_000))).await;
        }
    }
    for (number, container) in containers.iter().enumerate() {
        let told = || fs::read_to_string(&container.seen).is_ok_and(|text| text == last[number]);
        let what = format!("container {number} to see {:?}, seed {seed}", last[number]);
        until(&what, &machine, told).await;
    }
}
