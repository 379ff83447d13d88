//! A pod in memory: compact, with the frequently read fields decoded.
//!
//! Decoded, any volume takes 3208 bytes, and a container 2144, so a pod has some 30 KiB. As JSON it has 3 KiB. The
//! whole pod is needed rarely: it is registered when it changes, and projected when an object that it references
//! changes.
//!
//! Invariants:
//! 1. The metadata and the answers of the accessors are decoded. A caller that needs more [decodes](StoredPod::decode)
//!    the pod and drops the result soon.
//! 2. Specification and status are JSON that was encoded, and decoded again as a test, when the pod was stored. So they
//!    always decode. Two are equal exactly when their bytes are.

use std::fmt;

use k8s_openapi::{
    Resource,
    api::core::v1::{HostIP, Pod, PodIP, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use larder_objects::{ApiJson, ObjectKey, ObjectKeyRef, ResourceVersion, is_terminal_phase};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, value::RawValue};
use smol_str::SmolStr;

/// A pod, kept as JSON. Made with [`StoredPod::new`], or deserialized by `serde_json`, as a [`Pod`] is.
///
/// A missing specification is stored as an empty one. Managed fields are dropped.
///
/// ```
/// # use k8s_openapi::api::core::v1::Pod;
/// # use larder_pods::StoredPod;
/// # let json = r#"{"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}}"#;
/// let pod: Pod = serde_json::from_str(json)?;
/// let stored = StoredPod::new(pod.clone())?;
/// assert_eq!(stored.metadata.name.as_deref(), Some("web"));
/// assert_eq!(stored.decode(), pod);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct StoredPod {
    /// As in the pod, without managed fields.
    pub metadata: ObjectMeta,
    spec: Box<[u8]>,
    status: Option<Box<[u8]>>,
    is_terminal: bool,
    host_network: bool,
    service_account: SmolStr,
    ephemeral_containers: usize,
}

/// The addresses of a pod, of all that its status has.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct PodAddresses {
    #[serde(rename = "hostIP")]
    pub(crate) host_ip: Option<String>,
    #[serde(rename = "hostIPs")]
    pub(crate) host_ips: Option<Vec<HostIP>>,
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Option<Vec<PodIP>>,
}

/// A pod has a value that its JSON cannot hold, for example a time before the year 0.
///
/// Names the part only: the value may be a credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} has a value that cannot be encoded")]
pub struct StoredPodError {
    /// `spec` or `status`.
    pub part: &'static str,
}

impl StoredPod {
    /// Stores `pod`.
    ///
    /// # Errors
    ///
    /// The pod cannot be encoded, or not be decoded from the result.
    pub fn new(pod: Pod) -> Result<Self, StoredPodError> {
        let Pod {
            mut metadata,
            spec,
            status,
        } = pod;
        metadata.managed_fields = None;
        let spec = spec.unwrap_or_default();
        let phase = status.as_ref().and_then(|status| status.phase.as_deref());
        let account = spec
            .service_account_name
            .as_deref()
            .filter(|name| !name.is_empty());
        let ephemeral_containers = spec.ephemeral_containers.as_ref();
        Ok(Self {
            metadata,
            is_terminal: phase.is_some_and(is_terminal_phase),
            host_network: spec.host_network.unwrap_or_default(),
            service_account: account.unwrap_or("default").into(),
            ephemeral_containers: ephemeral_containers.map_or(0, Vec::len),
            spec: encoded("spec", &spec)?,
            status: status
                .map(|status| encoded("status", &status))
                .transpose()?,
        })
    }

    /// Namespace and name; empty where the pod has none.
    pub fn key(&self) -> ObjectKey {
        let ObjectKeyRef { namespace, name } = self.key_ref();
        ObjectKey::new(namespace, name)
    }

    pub(crate) fn key_ref(&self) -> ObjectKeyRef<'_> {
        ObjectKeyRef {
            namespace: self.metadata.namespace.as_deref().unwrap_or_default(),
            name: self.metadata.name.as_deref().unwrap_or_default(),
        }
    }

    /// What identifies the pod and its version; empty where the pod has none.
    pub fn identity(&self) -> larder_objects::ObjectMeta {
        let ObjectKey { namespace, name } = self.key();
        let version = self.metadata.resource_version.as_deref();
        larder_objects::ObjectMeta {
            namespace,
            name,
            uid: self.uid().into(),
            resource_version: ResourceVersion::new(version.unwrap_or_default()),
            ..larder_objects::ObjectMeta::default()
        }
    }

    /// The UID; empty if the pod has none.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The whole pod.
    pub fn decode(&self) -> Pod {
        Pod {
            metadata: self.metadata.clone(),
            spec: Some(decoded::<PodSpec>(&self.spec)),
            status: self.status.as_deref().map(decoded::<PodStatus>),
        }
    }

    /// The specification as a tree of JSON.
    pub(crate) fn spec_tree(&self) -> Value {
        serde_json::from_slice(&self.spec).expect("it was encoded when the pod was stored")
    }

    /// The addresses in its status.
    pub(crate) fn addresses(&self) -> PodAddresses {
        self.status
            .as_deref()
            .map(serde_json::from_slice::<PodAddresses>)
            .map_or_else(PodAddresses::default, |found| {
                found.expect("the same bytes were decoded when the pod was stored")
            })
    }

    /// Whether all containers of the pod have ended for good: its phase is `Succeeded` or `Failed`.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether the pod uses the network of the node.
    pub fn host_network(&self) -> bool {
        self.host_network
    }

    /// Name of the service account that the pod runs as; `default` if it names none.
    pub fn service_account(&self) -> &str {
        &self.service_account
    }

    /// Number of its ephemeral containers.
    pub fn ephemeral_containers(&self) -> usize {
        self.ephemeral_containers
    }

    /// Whether the specifications are equal.
    pub fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl<'de> Deserialize<'de> for StoredPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By way of the text, so that there is one decoder of pods.
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let pod = Pod::from_json(json.get().as_bytes());
        Self::new(pod.map_err(de::Error::custom)?).map_err(de::Error::custom)
    }
}

impl Resource for StoredPod {
    const API_VERSION: &'static str = Pod::API_VERSION;
    const GROUP: &'static str = Pod::GROUP;
    const KIND: &'static str = Pod::KIND;
    const VERSION: &'static str = Pod::VERSION;
    const URL_PATH_SEGMENT: &'static str = Pod::URL_PATH_SEGMENT;
    type Scope = <Pod as Resource>::Scope;
}

impl k8s_openapi::Metadata for StoredPod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &Self::Ty {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut Self::Ty {
        &mut self.metadata
    }
}

/// Names the pod, and shows nothing of what is in it.
impl fmt::Debug for StoredPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredPod")
            .field("namespace", &self.metadata.namespace)
            .field("name", &self.metadata.name)
            .field("uid", &self.metadata.uid)
            .field("resource_version", &self.metadata.resource_version)
            .finish_non_exhaustive()
    }
}

/// The JSON of `value`, which is known to decode.
fn encoded<T: ApiJson>(part: &'static str, value: &T) -> Result<Box<[u8]>, StoredPodError> {
    let json = value.to_json().map_err(|_| StoredPodError { part })?;
    T::from_json(&json).map_err(|_| StoredPodError { part })?;
    Ok(json.into_boxed_slice())
}

fn decoded<T: ApiJson>(json: &[u8]) -> T {
    T::from_json(json).expect("the same bytes were decoded when the pod was stored")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "prod", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z",
                "deletionTimestamp": "2026-01-02T03:04:06Z", "labels": {"l": "1"}, "annotations": {},
            },
            "spec": {
                "hostNetwork": true, "nodeSelector": {}, "imagePullSecrets": [{}], "tolerations": [],
                "containers": [{
                    "name": "app", "image": "i", "args": [], "env": [{"name": "A", "value": ""}],
                    "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"tcpSocket": {"port": 80}},
                    "resources": {"limits": {"memory": "1.5Gi"}},
                }],
                "ephemeralContainers": [{"name": "debug"}],
                "volumes": [{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "s", "items": []}}],
            },
            "status": {
                "phase": "Running", "podIPs": [], "startTime": "2026-01-02T03:04:05Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
            },
        }))
        .unwrap()
    }

    fn stored(pod: Pod) -> StoredPod {
        StoredPod::new(pod).unwrap()
    }

    #[test]
    fn a_stored_pod_decodes_to_the_same_pod() {
        let web = stored(pod());
        assert_eq!(web.decode(), pod());
        assert_eq!(stored(web.decode()), web);
    }

    #[test]
    fn accessors_agree_with_the_pod() {
        let web = stored(pod());
        assert!(web.host_network() && !web.is_terminal());
        assert_eq!(web.ephemeral_containers(), 1);
        assert_eq!(web.service_account(), "default");
        let mut named = pod();
        for (name, account) in [("", "default"), ("builder", "builder")] {
            named.spec.get_or_insert_default().service_account_name = Some(name.to_owned());
            assert_eq!(stored(named.clone()).service_account(), account);
        }
        for (phase, is_terminal) in [("Succeeded", true), ("Failed", true), ("Pending", false)] {
            let mut ended = pod();
            ended.status.get_or_insert_default().phase = Some(phase.to_owned());
            assert_eq!(stored(ended).is_terminal(), is_terminal, "{phase}");
        }
        let empty = stored(Pod::default());
        assert!(!empty.host_network() && !empty.is_terminal());
        assert_eq!(empty.ephemeral_containers(), 0);
    }

    #[test]
    fn a_time_beyond_json_is_an_error_of_the_pod() {
        // Decodes, and is encoded as a text that does not.
        let odd = |status: Value| json!({"metadata": {"name": "web"}, "status": status});
        let time = "-009998-01-02T03:04:05Z";
        for status in [
            json!({"startTime": time}),
            json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]}),
        ] {
            let pod: Pod = serde_json::from_value(odd(status.clone())).unwrap();
            assert_eq!(StoredPod::new(pod).unwrap_err().part, "status");
            let error = serde_json::from_value::<StoredPod>(odd(status)).unwrap_err();
            assert!(!error.to_string().contains("9998"), "{error}");
        }
    }

    #[test]
    fn managed_fields_are_dropped() {
        let mut managed = pod();
        managed.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        assert_eq!(stored(managed), stored(pod()));
    }

    #[test]
    fn an_empty_list_differs_from_a_missing_one() {
        let mut other = pod();
        other.spec.get_or_insert_default().tolerations = None;
        assert!(!stored(other).same_spec(&stored(pod())));
        let mut other = pod();
        other.spec = None;
        let mut empty = pod();
        empty.spec = Some(PodSpec::default());
        assert!(stored(other).same_spec(&stored(empty)));
    }

    #[test]
    fn debug_output_names_the_pod_and_hides_its_values() {
        let text = format!("{:?}", stored(pod()));
        assert!(text.contains("web") && !text.contains("emptyDir"), "{text}");
    }
}
