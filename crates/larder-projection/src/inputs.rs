//! The inputs of a projection besides the pod.
//!
//! The caller gathers them beforehand, for one pod, because only the caller can wait for a network. [`crate::Need`]
//! lists them.
//!
//! Invariant: "does not exist" is always stated, never inferred. An object that was not gathered is a separate error,
//! so that an optional reference cannot turn a forgotten look-up into an empty volume.

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

use crate::{
    Assumptions, ObjectId, PodCertificate, Question, TrustBundles, Unknown, UnknownSource,
};

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
    /// What makes it: an object of another recipe is another one. Empty if unknown.
    pub recipe: Recipe,
    /// Its keys.
    pub keys: UnknownKeys,
}

/// Whether an object is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existence {
    /// It is.
    Certain,
    /// Unknown.
    Unsure,
}

/// The keys of an object whose values are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownKeys {
    /// Unknown.
    Any,
    /// Exactly these, each with what makes its value: another recipe may make another value.
    Exactly(BTreeMap<Arc<str>, Recipe>),
}

impl UnknownObject {
    /// An object that was not seen.
    pub fn unseen(existence: Existence) -> Self {
        Self {
            existence,
            recipe: Recipe::default(),
            keys: UnknownKeys::Any,
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
                let (name, recipe) = (name.into(), object.recipe.clone());
                let id = ObjectId { kind, name, recipe };
                Ok(Found::Unknown(UnknownPart { id, object }))
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

/// An object whose values are not known.
pub(crate) struct UnknownPart<'a> {
    pub(crate) id: ObjectId,
    object: &'a UnknownObject,
}

/// What is known of a key.
pub(crate) enum KeyState {
    /// It is there, with this value.
    Present(Unknown),
    /// It has this value, if the answer is yes.
    Perhaps(Question, Unknown),
    Missing,
}

impl UnknownPart<'_> {
    pub(crate) fn key(&self, key: &str) -> KeyState {
        match &self.object.keys {
            UnknownKeys::Exactly(keys) => match keys.get(key) {
                Some(recipe) => KeyState::Present(self.value(key, recipe)),
                None => KeyState::Missing,
            },
            UnknownKeys::Any => {
                let question = Question::HasKey(self.id.clone(), key.into());
                KeyState::Perhaps(question, self.value(key, &Recipe::default()))
            }
        }
    }

    /// All keys with their values; `None` if they are not known.
    pub(crate) fn keys(&self) -> Option<impl Iterator<Item = (&str, Unknown)>> {
        match &self.object.keys {
            UnknownKeys::Exactly(keys) => Some(
                keys.iter()
                    .map(|(key, recipe)| (&**key, self.value(key, recipe))),
            ),
            UnknownKeys::Any => None,
        }
    }

    /// Whether it is there, if that is not known.
    pub(crate) fn existence(&self) -> Option<Question> {
        let is_unsure = self.object.existence == Existence::Unsure;
        is_unsure.then(|| Question::Exists(self.id.clone()))
    }

    fn value(&self, key: &str, recipe: &Recipe) -> Unknown {
        Unknown::of(UnknownSource::key(&self.id, key, recipe))
    }
}
