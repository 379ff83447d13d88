//! A random search for races: a manager, the embedded API server and all their callers on one thread. At every await a
//! seeded random source decides which of them continues, and how late each answer and each event arrives.
//!
//! That is where the managers' races are: between callers, requests under way, events and timers, which meet at awaits.
//! State that threads share is behind a lock, or in a lock-free map that its own project tests. A scheduler of threads
//! would need the library compiled with its own locks, and would see neither the map nor tokio. This test runs the same
//! code as a node. A failing seed is printed; `LARDER_RACE_SEED` repeats it.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::client::Body;
use larder::{ConfigMapManager, ErrorKind, ManagerConfig, Strategy};
use larder_apiserver::ApiServer;
use larder_objects::ConfigMap;
use parking_lot::Mutex;
use tokio::time::sleep;
use tower::ServiceExt;

use crate::{
    cluster::{Cluster, request_trace, rounds},
    scripted::pod_with,
};

/// The random source of one round.
#[derive(Clone)]
struct Chance(Arc<Mutex<fastrand::Rng>>);

impl Chance {
    fn below(&self, end: u64) -> u64 {
        self.0.lock().u64(..end)
    }

    /// Lets others go on for a while: not at all, for some turns, or for up to two seconds.
    async fn pause(&self) {
        match self.below(4) {
            0 => {}
            1 | 2 => {
                for _ in 0..self.below(6) {
                    tokio::task::yield_now().await;
                }
            }
            _ => sleep(Duration::from_millis(self.below(2000))).await,
        }
    }

    /// Runs `future`, but not each time when it could run.
    async fn shake<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        std::future::poll_fn(|context: &mut Context<'_>| -> Poll<T> {
            if self.below(3) == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Pin::as_mut(&mut future).poll(context)
        })
        .await
    }

    /// A client whose requests, answers and events are under way for some time.
    fn client(&self, server: &ApiServer) -> kube::Client {
        let (chance, service) = (self.clone(), server.service());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (chance, service) = (chance.clone(), service.clone());
            async move {
                chance.pause().await;
                let answer = service.oneshot(request).await?;
                chance.pause().await;
                Ok::<_, tower::BoxError>(answer.map(|body| {
                    let frames = BodyStream::new(body).then(move |frame| {
                        let chance = chance.clone();
                        async move {
                            chance.pause().await;
                            frame
                        }
                    });
                    StreamBody::new(frames).boxed_unsync()
                }))
            }
        });
        kube::Client::new(service, "default")
    }
}

/// The last value that ConfigMap `a` will have.
const LAST: u64 = 6;

fn value(read: &ConfigMap) -> u64 {
    read.data["k"].parse().unwrap()
}

struct Race {
    chance: Chance,
    cluster: Cluster,
    manager: ConfigMapManager,
    /// The value of ConfigMap `a`.
    written: Cell<u64>,
    /// Writes, reads and requests, each in their order.
    trace: RefCell<Vec<String>>,
}

impl Race {
    fn new(seed: u64, strategy: Strategy) -> Self {
        let chance = Chance(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))));
        let cluster = Cluster::new();
        cluster.set("a", "0", false);
        let config = ManagerConfig::default().strategy(strategy).seed(Some(seed));
        let manager = ConfigMapManager::new(chance.client(&cluster.server), &config).unwrap();
        Self {
            chance,
            cluster,
            manager,
            written: Cell::new(0),
            trace: RefCell::default(),
        }
    }

    fn note(&self, event: String) {
        self.trace.borrow_mut().push(event);
    }

    /// The requests since the last call.
    fn requests(&self) -> Vec<String> {
        let requests = self.cluster.audit.take();
        requests.iter().map(request_trace).collect()
    }

    async fn write(&self) {
        for number in 1..=LAST {
            self.chance.pause().await;
            self.cluster.set("a", &number.to_string(), false);
            self.written.set(number);
            self.note(format!("write {number}"));
        }
    }

    /// Registers and unregisters pods, mostly the last one that refers to an object.
    async fn churn(&self, name: &str) {
        for round in 0..8 {
            let names: &[&str] = if round % 3 == 0 { &["a", "b"] } else { &["a"] };
            self.manager.register_pod(&pod_with(name, names));
            self.chance.pause().await;
            self.manager.unregister_pod(&pod_with(name, &[]));
            self.chance.pause().await;
        }
    }

    /// Reads for pods that have just registered, and without a pod.
    async fn read(&self, name: &str) {
        let mut seen = 0;
        for round in 0..8 {
            self.chance.pause().await;
            if round % 2 == 0 {
                match self.manager.get("n", "a").await {
                    Ok(read) => seen = newer(seen, &read),
                    Err(error) => assert!(
                        matches!(
                            error.kind(),
                            ErrorKind::NotRegistered { .. } | ErrorKind::NotSynced { .. }
                        ),
                        "{error}"
                    ),
                }
            }
            seen = seen.max(self.written.get());
            let guard = self.manager.registered(&pod_with(name, &["a"]));
            self.chance.pause().await;
            let read = guard.get_within("a", Duration::from_mins(1)).await;
            seen = newer(seen, &read.unwrap());
            self.note(format!("read {name} {seen}"));
        }
    }

    /// Reads once, then only when an event says so, and has to end with the last state all the same.
    async fn follow(&self) {
        self.chance.pause().await;
        let mut changes = self.manager.subscribe();
        let guard = self.manager.registered(&pod_with("follower", &["a"]));
        // There are no events of what happened before it subscribed.
        let mut seen = value(&guard.get_within("a", Duration::from_mins(1)).await.unwrap());
        while seen < LAST {
            let change = tokio::time::timeout(Duration::from_mins(5), changes.next()).await;
            let change = change.unwrap_or_else(|_| panic!("no event after value {seen}"));
            if &*change.unwrap().key.name == "a" {
                self.chance.pause().await;
                let read = guard.get_within("a", Duration::from_mins(1)).await;
                seen = newer(seen, &read.unwrap());
            }
        }
    }

    async fn run(&self, strategy: Strategy) {
        let follow = async {
            if strategy == Strategy::Watch {
                self.follow().await;
            }
        };
        let chance = &self.chance;
        tokio::join!(
            chance.shake(self.write()),
            chance.shake(self.churn("p1")),
            chance.shake(self.churn("p2")),
            chance.shake(self.read("q1")),
            chance.shake(self.read("q2")),
            chance.shake(follow),
        );
        assert!(self.manager.pods().is_empty() && self.manager.objects().is_empty());
        sleep(Duration::from_mins(5)).await;
        assert_eq!(self.cluster.server.open_watches(), 0);
        self.trace.borrow_mut().extend(self.requests());
        sleep(Duration::from_hours(2)).await;
        assert_eq!(self.cluster.audit.take().len(), 0);
    }
}

/// The value that was read, which must not be older than `seen`.
#[track_caller]
fn newer(seen: u64, read: &ConfigMap) -> u64 {
    let read = value(read);
    assert!(read >= seen, "value {read} is older than {seen}");
    read
}

fn race(strategy: Strategy) {
    let seeds = match std::env::var("LARDER_RACE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..rounds("LARDER_RACES", 200))
            .map(|_| fastrand::u64(..))
            .collect(),
    };
    for seed in seeds {
        let round = || drop(run(seed, strategy));
        let passed = catch_unwind(AssertUnwindSafe(round)).is_ok();
        // The panic's own message has been printed by now.
        assert!(passed, "LARDER_RACE_SEED={seed} repeats it");
    }
}

/// Runs one round; returns what happened.
fn run(seed: u64, strategy: Strategy) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    // What the library draws itself.
    fastrand::seed(seed);
    runtime.block_on(async {
        let race = Race::new(seed, strategy);
        race.run(strategy).await;
        race.trace.take()
    })
}

#[test]
fn the_same_seed_brings_the_same_race() {
    for strategy in [Strategy::Watch, Strategy::Cache] {
        for seed in 0..5 {
            let [first, again, other] = [seed, seed, seed + 5].map(|seed| run(seed, strategy));
            assert!(first.len() > 20, "{}", first.len());
            assert_eq!(first, again);
            assert_ne!(first, other);
        }
    }
}

// managers 36, C4
#[test]
fn strategy_watch_survives_any_order_of_events() {
    race(Strategy::Watch);
}

#[test]
fn strategy_cache_survives_any_order_of_events() {
    race(Strategy::Cache);
}
