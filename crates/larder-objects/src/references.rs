//! The ConfigMaps and Secrets that a pod references.
//!
//! Pure functions over the pod. The managers use them to register pods, the embedded API server to authorize, the
//! checks of static pods to reject, and `larder refs` prints them. The fields are those that the API server's node
//! authorizer follows, so a name found here is exactly a name that the node of the pod may read (Kubernetes 1.36,
//! `pkg/api/v1/pod/util.go`, `plugin/pkg/auth/authorizer/node`).
//!
//! Invariants:
//! 1. All three kinds of containers count: init (sidecars are among them), regular, ephemeral.
//! 2. `optional: true` changes nothing, and an empty name is no reference.
//! 3. A volume contributes through one source only: if it has several, the first in a fixed order.
//! 4. Names refer to objects in the pod's own namespace; claims (PVC, PV) are not followed.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVarSource, LocalObjectReference, Pod, PodSpec, Volume,
};
use smol_str::SmolStr;

use crate::SourceKind;

/// Names of the ConfigMaps that `pod` refers to, in its own namespace.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, Pod, PodSpec, Volume};
///
/// let pod = Pod {
///     spec: Some(PodSpec {
///         volumes: Some(vec![Volume {
///             name: "config".into(),
///             config_map: Some(ConfigMapVolumeSource { name: "app".into(), ..Default::default() }),
///             ..Default::default()
///         }]),
///         ..Default::default()
///     }),
///     ..Default::default()
/// };
/// assert!(larder_objects::references::config_maps(&pod).contains("app"));
/// assert!(larder_objects::references::secrets(&pod).is_empty());
/// ```
pub fn config_maps(pod: &Pod) -> BTreeSet<SmolStr> {
    let mut names = BTreeSet::new();
    visit_config_maps(pod, &mut |name| names.extend([SmolStr::new(name)]));
    names
}

/// Names of the Secrets that `pod` refers to, in its own namespace.
pub fn secrets(pod: &Pod) -> BTreeSet<SmolStr> {
    let mut names = BTreeSet::new();
    visit_secrets(pod, &mut |name| names.extend([SmolStr::new(name)]));
    names
}

/// Calls `found` for every reference of `pod` to a ConfigMap, repeated names included; allocates nothing.
pub fn visit_config_maps<'a>(pod: &'a Pod, found: &mut impl FnMut(&'a str)) {
    let Some(spec) = &pod.spec else { return };
    let found = &mut named(found);
    visit_environment(
        spec,
        |source| Some(&source.config_map_ref.as_ref()?.name),
        |source| Some(&source.config_map_key_ref.as_ref()?.name),
        found,
    );
    for volume in spec.volumes.iter().flatten() {
        visit_config_maps_of_volume(volume, found);
    }
}

/// Calls `found` for every reference of `pod` to a Secret, repeated names included; allocates nothing.
pub fn visit_secrets<'a>(pod: &'a Pod, found: &mut impl FnMut(&'a str)) {
    let Some(spec) = &pod.spec else { return };
    let found = &mut named(found);
    for reference in spec.image_pull_secrets.iter().flatten() {
        found(&reference.name);
    }
    visit_environment(
        spec,
        |source| Some(&source.secret_ref.as_ref()?.name),
        |source| Some(&source.secret_key_ref.as_ref()?.name),
        found,
    );
    for volume in spec.volumes.iter().flatten() {
        visit_secrets_of_volume(volume, found);
    }
}

/// Names of the Secrets that `volume` refers to.
pub fn secrets_of_volume(volume: &Volume) -> BTreeSet<SmolStr> {
    let mut names = BTreeSet::new();
    let mut found = |name: &str| names.extend([SmolStr::new(name)]);
    visit_secrets_of_volume(volume, &mut named(&mut found));
    names
}

/// `found` without empty names.
fn named<'a>(found: &mut impl FnMut(&'a str)) -> impl FnMut(&'a str) {
    |name| {
        if !name.is_empty() {
            found(name);
        }
    }
}

/// The references in the variables of all containers; the two functions pick those to one kind.
fn visit_environment<'a>(
    spec: &'a PodSpec,
    of_all_keys: impl Fn(&'a EnvFromSource) -> Option<&'a String>,
    of_one_key: impl Fn(&'a EnvVarSource) -> Option<&'a String>,
    found: &mut impl FnMut(&'a str),
) {
    let init = spec
        .init_containers
        .iter()
        .flatten()
        .map(|container| (&container.env_from, &container.env));
    let regular = spec
        .containers
        .iter()
        .map(|container| (&container.env_from, &container.env));
    let ephemeral = spec
        .ephemeral_containers
        .iter()
        .flatten()
        .map(|container| (&container.env_from, &container.env));
    for (env_from, env) in init.chain(regular).chain(ephemeral) {
        env_from
            .iter()
            .flatten()
            .filter_map(&of_all_keys)
            .for_each(|name| found(name));
        env.iter()
            .flatten()
            .filter_map(|variable| variable.value_from.as_ref())
            .filter_map(&of_one_key)
            .for_each(|name| found(name));
    }
}

fn visit_config_maps_of_volume<'a>(volume: &'a Volume, found: &mut impl FnMut(&'a str)) {
    if volume.projected.is_some() {
        for (_, source) in SourceKind::of_volume(volume) {
            if let SourceKind::ConfigMap(source) = source {
                found(&source.name);
            }
        }
    } else if let Some(source) = &volume.config_map {
        found(&source.name);
    }
}

fn visit_secrets_of_volume<'a>(volume: &'a Volume, found: &mut impl FnMut(&'a str)) {
    let mut reference = |reference: &'a Option<LocalObjectReference>| {
        if let Some(to) = reference {
            found(&to.name);
        }
    };
    if let Some(source) = &volume.azure_file {
        found(&source.secret_name);
    } else if let Some(source) = &volume.cephfs {
        reference(&source.secret_ref);
    } else if let Some(source) = &volume.cinder {
        reference(&source.secret_ref);
    } else if let Some(source) = &volume.flex_volume {
        reference(&source.secret_ref);
    } else if volume.projected.is_some() {
        for (_, source) in SourceKind::of_volume(volume) {
            if let SourceKind::Secret(source) = source {
                found(&source.name);
            }
        }
    } else if let Some(source) = &volume.rbd {
        reference(&source.secret_ref);
    } else if let Some(source) = &volume.secret {
        if let Some(name) = &source.secret_name {
            found(name);
        }
    } else if let Some(source) = &volume.scale_io {
        found(&source.secret_ref.name);
    } else if let Some(source) = &volume.iscsi {
        reference(&source.secret_ref);
    } else if let Some(source) = &volume.storageos {
        reference(&source.secret_ref);
    } else if let Some(source) = &volume.csi {
        reference(&source.node_publish_secret_ref);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod out of the JSON of its `spec`.
    fn pod(spec: &str) -> Pod {
        serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap()
    }

    #[track_caller]
    fn check(spec: &str, config_map_names: &str, secret_names: &str) {
        let words = |names: &str| {
            names
                .split_whitespace()
                .map(SmolStr::new)
                .collect::<BTreeSet<_>>()
        };
        let pod = pod(spec);
        assert_eq!(config_maps(&pod), words(config_map_names), "ConfigMaps");
        assert_eq!(secrets(&pod), words(secret_names), "Secrets");
    }

    const CONTAINER: &str = r#""name":"c",
        "envFrom":[{"configMapRef":{"name":"KIND-from-c"}},{"secretRef":{"name":"KIND-from-s","optional":true}}],
        "env":[{"name":"A","valueFrom":{"configMapKeyRef":{"name":"KIND-key-c","key":"k"}}},
               {"name":"B","valueFrom":{"secretKeyRef":{"name":"KIND-key-s","key":"k","optional":true}}}]"#;

    // managers 1
    #[test]
    fn every_container_kind_contributes_its_environment() {
        let container = |kind| CONTAINER.replace("KIND", kind);
        check(
            &format!(
                r#"{{"initContainers":[{{{}}}],"containers":[{{{}}}],"ephemeralContainers":[{{{}}}]}}"#,
                container("init"),
                container("main"),
                container("debug"),
            ),
            "init-from-c init-key-c main-from-c main-key-c debug-from-c debug-key-c",
            "init-from-s init-key-s main-from-s main-key-s debug-from-s debug-key-s",
        );
    }

    // managers 1
    #[test]
    fn every_volume_type_with_a_secret_contributes_it() {
        check(
            r#"{"containers":[],"imagePullSecrets":[{"name":"pull"}],"volumes":[
                {"name":"1","secret":{"secretName":"secret"}},
                {"name":"2","configMap":{"name":"map"}},
                {"name":"3","projected":{"sources":[{"secret":{"name":"p-secret"}},{"configMap":{"name":"p-map"}},
                    {"secret":{"name":"p-secret2"}}]}},
                {"name":"4","azureFile":{"secretName":"azure","shareName":"s"}},
                {"name":"5","cephfs":{"monitors":[],"secretRef":{"name":"ceph"},"secretFile":"/f"}},
                {"name":"6","cinder":{"volumeID":"v","secretRef":{"name":"cinder"}}},
                {"name":"7","flexVolume":{"driver":"d","secretRef":{"name":"flex"}}},
                {"name":"8","rbd":{"monitors":[],"image":"i","secretRef":{"name":"rbd"}}},
                {"name":"9","scaleIO":{"gateway":"g","system":"s","secretRef":{"name":"scaleio"}}},
                {"name":"10","iscsi":{"targetPortal":"p","iqn":"i","lun":0,"secretRef":{"name":"iscsi"}}},
                {"name":"11","storageos":{"secretRef":{"name":"storageos"}}},
                {"name":"12","csi":{"driver":"d","nodePublishSecretRef":{"name":"csi"}}}]}"#,
            "map p-map",
            "pull secret p-secret p-secret2 azure ceph cinder flex rbd scaleio iscsi storageos csi",
        );
    }

    // managers 2
    #[test]
    fn sources_without_an_object_name_are_not_references() {
        check(
            r#"{"serviceAccountName":"sa","imagePullSecrets":[{"name":""},{}],
                "containers":[{"name":"c","envFrom":[{"secretRef":{"name":""}},{"configMapRef":{}},{"prefix":"P"}],
                    "env":[{"name":"A","value":"v"},
                        {"name":"B","valueFrom":{"fileKeyRef":{"volumeName":"v","path":"p","key":"k"}}}]}],
                "volumes":[
                    {"name":"1","cephfs":{"monitors":[],"secretFile":"/etc/ceph"}},
                    {"name":"2","projected":{"sources":[{"serviceAccountToken":{"path":"t"}},
                        {"clusterTrustBundle":{"name":"b","path":"p"}},
                        {"podCertificate":{"keyType":"ED25519","signerName":"s"}},
                        {"downwardAPI":{}}]}},
                    {"name":"3","persistentVolumeClaim":{"claimName":"claim"}},
                    {"name":"4","secret":{}},
                    {"name":"5","projected":{}},
                    {"name":"6","emptyDir":{}}]}"#,
            "",
            "",
        );
        check("null", "", "");
    }

    #[test]
    fn a_volume_with_several_sources_counts_once() {
        check(
            r#"{"containers":[],"volumes":[
                {"name":"1","secret":{"secretName":"late"},"azureFile":{"secretName":"early","shareName":"s"}},
                {"name":"2","configMap":{"name":"late"},"projected":{"sources":[{"configMap":{"name":"early"}}]}}]}"#,
            "early",
            "early",
        );
    }
}
