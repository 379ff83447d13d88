//! Why a read failed, and why a request did.
//!
//! Two layers: [`Error`] is what a read of a manager returns, [`RequestError`] its cause at the API server. Texts are the
//! kubelet's where it has one. No text carries a byte of an object.

use std::{sync::Arc, time::Duration};

use larder_objects::{Kind, ObjectKey};
use larder_watch::RequestError;

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

#[cfg(test)]
pub(crate) mod tests {
    use std::error::Error as _;

    use smol_str::SmolStr;

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
