//! The sources of a projected volume, one variant for each type. They are matched without `_`, so that the compiler names
//! every place that a new type concerns.

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, ConfigMapProjection, DownwardAPIProjection,
    PodCertificateProjection, SecretProjection, ServiceAccountTokenProjection, Volume,
    VolumeProjection,
};

/// One source of a projected volume.
#[derive(Clone, Copy, Debug)]
pub enum SourceKind<'a> {
    /// Keys of a Secret.
    Secret(&'a SecretProjection),
    /// Keys of a ConfigMap.
    ConfigMap(&'a ConfigMapProjection),
    /// Fields of the pod, requests and limits of its containers.
    DownwardApi(&'a DownwardAPIProjection),
    /// A token of the pod's service account.
    Token(&'a ServiceAccountTokenProjection),
    /// Trust anchors of ClusterTrustBundles.
    TrustBundle(&'a ClusterTrustBundleProjection),
    /// A private key, and the certificate that a signer issues for it.
    PodCertificate(&'a PodCertificateProjection),
}

impl<'a> SourceKind<'a> {
    /// The types of one entry of `sources`. The API server admits one; of several, the kubelet takes the first in this
    /// order.
    pub fn of_entry(entry: &'a VolumeProjection) -> impl Iterator<Item = Self> {
        // Without `..`: a type that Kubernetes adds is an error here.
        let VolumeProjection {
            secret,
            config_map,
            downward_api,
            service_account_token,
            cluster_trust_bundle,
            pod_certificate,
        } = entry;
        [
            secret.as_ref().map(Self::Secret),
            config_map.as_ref().map(Self::ConfigMap),
            downward_api.as_ref().map(Self::DownwardApi),
            service_account_token.as_ref().map(Self::Token),
            cluster_trust_bundle.as_ref().map(Self::TrustBundle),
            pod_certificate.as_ref().map(Self::PodCertificate),
        ]
        .into_iter()
        .flatten()
    }

    /// The sources of `volume`, each with the position of its entry.
    pub fn of_volume(volume: &'a Volume) -> impl Iterator<Item = (usize, Self)> {
        let entries = volume
            .projected
            .as_ref()
            .and_then(|projected| projected.sources.as_deref());
        entries
            .unwrap_or_default()
            .iter()
            .enumerate()
            .flat_map(|(index, entry)| Self::of_entry(entry).map(move |source| (index, source)))
    }

    /// Its field of the entry.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Secret(_) => "secret",
            Self::ConfigMap(_) => "configMap",
            Self::DownwardApi(_) => "downwardAPI",
            Self::Token(_) => "serviceAccountToken",
            Self::TrustBundle(_) => "clusterTrustBundle",
            Self::PodCertificate(_) => "podCertificate",
        }
    }

    /// Whether its content must not be shown.
    pub const fn is_secret(self) -> bool {
        match self {
            Self::Secret(_) | Self::Token(_) | Self::PodCertificate(_) => true,
            Self::ConfigMap(_) | Self::DownwardApi(_) | Self::TrustBundle(_) => false,
        }
    }

    /// What the node asks the API server for, as the kubelet names it in its messages; `None` if it asks for nothing.
    pub(crate) const fn api_resource(self) -> Option<&'static str> {
        match self {
            Self::Secret(_) => Some("secrets (via projected volumes)"),
            Self::ConfigMap(_) => Some("configmaps (via projected volumes)"),
            Self::DownwardApi(_) => None,
            Self::Token(_) => Some("serviceaccounts (via projected volumes)"),
            Self::TrustBundle(_) => Some("clustertrustbundles"),
            Self::PodCertificate(_) => Some("podcertificates"),
        }
    }

    /// The paths of the files that it names. A Secret or ConfigMap without `items` names none: its keys are the paths.
    pub fn paths(self) -> Vec<&'a str> {
        let of_certificate = |path: &'a Option<String>| path.as_deref();
        match self {
            Self::Secret(source) => paths_of(source.items.as_deref(), |item| &item.path),
            Self::ConfigMap(source) => paths_of(source.items.as_deref(), |item| &item.path),
            Self::DownwardApi(source) => paths_of(source.items.as_deref(), |item| &item.path),
            Self::Token(source) => vec![&source.path],
            Self::TrustBundle(source) => vec![&source.path],
            Self::PodCertificate(source) => [
                &source.credential_bundle_path,
                &source.key_path,
                &source.certificate_chain_path,
            ]
            .into_iter()
            .filter_map(of_certificate)
            .filter(|path| !path.is_empty())
            .collect(),
        }
    }
}

fn paths_of<'a, I>(items: Option<&'a [I]>, path: impl Fn(&'a I) -> &'a String) -> Vec<&'a str> {
    items
        .unwrap_or_default()
        .iter()
        .map(|item| path(item).as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json, to_value};

    use super::*;

    /// What the specification of Kubernetes knows, not this file: an entry with every field.
    #[test]
    fn every_type_has_its_field_and_position() {
        let entry = json!({
            "secret": {"name": "s", "items": [{"key": "k", "path": "s"}]},
            "configMap": {"name": "c"},
            "downwardAPI": {"items": [{"path": "d"}]},
            "serviceAccountToken": {"path": "t"},
            "clusterTrustBundle": {"path": "b"},
            "podCertificate": {"signerName": "x/y", "keyType": "ED25519", "keyPath": "k", "certificateChainPath": ""},
        });
        let volume = json!({"name": "v", "projected": {"sources": [{}, entry]}});
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let found: Vec<_> = SourceKind::of_volume(&volume).collect();
        assert!(found.iter().all(|(index, _)| *index == 1));
        let named: Vec<_> = found.iter().map(|(_, source)| source.field()).collect();
        let entries = volume.projected.as_ref().unwrap().sources.as_ref().unwrap();
        let fields: Map<String, Value> = match to_value(&entries[1]).unwrap() {
            Value::Object(fields) => fields,
            other => panic!("{other}"),
        };
        assert_eq!(named.len(), fields.len());
        assert!(
            named.iter().all(|name| fields.contains_key(*name)),
            "{named:?}"
        );
        let paths: Vec<_> = found
            .iter()
            .flat_map(|(_, source)| source.paths())
            .collect();
        assert_eq!(paths, ["s", "d", "t", "b", "k"]);
    }
}
