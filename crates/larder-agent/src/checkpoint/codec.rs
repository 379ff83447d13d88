//! Encodes and decodes the copies: as JSON, objects as the API has them.

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use base64::{display::Base64Display, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use larder_checkpoint::{CopyId, Malformed};
use larder_objects::{
    ApiJson as _, ConfigMap, ON_CHANGE_ANNOTATION, ObjectMeta, Reactions, Secret, exact_json,
};
use larder_pods::{
    StoredPod,
    identity::{CONFIG_SEEN, CONFIG_SOURCE},
};
use larder_projection::{NodeFacts, ServiceFacts};
use serde::{Serialize, Serializer, de::DeserializeOwned};
use smol_str::SmolStr;
use zeroize::Zeroizing;

/// Why encoding does not fail.
const WRITABLE: &str = "keys of JSON are text, and memory takes it";

/// The subject of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CopyKind {
    Pod,
    ConfigMap,
    Secret,
    /// The facts about the Node.
    Node,
    /// The facts about the Services that pods of the node get variables for.
    Services,
}

impl CopyKind {
    /// Each with its name, in their order.
    const NAMES: [(Self, &str); 5] = [
        (Self::Pod, "Pod"),
        (Self::ConfigMap, "ConfigMap"),
        (Self::Secret, "Secret"),
        (Self::Node, "Node"),
        (Self::Services, "Services"),
    ];

    /// The kind of the copy `id`; `None` if no agent of this version has written it.
    pub(crate) fn of(id: &CopyId) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(_, name)| *name == id.kind)?;
        Some(found.0)
    }

    /// The name of the copy of a subject of this kind.
    pub(crate) fn id(self, namespace: SmolStr, name: SmolStr) -> CopyId {
        CopyId {
            kind: SmolStr::new_static(Self::NAMES[self as usize].1),
            namespace,
            name,
        }
    }
}

/// The content of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopyContent {
    Pod(Box<StoredPod>),
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
    Node(Arc<NodeFacts>),
    Services(Arc<[ServiceFacts]>),
}

impl CopyContent {
    /// The bytes of the copy.
    pub(super) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let encoded = match self {
            Self::Pod(pod) => return encode_pod(pod),
            Self::ConfigMap(object) => exact_json(&ObjectJson {
                immutable: object.immutable,
                data: object.data.iter().map(text).collect(),
                binary_data: object.binary_data.iter().map(bytes).collect(),
                ..ObjectJson::of(&object.metadata)
            }),
            Self::Secret(object) => exact_json(&ObjectJson {
                immutable: object.immutable,
                type_: &object.type_,
                data: object.data.iter().map(bytes).collect(),
                ..ObjectJson::of(&object.metadata)
            }),
            Self::Node(node) => exact_json(node),
            Self::Services(services) => exact_json(services),
        };
        Zeroizing::new(encoded.expect(WRITABLE))
    }

    /// The content of `id` from its bytes.
    pub(super) fn decode(id: &CopyId, bytes: &[u8]) -> Result<Self, Malformed> {
        Ok(match CopyKind::of(id).ok_or(Malformed)? {
            CopyKind::Pod => Self::Pod(from_json(bytes)?),
            CopyKind::ConfigMap => Self::ConfigMap(from_json(bytes)?),
            CopyKind::Secret => Self::Secret(from_json(bytes)?),
            CopyKind::Node => Self::Node(from_json(bytes)?),
            CopyKind::Services => Self::Services(from_json(bytes)?),
        })
    }
}

/// A ConfigMap or Secret as the API has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectJson<'a> {
    metadata: MetadataJson,
    immutable: bool,
    #[serde(rename = "type")]
    type_: &'a str,
    data: BTreeMap<&'a str, Value<'a>>,
    binary_data: BTreeMap<&'a str, Value<'a>>,
}

/// Metadata as the API has it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MetadataJson {
    namespace: SmolStr,
    name: SmolStr,
    uid: String,
    resource_version: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, &'static str>,
}

impl ObjectJson<'_> {
    fn of(metadata: &ObjectMeta) -> Self {
        let on_change = match metadata.on_change {
            Reactions::Counted => None,
            Reactions::LeftOut => Some("false"),
            Reactions::Invalid => Some(""),
        };
        Self {
            metadata: MetadataJson {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone(),
                uid: metadata.uid.to_string(),
                resource_version: metadata.resource_version.as_str().to_owned(),
                annotations: on_change
                    .map(|value| (ON_CHANGE_ANNOTATION, value))
                    .into_iter()
                    .collect(),
            },
            immutable: false,
            type_: "",
            data: BTreeMap::new(),
            binary_data: BTreeMap::new(),
        }
    }
}

enum Value<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl Serialize for Value<'_> {
    /// Writes base64 in pieces, so that no copy of a secret is left in memory.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => serializer.collect_str(&Base64Display::new(bytes, &STANDARD)),
        }
    }
}

fn text<'a>((key, text): (&'a str, &'a SmolStr)) -> (&'a str, Value<'a>) {
    (key, Value::Text(text))
}

fn bytes<'a>((key, bytes): (&'a str, &'a impl Deref<Target = [u8]>)) -> (&'a str, Value<'a>) {
    (key, Value::Bytes(bytes))
}

fn from_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, Malformed> {
    serde_json::from_slice(json).map_err(|_| Malformed)
}

/// The copy of a pod; see [`encode_decoded_pod`].
pub(super) fn encode_pod(pod: &StoredPod) -> Zeroizing<Vec<u8>> {
    encode_decoded_pod(pod.decode())
}

/// The copy of a pod: without managed fields, without this agent's additions, without the version that grows with each
/// status, and with the parts of the status that projection and lifecycle read.
pub(super) fn encode_decoded_pod(mut pod: Pod) -> Zeroizing<Vec<u8>> {
    pod.metadata.resource_version = None;
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.remove(CONFIG_SEEN);
        annotations.remove(CONFIG_SOURCE);
    }
    pod.status = pod.status.map(|status| PodStatus {
        host_ip: status.host_ip,
        host_ips: status.host_ips,
        phase: status.phase,
        pod_ip: status.pod_ip,
        pod_ips: status.pod_ips,
        ..PodStatus::default()
    });
    Zeroizing::new(pod.to_json().expect(WRITABLE))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use larder_objects::Object as _;
    use larder_projection::ServicePortFacts;
    use serde_json::json;

    use super::*;

    fn id(kind: CopyKind) -> CopyId {
        kind.id("prod".into(), "app".into())
    }

    fn contents() -> Vec<(CopyId, CopyContent)> {
        let map = ConfigMap::from_json(
            br#"{"metadata":{"namespace":"prod","name":"app","uid":"u","resourceVersion":"7",
                "annotations":{"larder.dev/on-change":"false","other":"dropped"}},
                "data":{"k":"v","":""},"binaryData":{"b":"3sr+"},"immutable":true}"#,
        );
        let secret = Secret::from_json(
            br#"{"metadata":{"namespace":"prod","name":"app","uid":"2c1b0a2e-6b2f-4b5e-9b0a-0123456789ab",
                "annotations":{"larder.dev/on-change":"no"}},
                "data":{"p":"aHVudGVyMg=="},"type":"Opaque"}"#,
        );
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "prod", "name": "app", "uid": "u"},
            // projection 76: also the owners of files are kept.
            "spec": {
                "containers": [{"name": "main", "image": "i"}],
                "volumes": [{"name": "v", "configMap": {"name": "m", "defaultUser": 0, "items": [{"key": "k", "path": "p", "user": 7}]}}],
            },
            "status": {"podIP": "10.0.0.1"},
        }))
        .unwrap();
        let node = NodeFacts {
            name: "node-1".to_owned(),
            allocatable: [("cpu".to_owned(), Quantity("2".to_owned()))].into(),
            addresses: vec!["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()],
        };
        let service = ServiceFacts {
            namespace: "default".into(),
            name: "kubernetes".into(),
            cluster_ip: "10.96.0.1".into(),
            ports: [ServicePortFacts {
                name: "https".into(),
                port: 443,
                protocol: "TCP".into(),
            }]
            .into(),
        };
        vec![
            (
                id(CopyKind::ConfigMap),
                CopyContent::ConfigMap(Arc::new(map.unwrap())),
            ),
            (
                id(CopyKind::Secret),
                CopyContent::Secret(Arc::new(secret.unwrap())),
            ),
            (
                id(CopyKind::Pod),
                CopyContent::Pod(Box::new(StoredPod::new(pod).unwrap())),
            ),
            (id(CopyKind::Node), CopyContent::Node(Arc::new(node))),
            (
                id(CopyKind::Services),
                CopyContent::Services([service].into()),
            ),
        ]
    }

    #[test]
    fn decoding_returns_what_was_encoded() {
        for (id, content) in contents() {
            let decoded = CopyContent::decode(&id, &content.encode()).unwrap();
            let is_same = match (&content, &decoded) {
                (CopyContent::Pod(one), CopyContent::Pod(other)) => one == other,
                (CopyContent::ConfigMap(one), CopyContent::ConfigMap(other)) => one == other,
                (CopyContent::Secret(one), CopyContent::Secret(other)) => one == other,
                (CopyContent::Node(one), CopyContent::Node(other)) => one == other,
                (CopyContent::Services(one), CopyContent::Services(other)) => one == other,
                _ => false,
            };
            assert!(is_same, "{id}");
        }
    }

    #[test]
    fn malformed_bytes_are_an_error() {
        for (id, content) in contents() {
            let bytes = content.encode();
            for length in 0..bytes.len() {
                assert!(
                    CopyContent::decode(&id, &bytes[..length]).is_err(),
                    "{id}: {length}"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(CopyContent::decode(&id, &longer).is_err(), "{id}");
        }
    }

    #[test]
    fn a_new_status_needs_no_new_copy() {
        let pod = |version: &str, ready: &str| {
            let pod = serde_json::from_value(json!({
                "metadata": {
                    "name": "app", "namespace": "prod", "uid": "u", "resourceVersion": version,
                    "annotations": {"kubernetes.io/config.seen": version, "own": "1"},
                },
                "spec": {"containers": [{"name": "main", "image": "i"}]},
                "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
            }));
            encode_pod(&StoredPod::new(pod.unwrap()).unwrap())
        };
        assert_eq!(*pod("1", "True"), *pod("2", "False"));
    }
}
