//! How soon a hook acts after a change, compared with shell loops of `inotifywait` and `kill` in the same run, and the
//! cost of hooks for a pod. The budgets are those of `docs/spec/on-change.md`, section 11.
//!
//! A time begins when the swap of `..data` has woken a reader that sleeps in inotify, like that of the shell loop. One
//! agent makes all swaps. For each of its pods either a hook or a shell loop acts, and both take turns.

mod actors;
pub(crate) mod probe;

use std::{
    collections::HashMap,
    ffi::CStr,
    fs,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use http::Method;
use larder_agent::status::Phase;
use larder_e2e::{Identity, NODE, Server, figures::Quantiles};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use self::{
    actors::{Group, Stage},
    probe::{HTTP, Hits, now},
};
use crate::{
    PATIENCE,
    node::{KEY, NAMESPACE, Node, namespaced},
    process::Agent,
    push::PAUSE,
};

/// Changes that are timed for each figure.
const CHANGES: usize = 200;
/// Pods of each kind. Several, because a rate limit applies to the writes of one pod.
const PODS: usize = 20;
/// Other processes on the machine.
const BYSTANDERS: usize = 500;
/// Number of pods for measuring the memory of a hook, and of rounds.
const HOOKED: usize = 1000;
const ROUNDS: usize = 3;
/// Pause between two reads of their files, and from the last one until their memory is measured.
const SETTLING: Duration = Duration::from_secs(1);
/// Until the other processes are in their containers.
const MOVING: Duration = Duration::from_secs(11);
/// A process counts as started after a swap within the same clock tick.
const TICK: Duration = Duration::from_millis(30);

/// An action, and its pods.
struct Contest {
    /// Prefix of the pods whose hook acts, and of those with a shell loop.
    pods: [&'static str; 2],
    about: &'static str,
    /// p50 and p99, in milliseconds.
    budget: (f64, f64),
}

const SIGNAL: Contest = Contest {
    pods: ["signal", "loop-signal"],
    about: "swap to signal, process known",
    budget: (2.0, 10.0),
};
const SEARCH: Contest = Contest {
    pods: ["search", "loop-search"],
    about: "swap to signal, process found among 500",
    budget: (30.0, 60.0),
};
const REQUEST: Contest = Contest {
    pods: ["http", "loop-http"],
    about: "swap to request on loopback",
    budget: (1.0, 5.0),
};
const EXEC: Contest = Contest {
    pods: ["exec", "loop-exec"],
    about: "swap to first instruction of a command",
    budget: (3.0, 10.0),
};
/// From the write, in the pods of [`SIGNAL`].
const WRITE: (&str, (f64, f64)) = ("write at the API server to signal", (4.0, 20.0));

/// Runs the measurements, and prints the tables.
pub(crate) async fn run() -> anyhow::Result<()> {
    let has_inotifywait = Command::new("inotifywait").arg("--help").output().is_ok();
    ensure!(
        has_inotifywait,
        "inotifywait is missing: install inotify-tools"
    );
    let server = Server::start().await?;
    let node = Node::empty(server.client().await?).await?;
    let kubeconfig = server.kubeconfig(Identity::Node)?.display().to_string();
    println!("### {}\n", server.name());
    speed(&node, &kubeconfig).await?;
    memory(&node, &kubeconfig).await
}

/// An agent on the pods of the node, with this configuration.
fn agent(kubeconfig: &str, config: Option<&Path>) -> anyhow::Result<Agent> {
    let mut arguments = vec!["--kubeconfig", kubeconfig, "--node-name", NODE];
    let config = config.map(|path| path.display().to_string());
    if let Some(config) = &config {
        arguments.extend(["--config", config]);
    }
    Agent::start(&arguments)
}

/// A pod with one volume, of an object of the same name, that is mounted at `at`.
async fn create(node: &Node, name: &str, at: &Path) -> anyhow::Result<()> {
    let metadata = json!({"namespace": NAMESPACE, "name": name});
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: "0"}});
    node.create(&namespaced("configmaps"), &object).await?;
    let mount = json!({"name": "v", "mountPath": at});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "i", "volumeMounts": [mount]}],
            "volumes": [{"name": "v", "configMap": {"name": name}}],
        },
    });
    node.create(&namespaced("pods"), &pod).await
}

/// Gives the object of a pod new content.
async fn change(node: &Node, name: &str) -> anyhow::Result<()> {
    let value = format!("{:032x}", fastrand::u128(..));
    let metadata = json!({"namespace": NAMESPACE, "name": name});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: value}});
    let path = namespaced(&format!("configmaps/{name}"));
    node.send(Method::PUT, &path, &object).await
}

/// When volumes are swapped. A thread waits for the swaps, so that a time is that of a process that sleeps in inotify.
struct Swaps {
    received: mpsc::UnboundedReceiver<(String, Duration)>,
    inotify: Arc<OwnedFd>,
    /// A watch without events. Its removal wakes the thread.
    end: i32,
    reader: Option<JoinHandle<()>>,
}

impl Swaps {
    /// Of these volumes, by the names of their pods.
    fn watch(volumes: &[(String, PathBuf)]) -> anyhow::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
        let mut pods = HashMap::new();
        for (pod, volume) in volumes {
            let watch = inotify::add_watch(&inotify, volume, WatchFlags::MOVED_TO)?;
            pods.insert(watch, pod.clone());
        }
        let end = inotify::add_watch(&inotify, "/", WatchFlags::DELETE_SELF)?;
        let (sender, received) = mpsc::unbounded_channel();
        let events = Arc::clone(&inotify);
        let reader = thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(events, &mut buffer);
            while let Ok(event) = events.next()
                && !sender.is_closed()
            {
                let at = now();
                let swapped = event.file_name().map(CStr::to_bytes) == Some(b"..data");
                if let Some(pod) = pods.get(&event.wd()).filter(|_| swapped) {
                    // The receiver may be gone, which the next turn notices.
                    let _ = sender.send((pod.clone(), at));
                }
            }
        });
        Ok(Self {
            received,
            inotify,
            end,
            reader: Some(reader),
        })
    }

    /// Forgets the swaps that were not awaited.
    fn clear(&mut self) {
        while self.received.try_recv().is_ok() {}
    }

    async fn next(&mut self, pod: &str) -> anyhow::Result<Duration> {
        let swap = async {
            loop {
                let (found, at) = self.received.recv().await.context("the reader has ended")?;
                if found == pod {
                    return Ok(at);
                }
            }
        };
        timeout(PATIENCE, swap).await.context("no swap")?
    }
}

impl Drop for Swaps {
    fn drop(&mut self) {
        self.received.close();
        inotify::remove_watch(&self.inotify, self.end).expect("nothing else removes it");
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Times of one figure: of hooks, and of shell loops.
#[derive(Default)]
struct Times([Vec<Duration>; 2]);

impl Times {
    fn row(self, about: &str, budget: (f64, f64)) {
        let [hooks, loops] = self.0.map(Quantiles::of);
        let (p50, p99) = budget;
        println!(
            "| {about} | {hooks} | {p50} / {p99} ms | {loops} | {:.2} |",
            loops.p50 / hooks.p50
        );
    }
}

/// All targets of actions.
struct Bench<'a> {
    node: &'a Node,
    stage: Stage,
    volumes: HashMap<String, PathBuf>,
    hits: Hits,
    swaps: Swaps,
}

impl Bench<'_> {
    /// Changes the object of the pod; returns the times from the swap, and from the write, until the process with the
    /// tag is reached.
    async fn time(&mut self, pod: &str, tag: &str) -> anyhow::Result<(Duration, Duration)> {
        sleep(PAUSE.mul_f64(fastrand::f64())).await;
        self.hits.clear();
        self.swaps.clear();
        let began = now();
        change(self.node, pod).await?;
        let swapped = self.swaps.next(pod).await?;
        let at = self.hits.next(tag).await?;
        Ok((at.saturating_sub(swapped), at.saturating_sub(began)))
    }

    /// Changes the object until the process is reached, in case the hook or loop starts late.
    async fn warm_up(&mut self, pod: &str, tag: &str) -> anyhow::Result<()> {
        for _ in 0..20 {
            change(self.node, pod).await?;
            if self.hits.within(tag, Duration::from_secs(1)).await.is_ok() {
                return Ok(());
            }
        }
        anyhow::bail!("{tag} is not reached");
    }

    /// Times both in turn, over all pods of the contest; `tags` are the processes that each pod's change reaches.
    async fn compete(
        &mut self,
        contest: &Contest,
        tag: impl Fn(&str) -> String,
    ) -> anyhow::Result<(Times, Times)> {
        for kind in contest.pods {
            for number in 0..PODS {
                let pod = format!("{kind}-{number}");
                self.warm_up(&pod, &tag(&pod)).await?;
            }
        }
        let (mut from_swap, mut from_write) = (Times::default(), Times::default());
        for number in 0..CHANGES {
            for (index, kind) in contest.pods.into_iter().enumerate() {
                let pod = format!("{kind}-{}", number % PODS);
                let (swap, write) = self.time(&pod, &tag(&pod)).await?;
                from_swap.0[index].push(swap);
                from_write.0[index].push(write);
            }
        }
        Ok((from_swap, from_write))
    }

    /// The same with a new target process each time.
    async fn search(&mut self) -> anyhow::Result<Times> {
        let mut times = Times::default();
        // The first change of each kind is not timed: an agent searches for the first time once.
        for number in 0..=CHANGES {
            for (index, kind) in SEARCH.pods.into_iter().enumerate() {
                let pod = format!("{kind}-{}", number % PODS);
                let _receiver = self.stage.receiver(&pod, &self.volumes[&pod])?;
                self.hits.ready(&pod).await?;
                sleep(TICK).await;
                let (swap, _) = self.time(&pod, &pod).await?;
                if number > 0 {
                    times.0[index].push(swap);
                }
            }
        }
        Ok(times)
    }
}

/// How soon hooks act.
async fn speed(node: &Node, kubeconfig: &str) -> anyhow::Result<()> {
    let folder = TempDir::with_prefix("larder-bench-")?;
    let stage = Stage {
        socket: folder.path().join("socket"),
        folder: folder.path().to_owned(),
    };
    let kinds = [SIGNAL, SEARCH, REQUEST, EXEC].map(|contest| contest.pods);
    let kinds: Vec<_> = kinds.into_iter().flatten().chain(["plain"]).collect();
    let pods = kinds
        .iter()
        .flat_map(|kind| (0..PODS).map(move |number| format!("{kind}-{number}")));
    let pods: Vec<String> = pods.collect();
    for pod in &pods {
        let at = stage.mount_point(pod);
        fs::create_dir(&at)?;
        create(node, pod, &at).await?;
    }
    let (hits, port) = Hits::listen(&stage.socket)?;
    let stamp = stage.program("stamp")?;
    let stamp = [stamp.display().to_string(), "--stamp".to_owned()];
    let socket = stage.socket.display().to_string();
    // Commands of hooks need a file that only root can write.
    let private = TempDir::with_prefix_in("larder-bench-", "/run")?;
    let config = private.path().join("agent.yaml");
    let hook = |kinds: &[&str], action: serde_json::Value| {
        let globs = kinds.iter().map(|kind| format!("{NAMESPACE}/{kind}-*"));
        let mut hook =
            json!({"name": kinds[0], "pods": globs.collect::<Vec<_>>(), "debounce": "0s"});
        hook["retry"] = json!({"min": "100ms", "max": "100ms"});
        if let (Some(hook), Some(action)) = (hook.as_object_mut(), action.as_object()) {
            hook.extend(action.clone());
        }
        hook
    };
    let url = format!("http://127.0.0.1:{port}/-/reload");
    let hooks = json!([
        hook(&["signal", "search"], json!({"signal": "SIGHUP"})),
        hook(&["http"], json!({"http": {"url": url}})),
        hook(
            &["exec"],
            json!({"exec": [&stamp[0], &stamp[1], "exec", &socket]})
        ),
    ]);
    fs::write(&config, json!({"onChange": hooks}).to_string())?;
    let agent = agent(kubeconfig, Some(&config))?;
    agent.settled(pods.len(), &[Phase::Delivered]).await?;

    let volume = |agent: &Agent, pod: &String| {
        let path = agent.volume(NAMESPACE, pod, "configmap", "v");
        Ok((pod.clone(), fs::canonicalize(path)?))
    };
    let volumes = pods.iter().map(|pod| volume(&agent, pod));
    let volumes: Vec<_> = volumes.collect::<anyhow::Result<_>>()?;
    let swaps = Swaps::watch(&volumes)?;
    let mut bench = Bench {
        node,
        stage,
        volumes: volumes.into_iter().collect(),
        hits,
        swaps,
    };
    let _actors = start_actors(&mut bench, port, &stamp).await?;
    let _bystanders = Stage::bystanders(BYSTANDERS)?;
    sleep(MOVING).await;

    println!(
        "| from, to | hook p50 / p99 / max | budget p50 / p99 | shell loop p50 / p99 / max | loop / hook (p50) |"
    );
    println!("| --- | --: | --: | --: | --: |");
    let (signal, write) = bench.compete(&SIGNAL, str::to_owned).await?;
    signal.row(SIGNAL.about, SIGNAL.budget);
    let search = bench.search().await?;
    search.row(SEARCH.about, SEARCH.budget);
    let (request, _) = bench.compete(&REQUEST, |_| HTTP.to_owned()).await?;
    request.row(REQUEST.about, REQUEST.budget);
    let tag = |pod: &str| {
        pod.rsplit_once('-')
            .map_or(pod, |(kind, _)| kind)
            .to_owned()
    };
    let (exec, _) = bench.compete(&EXEC, tag).await?;
    exec.row(EXEC.about, EXEC.budget);
    write.row(WRITE.0, WRITE.1);
    println!();
    without_hooks(&mut bench, kubeconfig, pods.len()).await
}

/// Starts the receivers, and the loops in place of hooks.
async fn start_actors(
    bench: &mut Bench<'_>,
    port: u16,
    stamp: &[String; 2],
) -> anyhow::Result<Vec<Group>> {
    let mut actors = Vec::new();
    for number in 0..PODS {
        let names = |contest: &Contest| contest.pods.map(|kind| format!("{kind}-{number}"));
        let [by_hook, by_loop] = names(&SIGNAL);
        for pod in [by_hook, by_loop.clone()] {
            let receiver = bench.stage.receiver(&pod, &bench.volumes[&pod])?;
            bench.hits.ready(&pod).await?;
            if pod == by_loop {
                let kill = format!("kill -HUP {}", receiver.pid());
                actors.push(Stage::shell_loop(&bench.volumes[&pod], &kill)?);
            }
            actors.push(receiver);
        }
        let [_, search] = names(&SEARCH);
        let kill = format!("pkill -HUP -x {search}");
        actors.push(Stage::shell_loop(&bench.volumes[&search], &kill)?);
        let [_, request] = names(&REQUEST);
        let ask = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'POST /-/reload HTTP/1.1\\r\\nhost: bench\\r\\ncontent-length: 0\\r\\n\\r\\n' >&3
            read -r answer <&3; exec 3>&-"
        );
        actors.push(Stage::shell_loop(&bench.volumes[&request], &ask)?);
        let [_, exec] = names(&EXEC);
        let run = format!(
            "{} {} loop-exec {}",
            stamp[0],
            stamp[1],
            bench.stage.socket.display()
        );
        actors.push(Stage::shell_loop(&bench.volumes[&exec], &run)?);
    }
    Ok(actors)
}

/// The cost of other pods' hooks for a pod without one: compared with an agent without hooks, on the same changes.
async fn without_hooks(bench: &mut Bench<'_>, kubeconfig: &str, pods: usize) -> anyhow::Result<()> {
    let other = agent(kubeconfig, None)?;
    other.settled(pods, &[Phase::Delivered]).await?;
    let names: Vec<_> = (0..PODS).map(|number| format!("plain-{number}")).collect();
    let volumes = names.iter().map(|pod| {
        let path = other.volume(NAMESPACE, pod, "configmap", "v");
        Ok((pod.clone(), fs::canonicalize(path)?))
    });
    let volumes: Vec<_> = volumes.collect::<anyhow::Result<_>>()?;
    let mut swaps = Swaps::watch(&volumes)?;
    let mut times = [Vec::new(), Vec::new()];
    bench.swaps.clear();
    for pod in names.iter().cycle().take(CHANGES) {
        sleep(PAUSE.mul_f64(fastrand::f64())).await;
        let began = now();
        change(bench.node, pod).await?;
        times[0].push(bench.swaps.next(pod).await?.saturating_sub(began));
        times[1].push(swaps.next(pod).await?.saturating_sub(began));
    }
    let [with, without] = times.map(Quantiles::of);
    println!("| write to swap of a pod without hooks | p50 / p99 / max |");
    println!("| --- | --: |");
    println!("| the agent has hooks of other pods | {with} |");
    println!("| the agent has none | {without} |");
    println!(
        "| ratio (p50), budget 1 | {:.2} |\n",
        with.p50 / without.p50
    );
    Ok(())
}

/// The memory of one hook for each pod: agents with and without hooks, in turn.
async fn memory(node: &Node, kubeconfig: &str) -> anyhow::Result<()> {
    for number in 0..HOOKED {
        create(node, &format!("hooked-{number}"), Path::new("/etc/app")).await?;
    }
    let private = TempDir::with_prefix_in("larder-bench-", "/run")?;
    let config = private.path().join("agent.yaml");
    let hook = json!({"pods": [format!("{NAMESPACE}/hooked-*")], "signal": "SIGHUP"});
    fs::write(&config, json!({"onChange": [hook]}).to_string())?;
    let mut sizes = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (sizes, config) in sizes.iter_mut().zip([None, Some(config.as_path())]) {
            let agent = agent(kubeconfig, config)?;
            let file = |number: usize| {
                let pod = format!("hooked-{number}");
                agent.volume(NAMESPACE, &pod, "configmap", "v").join(KEY)
            };
            // Its status, which shows hooks too, would cost memory by itself.
            let in_place = async {
                while !(0..HOOKED).all(|number| file(number).exists()) {
                    sleep(SETTLING).await;
                }
            };
            timeout(PATIENCE, in_place).await?;
            sleep(SETTLING).await;
            sizes.push(agent.anonymous()?);
            agent.settled(HOOKED, &[Phase::Delivered]).await?;
        }
    }
    let [without, with] = sizes.map(|mut sizes| {
        sizes.sort_unstable();
        sizes[sizes.len() / 2]
    });
    let each = i64::try_from(with)? - i64::try_from(without)?;
    println!("| {HOOKED} pods more | anonymous memory, median of {ROUNDS} |");
    println!("| --- | --: |");
    println!("| without hooks | {} KiB |", without / 1024);
    println!("| one hook for each | {} KiB |", with / 1024);
    println!(
        "| each hook, budget 1024 | {} bytes |",
        each / i64::try_from(HOOKED)?
    );
    Ok(())
}
