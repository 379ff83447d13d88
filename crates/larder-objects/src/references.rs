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
//! 3. A volume contributes through one source only: the first of a fixed order, should it carry several.
//! 4. Names stand for objects in the pod's own namespace; nothing behind a claim (PVC, PV) is followed.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, LocalObjectReference, Pod, Volume};
use smol_str::SmolStr;

use crate::Kind;

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
    of_kind(pod, Kind::ConfigMap)
}

/// Names of the Secrets that `pod` refers to, in its own namespace.
pub fn secrets(pod: &Pod) -> BTreeSet<SmolStr> {
    of_kind(pod, Kind::Secret)
}

/// Names of the objects of `kind` that `pod` refers to, in its own namespace.
pub fn of_kind(pod: &Pod, kind: Kind) -> BTreeSet<SmolStr> {
    let mut names = BTreeSet::new();
    visit(pod, kind, &mut |name| {
        names.insert(SmolStr::new(name));
    });
    names
}

/// Calls `found` for every reference of `pod` to an object of `kind`, repeated names included; allocates nothing.
pub fn visit<'a>(pod: &'a Pod, kind: Kind, found: &mut impl FnMut(&'a str)) {
    let Some(spec) = &pod.spec else { return };
    let found = &mut |name: &'a str| {
        if !name.is_empty() {
            found(name);
        }
    };
    if kind == Kind::Secret {
        for reference in spec.image_pull_secrets.iter().flatten() {
            found(&reference.name);
        }
    }
    for container in spec.init_containers.iter().flatten() {
        visit_container(&container.env_from, &container.env, kind, found);
    }
    for container in &spec.containers {
        visit_container(&container.env_from, &container.env, kind, found);
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        visit_container(&container.env_from, &container.env, kind, found);
    }
    for volume in spec.volumes.iter().flatten() {
        match kind {
            Kind::ConfigMap => visit_config_maps(volume, found),
            Kind::Secret => visit_secrets(volume, found),
        }
    }
}

#[expect(
    clippy::ref_option,
    reason = "the fields of three container types, as they are"
)]
fn visit_container<'a>(
    env_from: &'a Option<Vec<EnvFromSource>>,
    env: &'a Option<Vec<EnvVar>>,
    kind: Kind,
    found: &mut impl FnMut(&'a str),
) {
    for source in env_from.iter().flatten() {
        let name = match kind {
            Kind::ConfigMap => source.config_map_ref.as_ref().map(|source| &source.name),
            Kind::Secret => source.secret_ref.as_ref().map(|source| &source.name),
        };
        if let Some(name) = name {
            found(name);
        }
    }
    for source in env
        .iter()
        .flatten()
        .filter_map(|variable| variable.value_from.as_ref())
    {
        let name = match kind {
            Kind::ConfigMap => source.config_map_key_ref.as_ref().map(|key| &key.name),
            Kind::Secret => source.secret_key_ref.as_ref().map(|key| &key.name),
        };
        if let Some(name) = name {
            found(name);
        }
    }
}

fn visit_config_maps<'a>(volume: &'a Volume, found: &mut impl FnMut(&'a str)) {
    if let Some(projected) = &volume.projected {
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.config_map {
                found(&source.name);
            }
        }
    } else if let Some(source) = &volume.config_map {
        found(&source.name);
    }
}

fn visit_secrets<'a>(volume: &'a Volume, found: &mut impl FnMut(&'a str)) {
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
    } else if let Some(projected) = &volume.projected {
        for source in projected.sources.iter().flatten() {
            if let Some(source) = &source.secret {
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
