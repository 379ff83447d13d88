//! The findings of a driver about its target.

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
    Deleted(T::Gone, ResourceVersion),
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

/// The result of an event; at least one part is present.
pub(crate) struct Progress<T: Target> {
    pub(crate) finding: Option<Finding<T>>,
    pub(crate) restart: Option<Restart>,
    /// Verb and outcome of a request that was answered.
    pub(crate) answered: Option<(&'static str, &'static str)>,
}

impl<T: Target> Progress<T> {
    pub(super) fn found(finding: Finding<T>) -> Self {
        Self {
            finding: Some(finding),
            ..Self::default()
        }
    }

    pub(super) fn answered(self, verb: &'static str, outcome: &'static str) -> Self {
        Self {
            answered: Some((verb, outcome)),
            ..self
        }
    }
}

impl<T: Target> Default for Progress<T> {
    fn default() -> Self {
        Self {
            finding: None,
            restart: None,
            answered: None,
        }
    }
}
