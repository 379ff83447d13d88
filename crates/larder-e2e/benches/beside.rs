//! The budgets of larder beside a kubelet (`docs/spec/beside-kubelet.md`, section 15), on the fake kubelet in real time.
//!
//! ```text
//! cargo bench -p larder-e2e --bench beside
//! ```
//!
//! The API server is the embedded one, reached over TLS with the node's identity. The fake kubelet has the periods of a
//! real one. So the figures show larder and those periods, but not the CPU time of a kubelet. It takes two minutes, and needs root for the
//! containers.

#![expect(clippy::print_stdout, reason = "the report")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::{Client, client::Body};
use larder_agent::{
    agent::{Agent, AgentHandle},
    beside::BesideConfig,
    clock::Clock,
    config::{Config, Flags, Host},
    root_dir::RootDir,
    status::Phase,
};
use larder_apiserver::{ApiServer, AuditLog, Options, Protocol, User};
use larder_e2e::{
    NodeAuthorizer,
    fake_kubelet::{FakeKubelet, KubeletOptions, Stage, USER_AGENT, container_id},
    figures::Quantiles,
};
use larder_kubelet::kubelet_dir::Mounts;
use larder_projection::{VolumeKind, disk::VolumeHost};
use larder_transport::{ClusterSource, Metrics};
use parking_lot::Mutex;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

const NODE: &str = "node-1";
/// Pods with a ConfigMap each, changed in turn.
const PODS: usize = 24;
/// Changes of each pod: fewer than larder's limit for a minute.
const ROUNDS: usize = 5;
/// Pairs of changes, each pair one after the other.
const PAIRS: usize = 4;
/// Pods with a container that mounts a file by `subPath`.
const SUB_PATH_PODS: usize = 12;
/// Pods that share a ConfigMap, and how often it changes.
const SHARING: usize = 110;
const SHARED_ROUNDS: usize = 5;
/// Time without a change.
const QUIET: Duration = Duration::from_secs(30);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_mins(3);
/// Pause between two reads of the status, and so the error of times that are read from it.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The limit of the command.
const BLOCKING_THREADS: usize = 3;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let node = Node::start().await?;
    let mut rng = fastrand::Rng::with_seed(1);
    println!("| figure | budget | measured | ratio |");
    println!("| --- | --: | --: | --: |");
    at_rest(&node, &mut rng).await?;
    right_after_a_sync(&node, &mut rng).await?;
    let before = node.touches().len();
    sleep(QUIET).await;
    let touches = node.touches().len() - before;
    let seconds = QUIET.as_secs();
    println!("| touches in {seconds} s without a change | 0 | {touches} | |");
    sub_path(&node, &mut rng).await?;
    shared(&node).await
}

/// Changes of pods whose last sync was over a second ago.
async fn at_rest(node: &Node, rng: &mut fastrand::Rng) -> anyhow::Result<()> {
    let names: Vec<_> = (0..PODS).map(|index| format!("p{index}")).collect();
    node.create(&names, str::to_owned).await?;
    let before = node.touches().len();
    let mut changes = Vec::new();
    for round in 1..=ROUNDS {
        // So that syncs of the pods do not coincide.
        for name in &names {
            changes.push(node.change(name, name, round)?);
            sleep(Duration::from_millis(rng.u64(20..120))).await;
        }
        sleep(Duration::from_millis(rng.u64(2_000..2_500))).await;
    }
    node.until_delivered().await?;
    let arrived = changes.iter().map(|change| node.arrival(change));
    let arrived = arrived.collect::<anyhow::Result<Vec<_>>>()?;
    let quantiles =
        |time: fn(&Arrival) -> Duration| Quantiles::of(arrived.iter().map(time).collect());
    let files = quantiles(|arrival| arrival.file);
    row(
        "object written → kubelet's file, p50",
        150.0,
        files.p50,
        "ms",
    );
    row("the same, p99", 300.0, files.p99, "ms");
    let sent = quantiles(|arrival| arrival.sent);
    println!(
        "| event received → PATCH sent, p50 | | {:.1} ms | |",
        sent.p50
    );
    row("the same, p99", 5.0, sent.p99, "ms");
    let answered = quantiles(|arrival| arrival.answered);
    println!(
        "| object written → PATCH answered, p99 | | {:.1} ms | |",
        answered.p99
    );
    let verified = quantiles(|arrival| arrival.verified);
    row("file in place → verified, p99", 20.0, verified.p99, "ms");
    let mean = count(node.touches().len() - before) / count(changes.len());
    row("touches per change, mean", 1.0, mean, "");
    let most = arrived.iter().map(|arrival| arrival.touches).max();
    row(
        "touches per change, most",
        4.0,
        count(most.unwrap_or_default()),
        "",
    );
    Ok(())
}

/// Second changes, up to 0.3 s after the first ones have arrived.
async fn right_after_a_sync(node: &Node, rng: &mut fastrand::Rng) -> anyhow::Result<()> {
    let names: Vec<_> = (0..PODS).map(|index| format!("q{index}")).collect();
    node.create(&names, str::to_owned).await?;
    let mut files = Vec::new();
    for round in 1..=PAIRS {
        let written = Instant::now();
        for name in &names {
            node.change(name, name, 10 * round)?;
        }
        node.until_arrived(&names, written).await?;
        sleep(Duration::from_millis(rng.u64(..300))).await;
        let written = Instant::now();
        for name in &names {
            node.change(name, name, 10 * round + 1)?;
        }
        files.extend(node.until_arrived(&names, written).await?);
        sleep(Duration::from_millis(1_500)).await;
    }
    let what = "object written → file right after a sync, p99";
    row(what, 1_300.0, Quantiles::of(files).p99, "ms");
    Ok(())
}

/// A process in a mount namespace with the key `n` of a volume at `/etc/larder-bench`, which reports each new content.
struct Container {
    child: Child,
    contents: mpsc::UnboundedReceiver<(String, Instant)>,
}

impl Container {
    /// `proc` shows the process to larder as it is, but for its control groups, which have the container's ID.
    fn start(key: &Path, kubelet: &Path, proc: &Path, id: &str) -> anyhow::Result<Self> {
        let script = "set -e; mount -t tmpfs none /etc; touch /etc/larder-bench
            mount --bind -o ro \"$0\" /etc/larder-bench; mount -t tmpfs none \"$1\"
            exec perl -e '$| = 1; for (;;) { open(my $f, \"<\", \"/etc/larder-bench\") or die; $_ = <$f>;
                print \"$_\\n\" if $_ ne $old; $old = $_; select(undef, undef, undef, 0.001) }'";
        let mut child = Command::new("unshare")
            .args(["-m", "bash", "-c", script])
            .args([key, kubelet])
            .stdout(Stdio::piped())
            .spawn()?;
        let pid = child.id().to_string();
        for (process, files) in [
            (
                &*pid,
                &["stat", "status", "mountinfo", "uid_map", "ns/mnt"][..],
            ),
            ("self", &["mountinfo", "uid_map"]),
        ] {
            fs::create_dir_all(proc.join(process).join("ns"))?;
            for file in files {
                // Those of this process are there after the first one.
                let _ = symlink(
                    Path::new("/proc").join(process).join(file),
                    proc.join(process).join(file),
                );
            }
        }
        let (sender, contents) = mpsc::unbounded_channel();
        let output = BufReader::new(child.stdout.take().context("it has an output")?);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The benchmark may have ended.
                let _ = sender.send((line, Instant::now()));
            }
        });
        let groups = format!("0::/kubepods/pod1/{id}\n");
        fs::write(proc.join(pid).join("cgroup"), groups)?;
        Ok(Self { child, contents })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Changes of a key that a running container mounts by `subPath`.
async fn sub_path(node: &Node, rng: &mut fastrand::Rng) -> anyhow::Result<()> {
    let names: Vec<_> = (0..SUB_PATH_PODS)
        .map(|index| format!("k{index}"))
        .collect();
    node.create_with(&names, str::to_owned, true).await?;
    let [kubelet, .., proc] = &*node.directories else {
        anyhow::bail!("the node has its directories");
    };
    let mut containers = Vec::new();
    for name in &names {
        let uid = format!("uid-{name}");
        let volume = node.kubelet.volume_path(&uid, VolumeKind::ConfigMap, "v");
        let key = volume.join("n").canonicalize()?;
        let id = container_id(&uid, "c", 0);
        let mut container = Container::start(&key, kubelet.path(), proc.path(), &id)?;
        container.contents.recv().await.context("it runs")?;
        containers.push(container);
    }
    let mut times = Vec::new();
    for round in 1..=ROUNDS {
        for (name, container) in names.iter().zip(&mut containers) {
            node.write(name, round)?;
            let written = Instant::now();
            let read = timeout(PATIENCE, container.contents.recv()).await?;
            let (content, at) = read.context("it runs")?;
            anyhow::ensure!(content == round.to_string(), "{content} after {round}");
            times.push(at - written);
        }
        sleep(Duration::from_millis(rng.u64(2_000..2_500))).await;
    }
    let read = Quantiles::of(times);
    let what = "object written → read by subPath in a container";
    row(&format!("{what}, p50"), 200.0, read.p50, "ms");
    row("the same, p99", 400.0, read.p99, "ms");
    Ok(())
}

/// Changes of an object that many pods read.
async fn shared(node: &Node) -> anyhow::Result<()> {
    let names: Vec<_> = (0..SHARING).map(|index| format!("s{index}")).collect();
    node.create(&names, |_| "shared".to_owned()).await?;
    let mut slowest = Vec::new();
    for round in 1..=SHARED_ROUNDS {
        let written = Instant::now();
        node.write("shared", round)?;
        let arrived = node.until_arrived(&names, written).await?;
        slowest.extend(arrived.into_iter().max());
        sleep(Duration::from_secs(2)).await;
    }
    let what = format!("{SHARING} pods share an object, all files");
    row(&what, 1_000.0, Quantiles::of(slowest).max, "ms");
    Ok(())
}

fn row(figure: &str, budget: f64, measured: f64, unit: &str) {
    let ratio = measured / budget;
    println!("| {figure} | {budget} {unit} | {measured:.1} {unit} | {ratio:.2} |");
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn count(number: usize) -> f64 {
    number as f64
}

/// A change of an object that a pod reads.
struct Change {
    pod: String,
    at: Instant,
    wall: Timestamp,
}

impl Change {
    /// Makes a change of the pod's object now.
    fn of(pod: &str) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "compared with the audit log's times"
        )]
        let wall = Timestamp::now();
        Self {
            pod: pod.to_owned(),
            at: Instant::now(),
            wall,
        }
    }
}

/// The times of a change's effects.
struct Arrival {
    /// From the event that reached larder until it sent the PATCH.
    sent: Duration,
    /// Until the first PATCH was answered.
    answered: Duration,
    /// Until the file was in place.
    file: Duration,
    /// From then until larder reported it.
    verified: Duration,
    touches: usize,
}

/// What passes between larder and its client, by the names of objects and pods.
#[derive(Default)]
struct Edge {
    /// The parts of responses about one object: events.
    received: BTreeMap<String, Vec<Instant>>,
    /// The patches of pods.
    sent: BTreeMap<String, Vec<Instant>>,
}

impl Edge {
    fn received(&mut self, query: &str) {
        let mut parts = query.split('&');
        if let Some(name) =
            parts.find_map(|part| part.strip_prefix("fieldSelector=metadata.name%3D"))
        {
            self.received
                .entry(name.to_owned())
                .or_default()
                .push(Instant::now());
        }
    }

    fn sent(&mut self, path: &str) {
        if let Some(name) = path.split('/').nth_back(1) {
            self.sent
                .entry(name.to_owned())
                .or_default()
                .push(Instant::now());
        }
    }

    /// From the first event of the pod's object since `change`, until the PATCH of the pod.
    fn share(&self, pod: &str, change: Instant) -> anyhow::Result<Duration> {
        let first = |times: &BTreeMap<String, Vec<Instant>>, since: Instant| {
            let times = times.get(pod)?;
            times.get(times.partition_point(|at| *at < since)).copied()
        };
        let received = first(&self.received, change).context("larder got an event")?;
        let sent = first(&self.sent, received).context("larder sent a PATCH")?;
        Ok(sent - received)
    }
}

/// A client that notes what passes through it.
fn observed(client: Client, edge: Arc<Mutex<Edge>>) -> Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, edge) = (client.clone(), Arc::clone(&edge));
        async move {
            if request.method() == http::Method::PATCH {
                edge.lock().sent(request.uri().path());
            }
            let query = request.uri().query().unwrap_or_default().to_owned();
            let response = client.send(request).await?;
            let body = move |body: Body| {
                body.map_frame(move |frame| {
                    edge.lock().received(&query);
                    frame
                })
            };
            Ok::<_, kube::Error>(response.map(body))
        }
    });
    Client::new(service, "default")
}

/// The API server, the fake kubelet and larder.
struct Node {
    server: ApiServer,
    kubelet: FakeKubelet,
    handle: AgentHandle,
    edge: Arc<Mutex<Edge>>,
    /// When each pod's volume was verified.
    verified: Arc<Mutex<BTreeMap<String, Vec<Instant>>>>,
    _tasks: JoinSet<()>,
    /// That of the kubelet first, and last what larder takes for `/proc`.
    directories: Vec<TempDir>,
}

impl Node {
    async fn start() -> anyhow::Result<Self> {
        let options = Options::default().audit(AuditLog::in_memory());
        let server = ApiServer::new(options.authorization(NodeAuthorizer));
        let annotations = json!({"node.alpha.kubernetes.io/ttl": "0"});
        let metadata = json!({"name": NODE, "annotations": annotations});
        server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata}))?;
        let mut tasks = JoinSet::new();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let serving = server.clone();
        tasks.spawn(async move {
            let end = serving.serve(listener, Protocol::Tls, CancellationToken::new());
            end.await.expect("the listener is bound");
        });
        let [volumes, root, lock, proc] = [(); 4].map(|()| TempDir::new());
        let (volumes, root, lock, proc) = (volumes?, root?, lock?, proc?);

        let clock = Clock::system();
        let kubelets_clock = clock.clone();
        let mut options = KubeletOptions::new(NODE, volumes.path(), move || kubelets_clock.now());
        // The distance between its loops, which makes up most of the time to the file, is another one in each run.
        options.seed = fastrand::u64(..);
        let kubelet = FakeKubelet::start(&server, options).await?;

        let user = User {
            name: format!("system:node:{NODE}"),
            groups: vec!["system:nodes".to_owned()],
        };
        let path = root.path().join("kubeconfig");
        fs::write(&path, server.kubeconfig(address, user)?)?;
        let source = ClusterSource::Kubeconfig {
            path,
            context: None,
        };
        let host = Host {
            name: NODE.to_owned(),
            uid: 1000,
            runtime_dir: None,
            temp_dir: "/tmp".into(),
        };
        let flags = Flags {
            root_dir: Some(root.path().join("larder")),
            ..Flags::default()
        };
        let (mut config, _) = Config::load(None, flags, &host)?;
        let mut beside = BesideConfig::new(volumes.path());
        beside.mounts = Mounts::NotExpected;
        beside.lock_dir = lock.path().into();
        beside.processes = proc.path().into();
        config.beside = Some(beside);
        let edge = Arc::default();
        let handle = start_larder(source, config, clock, Arc::clone(&edge)).await?;
        let verified = Arc::default();
        tasks.spawn(follow(handle.clone(), Arc::clone(&verified)));
        Ok(Self {
            server,
            kubelet,
            handle,
            edge,
            verified,
            _tasks: tasks,
            directories: vec![volumes, root, lock, proc],
        })
    }

    /// Creates pods, each with the ConfigMap that `object` names, and waits until they have been at rest.
    async fn create(&self, pods: &[String], object: impl Fn(&str) -> String) -> anyhow::Result<()> {
        self.create_with(pods, object, false).await
    }

    /// The same; with `by_sub_path`, their containers mount the key alone.
    async fn create_with(
        &self,
        pods: &[String],
        object: impl Fn(&str) -> String,
        by_sub_path: bool,
    ) -> anyhow::Result<()> {
        let sub_path = by_sub_path.then_some("n");
        let annotations = json!({"larder.dev/subpath-updates": by_sub_path.to_string()});
        for pod in pods {
            let map = object(pod);
            self.write(&map, 0)?;
            self.server.apply(&json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": pod, "uid": format!("uid-{pod}"), "annotations": annotations},
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "c", "image": "i",
                        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": sub_path}]}],
                    "volumes": [{"name": "v", "configMap": {"name": map}}],
                },
            }))?;
        }
        self.until_delivered().await?;
        sleep(Duration::from_secs(4)).await;
        Ok(())
    }

    fn write(&self, map: &str, number: usize) -> anyhow::Result<()> {
        self.server.apply(
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": map},
            "data": {"n": number.to_string()}}),
        )?;
        Ok(())
    }

    /// Changes the ConfigMap of a pod.
    fn change(&self, pod: &str, map: &str, number: usize) -> anyhow::Result<Change> {
        let change = Change::of(pod);
        self.write(map, number)?;
        Ok(change)
    }

    /// Waits until larder has verified every volume. A change must have had time to reach larder.
    async fn until_delivered(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        sleep(Duration::from_millis(20)).await;
        loop {
            let pods = self.handle.status().pods;
            let mut volumes = pods.iter().flat_map(|pod| &pod.volumes);
            if !pods.is_empty() && volumes.all(|volume| volume.delivery.phase == Phase::Delivered) {
                return Ok(());
            }
            anyhow::ensure!(start.elapsed() < PATIENCE, "not everything was delivered");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the content of each of these pods has changed since `written`; returns the time of each.
    async fn until_arrived(
        &self,
        pods: &[String],
        written: Instant,
    ) -> anyhow::Result<Vec<Duration>> {
        while written.elapsed() < PATIENCE {
            let mut arrived = BTreeMap::new();
            for happening in self.kubelet.journal() {
                let is_swap = matches!(happening.stage, Stage::SetUp { swapped: true, .. });
                if is_swap && happening.at >= written {
                    arrived
                        .entry(happening.pod)
                        .or_insert(happening.at - written);
                }
            }
            let times: Vec<_> = pods
                .iter()
                .filter_map(|pod| arrived.get(pod).copied())
                .collect();
            if times.len() == pods.len() {
                return Ok(times);
            }
            sleep(Duration::from_millis(5)).await;
        }
        anyhow::bail!("a change has not arrived")
    }

    /// The path and the time of each PATCH by larder.
    fn touches(&self) -> Vec<(String, Timestamp)> {
        let records = self.server.audit().records().into_iter();
        let touches = records.filter(|record| {
            record.verb == "patch"
                && record.path.contains("/pods/")
                && record.user_agent != USER_AGENT
        });
        let touches =
            touches.filter_map(|record| Some((record.path.clone(), record.time.parse().ok()?)));
        touches.collect()
    }

    /// From `written` until the volume of the pod had changed.
    fn file_after(&self, pod: &str, written: Instant) -> anyhow::Result<Duration> {
        let journal = self.kubelet.journal().into_iter();
        let mut swaps = journal.filter(|happening| {
            matches!(happening.stage, Stage::SetUp { swapped: true, .. }) && happening.pod == pod
        });
        let swap = swaps.find(|happening| happening.at >= written);
        Ok(swap.context("a change has arrived")?.at - written)
    }

    fn arrival(&self, change: &Change) -> anyhow::Result<Arrival> {
        let path = format!("/api/v1/namespaces/default/pods/{}/status", change.pod);
        let file = self.file_after(&change.pod, change.at)?;
        let end = change.wall + file;
        let touches: Vec<_> = (self.touches().into_iter())
            .filter(|(touched, at)| *touched == path && (change.wall..=end).contains(at))
            .collect();
        let (_, answered) = touches.first().context("a change caused a PATCH")?;
        let verified = self.verified.lock();
        let mut verified = verified
            .get(&change.pod)
            .context("a pod was verified")?
            .iter();
        // The kernel notifies larder of a swap before the fake records it.
        let verified = verified
            .find(|at| **at > change.at)
            .context("a change was verified")?;
        Ok(Arrival {
            sent: self.edge.lock().share(&change.pod, change.at)?,
            answered: answered.duration_since(change.wall).try_into()?,
            file,
            verified: verified.saturating_duration_since(change.at + file),
            touches: touches.len(),
        })
    }
}

/// Starts larder on one thread of its own, as the command does. It ends with the process.
async fn start_larder(
    source: ClusterSource,
    config: Config,
    clock: Clock,
    edge: Arc<Mutex<Edge>>,
) -> anyhow::Result<AgentHandle> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()?;
    let start = async move {
        let transport = larder_transport::Config::default();
        let (client, _) = larder_transport::connect(source, transport, Metrics::default()).await?;
        let locked = RootDir::lock(&config.root_dir)?;
        let host = VolumeHost::open_without_mounts(locked.path())?;
        let client = observed(client, edge);
        let agent = Agent::builder(config, locked, host, client);
        anyhow::Ok(agent.clock(clock).build()?)
    };
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new()
        .name("larder".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                let agent = start.await.expect("larder starts");
                let started = sender.send(agent.handle());
                started.expect("the benchmark waits for it");
                let end = agent.run(CancellationToken::new()).await;
                end.expect("larder runs");
            });
        })?;
    Ok(receiver.await?)
}

/// Notes when larder shows a volume as delivered after a swap.
async fn follow(handle: AgentHandle, verified: Arc<Mutex<BTreeMap<String, Vec<Instant>>>>) {
    let mut known = BTreeMap::new();
    loop {
        for pod in handle.status().pods {
            for volume in pod.volumes {
                let is_delivered = volume.delivery.phase == Phase::Delivered;
                let last = (volume.last_swap, is_delivered);
                if known.insert(pod.name.clone(), last) != Some(last) && is_delivered {
                    let mut verified = verified.lock();
                    verified
                        .entry(pod.name.clone())
                        .or_default()
                        .push(Instant::now());
                }
            }
        }
        sleep(POLL_INTERVAL).await;
    }
}
