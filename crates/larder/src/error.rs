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
    /// The API server does not accept the credentials of this client (401).
    #[error("failed to authenticate to read {} {key}", .kind.singular)]
    Unauthorized {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// The answer of the API server.
        source: Arc<RequestError>,
    },
    /// The API server does not permit this client to read the object (403).
    ///
    /// For a node that is normal for a moment after a pod was bound; see [`Error::is_retryable`].
    #[error("not allowed to read {} {key}", .kind.singular)]
    Forbidden {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// The answer of the API server.
        source: Arc<RequestError>,
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
    /// As many objects are watched as may be ([`max_watches`](crate::ManagerConfig::max_watches)); the object is
    /// watched when one of these watches ends.
    #[error("cannot watch {} {key}: the limit of watches is reached", .kind.singular)]
    NoWatch {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
    },
    /// The review of the permissions that decide the watch scope failed.
    #[error("failed to review the access to {} {key}", .kind.singular)]
    Review {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// Error of the request.
        source: Arc<RequestError>,
    },
    /// The list, plain or streamed, that covers the object failed.
    #[error("failed to list {} {key}", .kind.singular)]
    List {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// Error of the request.
        source: Arc<RequestError>,
    },
    /// The watch that covers the object failed.
    #[error("failed to watch {} {key}", .kind.singular)]
    Watch {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
        /// Error of the request.
        source: Arc<RequestError>,
    },
    /// The GET of the object failed.
    #[error("failed to read {} {key}", .kind.singular)]
    Get {
        /// Kind of the object.
        kind: ObjectType,
        /// Name of the object.
        key: ObjectKey,
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
            ErrorKind::Unauthorized { source, .. }
            | ErrorKind::Forbidden { source, .. }
            | ErrorKind::Review { source, .. }
            | ErrorKind::List { source, .. }
            | ErrorKind::Watch { source, .. }
            | ErrorKind::Get { source, .. } => Some(source),
            ErrorKind::NotSynced { source, .. } => source.as_ref()?.request(),
            ErrorKind::NotRegistered { .. }
            | ErrorKind::NotFound { .. }
            | ErrorKind::NoWatch { .. }
            | ErrorKind::ShutDown { .. } => None,
        }
    }

    /// The error of a read that a failed request is the cause of.
    pub(crate) fn of_failure(kind: ObjectType, key: ObjectKey, failure: RequestFailure) -> Self {
        let RequestFailure {
            phase,
            error: source,
        } = failure;
        let kind = match phase {
            _ if source.is_unauthorized() => ErrorKind::Unauthorized { kind, key, source },
            _ if source.is_forbidden() => ErrorKind::Forbidden { kind, key, source },
            // A collection that is not found says nothing about the object.
            RequestPhase::Get if source.is_not_found() => ErrorKind::NotFound { kind, key },
            RequestPhase::Review => ErrorKind::Review { kind, key, source },
            RequestPhase::List => ErrorKind::List { kind, key, source },
            RequestPhase::Watch => ErrorKind::Watch { kind, key, source },
            _ => ErrorKind::Get { kind, key, source },
        };
        kind.into()
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
