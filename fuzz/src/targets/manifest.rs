//! Manifests: every pod is projected from the objects beside it, and no path leaves its volume.

use std::{
    path::{Component, Path},
    sync::Arc,
};

use larder_objects::manifest::{Loader, Manifest, ManifestError, Problem};
use larder_projection::{
    Inputs, Needs, NodeFacts, RuntimeFeatures, ServiceFacts, Unavailable, containers, environment,
    fs_group, memory_limit, mounts, nested_mount_points, pod_volumes, project,
};
use serde_json::Value;

use super::{Reader::OfText, Target, repository_file};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target = Target {
    more_seeds: || {
        let examples = ["01-web", "02-sources", "03-waiting"];
        let examples = examples.map(|name| repository_file(&format!("examples/{name}.yaml")));
        let mut seeds = Vec::from(examples);
        seeds.extend(manifests_of_vectors());
        seeds
    },
    ..Target::new(
        "manifest",
        OfText(run),
        Structure::Tree { prefix: 0 },
        32 << 10,
    )
};

/// Each pod of the vectors with its objects, as one manifest.
fn manifests_of_vectors() -> Vec<Vec<u8>> {
    let cases = repository_file("testdata/vectors/render.json");
    let cases: Value = serde_json::from_slice(&cases).expect("the vectors are JSON");
    let manifest = |case: &Value| {
        let objects = case["objects"].as_array().into_iter().flatten();
        let documents = std::iter::once(&case["pod"]).chain(objects);
        let documents: Vec<_> = documents.map(ToString::to_string).collect();
        documents.join("\n---\n").into_bytes()
    };
    let cases = cases.as_array().into_iter().flatten();
    cases.map(manifest).collect()
}

fn run(text: &str) -> Outcome {
    let mut loader = Loader::new("default");
    loader.text("fuzz", text);
    let manifests = loader.finish();
    let mut outcome = Outcome::new(!manifests.documents.is_empty());
    for error in manifests.errors.iter().chain(&manifests.warnings) {
        if let ManifestError::Document { problem, .. } = error {
            assert_ne!(*problem, Problem::Internal, "the decoder panicked");
            outcome = outcome.with(problem);
        }
    }
    outcome = outcome.with_size(manifests.documents.len());
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
        let needs = Needs::of_pod(pod);
        for name in needs.config_maps {
            let entry = inputs.config_maps.entry(name.to_owned());
            entry.or_insert(Err(Unavailable::NotFound));
        }
        for name in needs.secrets {
            let entry = inputs.secrets.entry(name.to_owned());
            entry.or_insert(Err(Unavailable::NotFound));
        }
        let _ = fs_group(pod);
        let mount_points = nested_mount_points(pod);
        outcome = outcome.with(&mount_points.values().all(Result::is_ok));
        let _ = inputs
            .node
            .as_deref()
            .and_then(|node| memory_limit(pod, node));
        for container in containers(pod) {
            outcome = match environment(pod, container, &inputs) {
                Ok(environment) => {
                    let mounts = mounts(pod, container, &environment, RuntimeFeatures::default());
                    outcome.with(&mounts.is_ok())
                }
                Err(error) => outcome.with(&error),
            };
        }
        for volume in pod_volumes(pod) {
            let projection = match project(pod, volume, &inputs) {
                Ok(projection) => projection,
                Err(error) => {
                    outcome = outcome.with(&error);
                    continue;
                }
            };
            outcome = outcome.with_size(projection.payload.len());
            for path in projection.payload.keys() {
                let is_name = |component| matches!(component, Component::Normal(_));
                assert!(Path::new(path.as_str()).components().all(is_name), "{path}");
                assert!(!path.as_str().starts_with(".."), "{path}");
            }
        }
    }
    outcome
}
