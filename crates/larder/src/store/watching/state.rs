//! The known state of one watched object.
//!
//! A reader only checks whether that is fresh enough; the watching task does everything else. Each [`Finding`] takes the
//! lock once and returns the event for subscribers.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use larder_objects::{Object, ObjectKey, ResourceVersion};
use larder_transport::Link;
use larder_watch::{ObjectId, Proof, ProofRecord, RegistrationSeq, RequestError, RequestFailure};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};

use crate::{
    changes::ChangeKind,
    error::{Error, ErrorKind},
    status::{KnownObject, ObjectState, ObjectStatus, StaleObject},
    store::{Cell, Entry},
};

/// What the store knows about one object.
#[derive(Debug)]
pub(crate) struct WatchedState<K> {
    /// Number of this incarnation of the entry; the task's name for it.
    pub(crate) id: ObjectId,
    /// A reader waits for something that no request under way may bring; the task clears it.
    pub(super) read_pending: AtomicBool,
    /// A reader gave up waiting.
    pub(super) missed: AtomicBool,
    pub(super) changed: Notify,
    known: Mutex<Known<K>>,
}

#[derive(Debug)]
struct Known<K> {
    state: KnownState<K>,
    /// Version of the last state published, also of an absence; readers never see an older one (I3).
    version: ResourceVersion,
    /// What is known is as fresh as this registration, so references up to it may read it.
    fresh_as_of: RegistrationSeq,
    /// By what the state is proven to be current.
    record: ProofRecord,
    /// There was a read or a new reference since the task looked last.
    accessed: bool,
    hits: u64,
}

/// What may be concluded about the object, and what reads of it get. See [`ObjectState`].
#[derive(Debug)]
enum KnownState<K> {
    Pending,
    Synced(Arc<K>),
    Absent,
    Immutable(Arc<K>),
    /// References up to this registration may read the copy.
    Stale(StaleObject<K>, RegistrationSeq),
    Idle,
    Removed,
}

/// What the API server says about a referenced object, from the bytes of a response to the entry.
#[derive(Debug)]
pub(crate) struct Finding<K> {
    pub(crate) entry: Arc<Entry<WatchedState<K>>>,
    /// The object, or that it does not exist, or why it cannot be decoded.
    pub(crate) object: Result<Option<Arc<K>>, Arc<RequestError>>,
    /// The version of that state.
    pub(crate) version: ResourceVersion,
    /// It is as fresh as this registration.
    pub(crate) fresh_as_of: Option<RegistrationSeq>,
    /// Take it even if it is older than the known state.
    pub(crate) reset: bool,
}

impl<K> Finding<K> {
    /// The object does not exist, as of `version`.
    pub(crate) fn absent(entry: Arc<Entry<WatchedState<K>>>, version: ResourceVersion) -> Self {
        Self {
            entry,
            object: Ok(None),
            version,
            fresh_as_of: None,
            reset: false,
        }
    }
}

impl<K: Object> Finding<K> {
    /// Keeps the known object if this one is the same, so that a complete state is not in memory twice.
    pub(crate) fn share(&mut self) {
        if let Ok(Some(object)) = &mut self.object
            && let known = self.entry.cell.known.lock().state.object().cloned()
            && let Some(known) = known.filter(|known| **known == **object)
        {
            *object = known;
        }
    }
}

impl<K: Object> KnownState<K> {
    fn object(&self) -> Option<&Arc<K>> {
        match self {
            Self::Synced(object) | Self::Immutable(object) => Some(object),
            Self::Stale(copy, _) => copy.object.as_ref(),
            Self::Pending | Self::Absent | Self::Idle | Self::Removed => None,
        }
    }

    fn as_public(&self) -> ObjectState {
        match self {
            Self::Pending => ObjectState::Pending,
            Self::Synced(_) => ObjectState::Synced,
            Self::Absent => ObjectState::Absent,
            Self::Immutable(_) => ObjectState::Immutable,
            Self::Stale(copy, _) => ObjectState::Stale(copy.as_of),
            Self::Idle => ObjectState::Idle,
            Self::Removed => ObjectState::Removed,
        }
    }
}

impl<K: Object> Known<K> {
    /// Takes over a state of the object, with the version and freshness of `finding`. Returns whether that is news.
    fn take(&mut self, object: Option<Arc<K>>, finding: &Finding<K>) -> bool {
        // Nothing that was heard overtakes it: a copy has no version here, and is replaced by whatever is heard.
        let late = !finding.reset && finding.version.is_older_than(&self.version);
        let mut changed = matches!(self.state, KnownState::Pending | KnownState::Stale(..));
        // A late finding was overtaken by a newer state, which stays as long as it is readable.
        if !late {
            let differs = self.version != finding.version;
            changed |= match (&object, &self.state) {
                (None, KnownState::Absent) => false,
                // The answer to a GET has no version then.
                (None, KnownState::Synced(_) | KnownState::Immutable(_)) => true,
                _ => differs,
            };
            self.state = match object {
                Some(object) if object.is_immutable() => KnownState::Immutable(object),
                Some(object) => KnownState::Synced(object),
                None => KnownState::Absent,
            };
            self.version = finding.version.clone();
        }
        if let Some(seq) = finding.fresh_as_of {
            self.fresh_as_of = self.fresh_as_of.max(seq);
        }
        self.record.resume() || changed
    }

    /// Whether references up to `required` may read the known state.
    fn is_readable(&self, required: RegistrationSeq) -> bool {
        let readable = match self.state {
            KnownState::Stale(_, readable) => readable,
            _ => self.fresh_as_of,
        };
        readable >= required
    }

    /// Whether the state is final, and every reference up to `newest` may read it.
    fn is_final(&self, newest: RegistrationSeq) -> bool {
        matches!(self.state, KnownState::Immutable(_)) && self.fresh_as_of >= newest
    }

    /// By what the state is known to be current. A final one needs no connection.
    fn proof(&self, now: Instant) -> Proof {
        match self.record.proof(now) {
            Proof::At(_) if matches!(self.state, KnownState::Immutable(_)) => Proof::At(now),
            proof => proof,
        }
    }

    /// The event for subscribers when the state is news.
    fn event(&self) -> ChangeKind {
        match self.state {
            KnownState::Absent => ChangeKind::Deleted,
            _ => ChangeKind::Updated,
        }
    }
}

impl<K: Object> WatchedState<K> {
    pub(super) fn new(id: ObjectId) -> Self {
        Self {
            id,
            read_pending: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            changed: Notify::new(),
            known: Mutex::new(Known {
                state: KnownState::Pending,
                version: ResourceVersion::default(),
                fresh_as_of: RegistrationSeq::default(),
                record: ProofRecord::default(),
                accessed: false,
                hits: 0,
            }),
        }
    }

    /// Notes an access. Returns whether nothing has been heard of the object yet.
    pub(super) fn touch(&self) -> bool {
        let mut known = self.known.lock();
        known.accessed = true;
        matches!(known.state, KnownState::Pending | KnownState::Stale(..))
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
        let error = match &known.state {
            KnownState::Removed => ErrorKind::NotRegistered { key: key() },
            _ if !known.is_readable(required) => return None,
            KnownState::Pending | KnownState::Idle => return None,
            state => match state.object() {
                Some(object) => return Some(Ok(Arc::clone(object))),
                None => ErrorKind::NotFound { kind, key: key() },
            },
        };
        Some(Err(error.into()))
    }

    // What follows is for the task that watches.

    /// Whether there was an access since the last call.
    pub(super) fn take_accessed(&self) -> bool {
        std::mem::take(&mut self.known.lock().accessed)
    }

    /// The state, and whether references up to `newest` may read it.
    pub(crate) fn freshness(&self, newest: RegistrationSeq) -> (ObjectState, bool) {
        let known = self.known.lock();
        (known.state.as_public(), known.fresh_as_of >= newest)
    }

    pub(crate) fn state(&self) -> ObjectState {
        self.known.lock().state.as_public()
    }

    /// The object, as far as one is known.
    pub(crate) fn object(&self) -> Option<Arc<K>> {
        self.known.lock().state.object().cloned()
    }

    pub(crate) fn version(&self) -> ResourceVersion {
        self.known.lock().version.clone()
    }

    pub(crate) fn failure(&self) -> Option<RequestFailure> {
        self.known.lock().record.failure().cloned()
    }

    /// What is known, for a copy that outlives this process.
    pub(crate) fn known(&self, key: &ObjectKey, now: Instant) -> KnownObject<K> {
        let known = self.known.lock();
        KnownObject {
            key: key.clone(),
            state: known.state.as_public(),
            object: known.state.object().cloned(),
            age: match known.proof(now) {
                // A copy is not written again for each sign of life.
                Proof::At(_) => Duration::ZERO,
                lost @ Proof::Lost { .. } => lost.age(now),
            },
            is_forbidden: known
                .record
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

    /// The known state, unless nothing that is heard can change it: it is removed, or final for references up to
    /// `newest`.
    fn open(&self, newest: RegistrationSeq) -> Option<MutexGuard<'_, Known<K>>> {
        let known = self.known.lock();
        let is_closed = matches!(known.state, KnownState::Removed) || known.is_final(newest);
        (!is_closed).then_some(known)
    }

    /// Takes over a state of the object, with the version and freshness of `finding`. Returns the event, if it is news,
    /// and whether the state has become final.
    pub(super) fn take(
        &self,
        object: Option<Arc<K>>,
        finding: &Finding<K>,
    ) -> (Option<ChangeKind>, bool) {
        let newest = finding.entry.newest_reference();
        let Some(mut known) = self.open(newest) else {
            return (None, false);
        };
        let mut changed = known.take(object, finding);
        changed |= finding.fresh_as_of.is_some() && self.missed.swap(false, Ordering::AcqRel);
        let taken = (changed.then(|| known.event()), known.is_final(newest));
        drop(known);
        self.changed.notify_waiters();
        taken
    }

    /// Serves a copy to references up to `seq`, if nothing else is known. The event is that of a copy that was not
    /// served before.
    pub(super) fn serve_copy(
        &self,
        copy: &StaleObject<K>,
        seq: RegistrationSeq,
    ) -> Option<ChangeKind> {
        let mut known = self.known.lock();
        if let KnownState::Stale(_, readable) = &mut known.state {
            *readable = seq.max(*readable);
            return None;
        }
        // A client that has been denied the object gets no copy of it.
        let denied = |failure: &RequestFailure| {
            failure.error.is_forbidden() || failure.error.is_unauthorized()
        };
        if !matches!(known.state, KnownState::Pending) || known.record.failure().is_some_and(denied)
        {
            return None;
        }
        let copy = StaleObject {
            object: copy.object.clone(),
            as_of: copy.as_of,
        };
        let event = match copy.object {
            Some(_) => ChangeKind::Updated,
            None => ChangeKind::Deleted,
        };
        known.state = KnownState::Stale(copy, seq);
        drop(known);
        self.changed.notify_waiters();
        Some(event)
    }

    /// A request failed. `is_denied`: this client may not read the object, so a copy is withdrawn.
    pub(super) fn failed(
        &self,
        failure: &RequestFailure,
        is_denied: bool,
        newest: RegistrationSeq,
        now: Instant,
    ) -> Option<ChangeKind> {
        let mut known = self.open(newest)?;
        let withdrawn = is_denied && matches!(known.state, KnownState::Stale(..));
        if withdrawn {
            known.state = KnownState::Pending;
        }
        let before = known.record.fail(failure.clone(), now);
        let label = failure.error.label();
        let news = withdrawn || before.is_none_or(|before| before.error.label() != label);
        news.then(|| ChangeKind::Failed(failure.clone()))
    }

    /// Its watch is open over this connection, if that is known.
    pub(super) fn watched_over(&self, link: Option<&Link>) {
        self.known.lock().record.watched_over(link);
    }

    /// The watch continues after an interruption, over this connection, if that is known.
    pub(super) fn resumed(
        &self,
        newest: RegistrationSeq,
        link: Option<&Link>,
    ) -> Option<ChangeKind> {
        let mut known = self.open(newest)?;
        known.record.watched_over(link);
        // An open watch does not make a state readable that was not.
        let failure = known.record.failure();
        if failure.is_some_and(|failure| failure.error.is_unreadable()) {
            return None;
        }
        known.record.resume().then(|| known.event())
    }

    /// The watch is interrupted; the state was last proven to be current at that time.
    pub(crate) fn interrupted(&self, newest: RegistrationSeq, proven: Instant) {
        if let Some(mut known) = self.open(newest) {
            known.record.interrupt(proven);
        }
    }

    /// The watch was stopped: of the known state, only the version still counts, unless the object cannot change.
    pub(super) fn idle(&self) {
        let mut known = self.known.lock();
        known.record.watched_over(None);
        if !matches!(known.state, KnownState::Removed | KnownState::Immutable(_)) {
            known.state = KnownState::Idle;
        }
    }
}

impl<K: Object> Cell for WatchedState<K> {
    type Object = K;

    fn read_now(&self, required: RegistrationSeq) -> Option<Arc<K>> {
        let mut known = self.known.lock();
        if !known.is_readable(required) {
            return None;
        }
        let object = Arc::clone(known.state.object()?);
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

    fn describe(&self, status: &mut ObjectStatus, now: Instant) {
        let known = self.known.lock();
        status.state = known.state.as_public();
        status.version = match (&known.state, known.state.object()) {
            (KnownState::Stale(..), Some(copy)) => copy.metadata().resource_version.clone(),
            _ => known.version.clone(),
        };
        status.proof = known.proof(now);
        status.age = status.proof.age(now);
        status.failure = known.record.failure().cloned();
    }

    fn remove(&self) {
        self.known.lock().state = KnownState::Removed;
        self.changed.notify_waiters();
    }
}
