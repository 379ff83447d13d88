//! The known state of one watched object.
//!
//! A reader looks whether that is fresh enough for it; the task that watches does all else.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use larder_objects::{Object, ObjectKey, ResourceVersion};
use larder_watch::{ObjectId, RegistrationSeq, RequestFailure};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};

use crate::{
    changes::ChangeKind,
    error::{Error, ErrorKind},
    status::{KnownObject, ObjectState, ObjectStatus, StaleObject},
    store::Cell,
};

/// What the store knows about one object.
#[derive(Debug)]
pub(crate) struct WatchEntry<K> {
    /// Number of this incarnation of the entry; the task's name for it.
    pub(crate) id: ObjectId,
    /// A reader waits for something that no request under way may bring; the task clears it.
    pub(super) read_pending: AtomicBool,
    /// A reader gave up waiting.
    pub(super) missed: AtomicBool,
    pub(super) changed: Notify,
    pub(super) known: Mutex<KnownState<K>>,
}

#[derive(Debug)]
pub(super) struct KnownState<K> {
    pub(super) state: ObjectState,
    /// The object, while it may be read.
    pub(super) object: Option<Arc<K>>,
    /// Version of the last state published, also of an absence; readers never see an older one (I3).
    version: ResourceVersion,
    /// What is known is as fresh as this registration, so references up to it may read it.
    pub(super) fresh_as_of: RegistrationSeq,
    /// References up to this one may read a stale copy.
    stale_for: RegistrationSeq,
    /// Boxed, as it is seldom there and there may be very many cells.
    interruption: Option<Box<Interruption>>,
    /// There was a read or a new reference since the task looked last.
    accessed: bool,
    hits: u64,
}

/// What keeps the state from being in sync.
#[derive(Debug)]
struct Interruption {
    /// Since when the state may have changed unnoticed.
    since: Instant,
    /// The last failed request.
    failure: Option<RequestFailure>,
}

/// What a state that was found out means for the object.
#[derive(Debug)]
pub(crate) struct ObjectFinding<K> {
    /// The object, or that it does not exist.
    pub(crate) object: Option<Arc<K>>,
    /// The version of that state.
    pub(crate) version: ResourceVersion,
    /// It is as fresh as this registration.
    pub(crate) fresh_as_of: Option<RegistrationSeq>,
    /// Take it even if it is older than the known state.
    pub(crate) reset: bool,
}

impl<K: Object> KnownState<K> {
    /// Takes over a finding. Returns whether that is news.
    pub(super) fn take(&mut self, finding: ObjectFinding<K>) -> bool {
        // Nothing that was heard overtakes it: a copy has no version here, and is replaced by whatever is heard.
        let late = !finding.reset && finding.version.is_older_than(&self.version);
        let mut changed = matches!(self.state, ObjectState::Pending | ObjectState::Stale(_));
        // A late finding was overtaken by a newer state, which stays as long as it is readable.
        if !late {
            let differs = self.version != finding.version;
            changed |= match (&finding.object, self.state) {
                (None, ObjectState::Absent) => false,
                // The answer to a GET has no version then.
                (None, ObjectState::Synced | ObjectState::Immutable) => true,
                _ => differs,
            };
            self.state = match &finding.object {
                Some(object) if object.is_immutable() => ObjectState::Immutable,
                Some(_) => ObjectState::Synced,
                None => ObjectState::Absent,
            };
            self.version = finding.version;
            self.object = finding.object;
        }
        if let Some(seq) = finding.fresh_as_of {
            self.fresh_as_of = self.fresh_as_of.max(seq);
        }
        self.resume().is_some() || changed
    }

    /// Whether references up to `required` may read the known state.
    fn is_readable(&self, required: RegistrationSeq) -> bool {
        let readable = match self.state {
            ObjectState::Stale(_) => self.stale_for,
            _ => self.fresh_as_of,
        };
        readable >= required
    }

    /// Serves a copy to references up to `seq`, if nothing else is known. Returns the event when it was not served
    /// before.
    pub(super) fn serve_copy(
        &mut self,
        copy: &StaleObject<K>,
        seq: RegistrationSeq,
    ) -> Option<ChangeKind> {
        match self.state {
            ObjectState::Stale(_) => {
                self.stale_for = self.stale_for.max(seq);
                return None;
            }
            // A client that has been denied the object gets no copy of it.
            ObjectState::Pending if !self.is_denied() => {}
            _ => return None,
        }
        self.state = ObjectState::Stale(copy.as_of);
        self.object.clone_from(&copy.object);
        self.stale_for = seq;
        Some(match self.object {
            Some(_) => ChangeKind::Updated,
            None => ChangeKind::Deleted,
        })
    }

    /// Takes a stale copy away. Returns whether there was one.
    pub(super) fn withdraw(&mut self) -> bool {
        let is_stale = matches!(self.state, ObjectState::Stale(_));
        if is_stale {
            self.state = ObjectState::Pending;
            self.object = None;
        }
        is_stale
    }

    /// Whether the API server denied the last request.
    fn is_denied(&self) -> bool {
        let failure = self.failure();
        failure
            .is_some_and(|failure| failure.error.is_forbidden() || failure.error.is_unauthorized())
    }

    /// A request failed; returns an event when that is news.
    pub(super) fn failed(&mut self, failure: &RequestFailure, now: Instant) -> Option<ChangeKind> {
        if self.state == ObjectState::Removed {
            return None;
        }
        let last = &mut self.interrupt(now).failure;
        let before = last.replace(failure.clone());
        let label = failure.error.label();
        let news = before.is_none_or(|before| before.error.label() != label);
        news.then(|| ChangeKind::Failed(failure.clone()))
    }

    /// The state is in sync again. Returns the failure that has kept it from that.
    fn resume(&mut self) -> Option<RequestFailure> {
        self.interruption.take()?.failure
    }

    fn interrupt(&mut self, now: Instant) -> &mut Interruption {
        self.interruption.get_or_insert_with(|| {
            Box::new(Interruption {
                since: now,
                failure: None,
            })
        })
    }

    fn failure(&self) -> Option<RequestFailure> {
        self.interruption.as_ref()?.failure.clone()
    }

    /// For how long the object may have changed unnoticed.
    fn age(&self, now: Instant) -> Duration {
        let interruption = self.interruption.as_ref();
        interruption
            .map(|interruption| now.saturating_duration_since(interruption.since))
            .unwrap_or_default()
    }

    /// The event for subscribers when the state is news.
    pub(super) fn event(&self) -> ChangeKind {
        match self.state {
            ObjectState::Absent => ChangeKind::Deleted,
            _ => ChangeKind::Updated,
        }
    }
}

impl<K: Object> WatchEntry<K> {
    pub(super) fn new(id: ObjectId) -> Self {
        Self {
            id,
            read_pending: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            changed: Notify::new(),
            known: Mutex::new(KnownState {
                state: ObjectState::Pending,
                object: None,
                version: ResourceVersion::default(),
                fresh_as_of: RegistrationSeq::default(),
                stale_for: RegistrationSeq::default(),
                interruption: None,
                accessed: false,
                hits: 0,
            }),
        }
    }

    /// Notes an access.
    pub(super) fn touch(&self) {
        self.known.lock().accessed = true;
    }

    /// Whether there was an access since the last call.
    pub(super) fn take_accessed(&self) -> bool {
        std::mem::take(&mut self.known.lock().accessed)
    }

    /// A read was answered without waiting, but not by [`Cell::read_now`].
    pub(super) fn count_hit(&self) {
        self.known.lock().hits += 1;
    }

    /// The answer to a read that needs a state as fresh as `required`, if it is known.
    pub(super) fn look(
        &self,
        key: &ObjectKey,
        required: RegistrationSeq,
    ) -> Option<Result<Arc<K>, Error>> {
        let known = self.known.lock();
        let (kind, key) = (K::TYPE, || key.clone());
        match known.state {
            ObjectState::Removed => Some(Err(ErrorKind::NotRegistered { key: key() }.into())),
            ObjectState::Unwatched => Some(Err(ErrorKind::NoWatch { kind, key: key() }.into())),
            _ if !known.is_readable(required) => None,
            ObjectState::Absent | ObjectState::Stale(_) if known.object.is_none() => {
                Some(Err(ErrorKind::NotFound { kind, key: key() }.into()))
            }
            _ => known.object.clone().map(Ok),
        }
    }

    // What follows is for the task that watches.

    /// `object` to keep; the known one if it is the same, so that a complete state is not in memory twice.
    pub(crate) fn shared(&self, object: K) -> Arc<K> {
        let known = self.known.lock().object.clone();
        known
            .filter(|known| **known == object)
            .unwrap_or_else(|| Arc::new(object))
    }

    pub(crate) fn fresh_as_of(&self) -> RegistrationSeq {
        self.known.lock().fresh_as_of
    }

    pub(crate) fn state(&self) -> ObjectState {
        self.known.lock().state
    }

    pub(crate) fn version(&self) -> ResourceVersion {
        self.known.lock().version.clone()
    }

    pub(crate) fn failure(&self) -> Option<RequestFailure> {
        self.known.lock().failure()
    }

    pub(crate) fn describe(&self, status: &mut ObjectStatus, now: Instant) {
        let known = self.known.lock();
        status.state = known.state;
        status.version = match (known.state, &known.object) {
            (ObjectState::Stale(_), Some(copy)) => copy.metadata().resource_version.clone(),
            _ => known.version.clone(),
        };
        status.age = known.age(now);
        status.failure = known.failure();
    }

    /// What is known, for a copy that outlives this process.
    pub(crate) fn known(&self, key: &ObjectKey, now: Instant) -> KnownObject<K> {
        let known = self.known.lock();
        KnownObject {
            key: key.clone(),
            state: known.state,
            object: known.object.clone(),
            age: known.age(now),
            is_forbidden: known
                .failure()
                .is_some_and(|failure| failure.error.is_forbidden()),
        }
    }

    pub(crate) fn is_read_pending(&self) -> bool {
        self.read_pending.load(Ordering::Acquire)
    }

    /// The waiting reads have what they need; pairs with the swap of a reader, which sees `false` and sends a command,
    /// or is seen here.
    pub(crate) fn clear_read_pending(&self) {
        self.read_pending.swap(false, Ordering::AcqRel);
    }

    /// The watch continues after an interruption.
    pub(super) fn resumed(&self) -> Option<ChangeKind> {
        let mut known = self.known.lock();
        // An open watch does not make a state readable that was not.
        if known
            .failure()
            .is_some_and(|failure| failure.error.is_unreadable())
        {
            return None;
        }
        known.resume().map(|_| known.event())
    }

    /// The watch is interrupted.
    pub(crate) fn interrupted(&self, now: Instant) {
        self.known.lock().interrupt(now);
    }

    /// The watch was stopped: of the known state, only the version still counts.
    pub(super) fn idle(&self) {
        let mut known = self.known.lock();
        if known.state != ObjectState::Removed {
            known.state = ObjectState::Idle;
            known.object = None;
        }
    }

    /// The object gets no watch, because the limit is reached. A copy that is served stays.
    pub(super) fn refuse_watch(&self) {
        let mut known = self.known.lock();
        if !matches!(known.state, ObjectState::Removed | ObjectState::Stale(_)) {
            known.state = ObjectState::Unwatched;
            known.object = None;
        }
        drop(known);
        self.clear_read_pending();
        self.changed.notify_waiters();
    }

    /// The object gets a watch after all.
    pub(super) fn grant_watch(&self) {
        let mut known = self.known.lock();
        if known.state == ObjectState::Unwatched {
            known.state = ObjectState::Pending;
        }
    }
}

impl<K: Object> Cell for WatchEntry<K> {
    type Object = K;

    fn read_now(&self, required: RegistrationSeq) -> Option<Arc<K>> {
        let mut known = self.known.lock();
        let readable = known.is_readable(required);
        let object = known.object.clone().filter(|_| readable)?;
        known.accessed = true;
        known.hits += 1;
        Some(object)
    }

    fn stale_as_of(&self) -> Option<Timestamp> {
        match self.state() {
            ObjectState::Stale(as_of) => Some(as_of),
            _ => None,
        }
    }

    fn hits(&self) -> u64 {
        self.known.lock().hits
    }

    fn remove(&self) {
        let mut known = self.known.lock();
        known.state = ObjectState::Removed;
        known.object = None;
        drop(known);
        self.changed.notify_waiters();
    }
}
