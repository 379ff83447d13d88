//! A pod as the node keeps it: small, with what is looked at all the time at hand.
//!
//! Decoded, a volume takes 3208 bytes whatever it is, and a container 2144, so a pod has some 30 KiB. As JSON it has three. Nobody
//! needs all of a pod all the time: it is registered when it changes, and projected when something that it reads changes.
//!
//! Invariants:
//! 1. What every step looks at is at hand: the metadata, and what the methods tell. Whoever needs more [decodes](StoredPod::decode) the
//!    pod, and lets go of it.
//! 2. Specification and status are JSON that was made of decoded ones. So they decode, and they are the same exactly when their bytes are.

use std::fmt;

use k8s_openapi::{
    Resource,
    api::core::v1::{Pod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use smol_str::SmolStr;

/// A pod, kept as JSON. Made [from](From) a [`Pod`], or deserialized as one is.
///
/// A pod without specification is kept as one with an empty one. Managed fields are dropped: nobody reads them.
///
/// ```
/// # use k8s_openapi::api::core::v1::Pod;
/// # use larder_pods::StoredPod;
/// # let json = r#"{"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app"}]}}"#;
/// let pod: Pod = serde_json::from_str(json)?;
/// let stored = StoredPod::from(pod.clone());
/// assert_eq!(stored.metadata.name.as_deref(), Some("web"));
/// assert_eq!(stored.decode(), pod);
/// # Ok::<(), serde_json::Error>(())
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

impl StoredPod {
    /// All of the pod.
    pub fn decode(&self) -> Pod {
        Pod {
            metadata: self.metadata.clone(),
            spec: Some(decoded::<PodSpec>(&self.spec)),
            status: self.status.as_deref().map(decoded::<PodStatus>),
        }
    }

    /// Whether all containers of the pod have ended for good.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether the pod uses the network of the node.
    pub fn host_network(&self) -> bool {
        self.host_network
    }

    /// Name of the service account that the pod runs as: `default` when it names none.
    pub fn service_account(&self) -> &str {
        &self.service_account
    }

    /// Number of its ephemeral containers.
    pub fn ephemeral_containers(&self) -> usize {
        self.ephemeral_containers
    }

    /// Whether the specifications are the same.
    pub fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl From<Pod> for StoredPod {
    fn from(pod: Pod) -> Self {
        let Pod {
            mut metadata,
            spec,
            status,
        } = pod;
        metadata.managed_fields = None;
        let spec = spec.unwrap_or_default();
        let phase = status.as_ref().and_then(|status| status.phase.as_deref());
        let account = spec.service_account_name.as_deref();
        let account = account.filter(|name| !name.is_empty());
        let ephemeral_containers = spec.ephemeral_containers.as_ref();
        Self {
            metadata,
            is_terminal: matches!(phase, Some("Succeeded" | "Failed")),
            host_network: spec.host_network.unwrap_or_default(),
            service_account: account.unwrap_or("default").into(),
            ephemeral_containers: ephemeral_containers.map_or(0, Vec::len),
            spec: encoded(&spec),
            status: status.as_ref().map(encoded),
        }
    }
}

impl<'de> Deserialize<'de> for StoredPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Pod::deserialize(deserializer).map(Self::from)
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

fn encoded(value: &impl Serialize) -> Box<[u8]> {
    let json = serde_json::to_vec(value).expect("a pod has no maps but of strings");
    json.into_boxed_slice()
}

fn decoded<T: DeserializeOwned>(json: &[u8]) -> T {
    serde_json::from_slice(json).expect("it was made of what it decodes to")
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

    #[test]
    fn a_pod_comes_out_as_it_went_in() {
        let stored = StoredPod::from(pod());
        assert_eq!(stored.decode(), pod());
        assert_eq!(StoredPod::from(stored.decode()), stored);
    }

    #[test]
    fn what_is_at_hand_is_what_the_pod_says() {
        let stored = StoredPod::from(pod());
        assert!(stored.host_network() && !stored.is_terminal());
        assert_eq!(stored.ephemeral_containers(), 1);
        assert_eq!(stored.service_account(), "default");
        let mut named = pod();
        for (name, account) in [("", "default"), ("builder", "builder")] {
            named.spec.get_or_insert_default().service_account_name = Some(name.to_owned());
            assert_eq!(StoredPod::from(named.clone()).service_account(), account);
        }
        for (phase, is_terminal) in [("Succeeded", true), ("Failed", true), ("Pending", false)] {
            let mut ended = pod();
            ended.status.get_or_insert_default().phase = Some(phase.to_owned());
            assert_eq!(StoredPod::from(ended).is_terminal(), is_terminal, "{phase}");
        }
        let empty = StoredPod::from(Pod::default());
        assert!(!empty.host_network() && !empty.is_terminal());
        assert_eq!(empty.ephemeral_containers(), 0);
    }

    #[test]
    fn managed_fields_are_dropped() {
        let mut managed = pod();
        managed.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        assert_eq!(StoredPod::from(managed), StoredPod::from(pod()));
    }

    #[test]
    fn an_empty_list_and_none_are_two_things_as_they_are_decoded() {
        let mut other = pod();
        other.spec.get_or_insert_default().tolerations = None;
        assert!(!StoredPod::from(other).same_spec(&StoredPod::from(pod())));
        let mut other = pod();
        other.spec = None;
        let mut empty = pod();
        empty.spec = Some(PodSpec::default());
        assert!(StoredPod::from(other).same_spec(&StoredPod::from(empty)));
    }

    #[test]
    fn a_debug_text_names_the_pod_and_shows_no_value() {
        let text = format!("{:?}", StoredPod::from(pod()));
        assert!(text.contains("web") && !text.contains("emptyDir"), "{text}");
    }
}
