//! Fields that a kind does not have. Most are misspelt, and an object without them is not what its author meant.
//!
//! A type that was decoded from JSON and is written as JSON again has every field that it knows; what is missing then is unknown.

use serde::Serialize;
use serde_json::Value;

/// Paths of the fields of `value` that `decoded`, which was read from it, does not have.
pub(super) fn unknown_fields(value: &Value, decoded: &impl Serialize) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Ok(known) = serde_json::to_value(decoded) {
        compare(value, &known, "", &mut unknown);
    }
    unknown
}

/// Keys of `object` that are neither `known` nor common to all kinds. For types that are not written as JSON.
pub(super) fn unknown_keys(object: &Value, known: &[&str]) -> Vec<String> {
    let keys = object
        .as_object()
        .into_iter()
        .flat_map(|fields| fields.keys());
    keys.filter(|key| {
        !matches!(&***key, "apiVersion" | "kind" | "metadata") && !known.contains(&&***key)
    })
    .cloned()
    .collect()
}

fn compare(value: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (value, known) {
        (Value::Object(fields), Value::Object(known)) => {
            for (key, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{key}");
                match known.get(key) {
                    Some(known) => compare(value, known, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(values), Value::Array(known)) => {
            for (index, (value, known)) in values.iter().zip(known).enumerate() {
                compare(value, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    #[test]
    fn misspelt_fields_are_found_and_all_others_are_known() {
        let value = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"anything.goes/here": "x"}, "lables": {}},
            "spec": {
                "containers": [
                    {"name": "a", "env": [], "resources": {"limits": {"x.com/gpu": 1}}, "ports": [{"containerPort": 80}]},
                    {"name": "b", "evn": [{"name": "X"}]},
                ],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configmap": {"name": "m"}}],
                "overhead": {}, "tolerations": [{}],
            },
            "status": {"phase": "Running", "podIPs": [{"ip": "::1"}]},
        });
        let pod: Pod = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(
            unknown_fields(&value, &pod),
            [
                "metadata.lables",
                "spec.containers[1].evn",
                "spec.volumes[1].configmap"
            ]
        );
    }

    #[test]
    fn keys_beside_the_known_ones_are_found() {
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {}, "Data": {}});
        assert_eq!(unknown_keys(&value, &["data"]), ["Data"]);
    }
}
