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
    let of = |is_there: bool, resource| is_there.then_some(resource);
    let sources = volume
        .projected
        .iter()
        .flat_map(|projected| &projected.sources);
    of(
        volume.config_map.is_some(),
        "configmaps (via configmap volumes)",
    )
    .or(of(volume.secret.is_some(), "secrets (via secret volumes)"))
    .or(of(volume.csi.is_some(), "csidrivers (via CSI volumes)"))
    .or(of(
        volume.glusterfs.is_some(),
        "endpoints (via glusterFS volumes)",
    ))
    .or(of(
        volume.persistent_volume_claim.is_some(),
        "persistentvolumeclaims",
    ))
    .or(of(
        volume.ephemeral.is_some(),
        "persistentvolumeclaims (via ephemeral volumes)",
    ))
    .or(of(
        volume.azure_file.is_some(),
        "secrets (via azureFile volumes)",
    ))
    .or_else(|| sources.flatten().find_map(of_projection))
}

fn of_projection(source: &VolumeProjection) -> Option<&'static str> {
    let of = |is_there: bool, resource| is_there.then_some(resource);
    of(
        source.config_map.is_some(),
        "configmaps (via projected volumes)",
    )
    .or(of(
        source.secret.is_some(),
        "secrets (via projected volumes)",
    ))
    .or(of(
        source.service_account_token.is_some(),
        "serviceaccounts (via projected volumes)",
    ))
    .or(of(
        source.cluster_trust_bundle.is_some(),
        "clustertrustbundles",
    ))
    .or(of(source.pod_certificate.is_some(), "podcertificates"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, expected: Option<&str>) {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "c", "image": "i"}]);
        }
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        assert_eq!(api_reference(&pod), expected, "{spec}");
    }

    #[track_caller]
    fn check_volume(volume: Value, expected: Option<&str>) {
        let mut volume = volume;
        volume["name"] = "v".into();
        check(json!({"volumes": [volume]}), expected);
    }

    fn variable(source: Value) -> Value {
        json!({"containers": [{"name": "c", "env": [{"name": "V", "valueFrom": source}]}]})
    }

    #[test]
    fn each_way_to_the_api_server_is_named() {
        // managers 65
        check(json!({"serviceAccountName": "sa"}), Some("serviceaccounts"));
        check(json!({"serviceAccount": "sa"}), Some("serviceaccounts"));
        check(
            json!({"imagePullSecrets": [{"name": "s"}]}),
            Some("secrets"),
        );
        let config_map_key = json!({"configMapKeyRef": {"name": "c", "key": "k"}});
        check(variable(config_map_key), Some("configmaps"));
        check(
            json!({"resourceClaims": [{"name": "r", "resourceClaimName": "r"}]}),
            Some("resourceclaims"),
        );
        check_volume(
            json!({"persistentVolumeClaim": {"claimName": "p"}}),
            Some("persistentvolumeclaims"),
        );
        check_volume(
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
            Some("persistentvolumeclaims (via ephemeral volumes)"),
        );
        check_volume(
            json!({"csi": {"driver": "d"}}),
            Some("csidrivers (via CSI volumes)"),
        );
        check_volume(
            json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
            Some("endpoints (via glusterFS volumes)"),
        );
        for (source, expected) in [
            (
                json!({"serviceAccountToken": {"path": "t"}}),
                "serviceaccounts (via projected volumes)",
            ),
            (
                json!({"clusterTrustBundle": {"path": "t"}}),
                "clustertrustbundles",
            ),
            (
                json!({"podCertificate": {"signerName": "s", "keyType": "ED25519"}}),
                "podcertificates",
            ),
        ] {
            check_volume(json!({"projected": {"sources": [source]}}), Some(expected));
        }
    }

    #[test]
    fn a_volume_is_refused_for_its_type_even_if_it_names_nothing() {
        // managers 65
        check_volume(
            json!({"configMap": {"name": ""}}),
            Some("configmaps (via configmap volumes)"),
        );
        check_volume(json!({"secret": {}}), Some("secrets (via secret volumes)"));
        check_volume(
            json!({"azureFile": {"secretName": "", "shareName": "s"}}),
            Some("secrets (via azureFile volumes)"),
        );
        for (source, expected) in [
            (
                json!({"configMap": {"name": ""}}),
                "configmaps (via projected volumes)",
            ),
            (
                json!({"secret": {"name": ""}}),
                "secrets (via projected volumes)",
            ),
        ] {
            check_volume(json!({"projected": {"sources": [source]}}), Some(expected));
        }
    }

    #[test]
    fn pods_without_api_objects_pass() {
        // managers 65
        check(json!({}), None);
        check_volume(json!({"hostPath": {"path": "/x"}}), None);
        check_volume(json!({"emptyDir": {}}), None);
        check_volume(json!({"image": {"reference": "i"}}), None);
        check_volume(json!({"nfs": {"server": "s", "path": "/"}}), None);
        check_volume(json!({"cephfs": {"monitors": []}}), None);
        check_volume(json!({"downwardAPI": {"items": []}}), None);
        check_volume(
            json!({"projected": {"sources": [{"downwardAPI": {"items": []}}]}}),
            None,
        );
        let file_key = json!({"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}});
        check(variable(file_key), None);
    }

    #[test]
    fn of_several_the_first_in_the_kubelets_order_is_named() {
        let volumes = json!([
            {"name": "a", "persistentVolumeClaim": {"claimName": "p"}},
            {"name": "b", "secret": {"secretName": "s"}},
        ]);
        check(json!({"volumes": volumes}), Some("secrets"));
        check(
            json!({"volumes": volumes, "serviceAccountName": "sa"}),
            Some("serviceaccounts"),
        );
    }
}
