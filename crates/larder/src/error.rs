//! Why a read failed, and why a request did.
//!
//! Two layers: [`Error`] is what a read of a manager returns, [`RequestError`] its cause at the API server. Texts are the
//! kubelet's where it has one. No text carries a byte of an object.

use std::{sync::Arc, time::Duration};

use larder_objects::{DecodeError, Kind, ObjectKey};
use smol_str::SmolStr;

use larder_transport as transport;

/// Why a manager has no object to give.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No registered pod refers to the object; call `register_pod` first.
    #[error("object {:?}/{:?} not registered", .key.namespace, .key.name)]
    NotRegistered {
        /// The object that was asked for.
        key: ObjectKey,
    },
    /// The object does not exist.
    #[error("{} {:?} not found", .kind.singular(), .key.name)]
    NotFound {
        /// Its kind.
        kind: Kind,
        /// Its name.
        key: ObjectKey,
    },
    /// The API server does not let this client read the object.
    ///
    /// For a node that is normal for a moment after a pod was bound; see [`Error::is_retryable`].
    #[error("not allowed to read {} {key}", .kind.singular())]
    Forbidden {
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        key: ObjectKey,
        /// What the API server said.
        source: Arc<RequestError>,
    },
    /// Nothing that is new enough was known about the object within the time; the kubelet's text.
    #[error("failed to sync {} cache: timed out waiting for the condition", .kind.singular())]
    NotSynced {
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        key: ObjectKey,
        /// How long the read waited.
        waited: Duration,
        /// The last request that failed meanwhile; `None` when the API server has just not answered yet.
        source: Option<Arc<RequestError>>,
    },
    /// The request for the object failed.
    #[error("failed to read {} {key}", .kind.singular())]
    Request {
        /// Kind of the object.
        kind: Kind,
        /// Name of the object.
        key: ObjectKey,
        /// How it failed.
        source: Arc<RequestError>,
    },
    /// The manager was shut down.
    #[error("the {} manager is shut down", .kind.singular())]
    ShutDown {
        /// Kind of the manager's objects.
        kind: Kind,
    },
}

impl Error {
    /// Whether the object is known not to exist, which is what `optional: true` forgives.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the API server refused the read, directly or as the reason why nothing synced.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden { .. })
            || self.request().is_some_and(RequestError::is_forbidden)
    }

    /// Whether the same read may succeed later without anybody changing the pod.
    ///
    /// True for everything but [`Error::NotRegistered`] and [`Error::ShutDown`]: objects appear, rights arrive shortly
    /// after a pod is bound, API servers come back.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, Self::NotRegistered { .. } | Self::ShutDown { .. })
    }

    /// The failed request behind this error.
    pub fn request(&self) -> Option<&RequestError> {
        match self {
            Self::Forbidden { source, .. } | Self::Request { source, .. } => Some(source),
            Self::NotSynced { source, .. } => source.as_deref(),
            Self::NotRegistered { .. } | Self::NotFound { .. } | Self::ShutDown { .. } => None,
        }
    }

    /// The error of a read that failed for `source`.
    pub(crate) fn of_request(kind: Kind, key: ObjectKey, source: Arc<RequestError>) -> Self {
        if source.is_not_found() {
            Self::NotFound { kind, key }
        } else if source.is_forbidden() {
            Self::Forbidden { kind, key, source }
        } else {
            Self::Request { kind, key, source }
        }
    }
}

/// How one request to the API server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The API server answered with a failure.
    #[error("{message}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Machine-readable `reason` of the answer, for instance `Forbidden`; may be empty.
        reason: SmolStr,
        /// The API server's text.
        message: String,
        /// How long it asks to wait, from `Retry-After` or `details.retryAfterSeconds`.
        retry_after: Option<Duration>,
        /// Whether it says that it has not yet seen the requested version.
        version_too_large: bool,
        /// Whether it names an object that it is about.
        names_object: bool,
    },
    /// The API server was not reached, or the connection broke.
    #[error("failed to talk to the API server")]
    Transport(#[source] kube::Error),
    /// 401, as the API server has just answered another request with the same credentials.
    #[error("the API server does not accept our credentials")]
    Unauthorized(#[source] Box<transport::Error>),
    /// No answer came in time.
    #[error("the API server did not answer within {0:?}")]
    Timeout(Duration),
    /// A namespace or name that cannot stand in a path, so that nothing was asked.
    #[error("not a valid name")]
    NotAName,
    /// The answer was longer than any object may be.
    #[error("the answer is longer than {limit_bytes} bytes")]
    TooLong {
        /// The limit that was passed.
        limit_bytes: usize,
    },
    /// The answer was not what was asked for.
    #[error("{0} in the answer")]
    Unexpected(&'static str),
    /// The object in the answer could not be decoded.
    #[error("the answer holds no usable object")]
    Decode(#[from] DecodeError),
}

impl RequestError {
    /// A request that got no answer of its own.
    pub(crate) fn unanswered(error: kube::Error) -> Self {
        match error {
            kube::Error::Service(error) => match error.downcast::<transport::Error>() {
                Ok(error) if error.is_unauthorized() => Self::Unauthorized(error),
                Ok(error) => Self::Transport(kube::Error::Service(error)),
                Err(error) => Self::Transport(kube::Error::Service(error)),
            },
            error => Self::Transport(error),
        }
    }

    fn code(&self) -> Option<u16> {
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

    /// 404, and not of an object: the API server does not serve this part of the API.
    pub fn is_not_served(&self) -> bool {
        matches!(
            self,
            Self::Status {
                code: 404,
                names_object: false,
                ..
            }
        )
    }

    /// 401 or 403: the API server does not let this client do it.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.code(), Some(401 | 403))
    }

    /// 409: somebody else was faster, or the precondition does not hold.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// 429: the API server asks for patience.
    pub fn is_too_many_requests(&self) -> bool {
        self.code() == Some(429)
    }

    /// 5xx: the API server is in trouble.
    pub(crate) fn is_server_error(&self) -> bool {
        self.code().is_some_and(|code| code >= 500)
    }

    /// 410 in either form: the requested version is gone.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Status { code, reason, .. } if *code == 410 || reason == "Expired" || reason == "Gone")
    }

    /// The API server has not yet seen the requested version, or never will because it was restored from a backup.
    pub fn is_version_too_large(&self) -> bool {
        matches!(
            self,
            Self::Status {
                version_too_large: true,
                ..
            }
        )
    }

    /// No answer of the API server: it may be gone, slow or unreachable.
    pub fn is_transport(&self) -> bool {
        matches!(self, Self::Transport(_) | Self::Timeout(_))
    }

    /// The API server asks to wait: 429, or any answer with `Retry-After`.
    pub(crate) fn asks_for_patience(&self) -> bool {
        self.is_too_many_requests() || self.retry_after().is_some()
    }

    /// A reason that concerns every request of this client alike: the API server does not answer, is in trouble (5xx), or
    /// does not know who asks (401). When it is over for one request, it is over for all.
    pub(crate) fn is_outage(&self) -> bool {
        let alike = self.is_transport() || self.is_server_error() || self.code() == Some(401);
        alike && !self.asks_for_patience() && !self.is_version_too_large()
    }

    /// The API server understood the request and refuses this kind of it, whatever the version.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self.code(), Some(400 | 404 | 405 | 406 | 415 | 422 | 501))
    }

    /// Something went wrong in the API server; for a streaming list that may be a refusal.
    ///
    /// A kube-apiserver whose etcd cannot report progress (before 3.4.25 and 3.5.8) accepts a streaming list and then ends
    /// it with this code (kube-apiserver 1.36, `storage/cacher/cacher.go`).
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
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Status { .. } if self.is_not_found() => "not_found",
            Self::Status { .. } if self.is_forbidden() => "forbidden",
            Self::Status { .. } if self.is_expired() => "expired",
            Self::Status { .. } if self.is_too_many_requests() => "too_many_requests",
            Self::Status { .. } => "refused",
            Self::Unauthorized(_) => "forbidden",
            Self::Transport(_) => "transport",
            Self::Timeout(_) => "timeout",
            Self::NotAName => "not_a_name",
            Self::TooLong { .. } | Self::Unexpected(_) | Self::Decode(_) => "bad_answer",
        }
    }
}

impl From<transport::path::PathError> for RequestError {
    fn from(_: transport::path::PathError) -> Self {
        Self::NotAName
    }
}

/// The outcome of a request that one of kube's own methods made.
impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => {
                let details = status.details.as_ref();
                let retry_after = details.map_or(0, |details| details.retry_after_seconds);
                let mut causes = details.iter().flat_map(|details| &details.causes);
                let version_too_large = causes
                    .any(|cause| cause.reason == "ResourceVersionTooLarge")
                    || status.message.contains("Too large resource version");
                Self::Status {
                    code: status.code,
                    reason: status.reason.into(),
                    message: status.message,
                    retry_after: (retry_after > 0).then(|| Duration::from_secs(retry_after.into())),
                    version_too_large,
                    names_object: details.is_some_and(|details| !details.name.is_empty()),
                }
            }
            kube::Error::SerdeError(_) => Self::Unexpected("no usable object"),
            other => Self::unanswered(other),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::error::Error as _;

    use super::*;

    /// An answer of the API server with `code`.
    pub(crate) fn status(code: u16) -> RequestError {
        RequestError::Status {
            code,
            reason: SmolStr::default(),
            message: format!("status {code}"),
            retry_after: None,
            version_too_large: false,
            names_object: true,
        }
    }

    fn key() -> ObjectKey {
        ObjectKey::new("n", "a")
    }

    #[test]
    fn texts_are_the_kubelets() {
        let not_synced = Error::NotSynced {
            kind: Kind::Secret,
            key: key(),
            waited: Duration::from_secs(1),
            source: Some(Arc::new(status(403))),
        };
        assert_eq!(
            Error::NotRegistered { key: key() }.to_string(),
            r#"object "n"/"a" not registered"#
        );
        assert_eq!(
            not_synced.to_string(),
            "failed to sync secret cache: timed out waiting for the condition"
        );
        assert_eq!(not_synced.source().unwrap().to_string(), "status 403");
        assert!(not_synced.is_forbidden() && not_synced.is_retryable());
        let not_found = Error::of_request(Kind::ConfigMap, key(), Arc::new(status(404)));
        assert_eq!(not_found.to_string(), r#"configmap "a" not found"#);
        assert!(not_found.is_not_found());
    }
}
