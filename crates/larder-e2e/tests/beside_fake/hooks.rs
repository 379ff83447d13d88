//! Hooks run when the kubelet has written what larder has computed.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use larder_agent::{on_change::PodChange, status::Phase};
use larder_e2e::fake_kubelet::container_id;
use larder_on_change::{
    Hook, Paths,
    parse::{self, ConfiguredHook, HookOrigin, PodSelector},
};
use serde_json::json;
use tokio::{sync::mpsc, time::sleep};

use crate::world::{Setup, World, millis, pod, secs, uid};

/// A process that stands for the main process of a container. It shows a file on SIGHUP.
struct Process {
    child: Child,
    shown: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it. The world shows it as the main process of `web`, after so many restarts of it.
    fn start(world: &World, restarts: u32) -> Self {
        let file = world.path("web", "v").join("n");
        let mut child = Command::new("bash")
            .arg("-c")
            .arg("trap 'cat \"$0\"; echo' HUP; echo ready; read -r _")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let shown = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, shown };
        assert_eq!(process.line(), "ready");
        let directory = world.processes.path().join(process.child.id().to_string());
        fs::create_dir(&directory).unwrap();
        // In hundredths of a second since boot: long ago, and in the far future.
        let started = if restarts == 0 {
            1
        } else {
            u64::from(u32::MAX)
        };
        let pid = process.child.id();
        // It catches SIGHUP.
        let stat = format!(
            "{pid} (bash) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {started} 1 1 1 1 1 1 1 1 0 0 0 1"
        );
        fs::write(directory.join("stat"), stat).unwrap();
        let status = format!("NSpid:\t{pid}\t1\n");
        fs::write(directory.join("status"), status).unwrap();
        let id = container_id(&uid("web"), "main", restarts);
        let groups = format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope\n");
        fs::write(directory.join("cgroup"), groups).unwrap();
        process
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.shown.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends it; returns what it has shown that was not read yet.
    fn end(mut self, world: &World) -> String {
        let directory = world.processes.path().join(self.child.id().to_string());
        fs::remove_dir_all(directory).unwrap();
        self.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut rest = String::new();
        self.shown.read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap();
        rest
    }
}

/// A node with the pod `web`, whose volume `v` shows the ConfigMap `app`, and with a hook for it.
async fn with_signal() -> World {
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let web = pod("web").config_map("v", "app");
    world
        .run(web.annotation("on-change.larder.dev/main", "signal:SIGHUP"))
        .await;
    world
}

/// How many signals ended like this.
fn runs(world: &World, outcome: &str) -> f64 {
    let metrics = world.metrics();
    let labels = [
        "action=\"signal\"".to_owned(),
        format!("outcome=\"{outcome}\""),
    ];
    let mut lines = metrics
        .lines()
        .filter(|line| line.contains("on_change_runs_total{"));
    let line = lines.find(|line| labels.iter().all(|label| line.contains(label)));
    let (_, count) = line.unwrap().rsplit_once(' ').unwrap();
    count.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn hook_of_the_configuration_fires_as_one_of_an_annotation_does() {
    let mut world = World::without_larder(Setup::default()).await;
    let mut hooks = parse::hooks("[{signal: SIGHUP}]", HookOrigin::Configuration, None).unwrap();
    world.configured.push(ConfiguredHook {
        pods: PodSelector::Names(Paths::default()),
        hook: hooks.remove(0).into(),
    });
    world.start_larder();
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    let mut process = Process::start(&world, 0);
    world.config_map("app", &[("n", "1")]);
    let sent = || runs(&world, "succeeded") > 0.0;
    world.until("the signal", sent).await;
    assert_eq!(process.line(), "1");
    assert_eq!(process.end(&world), "");
}

#[tokio::test(start_paused = true)]
async fn signal_is_sent_once_after_the_bytes() {
    // beside-kubelet 39
    let world = with_signal().await;
    let mut process = Process::start(&world, 0);
    world.config_map("app", &[("n", "1")]);
    let sent = || runs(&world, "succeeded") > 0.0;
    let taken = world.until("the signal", sent).await;
    assert!(taken <= millis(600), "{taken:?}");
    assert_eq!(process.line(), "1", "the file when the signal came");
    // Repair passes and periodic syncs bring nothing new.
    sleep(secs(300)).await;
    assert_eq!(process.end(&world), "");
}

#[tokio::test(start_paused = true)]
async fn container_that_was_restarted_after_the_swap_gets_no_signal() {
    // beside-kubelet 39
    let world = with_signal().await;
    let process = Process::start(&world, 0);
    world.config_map("app", &[("n", "1")]);
    world.until_file("web", "v", "n", "1").await;
    assert_eq!(process.end(&world), "");
    let next = Process::start(&world, 1);
    world.kubelet.restart("web");
    let skipped = || runs(&world, "skipped") > 0.0;
    world.until("the round", skipped).await;
    sleep(secs(60)).await;
    assert_eq!(next.end(&world), "");
}

// on-change 66, 67
#[tokio::test(start_paused = true)]
async fn object_that_is_left_out_sends_no_signal_also_across_restarts() {
    let left_out = |text: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"n": text},
            "metadata": {"name": "app", "annotations": {"larder.dev/on-change": "false"}},
        })
    };
    let mut world = with_signal().await;
    let mut process = Process::start(&world, 0);
    world.apply(&left_out("1"));
    world.until_file("web", "v", "n", "1").await;
    sleep(secs(60)).await;
    world.restart_larder().await;
    world.until_delivered("web").await;
    world.apply(&left_out("2"));
    world.until_file("web", "v", "n", "2").await;
    sleep(secs(60)).await;
    let meanwhile = async |world: &World| world.apply(&left_out("3"));
    world.restart_larder_after(meanwhile).await;
    world.until_file("web", "v", "n", "3").await;
    sleep(secs(60)).await;
    // What has changed meanwhile counts from now on.
    world.config_map("app", &[("n", "3")]);
    let sent = || runs(&world, "succeeded") > 0.0;
    world.until("the signal", sent).await;
    assert_eq!(process.line(), "3");
    assert_eq!(process.end(&world), "");
}

/// The rounds of a hook of the program that embeds larder.
struct Rounds(mpsc::UnboundedReceiver<PodChange>);

impl Rounds {
    /// The changed files of each round since the last call, with their content at this moment.
    fn take(&mut self) -> Vec<Vec<String>> {
        let mut rounds = Vec::new();
        while let Ok(change) = self.0.try_recv() {
            let volumes = change.changes.volumes.iter();
            let files = volumes.flat_map(|volume| {
                volume.changed.iter().map(|path| {
                    let text = fs::read_to_string(volume.directory.join(path)).unwrap();
                    format!("{}/{path}={text}", volume.name)
                })
            });
            rounds.push(files.collect());
        }
        rounds
    }
}

/// Gives the world a hook that fires without a quiet period.
fn with_rounds(world: &mut World) -> Rounds {
    let text = "[{name: test, signal: SIGHUP, debounce: 0s}]";
    let hook: Hook = parse::hooks(text, HookOrigin::Configuration, None)
        .unwrap()
        .remove(0);
    let (sender, receiver) = mpsc::unbounded_channel();
    world.hook = Some((hook, sender));
    Rounds(receiver)
}

/// A node whose pod `web` has two volumes of one object, and a hook of the program.
async fn with_two_volumes() -> (World, Rounds) {
    let mut world = World::without_larder(Setup::default()).await;
    let rounds = with_rounds(&mut world);
    world.start_larder();
    world.config_map("app", &[("n", "0")]);
    world
        .run(pod("web").config_map("v", "app").config_map("w", "app"))
        .await;
    (world, rounds)
}

#[tokio::test(start_paused = true)]
async fn hook_fires_once_after_all_volumes_of_the_container() {
    let (world, mut rounds) = with_two_volumes().await;
    assert!(rounds.take().is_empty(), "the first content is no change");
    for n in 1..=20 {
        world.config_map("app", &[("n", &n.to_string())]);
        for volume in ["v", "w"] {
            world.until_file("web", volume, "n", &n.to_string()).await;
        }
        sleep(millis(150 * n)).await;
        assert_eq!(rounds.take(), [[format!("v/n={n}"), format!("w/n={n}")]]);
    }
    // Another version of the same bytes, another touch, and time.
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"n": "20"}});
    map["metadata"]["labels"] = json!({"a": "b"});
    world.apply(&map);
    sleep(secs(200)).await;
    assert!(rounds.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn hook_waits_while_the_kubelet_has_not_written() {
    let (world, mut rounds) = with_two_volumes().await;
    world.kubelet.stop();
    world.config_map("app", &[("n", "1")]);
    sleep(secs(20)).await;
    assert!(rounds.take().is_empty(), "the files are old");
    world.kubelet.resume();
    world.until_delivered("web").await;
    sleep(secs(1)).await;
    assert_eq!(rounds.take(), [["v/n=1", "w/n=1"]]);
}

#[tokio::test(start_paused = true)]
async fn touches_that_a_volume_shows_fire_no_hook() {
    let mut world = World::without_larder(Setup::default()).await;
    let mut rounds = with_rounds(&mut world);
    world.start_larder();
    world.config_map("app", &[("n", "0")]);
    let annotations = json!({"downwardAPI": {"items": [
        {"path": "all", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]}});
    world
        .run(pod("web").config_map("v", "app").volume("w", annotations))
        .await;
    world.config_map("app", &[("n", "1")]);
    world.until_delivered("web").await;
    sleep(secs(100)).await;
    let shown = world.file("web", "w", "all").unwrap();
    assert!(shown.contains("larder.dev/refresh"), "{shown}");
    assert_eq!(rounds.take(), [["v/n=1"]]);
}

#[tokio::test(start_paused = true)]
async fn hook_fires_for_no_volume_that_was_torn_down_under_its_containers() {
    let (world, mut rounds) = with_two_volumes().await;
    world.kubelet.fail_write("web", "v");
    world.config_map("app", &[("n", "1")]);
    world.until_phase("web", "v", Phase::Held, "Detached").await;
    sleep(secs(10)).await;
    assert_eq!(rounds.take(), [["w/n=1"]]);
    // The container that mounts the new directory has started with its content.
    world.kubelet.restart("web");
    world.until_delivered("web").await;
    sleep(secs(10)).await;
    assert_eq!(rounds.take(), [["v/n=1"]]);
}

#[tokio::test(start_paused = true)]
async fn restart_of_larder_fires_only_for_what_has_changed_meanwhile() {
    let (mut world, mut rounds) = with_two_volumes().await;
    world.config_map("app", &[("n", "1")]);
    world.until_delivered("web").await;
    sleep(secs(1)).await;
    assert_eq!(rounds.take().len(), 1);
    world.restart_larder().await;
    world.until_delivered("web").await;
    sleep(secs(60)).await;
    assert!(rounds.take().is_empty(), "nothing has changed");
    // Changed and written by the kubelet itself while no larder runs.
    world
        .restart_larder_after(async |world| {
            world.config_map("app", &[("n", "2")]);
            world.until_file("web", "v", "n", "2").await;
            world.until_file("web", "w", "n", "2").await;
        })
        .await;
    world.until_delivered("web").await;
    sleep(secs(60)).await;
    assert_eq!(rounds.take().len(), 1);
    // Changed, and not written when larder starts.
    world.kubelet.stop();
    world
        .restart_larder_after(async |world| world.config_map("app", &[("n", "3")]))
        .await;
    sleep(secs(5)).await;
    assert!(rounds.take().is_empty());
    world.kubelet.resume();
    world.until_delivered("web").await;
    sleep(secs(60)).await;
    assert_eq!(rounds.take().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn hooks_run_in_one_larder_of_the_node_and_not_in_a_dry_run() {
    for dry_run in [false, true] {
        let (mut world, mut rounds) = with_two_volumes().await;
        let mut second = with_rounds(&mut world);
        world.dry_run = dry_run;
        world.start_larder();
        sleep(secs(5)).await;
        world.config_map("app", &[("n", "1")]);
        world.until_file("web", "v", "n", "1").await;
        sleep(secs(100)).await;
        assert_eq!((rounds.take().len(), second.take().len()), (1, 0));
        // The second takes over from the content that is there.
        world.kill_larder().await;
        sleep(secs(30)).await;
        assert!(second.take().is_empty());
        world.config_map("app", &[("n", "2")]);
        world.until_file("web", "v", "n", "2").await;
        sleep(secs(1)).await;
        assert_eq!(second.take().len(), usize::from(!dry_run));
    }
}

#[tokio::test(start_paused = true)]
async fn record_goes_with_its_pod() {
    let (world, _rounds) = with_two_volumes().await;
    let record = world
        .larder_root()
        .join("pods")
        .join(uid("web"))
        .join("on-change.json");
    assert!(record.exists());
    world.delete(larder_apiserver::ApiKind::Pod, "web");
    let is_gone = || !record.parent().unwrap().exists();
    let taken: Duration = world.until("the record to go", is_gone).await;
    assert!(taken <= secs(30), "{taken:?}");
}
