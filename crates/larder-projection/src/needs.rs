//! The inputs that must be gathered before a pod can be projected.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, Pod, PodCertificateProjection, Volume,
};

use crate::{
    ContainerView, EnvFileRef, SourceKey, TokenRequest,
    container::{containers, pod_volumes, used_volumes},
};

/// The inputs that some containers and volumes of a pod read. Adding more of them only makes it grow.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Needs<'a> {
    /// Names of ConfigMaps.
    pub config_maps: BTreeSet<&'a str>,
    /// Names of Secrets that are projected, which are not all that the pod refers to: an image pull secret is not.
    pub secrets: BTreeSet<&'a str>,
    /// Whether Services must have been listed: for every container.
    pub services: bool,
    /// Whether facts about the node are read.
    pub node: bool,
    /// Tokens of the pod's service account.
    pub tokens: BTreeSet<TokenRequest>,
    /// Sources that read ClusterTrustBundles: by name, or by signer and labels.
    pub trust_bundles: Vec<&'a ClusterTrustBundleProjection>,
    /// Sources that want a certificate issued.
    pub pod_certificates: Vec<(SourceKey, &'a PodCertificateProjection)>,
    /// Files in volumes that variables come from. To be read when the container starts, as other containers write them.
    pub env_files: BTreeSet<EnvFileRef>,
}

impl<'a> Needs<'a> {
    /// What all containers of `pod` need, and the volumes that some container uses.
    pub fn of_pod(pod: &'a Pod) -> Self {
        let mut needs = Self::default();
        for container in containers(pod) {
            needs.add_container(container);
        }
        let used = used_volumes(pod);
        for volume in pod_volumes(pod) {
            if used.contains(volume.name.as_str()) {
                needs.add_volume(volume);
            }
        }
        needs
    }

    /// Adds what the environment of `container` needs.
    pub fn add_container(&mut self, container: ContainerView<'a>) {
        let (config_maps, secrets) = (&mut self.config_maps, &mut self.secrets);
        self.services = true;
        for source in container.env_from {
            config_maps.extend(source.config_map_ref.iter().map(|held| &*held.name));
            secrets.extend(source.secret_ref.iter().map(|held| &*held.name));
        }
        let sources = container.env.iter();
        for source in sources.filter_map(|variable| variable.value_from.as_ref()) {
            config_maps.extend(source.config_map_key_ref.iter().map(|key| &*key.name));
            secrets.extend(source.secret_key_ref.iter().map(|key| &*key.name));
            self.node |= source.resource_field_ref.is_some();
            let field = source.field_ref.as_ref();
            self.node |= field.is_some_and(|field| field.field_path.starts_with("status."));
            self.env_files
                .extend(source.file_key_ref.as_ref().map(EnvFileRef::new));
        }
    }

    /// Adds what the files of `volume` need.
    pub fn add_volume(&mut self, volume: &'a Volume) {
        let (config_maps, secrets) = (&mut self.config_maps, &mut self.secrets);
        config_maps.extend(volume.config_map.iter().map(|source| &*source.name));
        let secret = volume.secret.as_ref();
        secrets.extend(secret.and_then(|source| source.secret_name.as_deref()));
        let downward = volume.downward_api.iter();
        self.node |= need_node(downward.flat_map(|source| &source.items));
        let sources = volume.projected.iter().flat_map(|held| &held.sources);
        for (index, source) in sources.flatten().enumerate() {
            config_maps.extend(source.config_map.iter().map(|source| &*source.name));
            secrets.extend(source.secret.iter().map(|source| &*source.name));
            let downward = source.downward_api.iter();
            self.node |= need_node(downward.flat_map(|source| &source.items));
            let token = source.service_account_token.as_ref();
            self.tokens.extend(token.map(TokenRequest::new));
            self.trust_bundles.extend(&source.cluster_trust_bundle);
            let key = || SourceKey {
                volume: volume.name.clone(),
                index,
            };
            let certificate = source.pod_certificate.as_ref();
            self.pod_certificates
                .extend(certificate.map(|source| (key(), source)));
        }
    }
}

fn need_node<'a>(items: impl Iterator<Item = &'a Vec<DownwardAPIVolumeFile>>) -> bool {
    items
        .flatten()
        .any(|item| item.resource_field_ref.is_some())
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
        let needs = Needs::of_pod(&pod);
        assert_eq!(
            Vec::from_iter(needs.config_maps),
            ["from", "key", "source", "volume"]
        );
        assert_eq!(
            Vec::from_iter(needs.secrets),
            ["sfrom", "skey", "ssource", "svolume"]
        );
        assert!(needs.services && !needs.node);
        let token = TokenRequest {
            audience: Some("vault".to_owned()),
            expiration_secs: 600,
        };
        assert_eq!(Vec::from_iter(needs.tokens), [token]);
        assert_eq!(needs.trust_bundles[0].name.as_deref(), Some("bundle"));
        let (key, certificate) = &needs.pod_certificates[0];
        assert_eq!((key.volume.as_str(), key.index), ("all", 4));
        assert_eq!(certificate.signer_name, "x/y");
        assert_eq!(needs.env_files.first().unwrap().path, "env");
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
            assert!(Needs::of_pod(&pod).node, "{source}");
        }
        let item = json!({"path": "x", "resourceFieldRef": field["resourceFieldRef"]});
        let volume = serde_json::from_value(json!({"name": "v", "downwardAPI": {"items": [item]}}));
        let volume = volume.unwrap();
        let mut needs = Needs::default();
        needs.add_volume(&volume);
        assert!(needs.node && !needs.services);
    }
}
