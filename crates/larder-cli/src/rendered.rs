//! Pods as their containers see them: computed, and as JSON.
//!
//! | module | purpose |
//! | --- | --- |
//! | `pod` | a pod with the variables and volumes of its containers |
//! | `container` | everything that one container sees, by the paths in it |
//! | `start` | what a container needs to start |
//! | `outside` | what it needs besides what larder delivers |
//! | `token` | the volume with a token that the API server adds |
//! | `hints` | what may be wrong where something is missing |
//! | `warnings` | what is allowed and often a mistake |
//! | `words` | values, sizes and sources as text |
//! | `json` | rendered pods for programs |

mod container;
mod hints;
mod json;
mod outside;
mod pod;
mod start;
mod token;
mod warnings;
pub(crate) mod words;

use std::collections::BTreeSet;

use larder_objects::{chain, manifest::Loader};
use larder_projection::containers;

pub(crate) use self::{
    container::{ContainerContent, MountedFile, PathTerm, files_below, path_in_volume},
    hints::keys,
    json::{document, text},
    pod::{RenderedPod, StartError, mount_table},
    start::Start,
    token::ShownMount,
};
use crate::{
    input,
    offline::{ClusterObjects, Offline},
    output::json::write_json,
};

/// Most bytes of variables and files in one projection.
const MAX_PROJECTED_BYTES: usize = 64 << 20;

/// Rough size of the variables that one Service brings into a container.
const SERVICE_BYTES: usize = 256;

/// The view of the pods of `manifests`, as `larder render -o json` prints it.
///
/// # Errors
///
/// The text is not UTF-8, or no manifest can be read; the reason quotes no value.
pub(crate) fn project_text(manifests: &[u8]) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(manifests).map_err(|_| "not UTF-8".to_owned())?;
    let mut loader = Loader::new("default").by_workload();
    loader.text("body", text);
    let manifests = loader.finish();
    if !manifests.errors.is_empty() {
        let errors: Vec<_> = manifests.errors.iter().map(|error| chain(error)).collect();
        return Err(errors.join("\n"));
    }
    if manifests.documents.is_empty() {
        return Err("no manifest in the body".to_owned());
    }
    let warnings: Vec<_> = input::warnings(&manifests, &[])
        .into_iter()
        .chain(input::left_out(&manifests))
        .collect();
    let offline = Offline::new(manifests, ClusterObjects::FromManifests);
    let mut rendered = Vec::new();
    let mut bytes = 0;
    for pod in &offline.pods {
        // Each container gets variables for each Service, so check their size before they are computed.
        let services = pod
            .inputs
            .services
            .as_ref()
            .map_or(0, |services| services.len());
        bytes += containers(&pod.pod).count() * services * SERVICE_BYTES;
        if bytes <= MAX_PROJECTED_BYTES {
            let pod = RenderedPod::new(pod, &offline);
            bytes += pod.bytes();
            rendered.push(pod);
        }
        // Many volumes may show one object, so the answer has no bound in the length of the body.
        if bytes > MAX_PROJECTED_BYTES {
            return Err(format!(
                "the projection has more than {} MiB: send fewer pods at once",
                MAX_PROJECTED_BYTES >> 20
            ));
        }
    }
    let mut json = Vec::new();
    write_json(&mut json, &document(&rendered, &BTreeSet::new(), &warnings))
        .map_err(|error| error.to_string())?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(bytes: usize) -> String {
        let value = "x".repeat(bytes);
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: big}}, data: {{k: {value}}}}}"
        )
    }

    #[test]
    fn projection_of_many_volumes_of_one_object_is_bounded() {
        let volumes: Vec<_> = (0..100)
            .map(|number| format!("{{name: v{number}, configMap: {{name: big}}}}"))
            .collect();
        let pod = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{containers: [{{name: c, image: i}}], volumes: [{}]}}}}",
            volumes.join(", ")
        );
        let small = [config_map(1000), pod.clone()].join("\n---\n");
        assert!(project_text(small.as_bytes()).is_ok());
        let large = [config_map(1_000_000), pod].join("\n---\n");
        let error = project_text(large.as_bytes()).unwrap_err();
        assert!(error.contains("more than 64 MiB"), "{error}");
    }
}
