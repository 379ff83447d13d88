//! The part of metadata that the server writes: identity, times, versions.
//!
//! Source: kube-apiserver 1.36, `apiserver/pkg/registry/rest/{create,update}.go`.

use std::collections::HashSet;

use larder_objects::{ObjectKey, manifest::generated_name, uuid};
use serde_json::{Map, Value};

use super::{Part, kinds::copy, name};
use crate::{
    clock::Clock,
    json::{items, text},
    resource::{ApiKind, Resource},
    status::{ApiError, Cause},
};

/// Fields that no client sets.
const SERVER_SET: [&str; 5] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "uid",
];

/// Fields that this server does not keep: it does not track field managers.
const NOT_KEPT: [&str; 2] = ["managedFields", "selfLink"];

/// Prepares the metadata of a new object. Returns whether its name was generated, and may be again.
pub(super) fn for_create(
    value: &mut Value,
    resource: &Resource,
    namespace: Option<&str>,
    part: Part,
    clock: &Clock,
) -> Result<bool, ApiError> {
    let stated = (part == Part::Whole).then(|| text(value, "/metadata/uid").to_owned());
    let uid = stated.filter(|uid| !uid.is_empty()).unwrap_or_else(new_uid);
    let metadata = metadata(value);
    if metadata.contains_key("resourceVersion") && metadata["resourceVersion"] != "" {
        return Err(ApiError::unexpected(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let set = SERVER_SET.iter().chain(&NOT_KEPT);
    for field in set.chain(&["resourceVersion"]) {
        metadata.remove(*field);
    }
    set_namespace(metadata, namespace)?;
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), clock.rfc3339().into());
    if counts_generation(resource) {
        metadata.insert("generation".to_owned(), 1.into());
    }
    let generated = name(value).is_empty();
    if generated {
        if text(value, "/metadata/generateName").is_empty() {
            let cause = Cause::required("metadata.name", "name or generateName is required");
            return Err(ApiError::invalid(resource.name, "", vec![cause]));
        }
        generate_name(value);
    }
    Ok(generated)
}

/// Carries over from `old` what a client cannot change. The uid of a replacement is a precondition (409); in a patch it
/// is a field like others, which cannot change (422).
pub(super) fn for_update(
    old: &Value,
    value: &mut Value,
    resource: &Resource,
    key: &ObjectKey,
    by_patch: bool,
) -> Result<(), ApiError> {
    check_name(name(value), &key.name)?;
    let version = text(value, "/metadata/resourceVersion");
    if !version.is_empty() && version != text(old, "/metadata/resourceVersion") {
        return Err(ApiError::modified(resource.kind, &key.name));
    }
    let (uid, held) = (text(value, "/metadata/uid"), text(old, "/metadata/uid"));
    if !uid.is_empty() && uid != held && by_patch {
        let why = format_args!("{uid:?}: field is immutable");
        let cause = Cause::invalid("metadata.uid", why);
        return Err(ApiError::invalid(resource.name, &key.name, vec![cause]));
    }
    if !uid.is_empty() && uid != held {
        // The key is that of kube-apiserver's storage.
        let plural = resource.plural;
        let place = match &*key.namespace {
            "" => format!("/registry/{plural}/{}", key.name),
            namespace => format!("/registry/{plural}/{namespace}/{}", key.name),
        };
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {place}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, UID in object meta: {held}"
        );
        return Err(ApiError::conflict(resource.kind, &key.name, &why));
    }
    let metadata = metadata(value);
    for field in NOT_KEPT {
        metadata.remove(field);
    }
    let namespace = (!key.namespace.is_empty()).then_some(key.namespace.as_str());
    set_namespace(metadata, namespace)?;
    let named = ["name", "generateName", "resourceVersion"];
    for field in SERVER_SET.iter().chain(&named) {
        copy(&old["metadata"][*field], &mut value["metadata"], field);
    }
    if !value["metadata"]["deletionTimestamp"].is_null() {
        let held: HashSet<_> = finalizers(old).collect();
        let is_new = |new: &&str| !held.contains(new);
        let added: Vec<_> = finalizers(value).filter(is_new).collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
            );
            let cause = Cause::forbidden("metadata.finalizers", why);
            return Err(ApiError::invalid(resource.name, &key.name, vec![cause]));
        }
    }
    Ok(())
}

/// Checks that a name which an object states is the one on the URL.
pub(super) fn check_name(given: &str, name: &str) -> Result<(), ApiError> {
    if given.is_empty() || given == name {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the name of the object ({given}) does not match the name on the URL ({name})"
    )))
}

fn set_namespace(
    metadata: &mut Map<String, Value>,
    namespace: Option<&str>,
) -> Result<(), ApiError> {
    let given = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !given.is_empty() && given != namespace.unwrap_or_default() {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    match namespace {
        Some(namespace) => metadata.insert("namespace".to_owned(), namespace.into()),
        None => metadata.remove("namespace"),
    };
    Ok(())
}

/// Raises `generation` when the spec differs.
pub(super) fn count_generation(old: &Value, value: &mut Value, resource: &Resource) {
    if counts_generation(resource) && old["spec"] != value["spec"] {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        value["metadata"]["generation"] = (generation + 1).into();
    }
}

/// Of our kinds only pods count generations.
fn counts_generation(resource: &Resource) -> bool {
    resource.kind == ApiKind::Pod
}

/// Whether nothing keeps an object that is being deleted.
pub(super) fn is_finished(value: &Value) -> bool {
    let metadata = &value["metadata"];
    let waits = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) > 0;
    // Only a namespace has these: it stays until it is empty.
    let kept_by_content = value["spec"]["finalizers"]
        .as_array()
        .is_some_and(|finalizers| !finalizers.is_empty());
    !metadata["deletionTimestamp"].is_null()
        && !waits
        && !kept_by_content
        && finalizers(value).next().is_none()
}

/// `metadata.finalizers`.
pub(super) fn finalizers(value: &Value) -> impl Iterator<Item = &str> {
    items(value, "/metadata/finalizers").filter_map(Value::as_str)
}

/// Names the object by its `generateName` and five random characters.
pub(super) fn generate_name(value: &mut Value) {
    let prefix = text(value, "/metadata/generateName");
    let name = generated_name(prefix, |count| fastrand::usize(..count));
    metadata(value).insert("name".to_owned(), name.into());
}

pub(super) fn new_uid() -> String {
    uuid(fastrand::u128(..), 4)
}

fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    value["metadata"]
        .as_object_mut()
        .expect("the decoder gives every object metadata")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn uids_are_version_4() {
        let (a, b) = (new_uid(), new_uid());
        assert_ne!(a, b);
        assert_eq!(a.len(), 36);
        assert_eq!(&a[14..15], "4", "{a}");
        assert!(matches!(&a[19..20], "8" | "9" | "a" | "b"), "{a}");
    }

    #[test]
    fn generated_names_keep_within_a_label() {
        let mut value = json!({"metadata": {"generateName": "x".repeat(80)}});
        generate_name(&mut value);
        assert_eq!(name(&value).len(), 63);
    }
}
