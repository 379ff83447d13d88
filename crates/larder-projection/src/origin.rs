//! The origin of a variable or a file, which `larder render -o tree` shows beside it.

use larder_objects::{Kind, ResourceVersion};

/// The source of one variable or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// The literal `value` of the pod.
    Value {
        /// As the pod has it: before its references are expanded.
        text: &'a str,
    },
    /// A key of a ConfigMap or a Secret.
    Key {
        /// Which of the two.
        kind: Kind,
        /// Name of the object; its namespace is the pod's.
        name: &'a str,
        /// Key in the object.
        key: &'a str,
        /// Version of the object that was read.
        resource_version: &'a ResourceVersion,
    },
    /// A key of a ConfigMap or a Secret that is not known, or all of its keys.
    Missing {
        /// Which of the two.
        kind: Kind,
        /// Name of the object.
        name: &'a str,
        /// Key in the object; `None` for all of them.
        key: Option<&'a str>,
    },
    /// A field of the pod.
    Field(&'a str),
    /// A request or limit of a container.
    Resource {
        /// The container.
        container: &'a str,
        /// For instance `limits.memory`.
        resource: &'a str,
    },
    /// A key of an env file.
    EnvFile {
        /// The volume that holds the file.
        volume: &'a str,
        /// Path of the file in the volume.
        path: &'a str,
        /// Key in the file.
        key: &'a str,
    },
    /// A Service that the container can reach.
    Service {
        /// Namespace of the Service.
        namespace: &'a str,
        /// Name of the Service.
        name: &'a str,
    },
    /// A token of the pod's service account, for this audience or the API server's default one.
    Token {
        /// The service account of the pod.
        account: &'a str,
        /// The audience that was requested.
        audience: Option<&'a str>,
    },
    /// Trust anchors from ClusterTrustBundles.
    TrustBundle,
    /// Key or certificates of a pod certificate.
    PodCertificate {
        /// The signer that issued it.
        signer: &'a str,
    },
}

impl Origin<'_> {
    /// The object that it came from, with its name.
    pub fn object(&self) -> Option<(Kind, &str)> {
        match self {
            Self::Key { kind, name, .. } => Some((*kind, name)),
            _ => None,
        }
    }

    /// Whether what came from here must not be shown: Secrets, tokens, private keys and env files, which exist to hand
    /// over credentials.
    pub fn is_secret(&self) -> bool {
        match self {
            Self::Key { kind, .. } | Self::Missing { kind, .. } => *kind == Kind::Secret,
            Self::EnvFile { .. } | Self::Token { .. } | Self::PodCertificate { .. } => true,
            Self::Value { .. }
            | Self::Field(_)
            | Self::Resource { .. }
            | Self::Service { .. }
            | Self::TrustBundle => false,
        }
    }
}

/// An optional object or key that does not exist, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent<'a> {
    /// ConfigMap or Secret.
    pub kind: Kind,
    /// Name of the object.
    pub name: &'a str,
    /// The missing key; `None` when the whole object is missing.
    pub key: Option<&'a str>,
}
