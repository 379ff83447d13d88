//! Rendered pods as JSON, for programs.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::api::core::v1::Volume;
use larder_on_change::parse::AnnotatedHooks;
use larder_projection::{ContainerView, fs_group};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    pod::{ProjectionResult, RenderedContainer, RenderedPod, StartError},
    token::{ShownMount, TOKEN_PATH, TOKEN_VOLUME},
    warnings,
};
use crate::output::{
    json::{file, not_read},
    references::References,
};

#[derive(Serialize)]
struct PodReport<'a> {
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<String>,
    uid: &'a str,
    /// The group to which all files belong, and which may read them.
    #[serde(rename = "fsGroup", skip_serializing_if = "Option::is_none")]
    fs_group: Option<u32>,
    references: References,
    containers: BTreeMap<&'a str, Value>,
    volumes: BTreeMap<&'a str, Value>,
    #[serde(rename = "onChange", skip_serializing_if = "BTreeMap::is_empty")]
    on_change: BTreeMap<&'a str, Value>,
}

/// The key of files that are not known by name.
const ALL: &str = "*";

/// One object with all pods.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'r> {
    pods: Vec<PodReport<'r>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_read: Vec<Value>,
    version: u32,
    /// What deserves a look outside of containers and volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Version of the format; it changes when a program that reads it must change.
const VERSION: u32 = 1;

/// All pods, the paths or objects that could not be read, with the reasons, and what deserves a look in the manifests.
pub(crate) fn document(
    pods: &[RenderedPod<'_>],
    all_not_read: &BTreeSet<(String, String)>,
    warnings: &[String],
) -> impl Serialize {
    let of_pods = pods.iter().flat_map(|pod| {
        warnings::of_pod(pod)
            .into_iter()
            .map(|(place, text)| format!("{}/{}: {place}: {text}", pod.namespace(), pod.label))
    });
    Document {
        warnings: warnings.iter().cloned().chain(of_pods).collect(),
        pods: pods.iter().map(pod).collect(),
        not_read: not_read(all_not_read),
        version: VERSION,
    }
}

/// A value as JSON holds it: U+FFFD replaces each invalid byte, as in Go's encoder.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.into();
    }
    let chunks = bytes.utf8_chunks().map(|chunk| {
        let replaced = "\u{fffd}".repeat(chunk.invalid().len());
        chunk.valid().to_owned() + &replaced
    });
    chunks.collect::<String>().into()
}

/// A container or volume: what it has, or why it has nothing; the values in it that are not known; what deserves a look.
fn part(mut part: Value, unknown: BTreeMap<String, String>, warnings: Vec<String>) -> Value {
    if !unknown.is_empty() {
        part["unknown"] = json!(unknown);
    }
    if !warnings.is_empty() {
        part["warnings"] = warnings.into();
    }
    part
}

fn pod<'a>(rendered: &'a RenderedPod<'a>) -> PodReport<'a> {
    let containers = rendered.containers.iter();
    let volumes = rendered.volumes.values();
    let annotations = rendered.hooks.iter();
    PodReport {
        namespace: rendered.namespace(),
        name: rendered.name(),
        workload: rendered.workload.in_words(),
        uid: rendered.pod.metadata.uid.as_deref().unwrap_or(""),
        fs_group: fs_group(rendered.pod),
        references: References::of(rendered.pod),
        containers: containers
            .map(|(shown, view)| (shown.name, container(rendered, shown, view)))
            .collect(),
        volumes: volumes
            .map(|(shown, projection)| (&*shown.name, volume(rendered, shown, projection)))
            .collect(),
        on_change: annotations
            .map(|annotation| (annotation.annotation.as_str(), hooks(annotation)))
            .collect(),
    }
}

fn container(
    rendered: &RenderedPod<'_>,
    container: &ContainerView<'_>,
    view: &Result<RenderedContainer<'_>, StartError>,
) -> Value {
    let shown = match view {
        Ok(view) => {
            let variables = view
                .environment
                .iter()
                .map(|(name, variable)| (name, text(&variable.value)));
            let mounts: Vec<_> = rendered
                .all_mounts(container, &view.mounts)
                .into_iter()
                .map(mount)
                .collect();
            json!({"env": variables.collect::<BTreeMap<_, _>>(), "mounts": mounts})
        }
        Err(error) => json!({"error": rendered.start_error(error)}),
    };
    let unknown = view.iter().flat_map(|view| {
        let variables = view
            .environment
            .iter()
            .filter_map(|(name, one)| Some((name.to_owned(), one.value.unknown()?.text())));
        let opaque = view
            .environment
            .opaque()
            .into_iter()
            .map(|(name, all)| (name, all.text()));
        let parts = view.mounts.iter().filter_map(|mount| {
            let part = mount.unknown_sub_path.as_ref()?;
            Some((mount.mount_path.clone(), part.text()))
        });
        variables.chain(opaque).chain(parts)
    });
    let mut warnings = rendered.missing_secrets(container);
    let found = view.iter();
    warnings.extend(found.flat_map(|view| warnings::of_container(rendered, container, view)));
    part(shown, unknown.collect(), warnings)
}

fn volume(rendered: &RenderedPod<'_>, volume: &Volume, projection: &ProjectionResult<'_>) -> Value {
    let shown = match projection {
        Ok(projection) => {
            let files = projection.paths().filter_map(|path| {
                let view = projection.look_up(path.as_str());
                let top = view.layers.last().map(|layer| &layer.file);
                let one = top.or(view.below.map(|(file, _)| file))?;
                let owner = one.owner.filter(|_| projection.names_owner);
                let data = BASE64.encode(&*one.data).into();
                Some((path.as_str(), file(one.mode, owner, None, data)))
            });
            json!({"files": files.collect::<BTreeMap<_, _>>()})
        }
        Err(error) => json!({"error": rendered.volume_error(error)}),
    };
    let unknown = projection.iter().flat_map(|projection| {
        let named = projection.paths().filter_map(|path| {
            let term = projection.look_up(path.as_str()).term()?;
            Some((path.to_string(), term.text()))
        });
        named.chain(projection.opaque().map(|all| (ALL.to_owned(), all.text())))
    });
    let warnings = warnings::of_volume(rendered, volume);
    part(shown, unknown.collect(), warnings)
}

fn hooks(annotation: &AnnotatedHooks) -> Value {
    match &annotation.hooks {
        Ok(hooks) => {
            let hooks = hooks
                .iter()
                .map(|hook| json!({"name": hook.name, "action": hook.action()}));
            json!({"hooks": hooks.collect::<Vec<_>>()})
        }
        Err(error) => json!({"error": error.to_string()}),
    }
}

/// One mount. A part of the volume that is not known is empty.
fn mount(shown: ShownMount<'_>) -> Value {
    let ShownMount::Own(mount) = shown else {
        return json!({"path": TOKEN_PATH, "volume": TOKEN_VOLUME, "readOnly": true});
    };
    let mut json = json!({
        "path": mount.mount_path,
        "volume": mount.volume.name,
        "readOnly": mount.read_only,
    });
    if let Some(path) = &mount.sub_path {
        let path = if mount.unknown_sub_path.is_some() {
            ""
        } else {
            path
        };
        json["subPath"] = path.into();
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_invalid_byte_is_replaced() {
        // The first two bytes of a three-byte character, and a byte that begins no character.
        assert_eq!(text(b"a\xe2\x82b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}");
        assert_eq!(text("ü".as_bytes()), "ü");
    }
}
