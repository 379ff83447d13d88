//! The soak: random changes and faults, and in the end every file compared with the API server's content.
//!
//! ```sh
//! cargo test -p larder-cli --test node soak                                          # 5 s, embedded API server
//! LARDER_SOAK_SECS=1800 KUBEBUILDER_ASSETS=DIR nice cargo test --release -p larder-cli --test node soak
//! ```
//!
//! `LARDER_SOAK_SEED` repeats a run's decisions (not its timing). The agent is killed and restarted in the first
//! quarter only, so that the memory of one process is seen over the rest. With a duration given, that memory must be
//! flat.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use fastrand::Rng;
use larder_e2e::{Identity, Proxy, Server};
use tokio::time::{Instant, sleep};

use crate::{
    agent::{Agent, Usage},
    disk,
    world::World,
};

/// How long, unless the environment says otherwise.
const SHORT: Duration = Duration::from_secs(5);
/// Between two changes.
const STEP: Duration = Duration::from_millis(80);
/// Between the end of a fault and the next one.
const PEACE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(12));
/// Most that memory may grow from the second third to the last. Not the resident size, which counts what of the binary
/// was needed so far, but what the process has of its own.
const GROWTH: f64 = 0.1;
/// Most descriptors that may come to those of the second third: connections that come and go.
const DESCRIPTORS: f64 = 5.0;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Every connection is reset.
    Cut,
    /// The network swallows everything for a while.
    Stall,
    /// The same, and then the connections are reset.
    StallAndCut,
    /// 429 to everything.
    Throttle,
    /// The API server is killed, and starts again.
    CrashServer,
    /// The same, and etcd forgets what was before.
    CrashServerAndCompact,
    /// etcd forgets what was while the node was cut off.
    CompactWhileCutOff,
    /// The agent is killed, and starts again.
    KillAgent,
    /// The agent is killed, and starts again when much has changed.
    KillAgentForLong,
    /// The agent ends in good order, and starts again.
    RestartAgent,
}

const AGENT_FAULTS: [Fault; 3] = [
    Fault::KillAgent,
    Fault::RestartAgent,
    Fault::KillAgentForLong,
];
const FAULTS: [Fault; 7] = [
    Fault::Cut,
    Fault::Stall,
    Fault::StallAndCut,
    Fault::Throttle,
    Fault::CrashServer,
    Fault::CrashServerAndCompact,
    Fault::CompactWhileCutOff,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_ends_with_the_files_that_the_api_server_has() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse().expect("a number"))
    };
    let asked = number("LARDER_SOAK_SECS").map(Duration::from_secs);
    let seed = number("LARDER_SOAK_SEED").unwrap_or_else(|| fastrand::u64(..));
    let mut soak = Soak::begin(asked.unwrap_or(SHORT), seed).await;
    soak.run().await;
    soak.settle().await;
    soak.end().await;
    let flat = soak.report();
    assert!(
        flat || asked.is_none(),
        "memory or descriptors have grown, seed {seed}"
    );
}

struct Soak {
    server: Server,
    proxy: Proxy,
    agent: Agent,
    world: World,
    readers: Readers,
    duration: Duration,
    started: Instant,
    samples: Vec<Sample>,
    /// How many agents there were before this one.
    restarts: u32,
    faults: BTreeMap<String, u32>,
}

struct Sample {
    at: Duration,
    usage: Usage,
    restarts: u32,
}

impl Soak {
    async fn begin(duration: Duration, seed: u64) -> Self {
        let server = Server::start().await.unwrap();
        say(&format!(
            "soak of {duration:?} on {}, seed {seed}",
            server.name()
        ));
        let proxy = Proxy::start(server.address()).await.unwrap();
        let kubeconfig = server.kubeconfig_through(&proxy, Identity::Node).unwrap();
        let mut agent = Agent::prepare(kubeconfig);
        let mut world = World::new(server.client().await.unwrap(), agent.static_pods(), seed);
        world.begin().await.unwrap();
        agent.start();
        Self {
            server,
            proxy,
            readers: Readers::new(agent.root(), seed),
            agent,
            world,
            duration,
            started: Instant::now(),
            samples: Vec::new(),
            restarts: 0,
            faults: BTreeMap::new(),
        }
    }

    async fn run(&mut self) {
        let mut faults = Vec::from(AGENT_FAULTS);
        while self.started.elapsed() < self.duration {
            let peace = self.peace();
            self.change_for(peace).await;
            if faults.is_empty() {
                faults.extend(FAULTS);
                if self.started.elapsed() < self.duration / 4 {
                    faults.extend(AGENT_FAULTS);
                }
                self.world.rng.shuffle(&mut faults);
            }
            let fault = faults.pop().expect("there are faults");
            *self.faults.entry(format!("{fault:?}")).or_default() += 1;
            self.strike(fault).await;
        }
    }

    /// So that a short soak has all faults once, and a long one each many times.
    fn peace(&mut self) -> Duration {
        let longest = (self.duration / 40).clamp(PEACE.0, PEACE.1);
        longest.mul_f64(0.5 + self.world.rng.f64() / 2.0)
    }

    /// Changes things at random for a while, and looks on.
    async fn change_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.world.step().await;
            self.readers.look();
            let every = Duration::from_secs(10).min(self.duration / 10);
            let last = self.samples.last();
            if last.is_none_or(|last| self.started.elapsed() >= last.at + every) {
                self.sample();
            }
            sleep(STEP).await;
        }
    }

    async fn strike(&mut self, fault: Fault) {
        let longest =
            (self.duration / 30).clamp(Duration::from_millis(250), Duration::from_secs(6));
        let time = longest.mul_f64(0.3 + 0.7 * self.world.rng.f64());
        match fault {
            Fault::Cut => self.proxy.cut(),
            Fault::Stall => {
                self.proxy.stall(true);
                self.change_for(time).await;
                self.proxy.stall(false);
            }
            Fault::StallAndCut => {
                self.proxy.stall(true);
                self.change_for(time).await;
                self.proxy.cut();
                self.proxy.stall(false);
            }
            Fault::Throttle => {
                self.server.throttle(&self.proxy).await.unwrap();
                self.proxy.cut();
                self.change_for(time).await;
                self.server.relax(&self.proxy);
            }
            Fault::CrashServer => {
                self.server.kill().await;
                self.change_for(time).await;
                self.server.restart().await.unwrap();
            }
            Fault::CrashServerAndCompact => {
                self.server.kill().await;
                self.server.compact().await.unwrap();
                self.server.restart().await.unwrap();
            }
            Fault::CompactWhileCutOff => {
                self.proxy.stall(true);
                self.change_for(time).await;
                self.server.compact().await.unwrap();
                self.proxy.cut();
                self.proxy.stall(false);
            }
            Fault::KillAgent => {
                self.agent.kill();
                self.start_agent();
            }
            Fault::KillAgentForLong => {
                self.agent.kill();
                self.restarts += 1;
                // Not `change_for`: there is no process to take samples of.
                for _ in 0..20 {
                    self.world.step().await;
                }
                self.agent.start();
            }
            Fault::RestartAgent => {
                self.agent.stop();
                self.start_agent();
            }
        }
    }

    fn start_agent(&mut self) {
        self.restarts += 1;
        self.agent.start();
    }

    fn sample(&mut self) {
        let sample = Sample {
            at: self.started.elapsed(),
            usage: self.agent.usage(),
            restarts: self.restarts,
        };
        say(&format!(
            "{:5} s  {:6} KiB resident, {:6} KiB of its own  {:4} descriptors  {} agents before  {} looks",
            sample.at.as_secs(),
            sample.usage.resident_kib,
            sample.usage.own_kib,
            sample.usage.descriptors,
            sample.restarts,
            self.readers.looks,
        ));
        self.samples.push(sample);
    }

    /// Lets everything come to rest and compares; kills the agent, and compares again.
    async fn settle(&mut self) {
        // Connections of kube's client died with the server; the first request may meet one of them.
        let mut settled = self.world.settle().await;
        if settled.is_err() {
            settled = self.world.settle().await;
        }
        settled.unwrap();
        self.compare("after the last change").await;
        self.agent.kill();
        self.start_agent();
        self.compare("after one more kill").await;
    }

    /// Removes every pod and expects nothing on disk.
    async fn end(&mut self) {
        self.world.clear().await.unwrap();
        self.compare("without pods").await;
    }

    /// Waits until the disk is as the API server's content says.
    async fn compare(&self, when: &str) {
        let began = Instant::now();
        let pods = disk::at_rest(&self.server, &self.agent, self.world.static_pods()).await;
        let volumes = || pods.iter().flat_map(|pod| pod.volumes.values());
        say(&format!(
            "{when}: zero differences in {} pods, {} volumes, {} files, at rest after {:?}",
            pods.len(),
            volumes().count(),
            volumes().map(BTreeMap::len).sum::<usize>(),
            began.elapsed()
        ));
    }

    /// Prints what was done and what it took; returns whether memory and descriptors stayed flat.
    fn report(&self) -> bool {
        let mut text = String::new();
        let _ = writeln!(text, "done: {:?}", self.world.done);
        let _ = writeln!(text, "faults: {:?}", self.faults);
        let looks = self.readers.looks;
        let _ = writeln!(
            text,
            "{looks} looks at volumes, none torn, none older than before"
        );
        let last = self.samples.iter().map(|sample| sample.restarts).max();
        let samples = self
            .samples
            .iter()
            .filter(|sample| Some(sample.restarts) == last);
        let usages: Vec<_> = samples.map(|sample| sample.usage).collect();
        let third = usages.len() / 3;
        let mut flat = true;
        if third > 0 {
            let mut compare = |what: &str, of: fn(&Usage) -> u64| {
                #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
                let mean = |usages: &[Usage]| {
                    usages.iter().map(of).sum::<u64>() as f64 / usages.len() as f64
                };
                let means = [
                    mean(&usages[..third]),
                    mean(&usages[third..usages.len() - third]),
                    mean(&usages[usages.len() - third..]),
                ];
                let _ = writeln!(text, "{what}, by thirds: {means:.0?}");
                (means[1], means[2])
            };
            compare("KiB resident", |usage| usage.resident_kib);
            let own = compare("KiB of its own", |usage| usage.own_kib);
            let descriptors = compare("descriptors", |usage| usage.descriptors);
            flat = own.1 <= own.0 * (1.0 + GROWTH) && descriptors.1 <= descriptors.0 + DESCRIPTORS;
        }
        say(text.trim_end());
        flat
    }
}

/// Straight to the stream, which no test runner holds back.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Readers of volumes that change: a set is whole, and never older than the one before.
struct Readers {
    root: PathBuf,
    rng: Rng,
    /// The number seen last, by volume and object.
    seen: HashMap<(PathBuf, String), u64>,
    looks: u64,
}

impl Readers {
    fn new(root: PathBuf, seed: u64) -> Self {
        Self {
            root,
            rng: Rng::with_seed(!seed),
            seen: HashMap::new(),
            looks: 0,
        }
    }

    /// Reads a few volumes.
    fn look(&mut self) {
        for _ in 0..4 {
            let mut path = self.root.join("pods");
            for next in [None, Some("volumes"), None, None] {
                let Some(below) = next
                    .map(|name| path.join(name))
                    .or_else(|| self.any_below(&path))
                else {
                    return;
                };
                path = below;
            }
            self.read(&path);
        }
    }

    fn any_below(&mut self, path: &Path) -> Option<PathBuf> {
        let entries: Vec<_> = fs::read_dir(path).ok()?.filter_map(Result::ok).collect();
        Some(self.rng.choice(&entries)?.path())
    }

    fn read(&mut self, volume: &Path) {
        // The set is entered once, as by a reader that opens the directory; it may be gone before all of it is read.
        let Ok(set) = fs::read_link(volume.join("..data")) else {
            return;
        };
        let mut texts = Vec::new();
        if read_all(&volume.join(set), &mut texts).is_err() {
            return;
        }
        self.looks += 1;
        let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
        for text in &texts {
            let Some((object, number)) = text
                .split_once(';')
                .and_then(|(head, _)| head.split_once('@'))
            else {
                continue;
            };
            let Ok(number) = number.parse() else { continue };
            let before = *numbers.entry(object.to_owned()).or_insert(number);
            assert_eq!(before, number, "torn: {object} in {}", volume.display());
        }
        for (object, number) in numbers {
            let seen = self
                .seen
                .entry((volume.to_owned(), object.clone()))
                .or_insert(number);
            assert!(
                *seen <= number,
                "{object} went back from {seen} to {number} in {}",
                volume.display()
            );
            *seen = number;
        }
    }
}

fn read_all(directory: &Path, texts: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            read_all(&path, texts)?;
        } else {
            texts.push(String::from_utf8_lossy(&fs::read(path)?).into_owned());
        }
    }
    Ok(())
}
