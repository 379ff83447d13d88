//! The reports of an engine: what its drivers find out about their targets, and its freshness checks about objects.

use std::sync::Arc;

use larder_objects::ResourceVersion;

use crate::{
    error::{RequestError, RequestFailure},
    reflector::Restart,
    sequence::RegistrationSeq,
    target::Target,
};

/// A finding of an engine about a target.
#[derive(Debug)]
pub enum Finding<T: Target> {
    /// The complete state.
    Synced(Snapshot<T>),
    /// An object was added or modified.
    Changed(T::Item),
    /// An object was deleted, at this version.
    Deleted(T::Tombstone, ResourceVersion),
    /// The watch continues after an interruption: the known state is in sync again.
    Resumed,
    /// A request failed and will be repeated; the known state may be stale from now on.
    Failed(RequestFailure),
}

/// The complete state of a target.
#[derive(Debug)]
pub struct Snapshot<T: Target> {
    /// Every object that could be decoded.
    pub state: T::State,
    /// The version of the state.
    pub version: ResourceVersion,
    /// The state is as fresh as this registration; `None` if that was not requested.
    pub fresh_as_of: Option<RegistrationSeq>,
    /// The number of the request; see [`Engine::state_requests`](crate::Engine::state_requests).
    pub request: u64,
    /// The state may be older than the known one: the API server was restored.
    pub reset: bool,
    /// Whether an item could not be attributed to an object. If so, an object that is missing here may exist.
    pub incomplete: Option<Arc<RequestError>>,
}

/// The result of a freshness check.
#[derive(Debug)]
pub struct Confirmed<T: Target> {
    /// The object.
    pub object: u64,
    /// Its state; `None` where it does not exist.
    pub item: Option<T::Item>,
    /// The version of the state; a GET does not tell that of an absence.
    pub version: Option<ResourceVersion>,
    /// The state is as fresh as this registration.
    pub fresh_as_of: RegistrationSeq,
}

/// News of a target. Any part may be missing, and all of them.
#[derive(Debug)]
pub struct Report<T: Target> {
    /// The target that it is about.
    pub target: u64,
    /// Verb of a request that was answered, and its outcome as a label.
    pub answered: Option<(&'static str, &'static str)>,
    /// Why the watch must be opened again.
    pub restart: Option<Restart>,
    /// What the store must act on.
    pub event: Option<Event<T>>,
}

/// A report that a store must act on.
#[derive(Debug)]
pub enum Event<T: Target> {
    /// The finding about the target.
    Found(Finding<T>),
    /// A freshness check was answered.
    Confirmed(Confirmed<T>),
    /// The freshness check of this object failed, and is due again after a while.
    CheckFailed(u64, RequestFailure),
    /// The freshness check of this object is due again.
    CheckDue(u64),
    /// The target waited for a slot, and can be started.
    SlotGranted,
}

impl<T: Target> Report<T> {
    pub(crate) fn new(target: u64, event: impl Into<Option<Event<T>>>) -> Self {
        Self {
            target,
            answered: None,
            restart: None,
            event: event.into(),
        }
    }

    pub(crate) fn found(target: u64, finding: Finding<T>) -> Self {
        Self::new(target, Event::Found(finding))
    }

    pub(crate) fn answered(mut self, verb: &'static str, outcome: &'static str) -> Self {
        self.answered = Some((verb, outcome));
        self
    }
}
