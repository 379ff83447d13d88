//! Encodes and decodes the copies, in the form of [`larder_checkpoint::bytes`]. Pods are JSON, as they are stored anyway.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{Pod, PodStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use larder_checkpoint::{
    CopyId,
    bytes::{Counter, Malformed, Sink, Source, encoded},
};
use larder_objects::{ConfigMap, Data, ObjectMeta, ResourceVersion, Secret, SecretBytes, Uid};
use larder_pods::{
    StoredPod,
    identity::{CONFIG_SEEN, CONFIG_SOURCE},
};
use larder_projection::{NodeFacts, ServiceFacts, ServicePortFacts};
use smol_str::SmolStr;
use zeroize::Zeroizing;

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
    const ALL: [Self; 5] = [
        Self::Pod,
        Self::ConfigMap,
        Self::Secret,
        Self::Node,
        Self::Services,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
            Self::Node => "Node",
            Self::Services => "Services",
        }
    }

    /// The kind of the copy `id`; `None` if no agent of this version has written it.
    pub(crate) fn of(id: &CopyId) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == id.kind)
    }

    /// The name of the copy of a subject of this kind.
    pub(crate) fn id(self, namespace: SmolStr, name: SmolStr) -> CopyId {
        CopyId {
            kind: SmolStr::new_static(self.as_str()),
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
        match self {
            Self::Pod(pod) => encode_pod(pod),
            Self::ConfigMap(object) => encoded(|sink| put_config_map(sink, object)),
            Self::Secret(object) => encoded(|sink| put_secret(sink, object)),
            Self::Node(node) => encoded(|sink| put_node(sink, node)),
            Self::Services(services) => encoded(|sink| put_services(sink, services)),
        }
    }

    /// The content of `id` from its bytes.
    pub(super) fn decode(id: &CopyId, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut source = Source(bytes);
        let content = match CopyKind::of(id).ok_or(Malformed)? {
            CopyKind::Pod => {
                let pod: StoredPod = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
                source = Source(&[]);
                Self::Pod(Box::new(pod))
            }
            CopyKind::ConfigMap => Self::ConfigMap(Arc::new(take_config_map(&mut source, id)?)),
            CopyKind::Secret => Self::Secret(Arc::new(take_secret(&mut source, id)?)),
            CopyKind::Node => Self::Node(Arc::new(take_node(&mut source)?)),
            CopyKind::Services => Self::Services(take_services(&mut source)?.into()),
        };
        source.end()?;
        Ok(content)
    }
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
    let mut length = Counter(0);
    serde_json::to_writer(&mut length, &pod).expect("a stored pod can be encoded");
    let mut json = Zeroizing::new(Vec::with_capacity(length.0));
    serde_json::to_writer(&mut *json, &pod).expect("a stored pod can be encoded");
    json
}

fn put_metadata(sink: &mut dyn Sink, metadata: &ObjectMeta) {
    sink.text(&metadata.uid.to_string());
    sink.text(metadata.resource_version.as_str());
}

fn take_metadata(source: &mut Source<'_>, id: &CopyId) -> Result<ObjectMeta, Malformed> {
    Ok(ObjectMeta {
        namespace: id.namespace.as_str().into(),
        name: id.name.as_str().into(),
        uid: Uid::from(source.text()?),
        resource_version: ResourceVersion::new(source.text()?),
    })
}

fn put_data<'a>(sink: &mut dyn Sink, data: impl ExactSizeIterator<Item = (&'a str, &'a [u8])>) {
    sink.number(data.len());
    for (key, value) in data {
        sink.text(key);
        sink.bytes(value);
    }
}

fn put_config_map(sink: &mut dyn Sink, object: &ConfigMap) {
    put_metadata(sink, &object.metadata);
    sink.flag(object.immutable);
    put_data(
        sink,
        object
            .data
            .iter()
            .map(|(key, value)| (key, value.as_bytes())),
    );
    put_data(
        sink,
        object
            .binary_data
            .iter()
            .map(|(key, value)| (key, &**value)),
    );
}

fn take_config_map(source: &mut Source<'_>, id: &CopyId) -> Result<ConfigMap, Malformed> {
    Ok(ConfigMap {
        metadata: take_metadata(source, id)?,
        immutable: source.flag()?,
        data: Data::from_iter(source.list(|source| Ok((source.text()?, source.text()?.into())))?),
        binary_data: Data::from_iter(
            source.list(|source| Ok((source.text()?, source.bytes()?.to_vec())))?,
        ),
    })
}

fn put_secret(sink: &mut dyn Sink, object: &Secret) {
    put_metadata(sink, &object.metadata);
    sink.flag(object.immutable);
    sink.text(&object.type_);
    put_data(sink, object.data.iter().map(|(key, value)| (key, &**value)));
}

fn take_secret(source: &mut Source<'_>, id: &CopyId) -> Result<Secret, Malformed> {
    Ok(Secret {
        metadata: take_metadata(source, id)?,
        immutable: source.flag()?,
        type_: source.text()?.into(),
        data: Data::from_iter(source.list(|source| {
            let (key, value) = (source.text()?, source.bytes()?);
            Ok((key, SecretBytes::new(value.to_vec())))
        })?),
    })
}

fn put_node(sink: &mut dyn Sink, node: &NodeFacts) {
    sink.text(&node.name);
    sink.number(node.allocatable.len());
    for (resource, Quantity(amount)) in &node.allocatable {
        sink.text(resource);
        sink.text(amount);
    }
    sink.number(node.addresses.len());
    for address in &node.addresses {
        sink.text(&address.to_string());
    }
}

fn take_node(source: &mut Source<'_>) -> Result<NodeFacts, Malformed> {
    Ok(NodeFacts {
        name: source.text()?.to_owned(),
        allocatable: BTreeMap::from_iter(source.list(|source| {
            let (resource, amount) = (source.text()?, source.text()?);
            Ok((resource.to_owned(), Quantity(amount.to_owned())))
        })?),
        addresses: source.list(|source| source.text()?.parse().map_err(|_| Malformed))?,
    })
}

fn put_services(sink: &mut dyn Sink, services: &[ServiceFacts]) {
    sink.number(services.len());
    for service in services {
        for text in [&service.namespace, &service.name, &service.cluster_ip] {
            sink.text(text);
        }
        sink.number(service.ports.len());
        for port in &service.ports {
            sink.text(&port.name);
            sink.put(&port.port.to_le_bytes());
            sink.text(&port.protocol);
        }
    }
}

fn take_services(source: &mut Source<'_>) -> Result<Vec<ServiceFacts>, Malformed> {
    source.list(|source| {
        Ok(ServiceFacts {
            namespace: source.text()?.into(),
            name: source.text()?.into(),
            cluster_ip: source.text()?.into(),
            ports: source
                .list(|source| {
                    Ok(ServicePortFacts {
                        name: source.text()?.into(),
                        port: i32::from_le_bytes(source.array()?),
                        protocol: source.text()?.into(),
                    })
                })?
                .into(),
        })
    })
}

#[cfg(test)]
mod tests {
    use larder_objects::Object as _;
    use serde_json::json;

    use super::*;

    fn id(kind: CopyKind) -> CopyId {
        kind.id("prod".into(), "app".into())
    }

    fn contents() -> Vec<(CopyId, CopyContent)> {
        let map = ConfigMap::from_json(
            br#"{"metadata":{"namespace":"prod","name":"app","uid":"u","resourceVersion":"7"},
                "data":{"k":"v","":""},"binaryData":{"b":"3sr+"},"immutable":true}"#,
        );
        let secret = Secret::from_json(
            br#"{"metadata":{"namespace":"prod","name":"app","uid":"2c1b0a2e-6b2f-4b5e-9b0a-0123456789ab"},
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
        // A list of four thousand million items in four bytes.
        let claims = [&[0; 8][..], &[0], &[0xff; 4]].concat();
        assert!(CopyContent::decode(&id(CopyKind::ConfigMap), &claims).is_err());
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
