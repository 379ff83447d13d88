//! The reports of an engine about its targets and the objects that they cover.

use std::{collections::VecDeque, sync::Arc};

use larder_objects::ResourceVersion;
use larder_transport::Link;
use tokio::time::Instant;

use crate::{
    error::{RequestError, RequestFailure},
    reflector::Restart,
    sequence::RegistrationSeq,
    target::Target,
};

/// The number of an object, which no other one has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// The name of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetId {
    /// The target is this object alone.
    Object(ObjectId),
    /// A collection, under a number that no other one has had.
    Collection(u64),
}

/// The reports that were not taken yet.
pub(crate) type Reports<T> = VecDeque<(TargetId, Report<T>)>;

/// News of a target, or of an object that it covers.
#[derive(Debug)]
pub enum Report<T: Target> {
    /// The complete state.
    Synced(Snapshot<T>),
    /// An object was added or modified.
    Changed(T::Item),
    /// An object was deleted, at this version.
    Deleted(T::Tombstone, ResourceVersion),
    /// The watch must be opened again; the known state may be stale.
    Interrupted {
        /// Why.
        restart: Restart,
        /// When the state was last proven to be current: it may be stale from then on.
        proven: Instant,
    },
    /// The watch is open, and continues where an earlier one was interrupted: the known state is in sync again. Its
    /// connection, if that is known.
    Resumed(Option<Link>),
    /// A request failed and will be repeated; the known state may be stale from now on.
    Failed(RequestFailure),
    /// The result of a freshness check.
    Confirmed(Confirmed<T>),
    /// The freshness check of this object failed. It is due again after a while, if a reader still needs it: see
    /// [`CheckDue`](Self::CheckDue).
    CheckFailed(ObjectId, RequestFailure),
    /// The back-off of a freshness check is over.
    CheckDue,
    /// A request was answered, or failed; for metrics.
    Responded {
        /// Of the request: `list`, `watch` or `get`.
        verb: &'static str,
        /// Of [`RequestError::label`], or `ok`.
        outcome: &'static str,
    },
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
    /// The connection of the watch that goes on from this state, if there is one and it is known.
    pub link: Option<Link>,
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
    pub object: ObjectId,
    /// Its state; `None` where it does not exist.
    pub item: Option<T::Item>,
    /// The version of the state; a GET does not tell that of an absence.
    pub version: Option<ResourceVersion>,
    /// The state is as fresh as this registration.
    pub fresh_as_of: RegistrationSeq,
    /// The state may be older than the known one: the API server was restored.
    pub reset: bool,
}
