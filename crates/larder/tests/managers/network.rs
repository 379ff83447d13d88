//! A node and its API server on a simulated network: latencies, links that stall, lose everything or break, and an API
//! server that crashes and starts again. Pods, readers and writers go on meanwhile.
//!
//! Unlike in `races.rs`, what is between the two is real: the transport with its connections, and HTTP. turmoil keeps
//! the time of all hosts and carries their bytes. A failing seed is printed; `LARDER_NETWORK_SEED` repeats it, nearly
//! always exactly. What tokio draws itself repeats only if it is built with `RUSTFLAGS="--cfg tokio_unstable"`.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use larder::{
    Changes, ConfigMapManager, Error, ErrorKind, ManagerConfig, RegisteredPod, Strategy, WatchScope,
};
use larder_apiserver::User;
use larder_objects::ConfigMap;
use larder_transport::{Connector, Lane, Metrics, Transport};
use tokio::{
    task::{JoinSet, yield_now},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use turmoil::{
    Sim,
    net::{TcpListener, TcpStream},
};

use crate::{
    cluster::{Cluster, rounds},
    scripted::{kubeconfig, pod_with},
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const PORT: u16 = 6443;

/// Simulated time goes in steps of this. With shorter ones a storm takes longer.
const TICK: Duration = Duration::from_millis(50);
/// How long the network misbehaves.
const STORM: Duration = Duration::from_mins(2);
/// After this time every dead connection has been noticed (15 s), every delay is over (60 s), every answer of strategy
/// `Cache` has expired (60 s).
const HEALING: Duration = Duration::from_secs(170);

type Value = Option<String>;

/// One object as the test knows it.
struct ObservedObject {
    /// Every state that it had: its value, or that it did not exist.
    history: Vec<Value>,
    /// The newest state that a read has returned.
    seen: usize,
}

/// What the actors share. They are on one thread.
struct World {
    cluster: Cluster,
    objects: RefCell<Vec<ObservedObject>>,
    /// How many pods refer to each object.
    references: RefCell<[usize; NAMES.len()]>,
    weather: Cell<Weather>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Weather {
    /// Anything may happen.
    Storm,
    /// Nothing happens any more; what is broken heals.
    Healing,
    /// Everything has healed.
    Calm,
}

impl World {
    fn new() -> Rc<Self> {
        let object = || ObservedObject {
            history: vec![None],
            seen: 0,
        };
        Rc::new(Self {
            cluster: Cluster::new(),
            objects: RefCell::new(NAMES.map(|_| object()).into()),
            references: RefCell::default(),
            weather: Cell::new(Weather::Storm),
        })
    }

    fn is_stormy(&self) -> bool {
        self.weather.get() == Weather::Storm
    }

    fn is_calm(&self) -> bool {
        self.weather.get() == Weather::Calm
    }

    fn current(&self, object: usize) -> usize {
        self.objects.borrow()[object].history.len() - 1
    }

    fn seen(&self, object: usize) -> usize {
        self.objects.borrow()[object].seen
    }

    /// Creates, changes or deletes an object.
    fn write(&self, random: &mut fastrand::Rng, number: u32) {
        let object = random.usize(..NAMES.len());
        let value = (random.u8(..4) > 0).then(|| number.to_string());
        match &value {
            Some(value) => self.cluster.set(NAMES[object], value, false),
            None => self.cluster.delete(NAMES[object]),
        }
        self.objects.borrow_mut()[object].history.push(value);
    }

    /// Takes a read that must return nothing older than state `oldest`. Returns the value, if there was an answer.
    #[track_caller]
    fn take(
        &self,
        object: usize,
        oldest: usize,
        read: Result<Arc<ConfigMap>, Error>,
    ) -> Option<Value> {
        let value = match read {
            Ok(map) => Some(map.data["k"].to_string()),
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                let is_registered = !matches!(error.kind(), ErrorKind::NotRegistered { .. });
                assert!(is_registered, "{error}, but it is");
                assert!(!self.is_calm(), "failed in calm weather: {error:?}");
                return None;
            }
        };
        let object = &mut self.objects.borrow_mut()[object];
        let newer = &object.history[oldest..];
        let Some(offset) = newer.iter().position(|state| *state == value) else {
            panic!(
                "read {value:?}, older than state {oldest} of {:?}",
                object.history
            );
        };
        object.seen = object.seen.max(oldest + offset);
        Some(value)
    }
}

/// A pod that is registered, and counted.
struct Registered {
    world: Rc<World>,
    guard: RegisteredPod<ConfigMap>,
    /// The objects that it refers to, and their states when it began to.
    objects: BTreeMap<usize, usize>,
}

impl Registered {
    fn new(world: &Rc<World>, manager: &ConfigMapManager, name: &str, names: u8) -> Self {
        let objects = (0..NAMES.len()).filter(|object| names & (1 << object) != 0);
        let objects: BTreeMap<_, _> = objects
            .map(|object| (object, world.current(object)))
            .collect();
        let names: Vec<_> = objects.keys().map(|object| NAMES[*object]).collect();
        for object in objects.keys() {
            world.references.borrow_mut()[*object] += 1;
        }
        Self {
            world: Rc::clone(world),
            guard: manager.registered(&pod_with(name, &names)),
            objects,
        }
    }

    /// Reads one of its objects; the value, if there was an answer.
    async fn read(&self, object: usize) -> Option<Value> {
        let oldest = self.objects[&object].max(self.world.seen(object));
        let read = self.guard.get(NAMES[object]).await;
        self.world.take(object, oldest, read)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        for object in self.objects.keys() {
            self.world.references.borrow_mut()[*object] -= 1;
        }
    }
}

/// What a round is about.
#[derive(Clone, Copy)]
struct Setting {
    strategy: Strategy,
    scope: WatchScope,
    /// Or HTTP/1.1.
    http2: bool,
}

/// The node: a manager on the transport.
struct Node {
    world: Rc<World>,
    manager: ConfigMapManager,
    transport: Transport,
    setting: Setting,
}

impl Node {
    async fn start(world: Rc<World>, setting: Setting, random: &mut fastrand::Rng) -> Self {
        let config = larder_transport::Config::default()
            .connector(Connector::new(|_, _| TcpStream::connect(("server", PORT))))
            // Reading files takes real time.
            .credentials_check_interval(Duration::from_hours(1_000))
            .seed(Some(0))
            .http2_prior_knowledge(setting.http2)
            .max_streams_per_connection(random.u32(1..4));
        let (_directory, source) = kubeconfig(&format!("http://localhost:{PORT}"), None);
        let connected = larder_transport::connect(source, config, Metrics::default());
        let (client, transport) = connected.await.unwrap();
        let config = ManagerConfig::default()
            .strategy(setting.strategy)
            .watch_scope(setting.scope)
            .seed(Some(random.u64(..)));
        Self {
            world,
            manager: ConfigMapManager::new(client, &config).unwrap(),
            transport,
            setting,
        }
    }

    /// Registers pods, reads what they refer to, and unregisters them.
    async fn churn(&self, name: &str, mut random: fastrand::Rng) {
        while self.world.is_stormy() {
            let pod = Registered::new(&self.world, &self.manager, name, random.u8(..));
            for _ in 0..random.u8(..6) {
                pause(&mut random).await;
                let objects: Vec<_> = pod.objects.keys().copied().collect();
                if let Some(object) = random.choice(objects) {
                    pod.read(object).await;
                }
            }
            drop(pod);
            pause(&mut random).await;
        }
    }

    /// Reads all objects of `pod` once, then only what events speak of; has to know the last state of all in the end.
    async fn follow(&self, pod: &Registered, mut changes: Changes) {
        let mut picture: BTreeMap<usize, Value> = BTreeMap::new();
        let mut due: BTreeSet<usize> = pod.objects.keys().copied().collect();
        while !self.world.is_calm() {
            while let Some(object) = due.pop_first() {
                // After a failed read, an event says when it is worth trying again.
                if let Some(value) = pod.read(object).await {
                    picture.insert(object, value);
                }
            }
            if let Ok(change) = tokio::time::timeout(TICK, changes.next()).await {
                let change = change.unwrap();
                let object = NAMES.iter().position(|name| *name == change.key.name);
                due.extend(object.filter(|object| pod.objects.contains_key(object)));
            }
        }
        if self.setting.strategy == Strategy::Watch {
            for (object, known) in picture {
                let history = &self.world.objects.borrow()[object].history;
                assert_eq!(Some(&known), history.last(), "{}", NAMES[object]);
            }
        }
    }

    /// Looks at the number of watches (I1).
    async fn count_watches(&self) {
        while !self.world.is_calm() {
            sleep(TICK / 2).await;
            let before = self.watchable();
            // Whatever is ready now has been done then; what a removal aborts is dropped one turn later.
            for _ in 0..8 {
                yield_now().await;
            }
            let most = before.max(self.watchable());
            let connections = self.transport.connections();
            let watches = connections.iter().filter(|c| c.lane == Lane::Watch);
            let watches: usize = watches.map(|connection| connection.streams).sum();
            assert!(watches <= most, "{watches} watches, not {most}");
        }
    }

    /// Most watches that there may be.
    fn watchable(&self) -> usize {
        let references = self.world.references.borrow();
        let watched = references.iter().filter(|count| **count > 0).count();
        match (self.setting.strategy, self.setting.scope) {
            (Strategy::Watch, WatchScope::Object) => watched,
            (Strategy::Watch, _) => watched.min(1),
            _ => 0,
        }
    }

    async fn run(&self, mut random: fastrand::Rng) {
        let changes = self.manager.subscribe();
        // The other objects lose their last reference now and then.
        let steady = Registered::new(&self.world, &self.manager, "steady", 0b0011);
        let live = async {
            tokio::join!(
                self.churn("p1", random.fork()),
                self.churn("p2", random.fork()),
                self.churn("p3", random.fork()),
            );
            while !self.world.is_calm() {
                sleep(TICK).await;
            }
            // Everything has healed: reads return the current state, also for a new pod.
            let _all = Registered::new(&self.world, &self.manager, "all", u8::MAX);
            for (object, name) in NAMES.iter().enumerate() {
                let current = self.world.current(object);
                let read = self.manager.get("n", name).await;
                self.world.take(object, current, read);
            }
        };
        tokio::join!(live, self.follow(&steady, changes), self.count_watches());
        drop(steady);
        assert!(self.manager.objects().is_empty() && self.manager.pods().is_empty());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(self.transport.streams(), 0);
        // A connection that the server alone takes for open is reset by what it sends.
        for name in NAMES {
            self.world.cluster.set(name, "last", false);
        }
        sleep(Duration::from_secs(10)).await;
        assert_eq!(self.world.cluster.server.open_watches(), 0);
    }
}

/// Mostly a moment, sometimes some seconds.
async fn pause(random: &mut fastrand::Rng) {
    let most = if random.u8(..4) == 0 { 20_000 } else { 300 };
    sleep(Duration::from_millis(random.u64(..most))).await;
}

/// What is wrong with the network or the API server, and ends.
#[derive(Clone, Copy)]
enum Trouble {
    None,
    /// Bytes are late, those of either direction.
    Held,
    /// Bytes are lost, and with them the connections, silently.
    Cut,
    /// The same, one way.
    CutTowardsServer,
    CutTowardsNode,
    /// The API server is gone, then back.
    Crashed,
}

const LOUD: [Trouble; 3] = [Trouble::None, Trouble::Held, Trouble::Crashed];

/// Over HTTP/1.1 it is the kernel that notices these, with its probes, which the simulation has not.
const SILENT: [Trouble; 3] = [
    Trouble::Cut,
    Trouble::CutTowardsServer,
    Trouble::CutTowardsNode,
];

impl Trouble {
    fn begin(self, sim: &mut Sim<'_>) {
        match self {
            Self::None => {}
            Self::Held => sim.hold("node", "server"),
            Self::Cut => sim.partition("node", "server"),
            Self::CutTowardsServer => sim.partition_oneway("node", "server"),
            Self::CutTowardsNode => sim.partition_oneway("server", "node"),
            Self::Crashed => sim.crash("server"),
        }
    }

    fn end(self, sim: &mut Sim<'_>) {
        match self {
            Self::None => {}
            Self::Held => sim.release("node", "server"),
            Self::Cut | Self::CutTowardsServer | Self::CutTowardsNode => {
                sim.repair("node", "server");
            }
            Self::Crashed => sim.bounce("server"),
        }
    }
}

/// What happens in a moment.
fn strike(cluster: &Cluster, random: &mut fastrand::Rng) {
    let server = &cluster.server;
    match random.u8(..5) {
        0 => server.faults().go_away(),
        1 => server.faults().close_connections(),
        2 => server.faults().cut_watches(),
        3 => server.end_watches(),
        _ => server.compact(),
    }
}

fn storm(strategy: Strategy, scope: WatchScope, seed: u64) {
    // For the transport and the API server, which draw from the generator of the thread.
    fastrand::seed(seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let setting = Setting {
        strategy,
        scope,
        http2: random.u8(..4) > 0,
    };
    let world = World::new();
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .simulation_duration(Duration::from_hours(1))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(random.u64(2..200)))
        .enable_random_order()
        .build();
    let server = world.cluster.server.clone();
    sim.host("server", move || {
        let server = server.clone();
        async move {
            let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await?;
                let (server, never) = (server.clone(), CancellationToken::new());
                connections.spawn(server.serve_connection(stream, Some(User::admin()), never));
            }
        }
    });
    let (shared, mut draws) = (Rc::clone(&world), random.fork());
    sim.client("writer", async move {
        for number in 0.. {
            pause(&mut draws).await;
            if !shared.is_stormy() {
                break;
            }
            shared.write(&mut draws, number);
        }
        Ok(())
    });
    let (shared, mut draws) = (Rc::clone(&world), random.fork());
    sim.client("node", async move {
        let node = Node::start(shared, setting, &mut draws).await;
        node.run(draws).await;
        Ok(())
    });

    let mut trouble = Trouble::None;
    let mut next = Duration::ZERO;
    while !sim.step().unwrap() {
        let now = sim.elapsed();
        if now < next {
            continue;
        }
        trouble.end(&mut sim);
        if now < STORM {
            strike(&world.cluster, &mut random);
            let silent = setting.http2 && random.bool();
            let troubles = if silent { SILENT } else { LOUD };
            trouble = random.choice(troubles).unwrap();
            trouble.begin(&mut sim);
            next = now + Duration::from_millis(random.u64(100..15_000));
        } else if world.is_stormy() {
            trouble = Trouble::None;
            world.weather.set(Weather::Healing);
            next = now + HEALING;
        } else {
            world.weather.set(Weather::Calm);
            next = Duration::MAX;
        }
    }
}

fn storms(strategy: Strategy, scope: WatchScope) {
    let seeds = match std::env::var("LARDER_NETWORK_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..rounds("LARDER_NETWORK_STORMS", 2))
            .map(|_| fastrand::u64(..))
            .collect(),
    };
    for seed in seeds {
        let round = || storm(strategy, scope, seed);
        let passed = catch_unwind(AssertUnwindSafe(round)).is_ok();
        // The panic's own message has been printed by now.
        assert!(passed, "LARDER_NETWORK_SEED={seed} repeats it");
    }
}

#[test]
fn strategy_watch_survives_any_weather() {
    storms(Strategy::Watch, WatchScope::Object);
}

#[test]
fn strategy_watch_survives_any_weather_in_namespace_scope() {
    storms(Strategy::Watch, WatchScope::Namespace);
}

#[test]
fn strategy_cache_survives_any_weather() {
    storms(Strategy::Cache, WatchScope::Object);
}
