//! One watch for all referenced objects of a namespace.
//!
//! The API server sends everything in the namespace, since no selector says "one of these names", and one that excludes
//! types may hide a Secret that a pod refers to. What is not referenced is dropped while it is read.
//!
//! A watch tells nothing of an object that was not referenced when its state was obtained. So an object that joins
//! later, or gets a new reader, is listed once by name: that proves presence and absence alike, and its version says
//! which of the watch's events are older. For many at once the whole state is asked for instead.
//!
//! Invariants:
//! 1. There is at most one watch, and none while nothing is referenced or all that is referenced is final (I1, I2).
//! 2. The absence of an object from a complete state counts only if the object was referenced before that state was
//!    asked for.
//! 3. While a state is being obtained, nothing is listed by name: the list might be older than the state, which does not
//!    speak of the object, and what happened in between would be lost.

mod proof;
mod target;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{
    StreamExt,
    future::{Abortable, BoxFuture},
    stream::FuturesUnordered,
};
use larder_objects::{Object, ResourceVersion};
use larder_watch::{Api, Asked, Follower, Happening, News, Outages};
use smol_str::SmolStr;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::time::DelayQueue;
use tracing::{debug, warn};

use self::{
    proof::{Proof, Proved},
    target::{InNamespace, Readable, Seen},
};
use super::{Command, Commands};
use crate::{
    changes::ChangeKind,
    status::ObjectState,
    store::{
        Entry,
        watching::{Cell, Finding, Shared},
    },
};

/// More new readers than this are served by the state of the whole namespace.
const LISTS_BY_NAME: usize = 16;

/// Time between two looks whether anything was read.
const IDLE_PASS: Duration = Duration::from_secs(15);

/// One referenced object. There may be very many.
struct Member<K> {
    entry: Arc<Entry<Cell<K>>>,
    /// It joined after so many requests for the state; see [`Asked::count`].
    joined: u64,
}

impl<K: Object> Member<K> {
    /// Whether everybody who refers to the object may read what is known.
    fn is_proven(&self) -> bool {
        self.entry.cell.proven() >= self.entry.newest_reference()
    }

    /// Whether what is known is final for everybody who refers to it.
    fn is_final(&self) -> bool {
        self.entry.cell.state() == ObjectState::Immutable && self.is_proven()
    }
}

enum Wake<K: Object> {
    Commands,
    Happened(Box<Happening<InNamespace<K>>>),
    Proved(Box<Proved<K>>),
    /// A list was cancelled and is dropped by now.
    Cancelled,
    Timer(u64),
    IdlePass,
}

/// Why [`Namespace::run`] has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// It was told to end.
    ShutDown,
    /// The API server has refused the watch of the namespace, as it may again if it runs on.
    Forbidden,
}

pub(super) struct Namespace<K: Object> {
    shared: Arc<Shared<K>>,
    commands: Arc<Commands<K>>,
    api: Api,
    max_idle: Duration,
    name: SmolStr,
    follower: Follower<InNamespace<K>>,
    /// By the number of the cell. One whose reference is new is not here before that was told.
    members: HashMap<u64, Member<K>>,
    /// The members that readers wait for.
    wanted: BTreeSet<u64>,
    /// Of the members that are listed by name.
    proofs: HashMap<u64, Proof>,
    lists: FuturesUnordered<Abortable<BoxFuture<'static, Proved<K>>>>,
    /// When a list by name may be tried again.
    timers: DelayQueue<u64>,
    last_read: Instant,
    random: fastrand::Rng,
}

impl<K: Object> Namespace<K> {
    pub(super) fn new(
        shared: Arc<Shared<K>>,
        commands: Arc<Commands<K>>,
        api: Api,
        max_idle: Duration,
        namespace: SmolStr,
        outages: Outages,
    ) -> Self {
        let target = InNamespace {
            shared: Arc::clone(&shared),
            namespace: namespace.clone(),
        };
        Self {
            shared,
            commands,
            follower: Follower::new(api.clone(), target, outages),
            api,
            max_idle,
            name: namespace,
            members: HashMap::new(),
            wanted: BTreeSet::new(),
            proofs: HashMap::new(),
            lists: FuturesUnordered::new(),
            timers: DelayQueue::new(),
            last_read: Instant::now(),
            random: fastrand::Rng::new(),
        }
    }

    /// Works until it is told to end, the watch is refused, or it is dropped.
    pub(super) async fn run(&mut self) -> Return {
        let commands = Arc::clone(&self.commands);
        let mut idle_pass = interval_at(Instant::now() + IDLE_PASS, IDLE_PASS);
        idle_pass.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Every arm is cancel-safe: commands stay in their queue, the others in their collections.
            let wake = tokio::select! {
                () = commands.arrived.notified() => Wake::Commands,
                happening = self.follower.next() => Wake::Happened(Box::new(happening)),
                Some(proved) = self.lists.next(), if !self.lists.is_empty() => match proved {
                    Ok(proved) => Wake::Proved(Box::new(proved)),
                    Err(_) => Wake::Cancelled,
                },
                Some(timer) = self.timers.next(), if !self.timers.is_empty() => {
                    Wake::Timer(timer.into_inner())
                }
                _ = idle_pass.tick() => Wake::IdlePass,
            };
            match wake {
                Wake::Commands => {
                    if commands.each(|command| self.command(command)).is_break() {
                        return Return::ShutDown;
                    }
                }
                Wake::Happened(happening) => {
                    if self.happened(*happening) {
                        self.pursue();
                        return Return::Forbidden;
                    }
                }
                Wake::Proved(proved) => self.proved(*proved),
                Wake::Cancelled => {}
                Wake::Timer(id) => self.retry(id),
                Wake::IdlePass => self.stop_if_idle(),
            }
            self.pursue();
        }
    }

    fn command(&mut self, command: Command<K>) {
        match command {
            Command::Added(entry) => {
                // Its removal is the next command, or one of the next.
                if entry.cell.state() == ObjectState::Removed {
                    return;
                }
                let member = Member {
                    joined: self.follower.asked().count,
                    entry,
                };
                let id = member.entry.cell.id;
                self.members.insert(id, member);
                self.last_read = Instant::now();
                // Whether anybody reads it or not: it is to be known.
                self.wanted.insert(id);
            }
            Command::Referenced(id) => {
                let failure = self
                    .members
                    .get(&id)
                    .and_then(|member| member.entry.cell.failure());
                if self.follower.is_waiting() && failure.is_some_and(|error| error.is_forbidden()) {
                    self.follower.start(true);
                }
            }
            Command::Wanted(id) => {
                self.wanted.insert(id);
            }
            Command::Removed(id) => {
                self.wanted.remove(&id);
                self.members.remove(&id);
                self.cancel(id);
                self.rest_if_final();
            }
            // Is for who watches by name.
            Command::GiveBack(..) => {}
        }
    }

    /// Begins with these commands, which somebody else was told before.
    pub(super) fn take_over(&mut self, commands: Vec<Command<K>>) {
        for command in commands {
            if let Command::Added(entry) = &command {
                self.follower.saw(&entry.cell.version());
            }
            self.command(command);
        }
        self.pursue();
        // What is known already is nobody's want, but to be followed.
        if self.follower.is_resting() && !self.members.values().all(Member::is_final) {
            self.follower.start(false);
        }
    }

    /// Ends the watch. What follows its objects from now on is told of them.
    pub(super) fn into_commands(self) -> Vec<Command<K>> {
        let added = self.members.into_values().map(|member| member.entry);
        let added = added.map(Command::Added);
        added
            .chain(self.wanted.into_iter().map(Command::Wanted))
            .collect()
    }

    /// Returns whether the watch was refused.
    fn happened(&mut self, happening: Happening<InNamespace<K>>) -> bool {
        let mut forbidden = false;
        let Happening {
            news,
            restart,
            answered,
        } = happening;
        if let Some((verb, outcome)) = answered {
            self.shared.metrics.requested(verb, outcome);
        }
        if let Some(reason) = restart {
            self.shared.metrics.restarted(reason.label());
            let now = Instant::now();
            for member in self.members.values().filter(|member| !member.is_final()) {
                member.entry.cell.interrupted(now);
            }
        }
        match news {
            None => {}
            Some(News::Synced {
                state,
                version,
                consistent,
                reset,
            }) => self.synced(state, &version, consistent, reset),
            Some(News::Changed(Seen { id, object })) => {
                if let Some(member) = self.members.get(&id).filter(|member| !member.is_final()) {
                    self.see(member, object, None, false);
                }
            }
            Some(News::Deleted(id, version)) => {
                if let Some(member) = self.members.get(&id).filter(|member| !member.is_final()) {
                    let finding = Finding {
                        object: None,
                        version,
                        proven: None,
                        reset: false,
                    };
                    self.tell(member, |entry| self.shared.publish(entry, finding));
                }
            }
            Some(News::Resumed) => {
                self.tell_all(|entry| entry.cell.resumed());
            }
            Some(News::Failed(error)) => {
                let now = Instant::now();
                forbidden = error.is_forbidden();
                if self.tell_all(|entry| entry.cell.failed(Arc::clone(&error), now)) {
                    let error: &dyn std::error::Error = &error;
                    warn!(kind = K::KIND.as_str(), namespace = %self.name, error, "failed to follow a namespace, will retry");
                }
            }
        }
        self.rest_if_final();
        forbidden
    }

    /// Takes over the complete state.
    fn synced(
        &self,
        mut state: HashMap<u64, Readable<K>>,
        version: &ResourceVersion,
        consistent: bool,
        reset: bool,
    ) {
        let Asked { moment, count } = self.follower.asked();
        for member in self.members.values().filter(|member| !member.is_final()) {
            let covered = member.joined < count;
            let proven = (consistent && covered).then_some(moment);
            match state.remove(&member.entry.cell.id) {
                Some(object) => self.see(member, object, proven, reset),
                None if covered => {
                    let finding = Finding {
                        object: None,
                        version: version.clone(),
                        proven,
                        reset,
                    };
                    self.tell(member, |entry| self.shared.publish(entry, finding));
                }
                None => {}
            }
        }
    }

    /// Takes over what was seen of a member.
    fn see(&self, member: &Member<K>, object: Readable<K>, proven: Option<u64>, reset: bool) {
        match object {
            Ok(object) => {
                let finding = Finding {
                    version: object.metadata().resource_version.clone(),
                    object: Some(object),
                    proven,
                    reset,
                };
                self.tell(member, |entry| self.shared.publish(entry, finding));
            }
            Err(unreadable) => {
                let error = unreadable.error;
                self.tell(member, |entry| entry.cell.failed(error, Instant::now()));
            }
        }
    }

    /// Gets under way what the waiting readers need, unless it is.
    fn pursue(&mut self) {
        // A burst of new objects is looked at once, when the answer has come, and not at each of them.
        if self.follower.awaits_answer() {
            return;
        }
        let (members, proofs, shared) = (&self.members, &self.proofs, &self.shared);
        let mut open = Vec::new();
        self.wanted.retain(|id| {
            let Some(member) = members.get(id) else {
                return false;
            };
            let cell = &member.entry.cell;
            match cell.state() {
                ObjectState::Removed => false,
                ObjectState::Synced | ObjectState::Absent | ObjectState::Immutable
                    if member.is_proven() =>
                {
                    cell.satisfy();
                    // A reference that came meanwhile found the want still standing and told nobody.
                    if !member.is_proven() {
                        shared.want(cell);
                    }
                    false
                }
                state => {
                    if !proofs.contains_key(id) {
                        open.push((*id, state));
                    }
                    true
                }
            }
        });
        if open.is_empty() {
            return;
        }
        if self.follower.is_waiting() {
            self.follower.want_consistent();
        } else if self.follower.is_resting() {
            self.last_read = Instant::now();
            // What was immutable is looked at once more; it does not need a watch.
            let watched = |(_, state): &(u64, ObjectState)| *state != ObjectState::Immutable;
            if open.iter().any(watched) {
                let proven = |(id, _): &(u64, ObjectState)| members[id].is_proven();
                self.follower.start(!open.iter().all(proven));
            } else {
                self.list(&open);
            }
        } else if open.len() > LISTS_BY_NAME {
            self.follower.start(true);
        } else {
            self.list(&open);
        }
    }

    /// Stops the watch when nobody has read any of the objects for longer than `max_idle`.
    fn stop_if_idle(&mut self) {
        let now = Instant::now();
        let (mut accessed, mut synced) = (false, true);
        for member in self.members.values() {
            let cell = &member.entry.cell;
            accessed |= member.entry.take_accessed();
            // What has not synced yet is not idle, however long it takes.
            synced &= cell.state() != ObjectState::Pending && !cell.is_wanted();
        }
        if accessed {
            self.last_read = now;
            // So that those who go on reading are seen again.
            self.shared.entries.changed();
        }
        if synced && now > self.last_read + self.max_idle && !self.follower.is_resting() {
            debug!(kind = K::KIND.as_str(), namespace = %self.name, "stop idle watch");
            self.follower.stop();
            for member in self.members.values() {
                if member.entry.cell.state() != ObjectState::Immutable {
                    self.shared.idle(&member.entry);
                }
            }
        }
    }

    /// Stops the watch when nothing can come of it.
    fn rest_if_final(&mut self) {
        if !self.follower.is_resting() && self.members.values().all(Member::is_final) {
            self.follower.stop();
        }
    }

    /// Changes what is known of every object that is not final. Returns whether that was news to any.
    fn tell_all(&self, change: impl Fn(&Arc<Entry<Cell<K>>>) -> Option<ChangeKind>) -> bool {
        let mut news = false;
        for member in self.members.values().filter(|member| !member.is_final()) {
            news |= self.tell(member, &change);
        }
        news
    }

    /// Changes what is known of the member and tells the subscribers if it is news.
    fn tell(
        &self,
        member: &Member<K>,
        change: impl FnOnce(&Arc<Entry<Cell<K>>>) -> Option<ChangeKind>,
    ) -> bool {
        let event = change(&member.entry);
        if let Some(event) = &event {
            self.shared.changes.publish(&member.entry.key, event);
        }
        event.is_some()
    }
}
