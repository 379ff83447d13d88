//! Turns the JSON of a document into the JSON of one object that can be decoded and stored.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::{Problem, controllers, typed::wrong_type};
use crate::{FieldPath, go_base64, stable_pod_uid};

/// Fields that map names to text; in these, `null` is an empty text, elsewhere it is an absent field.
const TEXT_MAPS: [&str; 9] = [
    "annotations",
    "binaryData",
    "data",
    "labels",
    "matchLabels",
    "nodeSelector",
    "options",
    "stringData",
    "volumeAttributes",
];

/// Replaces `null` by what Go makes of it: an empty text where a field maps names to text, elsewhere nothing.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            for (key, value) in map {
                match value {
                    Value::Object(entries) if TEXT_MAPS.contains(&&**key) => {
                        for entry in entries.values_mut().filter(|entry| entry.is_null()) {
                            *entry = Value::String(String::new());
                        }
                    }
                    _ => drop_nulls(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Encodes bytes that `field` lists as numbers, which the API server takes for the same.
pub fn encode_bytes(object: &mut Map<String, Value>, field: &str) {
    let entries = object.get_mut(field).and_then(Value::as_object_mut);
    for value in entries.into_iter().flat_map(Map::values_mut) {
        let Some(items) = value.as_array() else {
            continue;
        };
        let byte = |item: &Value| u8::try_from(item.as_u64()?).ok();
        // A value that is not a list of bytes stays, and is rejected later.
        if let Some(bytes) = items.iter().map(byte).collect::<Option<Vec<u8>>>() {
            *value = BASE64.encode(Zeroizing::new(bytes)).into();
        }
    }
}

/// Moves `stringData` of a Secret into `data`, where it wins, as the API server does on every write. What it replaces
/// there must be base64 all the same.
///
/// # Errors
///
/// A field has the wrong type.
pub fn fold_string_data(secret: &mut Map<String, Value>) -> Result<(), Problem> {
    let entries = match secret.remove("stringData") {
        None => return Ok(()),
        Some(Value::Object(entries)) if entries.is_empty() => return Ok(()),
        Some(Value::Object(entries)) => entries,
        Some(other) => return Err(wrong_type("stringData", "a mapping", &other)),
    };
    let data = secret.entry("data").or_insert_with(|| json!({}));
    let Value::Object(data) = data else {
        return Err(wrong_type("data", "a mapping", data));
    };
    for (key, value) in entries {
        let Value::String(text) = value else {
            let field = FieldPath::fields("stringData").key(&key);
            return Err(wrong_type(field, "a string", &value));
        };
        let replaced = data.get(&key).and_then(Value::as_str);
        if replaced.is_some_and(|text| go_base64::decode(text).is_err()) {
            return Err(Problem::Type {
                field: FieldPath::fields("data").key(&key),
                problem: "value is not base64; text belongs in stringData".to_owned(),
            });
        }
        let encoded = BASE64.encode(Zeroizing::new(text).as_bytes());
        data.insert(key, encoded.into());
    }
    Ok(())
}

/// Gives the object a namespace, if it has none.
pub(super) fn set_namespace(metadata: &mut Map<String, Value>, namespace: &str) {
    let missing = metadata
        .get("namespace")
        .is_none_or(|value| value.as_str() == Some(""));
    if missing {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
}

/// Gives a pod the UID that its name stands for, if it has none.
pub(super) fn set_uid(metadata: &mut Map<String, Value>) {
    let text = |key| metadata.get(key).and_then(Value::as_str).unwrap_or("");
    // Of another type, it stays and is rejected.
    let has_none = metadata.get("uid").is_none_or(|uid| uid == "");
    if has_none {
        let uid = stable_pod_uid(text("namespace"), text("name"));
        metadata.insert("uid".to_owned(), uid.into());
    }
}

/// The pod that a workload would start: its template, under the workload's own name.
///
/// Real pods of a Deployment have random names; one pod stands for all of them here, and the workload's name is the
/// stable choice. Each claim template of a StatefulSet becomes a volume, as its controller makes them.
pub(super) fn pod_of_workload(
    mut workload: Value,
    template: &'static str,
) -> Result<Value, Problem> {
    let name = controllers::pod_name(&workload);
    let claims = controllers::claims(&workload);
    let mut take = |pointer: &str| {
        workload
            .pointer_mut(pointer)
            .map_or(Value::Null, Value::take)
    };
    let namespace = take("/metadata/namespace");
    let pointer = format!("/{}", template.replace('.', "/"));
    let Value::Object(mut pod) = take(&pointer) else {
        let field = template.into();
        return Err(Problem::Missing { field });
    };
    let mut metadata = match pod.remove("metadata") {
        Some(Value::Object(metadata)) => metadata,
        None => Map::new(),
        Some(other) => return Err(wrong_type("metadata", "a mapping", &other)),
    };
    for key in ["generateName", "uid"] {
        metadata.remove(key);
    }
    let mut spec = pod.remove("spec").unwrap_or_else(|| json!({}));
    add_claims(&mut spec, claims);
    metadata.insert("name".to_owned(), name);
    metadata.insert("namespace".to_owned(), namespace);
    Ok(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
}

/// Adds the volumes of `claims`, which replace those of their names.
fn add_claims(spec: &mut Value, claims: BTreeMap<String, String>) {
    let Value::Object(spec) = spec else { return };
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    let Value::Array(volumes) = volumes else {
        return;
    };
    let name = |volume: &Value| {
        volume
            .get("name")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    volumes.retain(|volume| !name(volume).is_some_and(|name| claims.contains_key(&name)));
    let added = claims
        .into_iter()
        .map(|(name, claim)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
    volumes.extend(added);
}
