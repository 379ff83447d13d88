//! Errors that leave a container without an environment.

use larder_objects::{Kind, ObjectKey};

use super::MAX_ENVIRONMENT_BYTES;
use crate::{EnvFileError, FieldRefError, ObjectError, ResourceError};

/// Why a container has no environment. The texts are the kubelet's where it has the rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// The API server's default for `enableServiceLinks` is not in the pod.
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    NoServiceLinks,
    /// Services were never listed, and the pod comes from the API server.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    NoServices,
    /// A ConfigMap or Secret could not be had.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object has no such key.
    #[error("couldn't find key {key} in {kind} {object}")]
    MissingKey {
        /// ConfigMap or Secret.
        kind: Kind,
        /// The object.
        object: ObjectKey,
        /// The key that it lacks.
        key: String,
    },
    /// A field of the pod has no text.
    #[error(transparent)]
    Field(#[from] FieldRefError),
    /// A resource has no number.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The volume of an env file does not exist, or no container mounts it.
    #[error("cannot find the volume \"{0}\" referenced by FileKeyRef")]
    NoVolume(String),
    /// An env file is missing or could not be read.
    #[error("couldn't parse env file")]
    UnreadableEnvFile(#[source] EnvFileUnavailable),
    /// An env file is malformed.
    #[error("couldn't parse env file")]
    MalformedEnvFile(#[source] EnvFileError),
    /// An env file has no such key, or has it with nothing in it.
    #[error("environment variable key \"{key}\" not found in file \"{path}\"")]
    MissingFileKey {
        /// The key.
        key: String,
        /// Path of the file on the host.
        path: String,
    },
    /// The variables need more than [`MAX_ENVIRONMENT_BYTES`]. References double a value with each variable.
    #[error("environment exceeds {MAX_ENVIRONMENT_BYTES} bytes with variable {name:?}")]
    TooLarge {
        /// Name of the first variable beyond the limit.
        name: String,
    },
    /// The value depends on too much that is not known, through references.
    #[error("environment variable {name:?} depends on too many values that are not known")]
    TooDeep {
        /// Name of the variable.
        name: String,
    },
    /// A process cannot have this variable.
    #[error("environment variable {name:?} contains a NUL byte")]
    Nul {
        /// Name of the variable.
        name: String,
    },
}

/// Why an env file could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read {path} of volume {volume}: {problem}")]
pub struct EnvFileUnavailable {
    pub(super) volume: String,
    pub(super) path: String,
    pub(super) problem: String,
}

impl EnvironmentError {
    /// Whether the failure is that a required ConfigMap or Secret, or a key of it, does not exist.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Object(error) => error.is_not_found(),
            Self::MissingKey { .. } => true,
            _ => false,
        }
    }
}

/// An entry of `command` or `args` that is longer than [`MAX_ENVIRONMENT_BYTES`] when its references are expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expanded text exceeds {MAX_ENVIRONMENT_BYTES} bytes")]
pub struct ExpansionError;
