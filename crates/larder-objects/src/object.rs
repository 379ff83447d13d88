//! The common part of ConfigMaps, Secrets and other objects that pods refer to.

use std::{fmt, fmt::Debug};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, de::DeserializeOwned};
use smol_str::SmolStr;

use crate::{KeyChanges, ObjectKey, Reactions, Uid};

/// What the API server calls a type of objects, which live in namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectType {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// The kind as written in a manifest: `ConfigMap`.
    pub kind: &'static str,
    /// The resource of a request path: `configmaps`.
    pub resource: &'static str,
    /// The resource in the singular, as the kubelet's error texts have it: `configmap`.
    pub singular: &'static str,
}

impl ObjectType {
    /// Group and version, as written in a manifest: `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// The two kinds that larder delivers to containers. The managers know any [`Object`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `ConfigMap` of `v1`.
    ConfigMap,
    /// `Secret` of `v1`.
    Secret,
}

impl Kind {
    /// What the API server calls it.
    pub const fn object_type(self) -> ObjectType {
        let (kind, resource, singular) = match self {
            Self::ConfigMap => ("ConfigMap", "configmaps", "configmap"),
            Self::Secret => ("Secret", "secrets", "secret"),
        };
        ObjectType {
            group: "",
            version: "v1",
            kind,
            resource,
            singular,
        }
    }

    /// The kind as written in a manifest: `ConfigMap`, `Secret`.
    pub const fn as_str(self) -> &'static str {
        self.object_type().kind
    }

    /// The resource in the singular, as the kubelet's error texts have it: `configmap`, `secret`.
    pub const fn singular(self) -> &'static str {
        self.object_type().singular
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An object to which pods refer by name, in their own namespace: all that the generic managers and stores need to know
/// of a type.
pub trait Object: DeserializeOwned + Debug + PartialEq + Send + Sync + 'static {
    /// What the API server calls it.
    const TYPE: ObjectType;

    /// Whether its bytes are wiped from every buffer that held them.
    const IS_SECRET: bool;

    /// Calls `found` for every name that `pod` refers to, repeated names included.
    fn visit_references<'a>(pod: &'a Pod, found: &mut impl FnMut(&'a str));

    /// Name, identity and version.
    fn metadata(&self) -> &ObjectMeta;

    /// Whether the object is marked `immutable: true`: its data is final until it is deleted.
    fn is_immutable(&self) -> bool;

    /// The keys whose values differ from an earlier version, for logs. Defaults to none, for kinds without keys.
    fn key_changes(&self, _before: &Self) -> KeyChanges {
        KeyChanges::default()
    }

    /// Decodes the JSON form of one object.
    ///
    /// # Errors
    ///
    /// Malformed JSON or a field of the wrong type. The error names the place and never the content.
    fn from_json(json: &[u8]) -> Result<Self, DecodeError> {
        serde_json::from_slice(json).map_err(|error| DecodeError::new(Self::TYPE.kind, &error))
    }
}

/// An object with the kind that it states, both from one pass over its JSON.
#[derive(Debug)]
pub struct Stated<K> {
    /// Group and version; empty if they are not stated, as in a list.
    pub api_version: SmolStr,
    /// Kind, as written in a manifest; empty if it is not stated.
    pub kind: SmolStr,
    /// The object.
    pub object: K,
}

impl<K: Object> Stated<K> {
    /// Decodes the JSON form of one object.
    ///
    /// # Errors
    ///
    /// As of [`Object::from_json`].
    pub fn from_json(json: &[u8]) -> Result<Self, DecodeError> {
        serde_json::from_slice(json).map_err(|error| DecodeError::new(K::TYPE.kind, &error))
    }
}

/// An answer that is not an object of the expected kind.
///
/// Carries the place only: the text of a JSON error quotes the value it stumbled over, which may be a Secret's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {kind}: {problem} at line {line} column {column}")]
#[non_exhaustive]
pub struct DecodeError {
    /// The expected kind, as written in a manifest.
    pub kind: &'static str,
    /// Line in the JSON text, from 1.
    pub line: usize,
    /// Column in the JSON text, from 1.
    pub column: usize,
    problem: &'static str,
}

impl DecodeError {
    /// What `error` says without quoting anything.
    pub fn new(kind: &'static str, error: &serde_json::Error) -> Self {
        Self {
            kind,
            line: error.line(),
            column: error.column(),
            problem: match error.classify() {
                serde_json::error::Category::Io => "read error",
                serde_json::error::Category::Syntax => "malformed JSON",
                serde_json::error::Category::Data => "a field has the wrong type or value",
                serde_json::error::Category::Eof => "truncated JSON",
            },
        }
    }
}

/// The part of `metadata` that larder keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Namespace of the object.
    pub namespace: SmolStr,
    /// Name of the object.
    pub name: SmolStr,
    /// Identity of this incarnation of the name; empty when the object never was at an API server.
    pub uid: Uid,
    /// Version of this state of the object.
    pub resource_version: ResourceVersion,
    /// Whether hooks react to its changes.
    #[serde(rename = "annotations")]
    pub on_change: Reactions,
}

impl ObjectMeta {
    /// Namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace.clone(), self.name.clone())
    }
}

/// `metadata.resourceVersion`: the API server's text, compared by its numeric value.
///
/// Kubernetes 1.35 promises that versions of one resource type are decimal numbers that grow; the kubelet compares them
/// as unsigned 64-bit numbers and takes an empty or unparsable one for 0 (kubelet 1.36,
/// `pkg/kubelet/util/manager/cache_based_manager.go`).
#[derive(Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct ResourceVersion(SmolStr);

impl ResourceVersion {
    /// That of an object that no API server has.
    pub const NONE: Self = Self(SmolStr::new_static(""));

    /// The version that `text` denotes.
    pub fn new(text: impl Into<SmolStr>) -> Self {
        Self(text.into())
    }

    /// The text as the API server gave it; empty when unknown.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number that comparisons use; 0 for an empty or unparsable text.
    pub fn number(&self) -> u64 {
        self.0.parse().unwrap_or(0)
    }

    /// Whether this version is older than `other`.
    pub fn is_older_than(&self, other: &Self) -> bool {
        self.number() < other.number()
    }
}

impl Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResourceVersion({})", self.0)
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
