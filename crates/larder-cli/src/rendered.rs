//! Pods as their containers see them: computed, and as JSON.

mod json;
mod pod;

use larder_objects::{chain, manifest::Loader};

pub(crate) use self::{
    json::write as write_json,
    pod::{RenderedPod, StartError, mount_table},
};
use crate::offline::{ClusterObjects, Offline};

/// What the pods of `manifests` see, as `larder render -o json` prints it.
///
/// # Errors
///
/// The text is not UTF-8, or no manifest can be read; the reason quotes no value.
pub(crate) fn project_text(manifests: &[u8]) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(manifests).map_err(|_| "not UTF-8".to_owned())?;
    let mut loader = Loader::new("default");
    loader.text("body", text);
    let manifests = loader.finish();
    if !manifests.errors.is_empty() {
        let errors: Vec<_> = manifests.errors.iter().map(|error| chain(error)).collect();
        return Err(errors.join("\n"));
    }
    if manifests.documents.is_empty() {
        return Err("no manifest in the body".to_owned());
    }
    let offline = Offline::new(manifests, ClusterObjects::FromManifests);
    let inputs: Vec<_> = offline
        .pods
        .iter()
        .map(|pod| offline.inputs(&pod.pod))
        .collect();
    let pods = offline.pods.iter().zip(&inputs);
    let rendered: Vec<_> = pods
        .map(|(pod, inputs)| RenderedPod::new(pod, inputs, &offline))
        .collect();
    let mut json = Vec::new();
    write_json(&mut json, &rendered).map_err(|error| error.to_string())?;
    Ok(json)
}
