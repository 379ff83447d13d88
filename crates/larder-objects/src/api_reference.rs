//! The references that static pods and mirror pods may not have: those that need a request to the API server.
//!
//! Rule: Kubernetes 1.36, `pkg/api/v1/pod/util.go`, behind the gate `PreventStaticPodAPIReferences`. A file on a node's
//! disk must not make the node read objects that the API server lets it read for the pods bound to it.

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeProjection};

use crate::references;

/// The first API resource that `pod` refers to, as the kubelet and the API server name it in their messages; `None`
/// when there is none.
///
/// Upstream also rejects volume types that it does not know. Here a type unknown to us cannot be met: it is dropped
/// when the manifest is decoded, and what is left is an `emptyDir`, as it is for an API server that does not know the
/// type.
pub fn api_reference(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    let set = |name: &Option<String>| name.as_ref().is_some_and(|name| !name.is_empty());
    if set(&spec.service_account_name) || set(&spec.service_account) {
        return Some("serviceaccounts");
    }
    if !references::secrets(pod).is_empty() {
        return Some("secrets");
    }
    if !references::config_maps(pod).is_empty() {
        return Some("configmaps");
    }
    if spec
        .resource_claims
        .as_ref()
        .is_some_and(|claims| !claims.is_empty())
    {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(of_volume)
}

fn of_volume(volume: &Volume) -> Option<&'static str> {
    let sources = volume
        .projected
        .as_ref()
        .and_then(|held| held.sources.as_ref());
    let own = [
        (
            volume.config_map.is_some(),
            "configmaps (via configmap volumes)",
        ),
        (volume.secret.is_some(), "secrets (via secret volumes)"),
        (volume.csi.is_some(), "csidrivers (via CSI volumes)"),
        (
            volume.glusterfs.is_some(),
            "endpoints (via glusterFS volumes)",
        ),
        (
            volume.persistent_volume_claim.is_some(),
            "persistentvolumeclaims",
        ),
        (
            volume.ephemeral.is_some(),
            "persistentvolumeclaims (via ephemeral volumes)",
        ),
        (
            volume.azure_file.is_some(),
            "secrets (via azureFile volumes)",
        ),
    ];
    first(&own).or_else(|| sources.into_iter().flatten().find_map(of_projection))
}

fn of_projection(source: &VolumeProjection) -> Option<&'static str> {
    first(&[
        (
            source.config_map.is_some(),
            "configmaps (via projected volumes)",
        ),
        (source.secret.is_some(), "secrets (via projected volumes)"),
        (
            source.service_account_token.is_some(),
            "serviceaccounts (via projected volumes)",
        ),
        (source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
        (source.pod_certificate.is_some(), "podcertificates"),
    ])
}

fn first(resources: &[(bool, &'static str)]) -> Option<&'static str> {
    let found = resources.iter().find(|(is_there, _)| *is_there);
    found.map(|(_, resource)| *resource)
}
