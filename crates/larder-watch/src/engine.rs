//! Keeps very many targets in sync with one API server, in one task.
//!
//! A store sets the targets ([`Engine::add`], [`Engine::start`], [`Engine::stop`]) and the needs of its readers
//! ([`Engine::require_fresh`]). [`Engine::next`] reports the results, and the store keeps them. An idle watch costs
//! some hundred bytes, and no task of its own.
//!
//! Invariants:
//! 1. A target has at most one request or stream in flight, and an object at most one freshness check.
//! 2. A request is sent with a permit, which is held until the response is complete. So an event that concerns all
//!    targets at once (the start of a node, a restart of the API server) reaches the API server as an orderly queue of
//!    requests.
//! 3. Requests and streams of a target end with its removal: their futures are dropped.
//! 4. A request that is fresh as of a registration was sent after it, or asks for a state not older than the version in
//!    the response to such a request.
//! 5. The same inputs, responses and seed lead to the same requests: iteration is ordered, and futures that are ready
//!    at the same time are handled in a fixed order.

mod checks;
mod interface;
mod pulse;
mod queue;
mod run;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::time::DelayQueue;

pub use self::interface::{Need, Presence};
use self::{checks::FreshnessCheck, pulse::Pulse, queue::RequestQueue, run::Timer};
use crate::{
    api::Api,
    context::NodeContext,
    driver::{Activity, Driver},
    limits::Urgency,
    outages::Outages,
    ready::{ReadySet, ReadyWaker},
    reflector::MinFreshness,
    report::{ObjectId, Reports, TargetId},
    sequence::SeqCounter,
    server::ServerState,
    target::Target,
};

/// More needs than this are served by the state of the whole collection.
const CHECKS_PER_COLLECTION: usize = 16;

/// The owner of a request or a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Driver(TargetId),
    Check(ObjectId),
}

struct WatchedTarget<T: Target> {
    driver: Driver<T>,
    waker: Arc<ReadyWaker<Part>>,
    timer: Timer,
    /// It neither rests nor backs off.
    active: bool,
    /// A request was sent since the start; the rate limit applies to the next ones.
    is_repeat: bool,
}

type Targets<T> = BTreeMap<TargetId, Box<WatchedTarget<T>>>;

/// Targets that are kept in sync by the task that calls [`next`](Self::next).
#[expect(missing_debug_implementations, reason = "it holds requests under way")]
pub struct Engine<T: Target> {
    api: Api,
    seqs: Arc<SeqCounter>,
    targets: Targets<T>,
    checks: BTreeMap<ObjectId, Box<FreshnessCheck<T>>>,
    ready: Arc<ReadySet<Part>>,
    timers: DelayQueue<Part>,
    requests: RequestQueue,
    server: ServerState,
    outages: Outages,
    /// Changes when an outage is over.
    over: watch::Receiver<Duration>,
    pulse: Pulse,
    reports: Reports<T>,
    random: fastrand::Rng,
}

impl<T: Target + Clone> Engine<T> {
    /// An engine without targets. At most `max_requests_in_flight` requests wait for their response at the same time.
    /// `seqs` counts the registrations that its states must be as fresh as.
    pub fn new(
        api: Api,
        max_requests_in_flight: usize,
        seqs: Arc<SeqCounter>,
        context: &NodeContext,
        random: fastrand::Rng,
    ) -> Self {
        let now = Instant::now();
        let repeats = context.repeats.clone();
        Self {
            api,
            seqs,
            targets: BTreeMap::new(),
            checks: BTreeMap::new(),
            ready: Arc::default(),
            timers: DelayQueue::new(),
            requests: RequestQueue::new(max_requests_in_flight, repeats, now),
            server: ServerState::default(),
            outages: context.outages.clone(),
            over: context.outages.over(),
            pulse: Pulse::new(context.liveness.add(T::KIND, now), now),
            reports: VecDeque::new(),
            random,
        }
    }

    /// Adds a target. Nothing is requested before it is started. A later state that is older than its
    /// [known version](Target::known_version) counts as that of a restored API server. A single object is no longer
    /// checked for a collection that has covered it.
    pub fn add(&mut self, id: TargetId, target: T) {
        if let TargetId::Object(object) = id {
            self.remove_check(object);
        }
        let version = target.known_version();
        let random = self.random.fork();
        let outages = self.outages.clone();
        let mut driver = Driver::new(id, target, random, outages, Instant::now());
        driver.saw(&version);
        let watched = WatchedTarget {
            driver,
            waker: self.ready.waker(Part::Driver(id)),
            timer: Timer::default(),
            active: false,
            is_repeat: false,
        };
        self.targets.insert(id, Box::new(watched));
    }

    /// Ends the requests of a target, and forgets it; those for a single object also where a collection covers it.
    pub fn remove(&mut self, id: TargetId) {
        self.stop(id);
        self.targets.remove(&id);
        if let TargetId::Object(object) = id {
            self.remove_check(object);
        }
    }

    /// Requests the complete state of a target at once, in place of any request under way: one at least as fresh as
    /// `min`. A target that was not added needs nothing.
    pub fn start(&mut self, id: TargetId, min: MinFreshness) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        watched.is_repeat = false;
        watched.driver.start(min, Instant::now());
        self.settle(id);
    }

    /// Ends the request of a target, which is idle or final. Its version stays the lower bound of a later start.
    pub fn stop(&mut self, id: TargetId) {
        if let Some(watched) = self.targets.get_mut(&id) {
            watched.driver.stop();
            watched.timer.set(&mut self.timers, Part::Driver(id), None);
            self.pulse.set(&mut watched.active, false);
        }
    }

    /// Whether nothing is under way for the target.
    pub fn is_resting(&self, id: TargetId) -> bool {
        self.activity(id) == Some(Activity::Resting)
    }

    /// Whether the target backs off after a failure, or waits for its next poll.
    pub fn is_backing_off(&self, id: TargetId) -> bool {
        self.activity(id) == Some(Activity::BackingOff)
    }

    /// How many complete states of the target were requested so far. An object that joins a collection now is covered
    /// by the states with a higher number.
    pub fn state_requests(&self, id: TargetId) -> u64 {
        self.targets
            .get(&id)
            .map_or(0, |watched| watched.driver.state_requests())
    }

    fn activity(&self, id: TargetId) -> Option<Activity> {
        Some(self.targets.get(&id)?.driver.activity())
    }

    /// Requests what readers need of the objects of a target, unless a request under way will bring it. A state that
    /// is obtained for them must be at least as fresh as `min`.
    ///
    /// This is the whole policy of freshness: an object that is known is *checked* by name, for all its readers at
    /// once; everything else takes a complete state.
    ///
    /// While the state of a collection is being obtained, no object is checked by name. The response to the check might
    /// be older than that state, which does not cover the object, and a change in between would be lost.
    pub fn require_fresh(&mut self, id: TargetId, needs: Vec<Need<T>>, min: MinFreshness) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let activity = watched.driver.activity();
        if watched.driver.is_queued() {
            // Once more, as an urgent one.
            self.enqueue(id, Urgency::Urgent);
        }
        let is_object = matches!(id, TargetId::Object(_));
        let all = |is: fn(Presence) -> bool| needs.iter().all(|need| is(need.known));
        let check = match activity {
            // It is not watched: a check shows whether it is still the same.
            Activity::Resting if all(|known| known == Presence::Final) => true,
            Activity::Resting => return self.start(id, min),
            Activity::BackingOff => {
                if let Some(watched) = self.targets.get_mut(&id) {
                    watched.driver.confirm();
                }
                is_object && all(Presence::is_present)
            }
            Activity::Obtaining { confirmed } if confirmed || !is_object => false,
            // An absence has no version that the response to a GET could be compared with.
            _ if is_object && !all(|known| known != Presence::Absent) => {
                return self.start(id, MinFreshness::Newest);
            }
            _ if !is_object && needs.len() > CHECKS_PER_COLLECTION => {
                return self.start(id, MinFreshness::Newest);
            }
            // An open watch does not report an object whose listed state could not be read.
            Activity::Watching => true,
            Activity::Obtaining { .. } => all(Presence::is_present),
        };
        if check {
            for need in needs {
                self.check(id, need);
            }
        }
    }
}
