//! Random sequences of everything that can happen, against a naive model, for every strategy.
//!
//! The model keeps the whole history of each object and which pods are registered. It knows for every read which
//! states may be returned: none older than a state that was read before (I3), none older than the reader's
//! registration, and the current one when nothing stands in the way. A failing sequence is shrunk and printed.
//! `LARDER_MODEL_SEQUENCES` sets the number of sequences of each test.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use larder::{ConfigMapManager, Error, ErrorKind, ManagerConfig, Strategy, WatchScope};
use larder_apiserver::{Fault, Injected, Verb};
use larder_objects::ConfigMap;
use proptest::prelude::{
    Just, ProptestConfig, Strategy as _, TestCaseError, any, prop, prop_oneof,
};
use proptest::test_runner::{RngAlgorithm, TestRunner};
use tokio::time::Instant;

use crate::{
    cluster::{Cluster, rounds},
    scripted::pod_with,
};

const NAMES: [&str; 3] = ["a", "b", "c"];
const PODS: [&str; 3] = ["p", "q", "r"];

#[derive(Clone, Debug)]
enum Step {
    /// Registers a pod with those names, by bit.
    Register(usize, u8),
    Unregister(usize),
    /// Creates or changes an object; immutable ones are left alone.
    Write(usize),
    WriteImmutable(usize),
    Delete(usize),
    Recreate(usize),
    Read(usize),
    ReadFor(usize, usize),
    Outage(bool),
    /// Cuts open watches.
    Cut,
    /// The API server forgets the past.
    Compact,
    /// The next request goes wrong, if it comes before time passes.
    Fail(Failure),
    Advance(u64),
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    Status(u16),
    Busy,
    Expired,
    Late,
    Silent,
    Dropped,
    Truncated,
    Ended,
}

impl Failure {
    fn fault(self) -> Fault {
        let next = Fault::on_any().times(1);
        match self {
            Self::Status(code) => next.status(code),
            Self::Busy => next.retry_after(429, 7),
            Self::Expired => Fault::on(Verb::Watch).times(1).error_after_events(0, 410),
            Self::Late => next.delay(Duration::from_secs(3)),
            Self::Silent => next.never_answer(),
            Self::Dropped => next.drop_connection(),
            Self::Truncated => next.cut_after_bytes(100),
            Self::Ended => next.end_after_events(1),
        }
    }
}

fn failures() -> impl proptest::strategy::Strategy<Value = Failure> {
    prop_oneof![
        prop_oneof![Just(403), Just(410), Just(500)].prop_map(Failure::Status),
        Just(Failure::Busy),
        Just(Failure::Expired),
        Just(Failure::Late),
        Just(Failure::Silent),
        Just(Failure::Dropped),
        Just(Failure::Truncated),
        Just(Failure::Ended),
    ]
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    let (object, pod) = (0..NAMES.len(), 0..PODS.len());
    let step = prop_oneof![
        4 => (pod.clone(), any::<u8>()).prop_map(|(pod, names)| Step::Register(pod, names)),
        2 => pod.clone().prop_map(Step::Unregister),
        4 => object.clone().prop_map(Step::Write),
        1 => object.clone().prop_map(Step::WriteImmutable),
        1 => object.clone().prop_map(Step::Delete),
        1 => object.clone().prop_map(Step::Recreate),
        6 => object.clone().prop_map(Step::Read),
        4 => (pod, object).prop_map(|(pod, object)| Step::ReadFor(pod, object)),
        1 => any::<bool>().prop_map(Step::Outage),
        1 => Just(Step::Cut),
        1 => Just(Step::Compact),
        2 => failures().prop_map(Step::Fail),
        2 => prop_oneof![Just(1), Just(30), Just(61), Just(130), Just(400), Just(2000)]
            .prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..40)
}

/// One state of an object: its value, or that it does not exist.
#[derive(Clone, Debug, PartialEq)]
struct State {
    value: Option<String>,
    immutable: bool,
    since: Instant,
}

/// One object of the model.
struct ModelObject {
    history: Vec<State>,
    /// The newest state that a reader has seen since the object was last unreferenced.
    seen: usize,
}

impl ModelObject {
    fn current(&self) -> usize {
        self.history.len() - 1
    }

    fn push(&mut self, value: Option<String>, immutable: bool) {
        let since = Instant::now();
        self.history.push(State {
            value,
            immutable,
            since,
        });
    }
}

struct Model {
    strategy: Strategy,
    scope: WatchScope,
    cluster: Cluster,
    manager: ConfigMapManager,
    objects: Vec<ModelObject>,
    /// By pod and object: the state of the object when the pod began to refer to it.
    references: BTreeMap<(usize, usize), usize>,
    /// The object that was read last. Holding it does not make it readable.
    in_use: BTreeMap<usize, Arc<ConfigMap>>,
    down: bool,
    /// Failures that have not struck.
    armed: Vec<Injected>,
    /// When the last outage, cut or failure was over, or later.
    calm_since: Instant,
    writes: u64,
}

/// After this time without failure every delay is over.
const HEALED: Duration = Duration::from_secs(61);
const TTL: Duration = Duration::from_mins(1);

impl Model {
    fn new(config: &ManagerConfig) -> Self {
        let cluster = Cluster::new();
        let manager = ConfigMapManager::new(cluster.client(), config).unwrap();
        let start = Instant::now();
        let objects = NAMES.iter().map(|_| ModelObject {
            history: vec![State {
                value: None,
                immutable: false,
                since: start,
            }],
            seen: 0,
        });
        Self {
            strategy: config.strategy,
            scope: config.watch_scope,
            objects: objects.collect(),
            cluster,
            manager,
            references: BTreeMap::new(),
            in_use: BTreeMap::new(),
            down: false,
            armed: Vec::new(),
            calm_since: start - HEALED,
            writes: 0,
        }
    }

    async fn run(&mut self, steps: Vec<Step>) -> Result<(), TestCaseError> {
        for step in steps {
            self.step(step).await?;
            settle().await;
            self.check_traffic()?;
        }
        // In the end everything heals, and then goes away.
        self.step(Step::Outage(false)).await?;
        self.step(Step::Advance(130)).await?;
        for object in 0..NAMES.len() {
            self.step(Step::Read(object)).await?;
        }
        for pod in 0..PODS.len() {
            self.step(Step::Unregister(pod)).await?;
        }
        settle().await;
        self.cluster.requests();
        self.step(Step::Advance(4000)).await?;
        let late = self.cluster.requests();
        require(late.is_empty(), || {
            format!("requests after the end: {late:?}")
        })?;
        let open = self.cluster.server.open_watches();
        require(open == 0, || format!("{open} watches left"))
    }

    async fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Register(pod, names) => self.register(pod, names),
            Step::Unregister(pod) => {
                self.manager.unregister_pod(&pod_with(PODS[pod], &[]));
                self.references.retain(|(holder, _), _| *holder != pod);
                self.forget_unreferenced();
            }
            Step::Write(object) => self.write(object, false),
            Step::WriteImmutable(object) => self.write(object, true),
            Step::Delete(object) => self.delete(object),
            Step::Recreate(object) => {
                self.delete(object);
                self.write(object, self.writes.is_multiple_of(2));
            }
            Step::Read(object) => {
                let newest = self.references.iter().filter(|((_, of), _)| *of == object);
                let required = newest.map(|(_, since)| *since).max();
                let read = self.manager.get("n", NAMES[object]).await;
                if let Ok(map) = &read {
                    self.in_use.insert(object, Arc::clone(map));
                }
                self.check(object, required, read)?;
            }
            Step::ReadFor(pod, object) => {
                let reader = pod_with(PODS[pod], &[]);
                let read = self
                    .manager
                    .get_for(&larder::PodIdentity::from(&reader), NAMES[object])
                    .await;
                let required = self.references.get(&(pod, object)).copied();
                self.check(object, required, read)?;
            }
            Step::Outage(down) => {
                if self.down != down {
                    self.calm_since = Instant::now();
                }
                self.down = down;
                self.cluster.set_down(down);
            }
            Step::Cut => {
                self.cluster.cut();
                self.calm_since = Instant::now();
            }
            Step::Compact => self.cluster.server.compact(),
            Step::Fail(failure) => {
                let fault = self.cluster.server.faults().inject(failure.fault());
                self.armed.push(fault);
            }
            Step::Advance(seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                self.notice_failures();
                self.cluster.server.faults().clear();
                self.armed.clear();
            }
        }
        Ok(())
    }

    fn notice_failures(&mut self) {
        let before = self.armed.len();
        self.armed.retain(|failure| failure.hits() == 0);
        if self.armed.len() < before {
            self.calm_since = Instant::now();
        }
    }

    fn register(&mut self, pod: usize, names: u8) {
        let referred = |object: &usize| names & (1 << object) != 0;
        let referred: Vec<_> = (0..NAMES.len()).filter(referred).collect();
        let names: Vec<_> = referred.iter().map(|object| NAMES[*object]).collect();
        self.manager.register_pod(&pod_with(PODS[pod], &names));
        self.references
            .retain(|(holder, object), _| *holder != pod || referred.contains(object));
        for object in referred {
            let now = self.objects[object].current();
            self.references.entry((pod, object)).or_insert(now);
        }
        self.forget_unreferenced();
    }

    fn forget_unreferenced(&mut self) {
        for (index, object) in self.objects.iter_mut().enumerate() {
            if !self.references.keys().any(|(_, of)| *of == index) {
                object.seen = 0;
            }
        }
    }

    fn write(&mut self, object: usize, immutable: bool) {
        let current = self.objects[object].history.last().unwrap();
        if current.immutable {
            return;
        }
        self.writes += 1;
        let value = format!("v{}", self.writes);
        self.cluster.set(NAMES[object], &value, immutable);
        self.objects[object].push(Some(value), immutable);
    }

    fn delete(&mut self, object: usize) {
        self.cluster.delete(NAMES[object]);
        if self.objects[object].history.last().unwrap().value.is_some() {
            self.objects[object].push(None, false);
        }
    }

    /// Checks a read that must return nothing older than the state `required`.
    fn check(
        &mut self,
        index: usize,
        required: Option<usize>,
        read: Result<Arc<ConfigMap>, Error>,
    ) -> Result<(), TestCaseError> {
        self.notice_failures();
        let now = Instant::now();
        let calm = !self.down && now - self.calm_since > HEALED;
        let object = &mut self.objects[index];
        let context = format!(
            "{} {:?}: {read:?}, history {:?}",
            self.strategy, NAMES[index], object.history
        );
        let Some(required) = required.or((self.strategy == Strategy::Get).then_some(0)) else {
            let kind = read.as_ref().err().map(Error::kind);
            let refused = matches!(kind, Some(ErrorKind::NotRegistered { .. }));
            return require(refused, || format!("not registered, but {context}"));
        };
        let value = match read {
            Ok(map) => Some(map.data["k"].to_string()),
            Err(error) if error.is_not_found() => None,
            // Strategies other than Watch do not wait for the end of an outage, and Watch not for long.
            Err(_) => return require(!calm, || format!("failed in calm weather: {context}")),
        };
        let oldest = object.seen.max(required);
        let found = object.history[oldest..]
            .iter()
            .position(|state| state.value == value);
        let Some(found) = found.map(|offset| oldest + offset) else {
            return require(false, || format!("older than state {oldest}: {context}"));
        };
        object.seen = found;
        let pinned = object.history[found].immutable && self.strategy == Strategy::Watch;
        // An absence looks like any other; it may be the current one.
        if object.history[object.current()].value == value || pinned {
            return Ok(());
        }
        let replaced = object.history[found + 1].since;
        let allowed = match self.strategy {
            Strategy::Get => false,
            Strategy::Cache => !calm || now < replaced + TTL,
            Strategy::Watch => !calm,
        };
        require(allowed, || format!("state {found} is stale: {context}"))
    }

    /// I1 and I4: requests by name only, and one watch for each referenced name at most; or one watch in all.
    fn check_traffic(&self) -> Result<(), TestCaseError> {
        for request in self.cluster.requests() {
            let (path, query) = request.split_once('?').unwrap_or((&request, ""));
            let by_name = NAMES.iter().any(|name| {
                path.ends_with(&format!("/configmaps/{name}"))
                    || query.contains(&format!("fieldSelector=metadata.name%3D{name}"))
            });
            let of_all = self.scope == WatchScope::Namespace && path.ends_with("/configmaps");
            require(by_name || of_all, || format!("not by name: {request}"))?;
        }
        let mut referenced: Vec<_> = self.references.keys().map(|(_, of)| *of).collect();
        referenced.sort_unstable();
        referenced.dedup();
        if self.scope == WatchScope::Namespace {
            referenced.truncate(1);
        }
        let open = self.cluster.server.open_watches();
        require(open <= referenced.len(), || {
            format!("{open} watches of {} objects", referenced.len())
        })
    }
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), TestCaseError> {
    if holds {
        Ok(())
    } else {
        Err(TestCaseError::fail(message()))
    }
}

/// Lets everything that is ready happen.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Sequences for each strategy, unless `LARDER_MODEL_SEQUENCES` says otherwise.
const STRATEGY: u32 = 300;
/// And for other settings of one, which share most of its code.
const VARIANT: u32 = 120;

/// One row for each kind of manager.
fn check(config: &ManagerConfig, sequences: u32) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: rounds("LARDER_MODEL_SEQUENCES", sequences),
        failure_persistence: None,
        // The other one takes a tenth of the time.
        rng_algorithm: RngAlgorithm::XorShift,
        ..ProptestConfig::default()
    });
    let result = runner.run(&steps(), |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async { Model::new(config).run(steps).await })
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn of(strategy: Strategy) -> ManagerConfig {
    ManagerConfig::default().strategy(strategy)
}

#[test]
fn strategy_get_does_what_the_model_does() {
    check(&of(Strategy::Get), STRATEGY);
}

#[test]
fn strategy_cache_does_what_the_model_does() {
    check(&of(Strategy::Cache), STRATEGY);
}

#[test]
fn strategy_watch_does_what_the_model_does() {
    check(&of(Strategy::Watch), STRATEGY);
}

#[test]
fn strategy_watch_matches_the_model_in_namespace_scope() {
    let config = of(Strategy::Watch).watch_scope(WatchScope::Namespace);
    check(&config, VARIANT);
}

#[test]
fn strategy_watch_matches_the_model_with_one_request_in_flight() {
    let config = of(Strategy::Watch).max_requests_in_flight(1);
    check(&config, VARIANT);
}
