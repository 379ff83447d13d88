//! What is known of one watched object.
//!
//! A reader looks whether that is new enough for it; all else is the worker's.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use larder_objects::{Object, ObjectKey, ResourceVersion};
use larder_watch::RequestError;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{changes::ChangeKind, error::Error, status::ObjectState, store::entries::Facts};

/// What the store knows about one object.
#[derive(Debug)]
pub(crate) struct Cell<K> {
    /// Number of this incarnation of the entry; the worker's name for it.
    pub(crate) id: u64,
    /// A reader waits for something that nothing under way may bring; the worker clears it.
    pub(super) wanted: AtomicBool,
    /// A reader gave up waiting.
    pub(super) missed: AtomicBool,
    pub(super) changed: Notify,
    pub(super) known: Mutex<Known<K>>,
}

#[derive(Debug)]
pub(super) struct Known<K> {
    pub(super) state: ObjectState,
    /// The object, while it may be read.
    pub(super) object: Option<Arc<K>>,
    /// Version of the last state published, also of an absence; readers never go back behind it (I3).
    version: ResourceVersion,
    /// All references up to this moment may read what is known.
    pub(super) proven: u64,
    /// Boxed, as it is seldom there and there may be very many cells.
    interruption: Option<Box<Interruption>>,
    /// There are more objects than watches, and this one has none.
    unwatched: bool,
}

/// What keeps the state from being in step.
#[derive(Debug)]
struct Interruption {
    /// Since when the state may have changed unnoticed.
    since: Instant,
    /// The last failed request.
    failure: Option<Arc<RequestError>>,
}

/// What a state that the worker found out means for the object.
#[derive(Debug)]
pub(crate) struct Finding<K> {
    /// The object, or that it does not exist.
    pub(crate) object: Option<Arc<K>>,
    /// The version of that state.
    pub(crate) version: ResourceVersion,
    /// It is as new as this moment.
    pub(crate) proven: Option<u64>,
    /// Take it even if it is older than what is known.
    pub(crate) reset: bool,
}

impl<K: Object> Known<K> {
    /// Takes over what was found out. Returns whether that is news.
    pub(super) fn take(&mut self, finding: Finding<K>) -> bool {
        let late = !finding.reset && finding.version.is_older_than(&self.version);
        let mut changed = self.state == ObjectState::Pending;
        // What is late was overtaken by a newer state: that one stands, as long as it is readable.
        if !late {
            let differs = self.version != finding.version;
            changed |= match (&finding.object, self.state) {
                (None, ObjectState::Absent) => false,
                // A GET does not tell at which version.
                (None, ObjectState::Synced | ObjectState::Immutable) => true,
                _ => differs,
            };
            self.state = match &finding.object {
                Some(object) if object.is_immutable() => ObjectState::Immutable,
                Some(_) => ObjectState::Synced,
                None => ObjectState::Absent,
            };
            self.version = match &finding.object {
                Some(object) => object.metadata().resource_version.clone(),
                None => finding.version,
            };
            self.object = finding.object;
        }
        if let Some(moment) = finding.proven {
            self.proven = self.proven.max(moment);
        }
        self.resume().is_some() || changed
    }

    /// The state is in step again. Returns the failure that has kept it from that.
    fn resume(&mut self) -> Option<Arc<RequestError>> {
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

    fn failure(&self) -> Option<Arc<RequestError>> {
        self.interruption.as_ref()?.failure.clone()
    }

    /// What subscribers are told when the state is news.
    pub(super) fn event(&self) -> ChangeKind {
        match self.state {
            ObjectState::Absent => ChangeKind::Deleted,
            _ => ChangeKind::Updated,
        }
    }
}

impl<K: Object> Cell<K> {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            wanted: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            changed: Notify::new(),
            known: Mutex::new(Known {
                state: ObjectState::Pending,
                object: None,
                version: ResourceVersion::default(),
                proven: 0,
                interruption: None,
                unwatched: false,
            }),
        }
    }

    /// The object, if a reader who needs a proof of `required` may have it.
    pub(super) fn readable(&self, required: u64) -> Option<Weak<K>> {
        let known = self.known.lock();
        let object = known.object.as_ref().map(Arc::downgrade);
        object.filter(|_| known.proven >= required)
    }

    /// What a reader gets who needs a proof of `required`, if it is known.
    pub(super) fn look(&self, key: &ObjectKey, required: u64) -> Option<Result<Arc<K>, Error>> {
        let known = self.known.lock();
        let (kind, key) = (K::KIND, || key.clone());
        match known.state {
            ObjectState::Removed => Some(Err(Error::NotRegistered { key: key() })),
            _ if known.proven < required => None,
            ObjectState::Absent => Some(Err(Error::NotFound { kind, key: key() })),
            _ => known.object.clone().map(Ok),
        }
    }

    // What follows is the worker's.

    /// `object` to keep; what is known already if it is the same, so that a complete state is not in memory twice.
    pub(crate) fn shared(&self, object: K) -> Arc<K> {
        let known = self.known.lock().object.clone();
        known
            .filter(|known| **known == object)
            .unwrap_or_else(|| Arc::new(object))
    }

    pub(crate) fn proven(&self) -> u64 {
        self.known.lock().proven
    }

    pub(crate) fn state(&self) -> ObjectState {
        self.known.lock().state
    }

    pub(crate) fn version(&self) -> ResourceVersion {
        self.known.lock().version.clone()
    }

    pub(crate) fn failure(&self) -> Option<Arc<RequestError>> {
        self.known.lock().failure()
    }

    pub(crate) fn facts(&self, now: Instant) -> Facts {
        let known = self.known.lock();
        let state = match known.state {
            ObjectState::Pending | ObjectState::Synced | ObjectState::Absent if known.unwatched => {
                ObjectState::Unwatched
            }
            state => state,
        };
        Facts {
            state,
            version: known.version.clone(),
            age: known
                .interruption
                .as_ref()
                .map(|interruption| now.saturating_duration_since(interruption.since))
                .unwrap_or_default(),
            failure: known.failure(),
        }
    }

    /// What has expired stands in, for references up to that moment.
    pub(crate) fn stand_in(&self, moment: u64) {
        let mut known = self.known.lock();
        known.proven = known.proven.max(moment);
        drop(known);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Ends the want; pairs with the swap of a reader, which sees `false` and asks anew, or is seen here.
    pub(crate) fn satisfy(&self) {
        self.wanted.swap(false, Ordering::AcqRel);
    }

    /// The watch goes on after an interruption.
    pub(crate) fn resumed(&self) -> Option<ChangeKind> {
        let mut known = self.known.lock();
        known.resume().map(|_| known.event())
    }

    /// The watch is interrupted.
    pub(crate) fn interrupted(&self, now: Instant) {
        self.known.lock().interrupt(now);
    }

    /// A request failed; returns an event when that is news.
    pub(crate) fn failed(&self, error: Arc<RequestError>, now: Instant) -> Option<ChangeKind> {
        let mut known = self.known.lock();
        if known.state == ObjectState::Removed {
            return None;
        }
        let failure = &mut known.interrupt(now).failure;
        let before = failure.replace(Arc::clone(&error));
        let news = before.is_none_or(|before| before.label() != error.label());
        news.then_some(ChangeKind::Failed(error))
    }

    /// Whether the object has a watch, for the status.
    pub(crate) fn set_watched(&self, watched: bool) {
        self.known.lock().unwatched = !watched;
    }

    /// The last reference is gone.
    pub(super) fn remove(&self) {
        let mut known = self.known.lock();
        known.state = ObjectState::Removed;
        known.object = None;
        drop(known);
        self.changed.notify_waiters();
    }
}
