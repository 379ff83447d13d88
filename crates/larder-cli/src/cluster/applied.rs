//! Manifests applied to what the API server has, as by `kubectl apply`: three-way, with the manifest that was applied last.

use anyhow::Context as _;
use larder_objects::{
    manifest::{Document, Loader, ManifestError, RawObject},
    patch::{ListRules, applied},
};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::outcome::Failure;

/// The annotation in which `kubectl apply` keeps the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The immutable field of a workload, and the kinds that have it.
const SELECTOR: &str = "/spec/selector";
const SELECTING: [&str; 4] = ["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"];
/// Prefix of the volume with a token that the API server adds to each pod.
const ADDED_VOLUME: &str = "kube-api-access-";

/// Makes of a document what `kubectl apply` would make of the object with it.
///
/// # Errors
///
/// The API server would reject the result.
pub(super) fn apply(document: &mut Document, live: &LiveObject) -> Result<(), Box<ManifestError>> {
    let Some(written) = &document.written else {
        return Ok(());
    };
    // A pod that stands for its workload has no fields of it.
    if live.object["kind"] != written["kind"] {
        return Ok(());
    }
    let is_custom = document
        .workload
        .as_ref()
        .is_some_and(|workload| workload.kind.contains('.'));
    let lists = if is_custom {
        ListRules::Whole
    } else {
        ListRules::Keyed
    };
    let object = live.object.clone().into_value();
    let applied = applied(object, &live.last_applied, written, lists)
        .map_err(|error| Box::new(document.error(error.to_string())))?;
    let selector = live.object.pointer(SELECTOR);
    let is_fixed = selector.is_some() && SELECTING.contains(&written.text("/kind"));
    if is_fixed && applied.pointer(SELECTOR) != selector {
        let why = "spec.selector: field is immutable".to_owned();
        return Err(Box::new(document.error(why)));
    }
    let applied = RawObject::new(applied);
    let mut loader = Loader::new(document.object.key().namespace)
        .by_workload()
        .any_template();
    loader.text(&document.origin.file, &Zeroizing::new(applied.to_string()));
    let mut applied = loader.finish();
    if let Some(error) = applied.errors.pop() {
        return Err(error.at(&document.origin).into());
    }
    if let Some(mut applied) = applied.documents.pop() {
        applied.origin = document.origin.clone();
        *document = applied;
    }
    Ok(())
}

/// An object that the API server has.
pub(super) struct LiveObject {
    /// Without the fields that only the API server sets.
    pub(super) object: RawObject,
    /// What `kubectl apply` applied last, if it did; else null.
    last_applied: RawObject,
}

impl LiveObject {
    pub(super) fn of(answer: &[u8]) -> Result<Self, Failure> {
        let object: Value =
            serde_json::from_slice(answer).context("cannot read an answer of the API server")?;
        let object = RawObject::new(object);
        let place = format!("/metadata/annotations/{}", LAST_APPLIED.replace('/', "~1"));
        let last_applied = serde_json::from_str(object.text(&place)).unwrap_or_default();
        Ok(Self {
            last_applied: RawObject::new(last_applied),
            object: RawObject::new(without_server_fields(object.into_value())),
        })
    }

    pub(super) fn text(&self) -> Zeroizing<String> {
        Zeroizing::new(self.object.to_string())
    }
}

/// An object as a manifest: without the fields that only the API server sets, except what says where a pod runs.
fn without_server_fields(mut object: Value) -> Value {
    let mut retain = |place: &str, is_kept| retain(object.pointer_mut(place), is_kept);
    retain("/metadata/annotations", |field| field != LAST_APPLIED);
    retain("/metadata", |field| field != "managedFields");
    if object["kind"] == "Pod" {
        let mut retain = |place: &str, is_kept| self::retain(object.pointer_mut(place), is_kept);
        retain("/metadata", |field| field != "uid");
        retain("/status", |field| matches!(field, "hostIP" | "hostIPs"));
        retain("/spec/volumes", is_own_volume);
        for containers in ["/spec/initContainers", "/spec/containers"] {
            let containers = object.pointer_mut(containers).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                self::retain(container.get_mut("volumeMounts"), is_own_volume);
            }
        }
    }
    object
}

/// Whether no component of the API server has added the volume.
fn is_own_volume(name: &str) -> bool {
    !name.starts_with(ADDED_VOLUME)
}

/// Keeps the fields of an object, or the entries of a list, whose name `is_kept`.
fn retain(part: Option<&mut Value>, is_kept: fn(&str) -> bool) {
    match part {
        Some(Value::Object(fields)) => fields.retain(|name, _| is_kept(name)),
        Some(Value::Array(entries)) => {
            entries.retain(|entry| is_kept(entry["name"].as_str().unwrap_or_default()));
        }
        _ => {}
    }
}
