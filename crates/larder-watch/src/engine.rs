//! Keeps very many targets in sync with one API server, in one task.
//!
//! A store sets the targets ([`Engine::add`], [`Engine::start`], [`Engine::stop`]) and the needs of its readers
//! ([`Engine::refresh`]). [`Engine::next`] reports the findings, and the store keeps them. An idle watch costs some
//! hundred bytes, and no task of its own.
//!
//! Invariants:
//! 1. A target has at most one request or stream under way, and an object at most one freshness check.
//! 2. A request is sent with a permit, which is held until the answer is complete. So an event that concerns all
//!    targets at once (the start of a node, a restart of the API server) reaches the API server as an orderly queue of
//!    requests.
//! 3. Requests and streams of a target end with its removal: their futures are dropped.
//! 4. A request that is fresh as of a registration was sent after it, or asks for a state not older than the version in
//!    the answer to such a request.
//! 5. The same inputs, answers and seed lead to the same requests: iteration is ordered, and futures that are ready at
//!    the same time are handled in a fixed order.

mod checks;
mod interface;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    task::{Poll, Wake as _},
    time::Duration,
};

use larder_objects::ResourceVersion;
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until},
};
use tokio_util::time::{DelayQueue, delay_queue};

use self::checks::FreshnessCheck;
pub use self::interface::{Known, Limits, Need, OlderAnswer, Start};
use crate::{
    api::Api,
    context::NodeContext,
    driver::{Activity, Driver, InFlight},
    limits::{Permit, PrioritySemaphore, Queue, RepeatLimiter},
    liveness::{EngineLiveness, REVIEW_PERIOD, SILENT_REVIEW_PERIOD},
    outages::Outages,
    ready::{ReadySet, ReadyWaker},
    report::{Event, Report},
    sequence::SeqCounter,
    server::ServerState,
    target::Target,
};

/// More needs than this are served by the state of the whole collection.
const CHECKS_PER_COLLECTION: usize = 16;

/// The owner of a request or a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The driver of a target.
    Driver(u64),
    /// The freshness check of an object.
    Check(u64),
}

/// The slot of a single object that is watched.
#[derive(Debug)]
enum WatchSlot {
    /// It needs none: it is not started, or a collection.
    None,
    /// Dropping the permit gives the slot back.
    Held { _permit: Permit },
    /// All are taken.
    Waiting,
}

/// A timer of a part, and when it fires.
#[derive(Default)]
struct Timer(Option<(delay_queue::Key, Instant)>);

struct WatchedTarget<T: Target> {
    driver: Driver<T>,
    waker: Arc<ReadyWaker<Part>>,
    timer: Timer,
    slot: WatchSlot,
    /// It neither rests nor backs off.
    active: bool,
    /// A request was sent since the start; the rate limit applies to the next ones.
    is_repeat: bool,
}

/// The events that wake an engine.
enum Wake {
    OutageOver(Duration),
    Ready(Part),
    Timer(Part),
    /// The next repeated request may be sent.
    Repeat,
    /// All targets are due for a review.
    Review,
}

/// Targets that are kept in sync by the task that calls [`next`](Self::next).
pub struct Engine<T: Target> {
    api: Api,
    seqs: Arc<SeqCounter>,
    targets: BTreeMap<u64, Box<WatchedTarget<T>>>,
    checks: BTreeMap<u64, Box<FreshnessCheck<T>>>,
    ready: Arc<ReadySet<Part>>,
    timers: DelayQueue<Part>,
    /// Permits for requests.
    requests: PrioritySemaphore<Part>,
    /// Permits for watches of single objects.
    slots: PrioritySemaphore<u64>,
    /// Targets whose request is a repeated one.
    repeated: Queue<u64>,
    repeats: RepeatLimiter,
    /// When the next repeated request may be sent.
    reserved: Option<Instant>,
    server: ServerState,
    outages: Outages,
    /// Changes when an outage is over.
    over: watch::Receiver<Duration>,
    /// Shows which targets are silent.
    liveness: Arc<EngineLiveness>,
    /// Targets that neither rest nor back off.
    active: usize,
    /// The last state published to `liveness`.
    is_active: bool,
    review: Interval,
    /// When the last request was sent.
    last_sent: Instant,
    reports: VecDeque<Report<T>>,
    random: fastrand::Rng,
}

impl<T: Target> fmt::Debug for Engine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("targets", &self.targets.len())
            .finish_non_exhaustive()
    }
}

impl<T: Target + Clone> Engine<T> {
    /// An engine without targets. `seqs` counts the registrations that its states must be as fresh as.
    pub fn new(
        api: Api,
        limits: Limits,
        seqs: Arc<SeqCounter>,
        context: &NodeContext,
        random: fastrand::Rng,
    ) -> Self {
        let now = Instant::now();
        let mut review = interval_at(now + REVIEW_PERIOD, REVIEW_PERIOD);
        review.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            api,
            seqs,
            targets: BTreeMap::new(),
            checks: BTreeMap::new(),
            ready: Arc::default(),
            timers: DelayQueue::new(),
            requests: PrioritySemaphore::new(limits.max_requests_in_flight),
            slots: PrioritySemaphore::new(limits.max_watches),
            repeated: Queue::default(),
            repeats: context.repeats.clone(),
            reserved: None,
            server: ServerState::default(),
            outages: context.outages.clone(),
            over: context.outages.over(),
            liveness: context.liveness.add(T::KIND, now),
            active: 0,
            is_active: false,
            review,
            last_sent: now,
            reports: VecDeque::new(),
            random,
        }
    }

    /// Adds a target under a number that no other one has had. Nothing is requested before it is started. A later state
    /// that is older than `version` counts as that of a restored API server.
    pub fn add(&mut self, id: u64, target: T, version: &ResourceVersion) {
        let mut driver = Driver::new(id, target, self.random.fork(), self.outages.clone());
        driver.saw(version);
        let watched = WatchedTarget {
            driver,
            waker: self.ready.waker(Part::Driver(id)),
            timer: Timer::default(),
            slot: WatchSlot::None,
            active: false,
            is_repeat: false,
        };
        self.targets.insert(id, Box::new(watched));
    }

    /// Ends the requests of a target, and forgets it.
    pub fn remove(&mut self, id: u64) {
        if let Some(mut watched) = self.targets.remove(&id) {
            self.active -= usize::from(watched.active);
            watched.timer.set(&mut self.timers, Part::Driver(id), None);
        }
    }

    /// Requests the complete state of a target at once, in place of any request under way: one as fresh as the newest
    /// registration if `confirm`.
    pub fn start(&mut self, id: u64, confirm: bool) -> Start {
        let Some(watched) = self.targets.get_mut(&id) else {
            return Start::NoSlot;
        };
        if let WatchSlot::None = watched.slot
            && watched.driver.target().name().is_some()
        {
            watched.slot = if let Some(permit) = self.slots.try_acquire() {
                WatchSlot::Held { _permit: permit }
            } else {
                self.slots.enqueue(id, false);
                WatchSlot::Waiting
            };
        }
        if let WatchSlot::Waiting = watched.slot {
            return Start::NoSlot;
        }
        watched.is_repeat = false;
        watched.driver.start(confirm, &self.server);
        self.settle(id, false);
        Start::Started
    }

    /// Ends the request of a target, which is idle or final. Its version stays the lower bound of a later start.
    pub fn stop(&mut self, id: u64) {
        if let Some(watched) = self.targets.get_mut(&id) {
            watched.driver.stop();
            watched.slot = WatchSlot::None;
            watched.timer.set(&mut self.timers, Part::Driver(id), None);
            self.active -= usize::from(std::mem::take(&mut watched.active));
        }
    }

    /// Whether nothing is under way for the target.
    pub fn is_resting(&self, id: u64) -> bool {
        self.activity(id) == Some(Activity::Resting)
    }

    /// Whether the target backs off after a failure.
    pub fn is_backing_off(&self, id: u64) -> bool {
        self.activity(id) == Some(Activity::BackingOff)
    }

    /// Whether a single object has no watch because the limit is reached.
    pub fn is_without_slot(&self, id: u64) -> bool {
        let watched = self.targets.get(&id);
        watched.is_some_and(|watched| matches!(watched.slot, WatchSlot::Waiting))
    }

    /// How many complete states of the target were requested so far. An object that joins a collection now is covered
    /// by the states with a higher number.
    pub fn state_requests(&self, id: u64) -> u64 {
        let watched = self.targets.get(&id);
        watched.map_or(0, |watched| watched.driver.state_requests())
    }

    fn activity(&self, id: u64) -> Option<Activity> {
        let watched = self.targets.get(&id)?;
        Some(watched.driver.activity())
    }

    /// Requests what readers need of the objects of a target, unless a request is under way. `confirm`: a state that is
    /// obtained for them must be as fresh as the newest registration. `single` is the target of one of the objects.
    ///
    /// While the state of a collection is being obtained, no object is checked by name. The answer to the check might
    /// be older than that state, which does not cover the object, and a change in between would be lost.
    pub fn refresh(
        &mut self,
        id: u64,
        needs: &[Need],
        confirm: bool,
        single: impl Fn(u64) -> Option<T>,
    ) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let is_one = watched.driver.target().name().is_some();
        let activity = watched.driver.activity();
        if watched.driver.is_queued() {
            // Once more, as an urgent one.
            self.enqueue(id, true);
        }
        let check = match activity {
            _ if self.is_without_slot(id) => true,
            Activity::Obtaining { confirmed } if confirmed || !is_one => false,
            Activity::Resting if needs.iter().all(|need| need.known == Known::Final) => true,
            Activity::Resting => {
                let _ = self.start(id, confirm);
                false
            }
            Activity::BackingOff => {
                if let Some(watched) = self.targets.get_mut(&id) {
                    watched.driver.confirm();
                }
                is_one && needs.iter().all(|need| need.known.is_present())
            }
            Activity::Obtaining { .. } | Activity::Watching => {
                // An absence has no version that the answer to a GET could be compared with.
                let relist = if is_one {
                    needs.iter().any(|need| need.known == Known::Absent)
                } else {
                    needs.len() > CHECKS_PER_COLLECTION
                };
                if relist {
                    let _ = self.start(id, true);
                }
                // An open watch does not report an object whose listed state could not be read.
                let watching = activity == Activity::Watching;
                let checkable =
                    |known: Known| known.is_present() || watching && known == Known::Nothing;
                !relist && (!is_one || needs.iter().all(|need| checkable(need.known)))
            }
        };
        if check {
            for need in needs {
                self.check(id, need.object, &single);
            }
        }
    }

    /// Called after each event of a driver: sends or queues its request, and sets its timer.
    fn settle(&mut self, id: u64, urgent: bool) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let active = !matches!(
            watched.driver.activity(),
            Activity::Resting | Activity::BackingOff
        );
        self.active -= usize::from(std::mem::replace(&mut watched.active, active));
        self.active += usize::from(active);
        let deadline = watched.driver.deadline();
        watched
            .timer
            .set(&mut self.timers, Part::Driver(id), deadline);
        if let Some(permit) = watched.driver.take_permit() {
            let seq = self.seqs.current();
            self.send(id, InFlight { seq, permit });
        } else if watched.driver.is_queued() {
            self.enqueue(id, urgent);
        }
    }

    /// Queues the request of a driver, or sends it if it may be sent at once.
    fn enqueue(&mut self, id: u64, urgent: bool) {
        let Some(watched) = self.targets.get(&id) else {
            return;
        };
        if watched.is_repeat {
            self.repeated.push(id, urgent);
        } else if let Some(permit) = self.requests.try_acquire() {
            self.send_queued(id, permit);
        } else {
            self.requests.enqueue(Part::Driver(id), urgent);
        }
    }

    /// Sends the queued request of a driver, rebuilt with the present facts.
    fn send_queued(&mut self, id: u64, permit: Permit) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let newest = watched.driver.target().newest_registration();
        let min = newest.and_then(|newest| self.server.min_version(newest));
        watched.driver.rebuild_request(&self.server, min.as_ref());
        let seq = min.map_or_else(|| self.seqs.current(), |min| min.seq);
        self.send(id, InFlight { seq, permit });
    }

    fn send(&mut self, id: u64, in_flight: InFlight) {
        if let Some(watched) = self.targets.get_mut(&id) {
            watched.is_repeat = true;
            self.last_sent = Instant::now();
            watched.driver.send(&self.api, in_flight);
            watched.waker.wake_by_ref();
        }
    }

    fn is_queued(&self, id: u64) -> bool {
        let watched = self.targets.get(&id);
        watched.is_some_and(|watched| watched.driver.is_queued())
    }

    /// Sends the queued requests, as long as there are permits.
    fn admit(&mut self) {
        while let Some((part, permit)) = self.requests.next() {
            match part {
                Part::Driver(id) if self.is_queued(id) => self.send_queued(id, permit),
                Part::Driver(_) => {}
                Part::Check(object) => self.send_check(object, permit),
            }
        }
        let now = Instant::now();
        while !self.repeated.is_empty()
            && let Some(permit) = self.requests.try_acquire()
        {
            let repeats = &self.repeats;
            if *self.reserved.get_or_insert_with(|| repeats.reserve(now)) > now {
                break;
            }
            // An entry may be out of date.
            while let Some(id) = self.repeated.pop() {
                if self.is_queued(id) {
                    self.reserved = None;
                    self.send_queued(id, permit);
                    break;
                }
            }
        }
    }

    /// Grants free slots to the targets that wait for one.
    fn grant_slots(&mut self) {
        while let Some((id, permit)) = self.slots.next() {
            if let Some(watched) = self.targets.get_mut(&id)
                && let WatchSlot::Waiting = watched.slot
            {
                watched.slot = WatchSlot::Held { _permit: permit };
                self.reports.push_back(Report::new(id, Event::SlotGranted));
            }
        }
    }

    /// The next report.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Report<T> {
        loop {
            self.grant_slots();
            self.admit();
            if self.is_active != (self.active > 0) {
                self.is_active = !self.is_active;
                self.liveness.set_active(self.is_active, Instant::now());
            }
            if let Some(report) = self.reports.pop_front() {
                return report;
            }
            let repeat = self.reserved.filter(|_| !self.repeated.is_empty());
            // Only if a permit is free; otherwise an answer comes first.
            let repeat = repeat.filter(|_| self.requests.try_acquire().is_some());
            // Every arm is cancel-safe: the receiver keeps its mark, the others their collections. Biased, so that what
            // is ready at the same time is handled in the same order for the same seed. Streams come last, since a
            // server that never pauses must not hold up timers.
            let wake = tokio::select! {
                biased;
                Ok(()) = self.over.changed() => Wake::OutageOver(*self.over.borrow_and_update()),
                Some(part) = next_timer(&mut self.timers), if !self.timers.is_empty() => Wake::Timer(part),
                () = sleep_until(repeat.unwrap_or_else(Instant::now)), if repeat.is_some() => Wake::Repeat,
                _ = self.review.tick() => Wake::Review,
                part = self.ready.next() => Wake::Ready(part),
            };
            match wake {
                Wake::OutageOver(spread) => self.retry_early(spread),
                Wake::Ready(Part::Driver(id)) => self.poll_driver(id),
                Wake::Ready(Part::Check(object)) => self.poll_check(object),
                Wake::Timer(Part::Driver(id)) => {
                    if let Some(watched) = self.targets.get_mut(&id) {
                        watched.timer = Timer::default();
                        let report = watched.driver.expired(&mut self.server);
                        if watched.driver.is_overdue() {
                            self.review.reset_after(SILENT_REVIEW_PERIOD);
                        }
                        self.reports.push_back(report);
                        self.settle(id, false);
                    }
                }
                Wake::Timer(Part::Check(object)) => self.check_expired(object),
                Wake::Review => self.review(),
                Wake::Repeat => {}
            }
        }
    }

    fn poll_driver(&mut self, id: u64) {
        let Some(watched) = self.targets.get_mut(&id) else {
            return;
        };
        let WatchedTarget { driver, waker, .. } = &mut **watched;
        let server = &mut self.server;
        if let Poll::Ready(report) = waker.poll(|context| driver.poll(context, server)) {
            waker.wake_by_ref();
            self.reports.push_back(report);
            self.settle(id, false);
        }
    }

    /// Publishes since when the longest-silent target has been silent, if any is.
    fn review(&mut self) {
        let (now, last_sent) = (Instant::now(), self.last_sent);
        let targets = self.targets.values();
        let silent = targets.filter_map(|watched| watched.driver.silent_since(now, last_sent));
        let silent_since = silent.min();
        self.liveness.reviewed(now, silent_since);
        if silent_since.is_some() {
            self.review.reset_after(SILENT_REVIEW_PERIOD);
        }
    }

    /// An outage is over: requesters that back off for it retry soon, targets at the limited rate, checks spread over
    /// that time.
    fn retry_early(&mut self, spread: Duration) {
        let now = Instant::now();
        self.repeats.drain_burst(now);
        self.reserved = None;
        for (id, watched) in &mut self.targets {
            watched.driver.retry_early(now);
            let deadline = watched.driver.deadline();
            watched
                .timer
                .set(&mut self.timers, Part::Driver(*id), deadline);
        }
        self.retry_checks_early(spread, now);
    }
}

/// The next timer that fires. Cancel-safe: timers stay in their queue.
async fn next_timer(timers: &mut DelayQueue<Part>) -> Option<Part> {
    let expired = std::future::poll_fn(|context| timers.poll_expired(context)).await;
    Some(expired?.into_inner())
}

impl Timer {
    /// Sets the timer to fire at `deadline`, or never.
    fn set(&mut self, timers: &mut DelayQueue<Part>, part: Part, deadline: Option<Instant>) {
        if self.0.as_ref().map(|(_, at)| *at) == deadline {
            return;
        }
        if let Some((key, _)) = self.0.take() {
            timers.remove(&key);
        }
        self.0 = deadline.map(|deadline| (timers.insert_at(part, deadline), deadline));
    }
}
