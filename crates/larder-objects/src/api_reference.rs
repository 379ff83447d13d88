//! The references that static pods and mirror pods may not have: those that need a request to the API server.
//!
//! Rule: Kubernetes 1.36, `pkg/api/v1/pod/util.go`, behind the gate `PreventStaticPodAPIReferences`. A file on a node's
//! disk must not make the node read objects that the API server lets it read for the pods bound to it.

use k8s_openapi::api::core::v1::{Pod, Volume};

use crate::{SourceKind, references};

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
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(of_volume)
}

fn of_volume(volume: &Volume) -> Option<&'static str> {
    if volume.config_map.is_some() {
        Some("configmaps (via configmap volumes)")
    } else if volume.secret.is_some() {
        Some("secrets (via secret volumes)")
    } else if volume.csi.is_some() {
        Some("csidrivers (via CSI volumes)")
    } else if volume.glusterfs.is_some() {
        Some("endpoints (via glusterFS volumes)")
    } else if volume.persistent_volume_claim.is_some() {
        Some("persistentvolumeclaims")
    } else if volume.ephemeral.is_some() {
        Some("persistentvolumeclaims (via ephemeral volumes)")
    } else if volume.azure_file.is_some() {
        Some("secrets (via azureFile volumes)")
    } else {
        SourceKind::of_volume(volume).find_map(|(_, source)| source.api_resource())
    }
}
