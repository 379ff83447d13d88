//! The worker: one task that owns the requests, streams and timers of all watched objects of a manager.
//!
//! It is told which objects are referenced and which are waited for, asks each object's reflector what to do next, does
//! it, and publishes what comes of it.
//!
//! Invariants:
//! 1. An object has at most one stream or list under way, and at most one proof of freshness (I1). A request is sent
//!    with a permit, which is held until the answer has come; so whatever happens to all objects at once (a node that
//!    starts, an API server that restarts) reaches the API server as an orderly queue.
//! 2. Whatever is under way for an object ends with its removal: futures are dropped, so that requests are cancelled,
//!    and results that were ready at that moment are of a step that is no longer current (I2).
//! 3. A request that proves freshness was sent after the moment that it proves was read, or asks for nothing older than
//!    a version that such a request was answered with.

mod admission;
mod overflow;
mod pace;
mod proof;
mod publish;
mod requests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::FuturesUnordered,
};
use larder_objects::Object;
use larder_watch::{Api, Effect, Next, Outages, Reflector, Server, Turn};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::time::{DelayQueue, delay_queue};
use tracing::debug;

use self::{
    admission::{Admission, Part, Permit},
    overflow::Place,
    pace::Pace,
    proof::Proof,
    publish::publish,
    requests::{Following, Step, abort},
};
use super::{Command, Commands};
use crate::{
    config::ManagerConfig,
    status::ObjectState,
    store::{
        Entry,
        watching::{Cell, Shared},
    },
};

/// Everything that wakes the worker.
enum Wake<K: Object> {
    Commands,
    Step(Step<K>),
    /// A step was cancelled and is dropped by now.
    Cancelled,
    Timer(u64, Part),
    /// The next who asks once more may.
    Pace,
    /// The API server is back; those who waited for it are to be spread over that long.
    OutageOver(Duration),
    IdlePass,
}

/// One object and what is under way for it.
struct Watched<K> {
    entry: Arc<Entry<Cell<K>>>,
    reflector: Reflector,
    /// The stream or list under way.
    step: Option<AbortHandle>,
    timer: Option<delay_queue::Key>,
    /// The moment that the reflector's current request proves, if it is consistent.
    asked: u64,
    /// Held while the reflector's request waits for its answer.
    permit: Option<Permit>,
    /// The reflector's request waits for a permit.
    queued: bool,
    /// The reflector has asked since it was started; what it asks now is spaced out.
    asked_before: bool,
    place: Place,
    proof: Proof,
    last_read: Instant,
}

pub(crate) struct Worker<K: Object> {
    shared: Arc<Shared<K>>,
    /// What it is told: the store's own commands, or those that concern objects which are watched by name.
    commands: Option<Arc<Commands<K>>>,
    api: Api,
    config: ManagerConfig,
    objects: HashMap<u64, Box<Watched<K>>>,
    steps: FuturesUnordered<Abortable<BoxFuture<'static, Step<K>>>>,
    timers: DelayQueue<(u64, Part)>,
    /// Permits for requests.
    admission: Admission,
    /// Who waits to ask once more.
    pace: Pace,
    /// Places for watches.
    places: Admission,
    /// Somebody was told that there are not enough places.
    overflowed: bool,
    idle_pass: Interval,
    server: Server,
    random: fastrand::Rng,
}

/// Times between two looks for idle watches: often enough to end one soon after its time, and not more often.
const IDLE_PASS_MIN: Duration = Duration::from_secs(15);
const IDLE_PASS_MAX: Duration = Duration::from_mins(1);

impl<K: Object> Drop for Worker<K> {
    /// However the worker ends, readers are told instead of left waiting.
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl<K: Object> Worker<K> {
    pub(crate) fn new(shared: Arc<Shared<K>>, api: Api, config: &ManagerConfig) -> Self {
        let period = (config.max_idle() / 4).clamp(IDLE_PASS_MIN, IDLE_PASS_MAX);
        let mut idle_pass = interval_at(Instant::now() + period, period);
        idle_pass.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            shared,
            commands: None,
            api,
            config: config.clone(),
            objects: HashMap::new(),
            steps: FuturesUnordered::new(),
            timers: DelayQueue::new(),
            admission: Admission::new(config.max_requests_in_flight),
            pace: Pace::new(Instant::now()),
            places: Admission::new(config.max_watches),
            overflowed: false,
            idle_pass,
            server: Server::default(),
            random: fastrand::Rng::new(),
        }
    }

    /// Takes its commands from here instead of from the store, and shares the outages of the API server.
    pub(super) fn listening_to(mut self, commands: Arc<Commands<K>>, outages: Outages) -> Self {
        self.commands = Some(commands);
        self.server = Server::sharing(outages);
        self
    }

    /// Works until it is told to shut down, or dropped.
    pub(crate) async fn run(mut self) {
        let (shared, own) = (Arc::clone(&self.shared), self.commands.clone());
        let commands = own.as_deref().unwrap_or(&shared.commands);
        let mut over = self.server.outages().over();
        loop {
            let paced = self.paced_until();
            // Every arm is cancel-safe: commands stay in their queue, the others in their collections.
            let wake = tokio::select! {
                () = commands.arrived.notified() => Wake::Commands,
                Some(step) = self.steps.next(), if !self.steps.is_empty() => match step {
                    Ok(step) => Wake::Step(step),
                    Err(_) => Wake::Cancelled,
                },
                Some(timer) = self.timers.next(), if !self.timers.is_empty() => {
                    let (id, part) = timer.into_inner();
                    Wake::Timer(id, part)
                }
                () = sleep_until(paced.unwrap_or_else(Instant::now)), if paced.is_some() => Wake::Pace,
                Ok(()) = over.changed() => Wake::OutageOver(*over.borrow_and_update()),
                _ = self.idle_pass.tick(), if !self.objects.is_empty() => Wake::IdlePass,
            };
            match wake {
                Wake::Commands => {
                    if commands.each(|command| self.command(command)).is_break() {
                        return;
                    }
                }
                Wake::Step(step) => self.step(step),
                Wake::Cancelled | Wake::Pace => {}
                Wake::Timer(id, part) => self.timer(id, part),
                Wake::OutageOver(spread) => self.hurry(spread),
                Wake::IdlePass => self.stop_idle_watches(),
            }
            self.fill_places();
            self.admit();
        }
    }

    fn command(&mut self, command: Command<K>) {
        match command {
            Command::Added(entry) => self.add(entry),
            Command::Referenced(id) => {
                if let Some(object) = self.objects.get_mut(&id)
                    && object.reflector.is_waiting()
                    && object
                        .entry
                        .cell
                        .failure()
                        .is_some_and(|error| error.is_forbidden())
                {
                    self.start(id);
                }
            }
            Command::Wanted(id) => self.pursue(id),
            Command::Removed(id) => {
                if let Some(object) = self.objects.remove(&id) {
                    self.cancel_all(object);
                }
            }
            Command::GiveBack(namespace, to) => {
                // Who has gone meanwhile has no reader left either.
                let _ = to.send(self.give_back(&namespace));
            }
        }
    }

    /// Ends all watches in a namespace. What is known of its objects stays.
    fn give_back(&mut self, namespace: &str) -> Vec<Command<K>> {
        let objects = self.objects.iter();
        let ids: Vec<u64> = objects
            .filter(|(_, object)| object.entry.key.namespace == namespace)
            .map(|(id, _)| *id)
            .collect();
        let mut commands = Vec::new();
        for id in ids {
            self.stand_in(id);
            if let Some(object) = self.objects.remove(&id) {
                let cell = &object.entry.cell;
                cell.set_watched(true);
                if cell.state() != ObjectState::Immutable {
                    cell.interrupted(Instant::now());
                }
                commands.push(Command::Added(Arc::clone(&object.entry)));
                if cell.is_wanted() {
                    commands.push(Command::Wanted(id));
                }
                self.cancel_all(object);
            }
        }
        commands
    }

    fn add(&mut self, entry: Arc<Entry<Cell<K>>>) {
        let id = entry.cell.id;
        // Its removal is the next command, or one of the next.
        if entry.cell.state() == ObjectState::Removed {
            return;
        }
        let mut object = Watched {
            entry,
            reflector: Reflector::new(self.random.fork()),
            step: None,
            timer: None,
            asked: 0,
            permit: None,
            queued: false,
            asked_before: false,
            place: Place::None,
            proof: Proof::None,
            last_read: Instant::now(),
        };
        // Another one has watched it before.
        object.reflector.saw(&object.entry.cell.version());
        self.objects.insert(id, Box::new(object));
        self.start(id);
    }

    /// Starts a cycle of the object's reflector, if it may be watched.
    fn start(&mut self, id: u64) {
        if !self.take_place(id) {
            return;
        }
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        object.asked_before = false;
        object.queued = false;
        let consistent = object.entry.cell.proven() < object.entry.newest_reference();
        let turn = object
            .reflector
            .start(consistent, Instant::now(), &self.server);
        self.turn(id, turn, None, None);
    }

    fn timer(&mut self, id: u64, part: Part) {
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        match part {
            Part::Reflector => {
                object.timer = None;
                if let Place::Waiting { .. } = object.place {
                    // While the API server fails, what is known stands in.
                    if !matches!(object.proof, Proof::Waiting(..)) {
                        self.expire(id);
                    }
                    return;
                }
                let turn = object.reflector.expired(Instant::now(), &mut self.server);
                self.turn(id, turn, None, None);
            }
            Part::Proof => {
                if let Proof::Waiting(_, backoff) =
                    std::mem::replace(&mut object.proof, Proof::None)
                {
                    self.expire(id);
                    self.pursue_with(id, Some(backoff));
                }
            }
        }
    }

    /// The API server is back: has those ask who wait for it, each in its turn, and who has to prove something, spread over
    /// that long.
    fn hurry(&mut self, spread: Duration) {
        let now = Instant::now();
        self.pace.begin(now);
        let mut hurried = Vec::new();
        for (id, object) in &mut self.objects {
            if let Some(turn) = object.reflector.hurry(Duration::ZERO, now) {
                hurried.push((*id, turn));
            }
            if let Proof::Waiting(key, _) = &object.proof
                && object
                    .entry
                    .cell
                    .failure()
                    .is_some_and(|error| error.is_outage())
            {
                let soon = now + spread.mul_f64(self.random.f64());
                let at = self.timers.deadline(key).min(soon);
                self.timers.reset_at(key, at);
            }
        }
        for (id, turn) in hurried {
            self.turn(id, turn, None, None);
        }
    }

    /// Publishes the effect of a turn, which is about `found` or its absence, then does what it asks for.
    fn turn(&mut self, id: u64, turn: Turn, found: Option<Arc<K>>, mut open: Option<Following<K>>) {
        let Turn {
            effect,
            mut next,
            restart,
        } = turn;
        let Some(object) = self.objects.get_mut(&id) else {
            return;
        };
        if let Some(reason) = restart {
            self.shared.metrics.restarted(reason.label());
            object.entry.cell.interrupted(Instant::now());
        }
        let mut settled = false;
        match effect {
            None => {}
            Some(Effect::Collect) => {
                if let Some(open) = &mut open {
                    open.collected = found;
                }
            }
            Some(effect) => {
                settled = true;
                if let Effect::Synced {
                    version,
                    consistent,
                    reset,
                } = &effect
                {
                    if *reset {
                        self.server.floor_lost();
                    }
                    // A plain list may come from the storage, behind which the API server's cache may lag for seconds. What
                    // is streamed comes from the cache.
                    if *consistent && open.is_some() {
                        self.server.proved(object.asked, version);
                    }
                }
                if publish(&self.shared, object, effect, found) {
                    next = Next::Rest;
                }
            }
        }
        match next {
            Next::Read | Next::ReadFor(_) => {
                if let Next::ReadFor(time) = next {
                    set_timer(&mut self.timers, object, Some(time));
                }
                if let Some(open) = open {
                    self.read(id, open);
                }
            }
            Next::Open(_) | Next::List(_) => {
                abort(&mut object.step);
                set_timer(&mut self.timers, object, None);
                if object.permit.is_some() {
                    self.ask(id, next, None);
                } else {
                    self.line_up(id);
                }
            }
            Next::Sleep(time) => {
                abort(&mut object.step);
                set_timer(&mut self.timers, object, Some(time));
            }
            Next::Rest => rest(&mut self.timers, object),
        }
        if let Some(object) = self.objects.get_mut(&id)
            && !object.reflector.awaits_answer()
        {
            object.permit = None;
        }
        if settled {
            self.pursue(id);
        }
    }

    /// Stops the watches that nobody read from for longer than `max_idle`.
    fn stop_idle_watches(&mut self) {
        let (now, max_idle) = (Instant::now(), self.config.max_idle());
        let mut accessed = false;
        for object in self.objects.values_mut() {
            let cell = &object.entry.cell;
            if object.entry.take_accessed() {
                object.last_read = now;
                accessed = true;
            }
            // What has not synced yet is not idle, however long it takes; what is immutable is not watched.
            let synced = matches!(cell.state(), ObjectState::Synced | ObjectState::Absent);
            if synced && !cell.is_wanted() && now > object.last_read + max_idle {
                debug!(kind = K::KIND.as_str(), key = %object.entry.key, "stop idle watch");
                self.shared.idle(&object.entry);
                rest(&mut self.timers, object);
            }
        }
        if accessed {
            // So that those who go on reading are seen again.
            self.shared.entries.changed();
        }
    }

    fn cancel_all(&mut self, mut object: Box<Watched<K>>) {
        abort(&mut object.step);
        set_timer(&mut self.timers, &mut object, None);
        match object.proof {
            Proof::None | Proof::Queued(_) => {}
            Proof::UnderWay(handle, _) => handle.abort(),
            Proof::Waiting(key, _) => {
                self.timers.remove(&key);
            }
        }
    }
}

/// Ends all that the object's reflector does.
fn rest<K: Object>(timers: &mut DelayQueue<(u64, Part)>, object: &mut Watched<K>) {
    object.reflector.stop();
    object.permit = None;
    if let Place::Waiting { .. } = object.place {
        object.entry.cell.set_watched(true);
    }
    object.place = Place::None;
    abort(&mut object.step);
    set_timer(timers, object, None);
}

fn set_timer<K>(
    timers: &mut DelayQueue<(u64, Part)>,
    object: &mut Watched<K>,
    time: Option<Duration>,
) {
    if let Some(key) = object.timer.take() {
        timers.remove(&key);
    }
    object.timer = time.map(|time| timers.insert((object.entry.cell.id, Part::Reflector), time));
}
