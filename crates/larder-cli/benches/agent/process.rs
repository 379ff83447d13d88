//! The agent as a process of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use larder_agent::status::{AgentStatus, Phase};
use larder_e2e::{ScratchDir, figures::Usage};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::PATIENCE;

/// Pause between two requests, since each answer costs the agent CPU time.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// `larder run`. Dropping it kills the process and removes its mounts.
pub(crate) struct Agent {
    child: Child,
    pub(crate) started: Instant,
    /// The root directory, `root`, and the log.
    root: Arc<ScratchDir>,
}

impl Agent {
    /// Starts `larder run` with these arguments and a root directory of its own.
    pub(crate) fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(ScratchDir::with_prefix("larder-bench-")?.into(), arguments)
    }

    /// The same with the root directory `root` in that directory, where an earlier agent may have left files.
    pub(crate) fn start_in(root: Arc<ScratchDir>, arguments: &[&str]) -> anyhow::Result<Self> {
        let log = File::create(root.path().join("log"))?;
        let binary = env::var_os("LARDER_BENCH_BINARY")
            .map_or(env!("CARGO_BIN_EXE_larder").into(), PathBuf::from);
        let started = Instant::now();
        let child = Command::new(&binary)
            .arg("run")
            .args(arguments)
            .arg("--root-dir")
            .arg(root.path().join("root"))
            .env("LARDER_LOG", "warn")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Ok(Self {
            child: child.with_context(|| format!("cannot start {}", binary.display()))?,
            started,
            root,
        })
    }

    /// The directory of a volume. `type_` as in the name of its plugin: `configmap`.
    pub(crate) fn volume(&self, namespace: &str, pod: &str, type_: &str, volume: &str) -> PathBuf {
        let pods = self.root.path().join("root/by-name").join(namespace);
        pods.join(pod)
            .join(format!("volumes/kubernetes.io~{type_}"))
            .join(volume)
    }

    /// Its memory that belongs to no file, in bytes.
    pub(crate) fn anonymous(&self) -> anyhow::Result<u64> {
        Ok(Usage::of(self.child.id())?.anonymous)
    }

    /// Waits until the agent has at least `pods` pods, all of them in one of `phases`.
    pub(crate) async fn settled(
        &self,
        pods: usize,
        phases: &[Phase],
    ) -> anyhow::Result<AgentStatus> {
        let deadline = self.started + PATIENCE;
        loop {
            // The status is long, so it is requested only when the agent reports that it is ready.
            if let Ok(status) = self.get("/readyz").and_then(|_| self.get("/status")) {
                let status: AgentStatus = serde_json::from_str(&status)?;
                let settled = |phase| phases.contains(&phase);
                if status.pods.len() >= pods
                    && status.pods.iter().all(|pod| settled(pod.delivery.phase))
                {
                    return Ok(status);
                }
            }
            if Instant::now() > deadline {
                let log = fs::read_to_string(self.root.path().join("log"))?;
                let status = self.get("/status").unwrap_or_default();
                anyhow::bail!("the agent does not settle:\n{log}\n{status}");
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Its cost so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.child.id())
    }

    /// The value of the first metric whose line begins with `name`.
    pub(crate) fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let metrics = self.get("/metrics")?;
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        Ok(line.with_context(|| format!("no {name}"))?.trim().parse()?)
    }

    /// Asks it to exit, and waits until it has.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill_process(pid.context("no process")?, Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the agent ended with {status}");
        Ok(())
    }

    /// The answer of the local API.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = UnixStream::connect(self.root.path().join("root/agent.sock"))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.contains(" 200 OK\r\n"), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
        Ok(body.to_owned())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Fails only if it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // What it has mounted stays, so that a restarted agent finds it; this one is not restarted.
        self.root.unmount_all();
    }
}

/// The cost of an agent since its start.
pub(crate) struct Moment {
    name: &'static str,
    age: Duration,
    usage: Usage,
    /// Resident bytes by what they hold.
    parts: BTreeMap<Part, u64>,
}

/// The content of a page of resident memory. Shown in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Code,
    Constants,
    Relocated,
    Libraries,
    Heap,
}

impl Part {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Code => "code of the binary",
            Self::Constants => "its constants, unwind tables and relocation tables",
            Self::Relocated => {
                "its constants with addresses in them, and its variables (anonymous)"
            }
            Self::Libraries => "the C library and related libraries",
            Self::Heap => "heap and stacks (anonymous)",
        }
    }
}

impl Moment {
    /// Now.
    pub(crate) fn of(name: &'static str, agent: &Agent) -> anyhow::Result<Self> {
        Ok(Self {
            name,
            age: agent.started.elapsed(),
            usage: Usage::of(agent.child.id())?,
            parts: parts(agent.child.id())?,
        })
    }
}

/// Resident memory of the process `pid` by what it holds, as the kernel's list of its mappings has it.
fn parts(pid: u32) -> anyhow::Result<BTreeMap<Part, u64>> {
    let binary = fs::read_link(format!("/proc/{pid}/exe"))?;
    let mappings = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut parts = BTreeMap::new();
    let (mut mapping, mut resident) = (Vec::new(), 0);
    for line in mappings.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let bytes = || -> anyhow::Result<u64> { Ok(fields[1].parse::<u64>()? * 1024) };
        match fields[0] {
            "Rss:" => resident = bytes()?,
            "Anonymous:" => {
                let anonymous = bytes()?;
                let (permissions, file) = (mapping[1], mapping.get(5).map(Path::new));
                let (in_memory, of_file) = match file {
                    Some(file) if file == binary && permissions == "r-xp" => {
                        (Part::Relocated, Part::Code)
                    }
                    Some(file) if file == binary => (Part::Relocated, Part::Constants),
                    Some(file) if file.is_absolute() => (Part::Libraries, Part::Libraries),
                    // `[heap]`, `[stack]`, or nothing at all.
                    Some(_) | None => (Part::Heap, Part::Heap),
                };
                *parts.entry(in_memory).or_default() += anonymous;
                *parts.entry(of_file).or_default() += resident - anonymous;
            }
            field if !field.ends_with(':') => mapping = fields,
            _ => {}
        }
    }
    Ok(parts)
}

/// Prints what the agent serves, and its cost.
#[expect(clippy::print_stdout, reason = "the report")]
pub(crate) fn report(status: &AgentStatus, moments: &[Moment]) {
    let volumes: usize = status.pods.iter().map(|pod| pod.volumes.len()).sum();
    let (pods, objects) = (status.pods.len(), status.objects.len());
    println!(
        "| {pods} pods, {volumes} volumes, {objects} objects | since the start | resident | anonymous | of files | CPU time |"
    );
    println!("| --- | --: | --: | --: | --: | --: |");
    for Moment {
        name, age, usage, ..
    } in moments
    {
        println!(
            "| {name} | {:.2} s | {} | {} | {} | {:.2} s |",
            age.as_secs_f64(),
            mib(usage.resident),
            mib(usage.anonymous),
            mib(usage.resident - usage.anonymous),
            usage.cpu_time.as_secs_f64()
        );
    }
    println!();
    let names: Vec<_> = moments.iter().map(|moment| moment.name).collect();
    println!("| resident | {} |", names.join(" | "));
    println!("| --- |{}", " --: |".repeat(moments.len()));
    for part in moments
        .iter()
        .flat_map(|moment| moment.parts.keys())
        .collect::<BTreeSet<_>>()
    {
        let sizes = moments
            .iter()
            .map(|moment| mib(moment.parts.get(part).copied().unwrap_or_default()));
        println!(
            "| {} | {} |",
            part.as_str(),
            sizes.collect::<Vec<_>>().join(" | ")
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
