//! The inputs of a projection besides the pod.
//!
//! The caller gathers them beforehand, for one pod, because only the caller can wait for a network. [`crate::Need`]
//! lists them.
//!
//! Invariant: "does not exist" is always stated, never inferred. An object that was not gathered is a separate error,
//! so that an optional reference cannot turn a forgotten look-up into an empty volume.

mod unknown_part;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use k8s_openapi::{
    api::core::v1::{FileKeySelector, Node, Service, ServiceAccountTokenProjection},
    apimachinery::pkg::api::resource::Quantity,
};
use larder_objects::{
    ConfigMap, Kind, Object, Reactions, Secret, SecretBytes, defaults::TOKEN_EXPIRATION_SECS,
    manifest::Recipe,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::unknown_part::{KeyState, UnknownPart};
use crate::{Assumptions, ObjectId, PodCertificate, TrustBundles};

/// Everything that the projections of one pod read.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// ConfigMaps of the pod's namespace, by name.
    pub config_maps: BTreeMap<String, Result<Arc<ConfigMap>, Unavailable>>,
    /// Secrets of the pod's namespace, by name.
    pub secrets: BTreeMap<String, Result<Arc<Secret>, Unavailable>>,
    /// Services of all namespaces, or of the pod's and `default`; `None` until they were listed once.
    pub services: Option<Arc<[ServiceFacts]>>,
    /// The node that the pod runs on.
    pub node: Option<Arc<NodeFacts>>,
    /// Tokens of the pod's service account.
    pub tokens: BTreeMap<TokenRequest, Result<Arc<SecretBytes>, Unavailable>>,
    /// ClusterTrustBundles.
    pub trust_bundles: TrustBundles,
    /// Issued pod certificates.
    pub pod_certificates: BTreeMap<SourceKey, Result<Arc<PodCertificate>, Unavailable>>,
    /// Env files, read at the start of the container.
    pub env_files: BTreeMap<EnvFileRef, Result<Arc<EnvFile>, Unavailable>>,
    /// What is unknown instead of missing.
    pub assumptions: Assumptions,
}

/// Something that a pod refers to is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// It does not exist; `optional: true` covers this and nothing else.
    NotFound,
    /// Anything else, as a message for the user: timeout, forbidden, not synced.
    Failed(Arc<str>),
    /// Not all of it is known: what it has is computed with, without its bytes. For a ConfigMap or a Secret.
    Unknown(Arc<UnknownObject>),
}

/// What is known of a ConfigMap or a Secret whose values are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownObject {
    /// Whether it is there.
    pub existence: Existence,
    /// The keys that it has if it is there.
    pub keys: BTreeMap<Arc<str>, KeyContent>,
    /// Its other keys.
    pub others: OtherKeys,
}

/// Whether an object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    /// It is.
    Certain,
    /// Unknown.
    Unsure,
}

/// The keys of an object that are not known, with what makes them: those of another recipe are others. Empty if unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherKeys {
    /// There are none.
    None,
    /// There may be any.
    Any(Recipe),
    /// There may be those that a reference names. What takes all keys takes the known ones.
    Named(Recipe),
}

impl OtherKeys {
    pub(crate) fn recipe(&self) -> Option<&Recipe> {
        match self {
            Self::None => None,
            Self::Any(recipe) | Self::Named(recipe) => Some(recipe),
        }
    }
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyContent {
    /// This one.
    Known(SecretBytes),
    /// Unknown, with what makes it: another recipe may make another value.
    Made(Recipe),
}

impl UnknownObject {
    /// An object that was not seen.
    pub fn unseen(existence: Existence) -> Self {
        Self {
            existence,
            keys: BTreeMap::new(),
            others: OtherKeys::Any(Recipe::default()),
        }
    }
}

impl Unavailable {
    /// A failure with this message.
    pub fn failed(message: impl Into<Arc<str>>) -> Self {
        Self::Failed(message.into())
    }
}

/// A token that a pod asks for. Service account, pod name and UID are the pod's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenRequest {
    /// The audience; `None` leaves it to the API server.
    pub audience: Option<String>,
    /// Requested lifetime in seconds. The API server's default is 3600, its bounds are 600 and 2^32.
    pub expiration_secs: i64,
}

impl TokenRequest {
    /// The request of one source. Without `expirationSeconds`, which the API server fills in, its default of 3600 s.
    pub fn new(source: &ServiceAccountTokenProjection) -> Self {
        Self {
            audience: source.audience.clone().filter(|text| !text.is_empty()),
            expiration_secs: source.expiration_seconds.unwrap_or(TOKEN_EXPIRATION_SECS),
        }
    }
}

/// One entry of `sources` of a projected volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey {
    /// Name of the volume.
    pub volume: String,
    /// Place in the list, from 0.
    pub index: usize,
}

/// A file in a volume that variables are read from (`fileKeyRef`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EnvFileRef {
    /// Name of the volume.
    pub volume: String,
    /// Path in the volume, as the pod has it.
    pub path: String,
}

impl EnvFileRef {
    /// The file that `selector` names.
    pub fn new(selector: &FileKeySelector) -> Self {
        Self {
            volume: selector.volume_name.clone(),
            path: selector.path.clone(),
        }
    }
}

/// An env file as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvFile {
    /// Path on the host, for messages.
    pub host_path: String,
    /// Content. Treated as secret: such files exist to hand over credentials.
    pub content: SecretBytes,
}

/// The fields that service variables need of a Service with a cluster IP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceFacts {
    /// Namespace of the Service.
    pub namespace: Box<str>,
    /// Name of the Service.
    pub name: Box<str>,
    /// `spec.clusterIP`; not `None`. Empty if the Service gets one when it is created.
    pub cluster_ip: Box<str>,
    /// `spec.ports`, in list order.
    pub ports: Box<[ServicePortFacts]>,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePortFacts {
    /// Name; empty if there is none.
    pub name: Box<str>,
    /// Port number.
    pub port: i32,
    /// Protocol as the API has it, for instance `TCP`.
    pub protocol: Box<str>,
}

impl ServiceFacts {
    /// Whether it is `default/kubernetes`, which every pod gets variables for.
    pub fn is_api_server(&self) -> bool {
        (&*self.namespace, &*self.name) == ("default", "kubernetes")
    }

    /// The facts of `service`; `None` for one without cluster IP, which gives no variables.
    pub fn new(service: &Service) -> Option<Self> {
        Self::of_manifest(service).filter(|facts| !facts.cluster_ip.is_empty())
    }

    /// The facts of a Service in a manifest: the API server gives it a cluster IP when it is created, unless its type is
    /// `ExternalName`. One with a status was created.
    pub fn of_manifest(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let cluster_ip = spec.cluster_ip.as_deref().unwrap_or_default();
        let gets_none = spec.type_.as_deref() == Some("ExternalName") || service.status.is_some();
        if cluster_ip == "None" || cluster_ip.is_empty() && gets_none {
            return None;
        }
        let ports = spec.ports.as_deref().unwrap_or_default().iter();
        let text = |field: &Option<String>| field.as_deref().unwrap_or_default().into();
        Some(Self {
            namespace: text(&service.metadata.namespace),
            name: text(&service.metadata.name),
            cluster_ip: cluster_ip.into(),
            ports: ports
                .map(|port| ServicePortFacts {
                    name: port.name.as_deref().unwrap_or_default().into(),
                    port: port.port,
                    protocol: match port.protocol.as_deref() {
                        None | Some("") => "TCP".into(),
                        Some(protocol) => protocol.into(),
                    },
                })
                .collect(),
        })
    }
}

/// The facts about the node that a projection needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Name of the node.
    pub name: String,
    /// `status.allocatable`, the limit of containers that set none.
    pub allocatable: BTreeMap<String, Quantity>,
    /// Internal addresses, then external ones, in list order; other types and unparsable ones are dropped.
    pub addresses: Vec<IpAddr>,
}

impl NodeFacts {
    /// The facts of `node`.
    pub fn new(node: &Node) -> Self {
        let status = node.status.as_ref();
        let addresses = status.and_then(|status| status.addresses.as_deref());
        let of_type = |type_| {
            addresses
                .unwrap_or_default()
                .iter()
                .filter(move |address| address.type_ == type_)
                .filter_map(|address| address.address.parse().ok())
        };
        Self {
            name: node.metadata.name.clone().unwrap_or_default(),
            allocatable: status
                .and_then(|status| status.allocatable.clone())
                .unwrap_or_default(),
            addresses: of_type("InternalIP").chain(of_type("ExternalIP")).collect(),
        }
    }
}

/// A ConfigMap or Secret that could not be had. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// There is no such object in the pod's namespace.
    #[error("{} \"{name}\" not found", kind.singular())]
    NotFound {
        /// ConfigMap or Secret.
        kind: Kind,
        /// Its name.
        name: String,
    },
    /// The look-up failed.
    #[error("{message}")]
    Failed {
        /// ConfigMap or Secret.
        kind: Kind,
        /// Its name.
        name: String,
        /// The error of the look-up.
        message: Arc<str>,
    },
    /// It was not looked up: a bug in the program that gathered the inputs.
    #[error("{} \"{name}\" was not gathered", kind.singular())]
    NotGathered {
        /// ConfigMap or Secret.
        kind: Kind,
        /// Its name.
        name: String,
    },
}

impl ObjectError {
    /// Whether the object does not exist, as opposed to could not be read.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// ConfigMaps and Secrets as a projection reads them: values by key.
pub trait Keyed: Object {
    /// Which of the two it is.
    const KIND: Kind;
    /// The objects of this kind.
    fn all(inputs: &Inputs) -> &BTreeMap<String, Result<Arc<Self>, Unavailable>>;
    /// The values that variables are made of. Sorted by key.
    fn variables(&self) -> impl Iterator<Item = (&str, &[u8])>;
    /// The value of the variable `key`.
    fn variable(&self, key: &str) -> Option<&[u8]>;
    /// The values that files are made of; a later one with the same key replaces an earlier one.
    fn files(&self) -> impl Iterator<Item = (&str, &[u8])>;
    /// The value of the file `key`, when it is named in `items`.
    fn file(&self, key: &str) -> Option<&[u8]>;
}

impl Keyed for ConfigMap {
    const KIND: Kind = Kind::ConfigMap;

    fn all(inputs: &Inputs) -> &BTreeMap<String, Result<Arc<Self>, Unavailable>> {
        &inputs.config_maps
    }

    /// `binaryData` is not in the environment.
    fn variables(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.data.iter().map(|(key, value)| (key, value.as_bytes()))
    }

    fn variable(&self, key: &str) -> Option<&[u8]> {
        self.data.get(key).map(|value| value.as_bytes())
    }

    /// `binaryData` after `data`: without `items` it wins.
    fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let binary = self.binary_data.iter();
        self.variables()
            .chain(binary.map(|(key, value)| (key, value.as_slice())))
    }

    /// `data` before `binaryData`: with `items` it wins.
    fn file(&self, key: &str) -> Option<&[u8]> {
        self.variable(key)
            .or_else(|| self.binary_data.get(key).map(Vec::as_slice))
    }
}

impl Keyed for Secret {
    const KIND: Kind = Kind::Secret;

    fn all(inputs: &Inputs) -> &BTreeMap<String, Result<Arc<Self>, Unavailable>> {
        &inputs.secrets
    }

    fn variables(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.data.iter().map(|(key, value)| (key, &**value))
    }

    fn variable(&self, key: &str) -> Option<&[u8]> {
        self.data.get(key).map(|value| &**value)
    }

    fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.variables()
    }

    fn file(&self, key: &str) -> Option<&[u8]> {
        self.variable(key)
    }
}

impl Inputs {
    /// The objects to whose changes hooks do not react, with their names.
    pub fn left_out(&self) -> impl Iterator<Item = (Kind, &str)> {
        fn of<K: Keyed>(inputs: &Inputs) -> impl Iterator<Item = (Kind, &str)> {
            K::all(inputs).iter().filter_map(|(name, object)| {
                let on_change = object.as_ref().ok()?.metadata().on_change;
                (on_change == Reactions::LeftOut).then_some((K::KIND, name.as_str()))
            })
        }
        of::<ConfigMap>(self).chain(of::<Secret>(self))
    }

    /// The object `name`, as far as it is known, or that it does not exist, if `optional` covers that.
    pub(crate) fn object<'a, K: Keyed>(
        &'a self,
        name: &'a str,
        optional: Option<bool>,
    ) -> Result<Found<'a, K>, ObjectError> {
        let (kind, owned_name) = (K::KIND, || name.to_owned());
        match K::all(self).get(name) {
            Some(Ok(object)) => Ok(Found::Known(object)),
            Some(Err(Unavailable::NotFound)) if optional == Some(true) => Ok(Found::Absent),
            Some(Err(Unavailable::NotFound)) => Err(ObjectError::NotFound {
                kind,
                name: owned_name(),
            }),
            Some(Err(Unavailable::Failed(message))) => Err(ObjectError::Failed {
                kind,
                name: owned_name(),
                message: Arc::clone(message),
            }),
            Some(Err(Unavailable::Unknown(object))) => {
                let recipe = object.others.recipe().cloned().unwrap_or_default();
                let id = ObjectId {
                    kind,
                    name: name.into(),
                    recipe,
                };
                Ok(Found::Unknown(UnknownPart::new(id, name, object)))
            }
            None => Err(ObjectError::NotGathered {
                kind,
                name: owned_name(),
            }),
        }
    }
}

/// What is known of an object.
pub(crate) enum Found<'a, K> {
    Known(&'a K),
    /// It does not exist, and need not.
    Absent,
    Unknown(UnknownPart<'a>),
}
