//! A manager's known state of its objects, for status output and metrics, without values.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use larder_objects::{ObjectKey, PodIdentity, ResourceVersion};
use smol_str::SmolStr;

use larder_watch::{Proof, RequestFailure};

use crate::config::WatchScope;

/// What [`WatchScope::Auto`] chose for a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeChoice {
    /// `Object` or `Namespace`.
    pub scope: WatchScope,
    /// Why, for people to read.
    pub reason: String,
}

/// How the referenced objects of a namespace are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceScope {
    /// The namespace.
    pub namespace: SmolStr,
    /// What was chosen.
    pub choice: ScopeChoice,
}

/// What may be concluded about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectState {
    /// Nothing was learned yet, so that a missing object means nothing.
    Pending,
    /// The object is known, and kept up to date by the strategy.
    Synced,
    /// The object is known not to exist; its creation will be noticed.
    Absent,
    /// The API server has not been heard about the object. Reads get a copy that an earlier process kept, as the object
    /// was at that time; or `NotFound`, if it did not exist then. It may have changed since, or be gone. The first
    /// answer of the API server replaces the copy; 401 or 403 withdraws it. See
    /// [`ObjectManager::serve_stale`](crate::ObjectManager::serve_stale).
    Stale(Timestamp),
    /// The object is marked immutable: its value is final and nothing watches it. It is looked at again when a new pod
    /// reads it.
    Immutable,
    /// The object was not read for a while and its watch was stopped; the next read starts it again and waits for it.
    Idle,
    /// The last reference is gone. Final.
    Removed,
}

impl ObjectState {
    /// The names of the states that a referenced object can be in.
    pub const NAMES: &[&str] = &["pending", "synced", "absent", "stale", "immutable", "idle"];

    /// The state in lower case, as status output and metrics have it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Synced => "synced",
            Self::Absent => "absent",
            Self::Stale(_) => "stale",
            Self::Immutable => "immutable",
            Self::Idle => "idle",
            Self::Removed => "removed",
        }
    }
}

/// A copy of an object that an earlier process kept, for
/// [`ObjectManager::serve_stale`](crate::ObjectManager::serve_stale).
#[derive(Clone, Debug)]
pub struct StaleObject<K> {
    /// The object; `None`: it did not exist.
    pub object: Option<Arc<K>>,
    /// When the copy was last known to be current.
    pub as_of: Timestamp,
}

/// What a manager knows of one referenced object, for a copy that outlives this process.
#[derive(Clone, Debug)]
pub struct KnownObject<K> {
    /// The object.
    pub key: ObjectKey,
    /// What may be concluded about it.
    pub state: ObjectState,
    /// The object, unless it does not exist or is unknown; `state` says which.
    pub object: Option<Arc<K>>,
    /// For how long the object may have changed unnoticed: zero while its watch is open.
    pub age: Duration,
    /// Whether the API server denied the last request for it (403).
    pub is_forbidden: bool,
}

/// One referenced object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObjectStatus {
    /// The object.
    pub key: ObjectKey,
    /// What may be concluded about it.
    pub state: ObjectState,
    /// Version of the last known state; empty if none is.
    pub version: ResourceVersion,
    /// How fresh that is.
    pub proof: Proof,
    /// For how long the object may have changed unnoticed; see [`Proof::age`].
    pub age: Duration,
    /// The last failed request, until one succeeds.
    pub failure: Option<RequestFailure>,
    /// How many registered pods refer to it.
    pub references: usize,
    /// The pods that refer to it, sorted.
    pub pods: Vec<PodIdentity>,
}
