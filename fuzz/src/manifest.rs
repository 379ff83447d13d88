//! Manifests: every pod is projected from the objects beside it, and no path leaves its volume.

use std::{
    path::{Component, Path},
    sync::Arc,
};

use larder_objects::{
    Kind,
    manifest::{Loader, Manifest, ManifestError, Problem},
};
use larder_projection::{
    Inputs, Need, NodeFacts, RuntimeFeatures, ServiceFacts, Unavailable, containers, environment,
    fs_group, memory_limit, mounts, nested_mount_points, pod_volumes, project,
};

/// Reads an input; `None` if every document of it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    let text = str::from_utf8(input).ok()?;
    let mut loader = Loader::new("default");
    loader.text("fuzz", text);
    let manifests = loader.finish();
    let is_accepted = !manifests.documents.is_empty();
    for error in manifests.errors.iter().chain(&manifests.warnings) {
        if let ManifestError::Document { problem, .. } = error {
            assert_ne!(*problem, Problem::Internal, "the decoder panicked");
        }
    }
    let (mut pods, mut found, mut services) = (Vec::new(), Inputs::default(), Vec::new());
    for document in manifests.documents {
        let name = document.object.pointer("/metadata/name");
        let name = name.and_then(|name| name.as_str()).unwrap_or_default();
        match document.manifest {
            Manifest::Pod(pod) => pods.push(pod),
            Manifest::ConfigMap(map) => {
                found.config_maps.insert(name.to_owned(), Ok(Arc::new(map)));
            }
            Manifest::Secret(secret) => {
                found.secrets.insert(name.to_owned(), Ok(Arc::new(secret)));
            }
            Manifest::Service(service) => services.extend(ServiceFacts::new(&service)),
            Manifest::Node(node) => found.node = Some(Arc::new(NodeFacts::new(&node))),
            _ => {}
        }
    }
    found.services = Some(services.into());
    for pod in &pods {
        let mut inputs = found.clone();
        for need in Need::of_pod(pod) {
            let missing = Unavailable::NotFound;
            match need {
                Need::Object(Kind::ConfigMap, name) => {
                    let entry = inputs.config_maps.entry(name.into());
                    entry.or_insert(Err(missing));
                }
                Need::Object(Kind::Secret, name) => {
                    let entry = inputs.secrets.entry(name.into());
                    entry.or_insert(Err(missing));
                }
                _ => {}
            }
        }
        let _ = fs_group(pod);
        let _ = nested_mount_points(pod);
        let _ = inputs
            .node
            .as_deref()
            .and_then(|node| memory_limit(pod, node));
        for container in containers(pod) {
            if let Ok(environment) = environment(pod, container, &inputs) {
                let _ = mounts(pod, container, &environment, RuntimeFeatures::default());
            }
        }
        for volume in pod_volumes(pod) {
            let Ok(projection) = project(pod, volume, &inputs) else {
                continue;
            };
            for path in projection.payload.keys() {
                let is_name = |component| matches!(component, Component::Normal(_));
                assert!(Path::new(path.as_str()).components().all(is_name), "{path}");
                assert!(!path.as_str().starts_with(".."), "{path}");
            }
        }
    }
    is_accepted.then_some(())
}
