//! Starts from the checkpoint, and the cost of keeping one: every budget of `docs/spec/offline.md`.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use kube::Client;
use larder_agent::status::Phase;
use larder_e2e::{Identity, NODE, ScratchDir, Server};
use larder_objects::Kind;
use tokio::time::{Instant, sleep};

use crate::{
    PATIENCE,
    node::{self, Node, PodForm},
    process::{Agent, mib},
    push::{PAUSE, Push},
};

/// Starts without the API server.
const STARTS: usize = 5;
/// Pairs of series, with the checkpoint and without.
const PAIRS: usize = 5;
/// Pause between two reads of a directory.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Pause between two reads of a metric, since each answer costs the agent CPU time.
const ASK: Duration = Duration::from_millis(10);
/// `checkpoint.after`, which is not counted.
const AFTER: Duration = Duration::from_secs(1);
/// Time for the last write, and for memory to settle.
const REST: Duration = Duration::from_secs(3);

const START_BUDGET: Duration = Duration::from_secs(1);
const WRITE_BUDGET: Duration = Duration::from_secs(1);
const SIZE_BUDGET: u64 = 2 << 20;
/// The copy, and the whole index: about 100 bytes for each of 610 copies.
const CHANGE_BUDGET: u64 = 64 << 10;
const MEMORY_BUDGET: u64 = 1 << 20;
const SLOWER_BUDGET: f64 = 1.05;

/// A root directory, and how to start an agent on it.
struct Place {
    directory: Arc<ScratchDir>,
    kubeconfig: String,
    config: String,
}

impl Place {
    fn new(server: &Server, has_checkpoint: bool) -> anyhow::Result<Self> {
        let directory = ScratchDir::with_prefix("larder-bench-")?;
        let config = directory.path().join("agent.yaml");
        let text = if has_checkpoint {
            "checkpoint: {key: 'file:key'}"
        } else {
            "{}"
        };
        fs::write(&config, text)?;
        Ok(Self {
            directory: Arc::new(directory),
            kubeconfig: server.kubeconfig(Identity::Node)?.display().to_string(),
            config: config.display().to_string(),
        })
    }

    fn start(&self) -> anyhow::Result<Agent> {
        let arguments = [
            "--kubeconfig",
            &self.kubeconfig,
            "--node-name",
            NODE,
            "--config",
            &self.config,
        ];
        Agent::start_in(Arc::clone(&self.directory), &arguments)
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn checkpoint(&self) -> PathBuf {
        self.root().join("checkpoint")
    }

    /// Moves everything but the checkpoint out of the root directory: what a reboot that clears a tmpfs leaves.
    fn empty(&self) -> anyhow::Result<()> {
        let aside = self.move_aside(&self.root())?;
        fs::create_dir(self.root())?;
        fs::rename(aside.join("checkpoint"), self.checkpoint())?;
        Ok(())
    }

    /// Moves `path` aside, outside of the root directory, and returns its new path.
    ///
    /// Nothing is removed before a measurement. An ext4 without a journal does not use an inode again for seconds, and
    /// each file that is created meanwhile pays for the search: a start took 0.9 s of CPU time after the removal of
    /// 3000 files, and 0.3 s without.
    fn move_aside(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let name = format!("aside-{:x}", fastrand::u64(..));
        let aside = self.directory.path().join(name);
        fs::rename(path, &aside)?;
        Ok(aside)
    }
}

/// The rows of the table.
#[derive(Default)]
struct Report {
    rows: Vec<[String; 4]>,
}

impl Report {
    fn add(&mut self, what: &str, figure: String, budget: String, ratio: f64) {
        self.rows
            .push([what.to_owned(), figure, budget, format!("{ratio:.2}")]);
    }

    fn time(&mut self, what: &str, found: Duration, budget: Duration) {
        let ratio = found.as_secs_f64() / budget.as_secs_f64();
        let text = |time: Duration| format!("{} ms", time.as_millis());
        self.add(what, text(found), text(budget), ratio);
    }

    fn bytes(&mut self, what: &str, found: u64, budget: u64) {
        self.add(what, kib(found), kib(budget), ratio(found, budget));
    }

    #[expect(clippy::print_stdout, reason = "the report")]
    fn print(&self, server: &Server) {
        println!("### {}\n", server.name());
        println!("| what | figure | budget | figure / budget |");
        println!("| --- | --: | --: | --: |");
        for [what, figure, budget, ratio] in &self.rows {
            println!("| {what} | {figure} | {budget} | {ratio} |");
        }
        println!();
    }
}

/// Measures everything.
pub(crate) async fn run() -> anyhow::Result<()> {
    let mut server = Server::start().await?;
    let client = server.client().await?;
    let node = Node::fill(client.clone(), PodForm::WithoutToken).await?;
    let mut report = Report::default();
    let (with, without) = (Place::new(&server, true)?, Place::new(&server, false)?);
    measure_writes(&with, &node, &mut report).await?;
    measure_changes([&with, &without], &client, &node, &mut report).await?;
    measure_starts(&with, &mut server, &mut report).await?;
    report.print(&server);
    Ok(())
}

/// The write of everything, its size on disk, and the write of one change.
async fn measure_writes(with: &Place, node: &Node, report: &mut Report) -> anyhow::Result<()> {
    let agent = with.start()?;
    agent.settled(node::PODS, &[Phase::Delivered]).await?;
    recorded(&agent).await?;
    // Unlike the first write of this start, which may have found copies in sync, this one writes everything.
    with.move_aside(&with.checkpoint())?;
    change(node).await?;
    let first = first_write(&with.checkpoint()).await?;
    sleep(REST).await;
    let files = sizes(&with.checkpoint())?;
    report.time("first write", first, WRITE_BUDGET);
    let what = format!("on disk, {} files", files.len());
    report.bytes(&what, files.iter().sum(), SIZE_BUDGET);
    let changed = one_change(&agent, node).await?;
    report.bytes("written for one change", changed, CHANGE_BUDGET);
    agent.stop()
}

/// From a change to its file, and memory, with the checkpoint and without in turn.
async fn measure_changes(
    [with, without]: [&Place; 2],
    client: &Client,
    node: &Node,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut memory_with, mut memory_without) = (Vec::new(), Vec::new());
    for kind in [Kind::ConfigMap, Kind::Secret] {
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            for (place, times, memory) in [
                (with, &mut on, &mut memory_with),
                (without, &mut off, &mut memory_without),
            ] {
                let agent = place.start()?;
                agent.settled(node::PODS, &[Phase::Delivered]).await?;
                // For the write of what has changed since the last start.
                sleep(REST).await;
                let push = Push::prepare(&agent, client, node).await?;
                times.push(push.measure(kind, PAUSE).await?.file.p50);
                memory.push(agent.usage()?.resident);
                agent.stop()?;
            }
        }
        let (on, off) = (median(on, f64::total_cmp), median(off, f64::total_cmp));
        report.add(
            &format!("change of a {kind} to its file (p50), with / without: {on:.2} / {off:.2} ms"),
            format!("{:.3}", on / off),
            format!("{SLOWER_BUDGET:.2}"),
            on / off / SLOWER_BUDGET,
        );
    }
    let (on, off) = (
        median(memory_with, u64::cmp),
        median(memory_without, u64::cmp),
    );
    let what = format!(
        "resident memory, with less without: {} - {}",
        mib(on),
        mib(off)
    );
    report.bytes(&what, on.saturating_sub(off), MEMORY_BUDGET);
    Ok(())
}

/// Starts on an empty root directory while the API server is unreachable.
async fn measure_starts(
    with: &Place,
    server: &mut Server,
    report: &mut Report,
) -> anyhow::Result<()> {
    let agent = with.start()?;
    agent.settled(node::PODS, &[Phase::Delivered]).await?;
    recorded(&agent).await?;
    sleep(REST).await;
    let before = tree(&with.root().join("pods"))?;
    agent.stop()?;
    server.kill().await;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        with.empty()?;
        let agent = with.start()?;
        let took = served(&agent).await?.saturating_sub(AFTER);
        times.push((took, agent.usage()?.cpu_time));
        let now = tree(&with.root().join("pods"))?;
        ensure!(now == before, "some file differs from before the start");
        agent.stop()?;
    }
    times.sort_unstable();
    let ((best, _), (worst, _)) = (times[0], times[STARTS - 1]);
    let (typical, cpu_time) = times[STARTS / 2];
    let what = format!(
        "start without the API server, after `checkpoint.after`: {} pods, {} files ({} to {} ms, {} ms of CPU time)",
        node::PODS,
        before.len(),
        best.as_millis(),
        worst.as_millis(),
        cpu_time.as_millis(),
    );
    report.time(&what, typical, START_BUDGET);
    Ok(())
}

/// Time from the first sealed file in the directory to the index, with which the write is done.
async fn first_write(checkpoint: &Path) -> anyhow::Result<Duration> {
    let deadline = Instant::now() + PATIENCE;
    let mut began = None;
    loop {
        let now = Instant::now();
        ensure!(now < deadline, "no checkpoint is written");
        if fs::read_dir(checkpoint).is_ok_and(|mut entries| entries.next().is_some()) {
            let began = *began.get_or_insert(now);
            if checkpoint.join("index").exists() {
                return Ok(now - began);
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Bytes that one change of one object has written.
async fn one_change(agent: &Agent, node: &Node) -> anyhow::Result<u64> {
    let written = || agent.metric("larder_checkpoint_written_bytes_total");
    let before = written()?;
    change(node).await?;
    sleep(REST).await;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a counter far below 2^53"
    )]
    let bytes = (written()? - before) as u64;
    ensure!(bytes > 0, "the change was not written");
    Ok(bytes)
}

/// Gives an object a new value.
async fn change(node: &Node) -> anyhow::Result<()> {
    let object = Node::objects().next().context("there are objects")?;
    node.replace(object, &object.fresh().0).await
}

/// Waits until the checkpoint has all pods and objects, and the facts about the Node and the Services.
async fn recorded(agent: &Agent) -> anyhow::Result<()> {
    let copies = node::PODS + Node::objects().count() + 2;
    #[expect(clippy::cast_precision_loss, reason = "some hundreds of copies")]
    let copies = copies as f64;
    while agent.metric("larder_checkpoint_entries")? < copies {
        ensure!(agent.started.elapsed() < PATIENCE, "not everything is kept");
        sleep(ASK).await;
    }
    Ok(())
}

/// Time from the start until all pods have the content of the checkpoint.
async fn served(agent: &Agent) -> anyhow::Result<Duration> {
    let name = r#"larder_pods{phase="Stale"}"#;
    #[expect(clippy::cast_precision_loss, reason = "a hundred pods")]
    let all = node::PODS as f64;
    loop {
        let took = agent.started.elapsed();
        // It fails until the socket is there.
        if agent.metric(name).is_ok_and(|pods| pods >= all) {
            return Ok(took);
        }
        ensure!(
            took < PATIENCE,
            "the pods are not served: {}",
            agent.get("/status")?
        );
        sleep(ASK).await;
    }
}

/// Sizes of the files in a directory.
fn sizes(directory: &Path) -> anyhow::Result<Vec<u64>> {
    let entries = fs::read_dir(directory)?;
    entries.map(|entry| Ok(entry?.metadata()?.len())).collect()
}

/// All files of the pods that readers see.
fn tree(pods: &Path) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![pods.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // The sets have other names each time; the links to them are followed.
            if entry.file_name().to_string_lossy().starts_with("..20") {
                continue;
            }
            let path = entry.path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let content = fs::read(&path)?;
                found.insert(path, content);
            }
        }
    }
    Ok(found)
}

fn median<T: Copy>(mut values: Vec<T>, order: impl FnMut(&T, &T) -> Ordering) -> T {
    values.sort_by(order);
    values[values.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn kib(bytes: u64) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.0)
}
