//! Manifests: nothing panics, and what was read can be projected or says why not.

#![no_main]

use larder_objects::manifest::Loader;
use larder_projection::{Inputs, Needs, RuntimeFeatures, containers, environment, mounts, project};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut loader = Loader::new("default");
    loader.text("fuzz", text);
    let manifests = loader.finish();
    for error in &manifests.errors {
        let _ = error.to_string();
    }
    let inputs = Inputs {
        services: Some(Vec::new().into()),
        ..Inputs::default()
    };
    for pod in manifests.pods() {
        let _ = Needs::of_pod(pod);
        for container in containers(pod) {
            if let Ok(environment) = environment(pod, container, &inputs) {
                let _ = mounts(pod, container, &environment, RuntimeFeatures::default());
            }
        }
        for volume in pod
            .spec
            .iter()
            .flat_map(|spec| spec.volumes.iter().flatten())
        {
            let _ = project(pod, volume, &inputs);
        }
    }
});
