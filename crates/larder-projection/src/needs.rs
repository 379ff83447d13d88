//! The inputs that must be gathered before a pod can be projected.

use std::{collections::BTreeSet, fmt};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Pod, Volume};
use larder_objects::{Kind, SourceKind};
use smol_str::SmolStr;

use crate::{
    ContainerView, EnvFileRef, SourceKey, TokenRequest,
    container::{containers, pod_volumes, used_volumes},
};

/// An input that a container or a volume of a pod reads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// A ConfigMap or Secret of the pod's namespace, optional ones included. Not an image pull secret: it is not
    /// projected.
    Object(Kind, SmolStr),
    /// A token of the pod's service account.
    Token(TokenRequest),
    /// The certificate of one source of a projected volume.
    PodCertificate(SourceKey),
    /// The Services, for every container.
    Services,
    /// Facts about the Node.
    Node,
    /// The ClusterTrustBundles.
    TrustBundles,
}

impl Need {
    /// What all containers of `pod` need, and the volumes that some container uses.
    pub fn of_pod(pod: &Pod) -> BTreeSet<Self> {
        let used = used_volumes(pod);
        let of_volumes = pod_volumes(pod)
            .filter(|volume| used.contains(volume.name.as_str()))
            .flat_map(Self::of_volume);
        let of_containers = containers(pod).flat_map(Self::of_container);
        of_containers.chain(of_volumes).collect()
    }

    /// What the environment of `container` needs.
    pub fn of_container(container: ContainerView<'_>) -> BTreeSet<Self> {
        let mut needs = BTreeSet::from([Self::Services]);
        for source in container.env_from {
            let map = source.config_map_ref.as_ref();
            needs.extend(map.map(|map| Self::config_map(&map.name)));
            let secret = source.secret_ref.as_ref();
            needs.extend(secret.map(|secret| Self::secret(&secret.name)));
        }
        for variable in container.env {
            let Some(source) = &variable.value_from else {
                continue;
            };
            let map = source.config_map_key_ref.as_ref();
            needs.extend(map.map(|key| Self::config_map(&key.name)));
            let secret = source.secret_key_ref.as_ref();
            needs.extend(secret.map(|key| Self::secret(&key.name)));
            let field = source.field_ref.as_ref();
            if source.resource_field_ref.is_some()
                || field.is_some_and(|field| field.field_path.starts_with("status."))
            {
                needs.insert(Self::Node);
            }
        }
        needs
    }

    /// What the files of `volume` need.
    pub fn of_volume(volume: &Volume) -> BTreeSet<Self> {
        let mut needs = BTreeSet::new();
        let map = volume.config_map.as_ref();
        needs.extend(map.map(|source| Self::config_map(&source.name)));
        let secret = volume
            .secret
            .as_ref()
            .and_then(|source| source.secret_name.as_deref());
        needs.extend(secret.map(Self::secret));
        let downward = volume.downward_api.as_ref();
        needs.extend(downward.and_then(|source| Self::node(source.items.as_deref())));
        for (index, source) in SourceKind::of_volume(volume) {
            needs.extend(match source {
                SourceKind::Secret(source) => Some(Self::secret(&source.name)),
                SourceKind::ConfigMap(source) => Some(Self::config_map(&source.name)),
                SourceKind::DownwardApi(source) => Self::node(source.items.as_deref()),
                SourceKind::Token(source) => Some(Self::Token(TokenRequest::new(source))),
                SourceKind::TrustBundle(_) => Some(Self::TrustBundles),
                SourceKind::PodCertificate(_) => Some(Self::PodCertificate(SourceKey {
                    volume: volume.name.clone(),
                    index,
                })),
            });
        }
        needs
    }

    fn config_map(name: &str) -> Self {
        Self::Object(Kind::ConfigMap, name.into())
    }

    fn secret(name: &str) -> Self {
        Self::Object(Kind::Secret, name.into())
    }

    /// The Node, if one of the files shows the resources of a container.
    fn node(files: Option<&[DownwardAPIVolumeFile]>) -> Option<Self> {
        let mut files = files.unwrap_or_default().iter();
        files
            .any(|file| file.resource_field_ref.is_some())
            .then_some(Self::Node)
    }

    /// Kind and name of the object, if it is one.
    pub fn object(&self) -> Option<(Kind, &SmolStr)> {
        match self {
            Self::Object(kind, name) => Some((*kind, name)),
            _ => None,
        }
    }
}

/// Completes "waiting for".
impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(kind, name) => write!(f, "{} {:?}", kind.singular(), name.as_str()),
            Self::Token(_) => f.write_str("a service account token"),
            Self::PodCertificate(_) => f.write_str("a pod certificate"),
            Self::Services => f.write_str("the Services"),
            Self::Node => f.write_str("the Node"),
            Self::TrustBundles => f.write_str("the ClusterTrustBundles"),
        }
    }
}

/// The files in volumes that variables of these containers come from. They are no [`Need`]: other containers write them,
/// so they are read when a container starts.
pub fn env_files<'a>(containers: impl Iterator<Item = ContainerView<'a>>) -> BTreeSet<EnvFileRef> {
    let variables = containers.flat_map(|container| container.env);
    let sources = variables.filter_map(|variable| variable.value_from.as_ref());
    sources
        .filter_map(|source| source.file_key_ref.as_ref().map(EnvFileRef::new))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_needs_what_its_containers_and_used_volumes_read() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "from"}}, {"secretRef": {"name": "sfrom"}}]}],
            "containers": [{"name": "c",
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "skey", "key": "k"}}},
                    {"name": "C", "valueFrom": {"fileKeyRef": {"volumeName": "tmp", "path": "env", "key": "k"}}}],
                "volumeMounts": [{"name": "all", "mountPath": "/a"}, {"name": "s", "mountPath": "/s"}]}],
            "ephemeralContainers": [{"name": "e", "volumeMounts": [{"name": "cm", "mountPath": "/c"}]}],
            "volumes": [
                {"name": "cm", "configMap": {"name": "volume"}},
                {"name": "s", "secret": {"secretName": "svolume"}},
                {"name": "unused", "configMap": {"name": "unused"}},
                {"name": "all", "projected": {"sources": [
                    {"configMap": {"name": "source"}},
                    {"secret": {"name": "ssource"}},
                    {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}},
                    {"clusterTrustBundle": {"path": "ca", "name": "bundle"}},
                    {"podCertificate": {"signerName": "x/y", "keyType": "ED25519", "keyPath": "key"}},
                ]}}],
        }}))
        .unwrap();
        let maps = ["from", "key", "source", "volume"].map(Need::config_map);
        let secrets = ["sfrom", "skey", "ssource", "svolume"].map(Need::secret);
        let others = [
            Need::Token(TokenRequest {
                audience: Some("vault".to_owned()),
                expiration_secs: 600,
            }),
            Need::PodCertificate(SourceKey {
                volume: "all".to_owned(),
                index: 4,
            }),
            Need::Services,
            Need::TrustBundles,
        ];
        let expected = maps.into_iter().chain(secrets).chain(others);
        assert_eq!(Need::of_pod(&pod), expected.collect());
        let env_files = env_files(containers(&pod));
        assert_eq!(env_files.first().unwrap().path, "env");
    }

    #[test]
    fn resources_and_addresses_need_the_node() {
        let field = json!({"resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}});
        let address = json!({"fieldRef": {"fieldPath": "status.hostIP"}});
        for source in [&field, &address] {
            let pod: Pod = serde_json::from_value(
                json!({"spec": {"containers": [{"name": "c", "env": [{"name": "A", "valueFrom": source}]}]}}),
            )
            .unwrap();
            assert!(Need::of_pod(&pod).contains(&Need::Node), "{source}");
        }
        let item = json!({"path": "x", "resourceFieldRef": field["resourceFieldRef"]});
        let volume = serde_json::from_value(json!({"name": "v", "downwardAPI": {"items": [item]}}));
        let needs = Need::of_volume(&volume.unwrap());
        assert_eq!(Vec::from_iter(needs), [Need::Node]);
    }
}
