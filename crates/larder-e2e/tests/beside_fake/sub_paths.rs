//! Mounts by `subPath` in running containers follow what the kubelet has written.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use larder_agent::status::{SubPathState, SubPathStatus};
use larder_e2e::{fake_kubelet::container_id, pods::PodBuilder};
use serde_json::json;
use tokio::time::sleep;

use crate::world::{World, pod, secs, uid};

/// Whether this process may make containers, which CI must be able to.
fn may_contain() -> bool {
    let made = Command::new("unshare").args(["-m", "true"]).output();
    let may = made.is_ok_and(|output| output.status.success());
    assert!(
        may || std::env::var_os("CI").is_none(),
        "CI must be able to make mount namespaces"
    );
    may
}

/// A container in a mount namespace of its own, which shows nothing of the kubelet's directory but the key `n` of the
/// pod's volume, at `/etc/larder-test`. It prints the file for each line that it reads.
struct Container {
    child: Child,
    shown: BufReader<ChildStdout>,
}

impl Container {
    /// Starts it as the runtime does, after so many restarts of it.
    fn start(world: &World, restarts: u32) -> Self {
        let key = world.path("web", "v").join("n").canonicalize().unwrap();
        let pods = key.ancestors().find(|path| path.ends_with("pods"));
        let kubelet = pods.unwrap().parent().unwrap();
        let script = "set -e; mount -t tmpfs none /etc; touch /etc/larder-test
            mount --bind -o ro \"$0\" /etc/larder-test; mount -t tmpfs none \"$1\"; echo ready
            while read -r _; do cat /etc/larder-test; echo; done";
        let mut child = Command::new("unshare")
            .args(["-m", "bash", "-c", script])
            .args([&*key, kubelet])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let shown = BufReader::new(child.stdout.take().unwrap());
        let mut container = Self { child, shown };
        assert_eq!(container.line(), "ready");
        container.show_to(world, restarts);
        container
    }

    /// What larder takes for `/proc` has the process as it is, but for its control groups, which no test makes.
    fn show_to(&self, world: &World, restarts: u32) {
        let pid = self.child.id().to_string();
        let proc = world.processes.path();
        let directory = proc.join(&pid);
        fs::create_dir_all(directory.join("ns")).unwrap();
        for (process, files) in [
            (
                &*pid,
                &["stat", "status", "mountinfo", "uid_map", "ns/mnt"][..],
            ),
            ("self", &["mountinfo", "uid_map"]),
        ] {
            fs::create_dir_all(proc.join(process)).unwrap();
            for file in files {
                // Of this process, it is there already.
                let _ = symlink(
                    Path::new("/proc").join(process).join(file),
                    proc.join(process).join(file),
                );
            }
        }
        let id = container_id(&uid("web"), "main", restarts);
        fs::write(
            directory.join("cgroup"),
            format!("0::/kubepods/pod1/{id}\n"),
        )
        .unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.shown.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What a process in it reads now.
    fn reads(&mut self) -> String {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        self.line()
    }

    /// The lines of its table of mounts with the file.
    fn mounts(&self) -> usize {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.child.id())).unwrap();
        table
            .lines()
            .filter(|line| line.contains(" /etc/larder-test "))
            .count()
    }

    fn end(mut self, world: &World) {
        fs::remove_dir_all(world.processes.path().join(self.child.id().to_string())).unwrap();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn web() -> PodBuilder {
    let mount = json!([{"name": "v", "mountPath": "/etc/larder-test", "subPath": "n"}]);
    pod("web")
        .config_map("v", "app")
        .set("/spec/containers/0/volumeMounts", mount)
}

fn shown(world: &World) -> Option<SubPathStatus> {
    world.volume("web", "v")?.sub_paths.into_iter().next()
}

/// Changes the object; the kubelet alone writes the volume.
async fn change(world: &World, text: &str) {
    world.config_map("app", &[("n", text)]);
    world.until_file("web", "v", "n", text).await;
    world.until_delivered("web").await;
}

// subpath 1
// subpath 18
#[tokio::test(start_paused = true)]
async fn running_container_sees_what_the_kubelet_has_written() {
    if !may_contain() {
        return;
    }
    let mut world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world
        .run(web().annotation("larder.dev/subpath-updates", "true"))
        .await;
    let mut container = Container::start(&world, 0);
    for number in 1..=10 {
        let before = shown(&world).and_then(|shown| shown.replaced_at);
        change(&world, &number.to_string()).await;
        let is_new = || shown(&world).is_some_and(|shown| shown.replaced_at > before);
        world.until("the mount to be replaced", is_new).await;
        assert_eq!(container.reads(), number.to_string());
        assert_eq!(container.mounts(), 1);
        assert_eq!(shown(&world).unwrap().state, SubPathState::Live);
    }
    assert_eq!(
        world.metric("subpath_replacements_total{result=\"replaced\"}"),
        Some(10.0)
    );

    // The kubelet, then larder, starts again: nothing is replaced for it.
    world.kubelet.stop();
    world.config_map("app", &[("n", "11")]);
    sleep(secs(20)).await;
    assert_eq!(container.reads(), "10");
    world.kubelet.resume();
    world.until_file("web", "v", "n", "11").await;
    let live = || container.reads() == "11";
    world.until("the mount to be replaced", live).await;
    world.restart_larder().await;
    world.until_delivered("web").await;
    let live = || shown(&world).is_some_and(|shown| shown.state == SubPathState::Live);
    world.until("the mount to be compared", live).await;
    assert_eq!(shown(&world).unwrap().replaced_at, None);
    change(&world, "12").await;
    let live = || container.reads() == "12";
    world.until("the mount to be replaced", live).await;

    // The container starts again: the runtime has mounted what is there, and the new one is followed.
    container.end(&world);
    world.kubelet.restart("web");
    let mut container = Container::start(&world, 1);
    assert_eq!(container.reads(), "12");
    sleep(secs(10)).await;
    change(&world, "13").await;
    let live = || container.reads() == "13";
    world.until("the mount to be replaced", live).await;
    assert_eq!(container.mounts(), 1);

    // The pod ends: nothing of it is mounted on the machine.
    let volume = world.path("web", "v");
    container.end(&world);
    world.delete(larder_apiserver::ApiKind::Pod, "web");
    world.until("the volume to go", || !volume.exists()).await;
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(volume.to_str().unwrap()), "{table}");
}

// subpath 2
#[tokio::test(start_paused = true)]
async fn running_container_of_a_pod_that_does_not_ask_keeps_its_content() {
    if !may_contain() {
        return;
    }
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(web()).await;
    let mut container = Container::start(&world, 0);
    for text in ["1", "2"] {
        world.config_map("app", &[("n", text)]);
        // Nothing that a container sees changes, so the pod is not touched: the kubelet writes when it syncs it.
        world.until_file("web", "v", "n", text).await;
        sleep(secs(10)).await;
        assert_eq!(container.reads(), "0");
    }
    let shown = shown(&world).unwrap();
    assert_eq!(shown.state, SubPathState::Pinned);
    assert!(
        shown.reason.contains("larder.dev/subpath-updates"),
        "{shown:?}"
    );
    container.end(&world);
}
