//! Errors of reads and requests.
//!
//! Two layers: [`Error`] is what a read of a manager returns, [`RequestError`] its cause at the API server. Messages
//! are the kubelet's where it has one. No text carries a byte of an object.
//!
//! [`Error`] is one pointer, because a successful read moves as many bytes as the largest error.

use std::{fmt, sync::Arc, time::Duration};

use larder_objects::{ObjectKey, ObjectType};
use larder_watch::{RequestError, RequestFailure, RequestPhase};

/// Why a manager has no object to give: an [`ErrorKind`], which [`kind`](Self::kind) returns.
#[derive(Clone, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<ErrorKind>);

/// The kinds of [`Error`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No registered pod refers to the object; call `register_pod` first.
    #[error("object {:?}/{:?} not registered", .key.namespace, .key.name)]
    NotRegistered {
        /// The object that was requested.
        key: ObjectKey,
    },
    /// The object does not exist.
    #[error("{} {:?} not found", .kind.singular, .key.name)]
    NotFound {
        /// Its kind.
        kind: ObjectType,
        /// Its name.
        key: ObjectKey,
    },
    /// Nothing that is new enough was known about the object within the time; the kubelet's text.
    #[error("failed to sync {} cache: timed out waiting for the condition", .kind.singular)]
    NotSynced {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// Duration of the wait.
        waited: Duration,
        /// Error of the last failed request, by its phase; `None` while the API server has not answered yet.
        source: Option<Error>,
    },
    /// Pods refer to more objects than any node needs, and the object is not known yet. Those beyond the limit are
    /// requested when others lose their last reference.
    #[error("cannot watch {} {key}: more than {limit} are referenced", .kind.singular)]
    TooManyObjects {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// Most objects that a manager watches.
        limit: usize,
    },
    /// The last request for the object failed. [`Error::is_unauthorized`] and [`Error::is_forbidden`] tell a client that
    /// may not read it; the second is normal for a moment after a pod was bound: see [`Error::is_retryable`].
    #[error("{} {} {key}", attempt(*.phase, .source), .kind.singular)]
    Request {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// What was requested: the review of the permissions, the list or the watch that covers the object, or the
        /// object.
        phase: RequestPhase,
        /// Error of the request.
        source: Arc<RequestError>,
    },
    /// The manager was shut down.
    #[error("the {} manager is shut down", .kind.singular)]
    ShutDown {
        /// Kind of the manager's objects.
        kind: ObjectType,
    },
}

impl Error {
    /// What has happened.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Whether the object is known not to exist, which is what `optional: true` forgives.
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind(), ErrorKind::NotFound { .. })
    }

    /// Whether the API server denied the read with 403, directly or as the reason why nothing synced.
    pub fn is_forbidden(&self) -> bool {
        self.request().is_some_and(RequestError::is_forbidden)
    }

    /// Whether the API server rejected the credentials with 401, directly or as the reason why nothing synced.
    pub fn is_unauthorized(&self) -> bool {
        self.request().is_some_and(RequestError::is_unauthorized)
    }

    /// Whether the same read may succeed later while the pod stays as it is.
    ///
    /// True for everything but [`ErrorKind::NotRegistered`] and [`ErrorKind::ShutDown`]: objects appear, permissions arrive
    /// shortly after a pod is bound, API servers recover.
    pub fn is_retryable(&self) -> bool {
        !matches!(
            self.kind(),
            ErrorKind::NotRegistered { .. } | ErrorKind::ShutDown { .. }
        )
    }

    /// The failed request behind this error.
    pub fn request(&self) -> Option<&RequestError> {
        match self.kind() {
            ErrorKind::Request { source, .. } => Some(source),
            ErrorKind::NotSynced { source, .. } => source.as_ref()?.request(),
            ErrorKind::NotRegistered { .. }
            | ErrorKind::NotFound { .. }
            | ErrorKind::TooManyObjects { .. }
            | ErrorKind::ShutDown { .. } => None,
        }
    }

    /// The error of a read that a failed request is the cause of.
    pub(crate) fn of_failure(kind: ObjectType, key: ObjectKey, failure: RequestFailure) -> Self {
        let RequestFailure {
            phase,
            error: source,
        } = failure;
        // A collection that is not found says nothing about the object.
        let kind = if phase == RequestPhase::Get && source.is_not_found() {
            ErrorKind::NotFound { kind, key }
        } else {
            ErrorKind::Request {
                kind,
                key,
                phase,
                source,
            }
        };
        kind.into()
    }
}

/// What failed, for the text of an error.
fn attempt(phase: RequestPhase, error: &RequestError) -> &'static str {
    match phase {
        _ if error.is_unauthorized() => "failed to authenticate to read",
        _ if error.is_forbidden() => "not allowed to read",
        RequestPhase::Review => "failed to review the access to",
        RequestPhase::List | RequestPhase::StreamingList => "failed to list",
        RequestPhase::Watch => "failed to watch",
        _ => "failed to read",
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
pub(crate) mod tests;
