//! Failures of requests to the API server.
//!
//! No text carries a byte of an object.

use std::{error::Error as StdError, sync::Arc, time::Duration};

use larder_objects::DecodeError;
use larder_transport::path::PathError;
use smol_str::SmolStr;

/// How one request to the API server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The API server answered with a failure.
    #[error("{message}")]
    #[non_exhaustive]
    Status {
        /// HTTP status code.
        code: u16,
        /// Machine-readable `reason` of the response, for instance `Forbidden`; may be empty.
        reason: SmolStr,
        /// The API server's text.
        message: String,
        /// How long it asks to wait, from `Retry-After` or `details.retryAfterSeconds`.
        retry_after: Option<Duration>,
        /// What else it says.
        facts: StatusFacts,
    },
    /// The API server was not reached, or the connection broke.
    #[error("failed to talk to the API server")]
    Transport(#[source] Box<dyn StdError + Send + Sync>),
    /// 401, which another request with the same credentials has just been answered with.
    #[error("the API server does not accept our credentials")]
    Unauthorized(#[source] Box<dyn StdError + Send + Sync>),
    /// No response came in time.
    #[error("the API server did not answer within {0:?}")]
    Timeout(Duration),
    /// A namespace or name cannot be part of a path, so nothing was sent.
    #[error("invalid path")]
    Path(#[from] PathError),
    /// The response was longer than any object or list may be.
    #[error("the response is longer than {limit_bytes} bytes")]
    TooLong {
        /// The limit that was passed.
        limit_bytes: usize,
    },
    /// The list had more items than any cluster has.
    #[error("the list has more than {limit} items")]
    TooManyItems {
        /// The limit that was passed.
        limit: usize,
    },
    /// The response was not what was requested.
    #[error("{0} in the response")]
    Unexpected(&'static str),
    /// The object in the response could not be decoded.
    #[error("cannot decode the object in the response")]
    Decode(#[from] DecodeError),
}

/// What the answer of a failed request says besides its text; see the methods of [`RequestError`].
#[derive(Clone, Copy, Debug, Default)]
pub struct StatusFacts {
    /// It names an object that it is about.
    pub(crate) names_object: bool,
    pub(crate) cause: Option<KnownCause>,
}

/// A cause of a failure that larder acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownCause {
    /// The API server has not yet seen the requested version.
    VersionTooLarge,
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// `metadata.uid` is another one: another object has the name.
    OtherUid,
}

impl RequestError {
    /// The answer `code` about an object, for a test double of the API server. `reason` may be empty.
    pub fn status(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self::Status {
            code,
            reason: reason.into(),
            message: message.into(),
            retry_after: None,
            facts: StatusFacts {
                names_object: true,
                ..StatusFacts::default()
            },
        }
    }

    /// A request that got no response of its own.
    pub(crate) fn unanswered(error: kube::Error) -> Self {
        match error {
            #[cfg(feature = "transport")]
            kube::Error::Service(error) => match error.downcast::<larder_transport::Error>() {
                Ok(error) if error.is_unauthorized() => Self::Unauthorized(error),
                Ok(error) => Self::Transport(error),
                Err(error) => Self::Transport(error),
            },
            #[cfg(not(feature = "transport"))]
            kube::Error::Service(error) => Self::Transport(error),
            error => Self::Transport(Box::new(error)),
        }
    }

    fn has_cause(&self, cause: KnownCause) -> bool {
        matches!(self, Self::Status { facts, .. } if facts.cause == Some(cause))
    }

    /// The HTTP status code, where the API server answered with a failure.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Unauthorized(_) => Some(401),
            _ => None,
        }
    }

    /// 404: the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// 404 for a path and not for an object: the API server does not serve this part of the API.
    pub fn is_not_served(&self) -> bool {
        matches!(self, Self::Status { code: 404, facts, .. } if !facts.names_object)
    }

    /// 401: the API server does not accept the credentials of this client.
    pub fn is_unauthorized(&self) -> bool {
        self.code() == Some(401)
    }

    /// 403: the API server does not permit the request.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// The namespace is being deleted, and accepts nothing new.
    pub fn is_namespace_terminating(&self) -> bool {
        self.has_cause(KnownCause::NamespaceTerminating)
    }

    /// 422 about `metadata.uid`: another object has the name.
    pub fn is_of_another_object(&self) -> bool {
        self.code() == Some(422) && self.has_cause(KnownCause::OtherUid)
    }

    /// 409: another client was faster, or the precondition does not hold.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// 429: the API server has too many requests.
    pub fn is_too_many_requests(&self) -> bool {
        self.code() == Some(429)
    }

    /// 5xx: the API server is in trouble.
    fn is_server_error(&self) -> bool {
        self.code().is_some_and(|code| code >= 500)
    }

    /// 410 in either form: the requested version is gone.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Status { code, reason, .. } if *code == 410 || reason == "Expired" || reason == "Gone")
    }

    /// The API server has not yet seen the requested version, or never will because it was restored from a backup.
    pub fn is_version_too_large(&self) -> bool {
        self.has_cause(KnownCause::VersionTooLarge)
    }

    /// The API server did not answer: it may be gone, slow or unreachable.
    pub fn is_transport(&self) -> bool {
        matches!(self, Self::Transport(_) | Self::Timeout(_))
    }

    /// The API server answered, and the response cannot be used.
    pub fn is_unreadable(&self) -> bool {
        matches!(
            self,
            Self::TooLong { .. }
                | Self::TooManyItems { .. }
                | Self::Unexpected(_)
                | Self::Decode(_)
        )
    }

    /// The API server asks the client to back off: 429, or any response with `Retry-After`.
    pub fn is_throttled(&self) -> bool {
        self.is_too_many_requests() || self.retry_after().is_some()
    }

    /// A reason that concerns every request of this client alike: the API server does not answer, is in trouble (5xx),
    /// or does not accept the credentials (401). When it is over for one request, it is over for all.
    pub fn is_outage(&self) -> bool {
        let alike = self.is_transport() || self.is_server_error() || self.is_unauthorized();
        alike && !self.is_throttled() && !self.is_version_too_large()
    }

    /// The API server understood the request and rejects this kind of request, whatever the version.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self.code(), Some(400 | 404 | 405 | 406 | 415 | 422 | 501))
    }

    /// An internal error of the API server; for a streaming list that may be a rejection.
    ///
    /// A kube-apiserver whose etcd cannot report progress (before 3.4.25 and 3.5.8) accepts a streaming list and then
    /// ends it with this code (kube-apiserver 1.36, `storage/cacher/cacher.go`).
    pub(crate) fn is_internal(&self) -> bool {
        self.code() == Some(500)
    }

    /// How long the API server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The outcome as a label of a metric: a word of a small fixed set.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Status { .. } if self.is_not_found() => "not_found",
            Self::Status { .. } if self.is_unauthorized() => "unauthorized",
            Self::Status { .. } if self.is_forbidden() => "forbidden",
            Self::Status { .. } if self.is_expired() => "expired",
            Self::Status { .. } if self.is_too_many_requests() => "too_many_requests",
            Self::Status { .. } => "refused",
            Self::Unauthorized(_) => "unauthorized",
            Self::Transport(_) => "transport",
            Self::Timeout(_) => "timeout",
            Self::Path(_) => "not_a_name",
            Self::TooLong { .. }
            | Self::TooManyItems { .. }
            | Self::Unexpected(_)
            | Self::Decode(_) => "bad_answer",
        }
    }
}

/// The phase of keeping an object in sync in which a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestPhase {
    /// Review of the permissions that decide the watch scope.
    Review,
    /// Request for a complete state: a list.
    List,
    /// Request for a complete state as a watch that starts with one. It takes the permission to watch.
    StreamingList,
    /// Watch that resumes from a known version.
    Watch,
    /// GET of one object.
    Get,
}

impl RequestPhase {
    /// The phase as a verb in lower case, as logs show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Review => "review",
            Self::List | Self::StreamingList => "list",
            Self::Watch => "watch",
            Self::Get => "get",
        }
    }
}

/// A failed request: its phase and its error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("failed to {}", .phase.as_str())]
pub struct RequestFailure {
    /// The phase in which the request was made.
    pub phase: RequestPhase,
    /// The error of the request.
    #[source]
    pub error: Arc<RequestError>,
}

impl RequestFailure {
    /// The failure of a request that was made in `phase`.
    pub fn new(phase: RequestPhase, error: impl Into<Arc<RequestError>>) -> Self {
        let error = error.into();
        Self { phase, error }
    }
}

/// The outcome of a request as a label of a metric.
pub(crate) fn outcome_label<T>(result: &Result<T, RequestError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(error) => error.label(),
    }
}
