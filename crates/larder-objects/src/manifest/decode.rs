//! From the JSON of one object to the typed object.

use k8s_openapi::{
    api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta as FullMetadata,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use serde_path_to_error::Segment;

use super::{
    Manifest, Problem, RawObject,
    kind::ObjectKind,
    normalize::{self, TEXT_MAPS},
    unknown::{unknown_fields, unknown_keys},
};
use crate::{
    ConfigMap, Secret, defaults,
    validation::{self, FieldErrors},
};

/// What an object turned out to be.
pub(super) enum Recognized {
    Object(Box<Decoded>),
    /// A kind that larder has no use for, as `ClusterRole.rbac.authorization.k8s.io`.
    Useless(String),
}

/// An object, decoded.
pub(super) struct Decoded {
    /// The kind after templates were taken out: a Deployment is a Pod here.
    pub(super) kind: &'static str,
    pub(super) workload: Option<String>,
    pub(super) object: RawObject,
    pub(super) manifest: Manifest,
    /// Paths of fields that the kind does not have.
    pub(super) unknown: Vec<String>,
}

/// Decodes `object`; without a namespace of its own it is put into `namespace`, and without a UID a pod gets one if `uids`.
pub(super) fn recognize(
    object: RawObject,
    namespace: &str,
    uids: bool,
) -> Result<Recognized, Problem> {
    let Value::Object(fields) = &*object else {
        return Err(Problem::NotAnObject);
    };
    let api_version = required_text(fields, "apiVersion", "apiVersion")?;
    let kind_name = required_text(fields, "kind", "kind")?;
    let kind = ObjectKind::of(api_version, kind_name);
    match kind {
        ObjectKind::Unknown => {
            return Err(Problem::UnknownKind {
                kind: kind_name.to_owned(),
                api_version: api_version.to_owned(),
            });
        }
        ObjectKind::List if kind_name == "List" => {
            return Err(Problem::Syntax(
                "a List cannot be an item of a list".to_owned(),
            ));
        }
        ObjectKind::Other | ObjectKind::List => {
            let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
            let dot = if group.is_empty() { "" } else { "." };
            return Ok(Recognized::Useless(format!("{kind_name}{dot}{group}")));
        }
        _ => {}
    }
    match fields.get("metadata") {
        Some(Value::Object(metadata)) => required_text(metadata, "name", "metadata.name")?,
        None | Some(Value::Null) => return Err(missing("metadata.name")),
        Some(other) => return Err(wrong_type("metadata", "a mapping", other)),
    };
    let decoded = typed(object.into_value(), kind, namespace, uids)?;
    Ok(Recognized::Object(Box::new(decoded)))
}

fn required_text<'a>(
    fields: &'a Map<String, Value>,
    key: &str,
    path: &str,
) -> Result<&'a str, Problem> {
    match fields.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        None | Some(Value::Null | Value::String(_)) => Err(missing(path)),
        Some(other) => Err(wrong_type(path, "a string", other)),
    }
}

fn missing(field: &str) -> Problem {
    Problem::Missing {
        field: field.to_owned(),
    }
}

fn typed(
    mut value: Value,
    kind: ObjectKind,
    namespace: &str,
    uids: bool,
) -> Result<Decoded, Problem> {
    normalize::drop_nulls(&mut value);
    if let (true, Some(metadata)) = (kind.is_namespaced(), metadata_mut(&mut value)) {
        normalize::set_namespace(metadata, namespace);
    }
    if let ObjectKind::Workload(template) = kind {
        return workload(value, template);
    }
    match (kind, value.as_object_mut()) {
        (ObjectKind::ConfigMap, Some(fields)) => normalize::encode_bytes(fields, "binaryData"),
        (ObjectKind::Secret, Some(fields)) => {
            normalize::encode_bytes(fields, "data");
            normalize::fold_string_data(fields)?;
        }
        _ => {}
    }
    if let (ObjectKind::Pod, true, Some(metadata)) = (kind, uids, metadata_mut(&mut value)) {
        normalize::set_uid(metadata);
    }
    if kind == ObjectKind::ClusterTrustBundle {
        // One form in all versions of the API.
        value["apiVersion"] = "certificates.k8s.io/v1beta1".into();
    }
    let object = RawObject::new(value);
    let mut unknown = Vec::new();
    let (kind, manifest) = match kind {
        ObjectKind::Pod => {
            let pod = pod(&object, &mut unknown)?;
            ("Pod", Manifest::Pod(Box::new(pod)))
        }
        ObjectKind::ConfigMap => {
            unknown = unknown_keys(&object, &["data", "binaryData", "immutable"]);
            let map: ConfigMap = decode(&object)?;
            checked(metadata_errors(&object)?.and(validation::config_map(&map)))?;
            ("ConfigMap", Manifest::ConfigMap(map))
        }
        ObjectKind::Secret => {
            unknown = unknown_keys(&object, &["data", "immutable", "type"]);
            let mut secret: Secret = decode(&object)?;
            defaults::secret(&mut secret);
            checked(metadata_errors(&object)?.and(validation::secret(&secret)))?;
            ("Secret", Manifest::Secret(secret))
        }
        ObjectKind::Service => {
            let mut service = decode_noting(&object, &mut unknown)?;
            defaults::service(&mut service);
            checked(validation::service(&service))?;
            ("Service", Manifest::Service(Box::new(service)))
        }
        ObjectKind::Node => {
            let mut node = decode_noting(&object, &mut unknown)?;
            defaults::node(&mut node);
            checked(validation::node(&node))?;
            ("Node", Manifest::Node(Box::new(node)))
        }
        ObjectKind::Namespace => {
            let mut namespace = decode_noting(&object, &mut unknown)?;
            defaults::namespace(&mut namespace);
            checked(validation::namespace(&namespace))?;
            ("Namespace", Manifest::Namespace(Box::new(namespace)))
        }
        ObjectKind::ServiceAccount => {
            let account = decode_noting(&object, &mut unknown)?;
            checked(validation::service_account(&account))?;
            (
                "ServiceAccount",
                Manifest::ServiceAccount(Box::new(account)),
            )
        }
        ObjectKind::ClusterTrustBundle => {
            let bundle = decode_noting(&object, &mut unknown)?;
            checked(validation::cluster_trust_bundle(&bundle))?;
            (
                "ClusterTrustBundle",
                Manifest::ClusterTrustBundle(Box::new(bundle)),
            )
        }
        ObjectKind::Workload(_) | ObjectKind::List | ObjectKind::Other | ObjectKind::Unknown => {
            unreachable!("told apart above")
        }
    };
    Ok(Decoded {
        kind,
        workload: None,
        object,
        manifest,
        unknown,
    })
}

/// The pod of a workload. Its errors name the fields of the workload.
fn workload(value: Value, template: &str) -> Result<Decoded, Problem> {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).unwrap_or("");
    let name = format!("{} {}", text("/kind"), text("/metadata/name"));
    let mut pod_value = normalize::pod_of_workload(value, template)?;
    if let Some(metadata) = metadata_mut(&mut pod_value) {
        normalize::set_uid(metadata);
    }
    let object = RawObject::new(pod_value);
    let prefix = template.trim_start_matches('/').replace('/', ".");
    let mut unknown = Vec::new();
    let pod = pod(&object, &mut unknown).map_err(|problem| problem.within(&prefix))?;
    let unknown = unknown.into_iter().map(|field| format!("{prefix}.{field}"));
    Ok(Decoded {
        kind: "Pod",
        workload: Some(name),
        object,
        manifest: Manifest::Pod(Box::new(pod)),
        unknown: unknown.collect(),
    })
}

fn pod(object: &Value, unknown: &mut Vec<String>) -> Result<Pod, Problem> {
    let mut pod: Pod = decode_noting(object, unknown)?;
    defaults::pod(&mut pod);
    checked(validation::pod(&pod))?;
    Ok(pod)
}

fn checked(errors: FieldErrors) -> Result<(), Problem> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::Invalid(errors))
    }
}

/// Errors of the metadata that ConfigMap and Secret do not keep.
fn metadata_errors(object: &Value) -> Result<FieldErrors, Problem> {
    let metadata: FullMetadata =
        decode(&object["metadata"]).map_err(|problem| problem.within("metadata"))?;
    Ok(validation::metadata(
        &metadata,
        validation::Scope::Namespaced,
    ))
}

fn metadata_mut(value: &mut Value) -> Option<&mut Map<String, Value>> {
    value.get_mut("metadata").and_then(Value::as_object_mut)
}

/// Decodes `value` and notes which of its fields the type does not have.
fn decode_noting<T: DeserializeOwned + Serialize>(
    value: &Value,
    unknown: &mut Vec<String>,
) -> Result<T, Problem> {
    let object = decode(value)?;
    *unknown = unknown_fields(value, &object);
    Ok(object)
}

/// Decodes `value`, or says which field has the wrong type.
fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let mut found = Some(value);
        let mut field = String::new();
        let mut in_map = false;
        for segment in error.path() {
            let step = match segment {
                Segment::Seq { index } => {
                    found = found.and_then(|value| value.get(index));
                    format!("[{index}]")
                }
                Segment::Map { key } | Segment::Enum { variant: key } => {
                    found = found.and_then(|value| value.get(key));
                    let step = if in_map {
                        format!("[{key}]")
                    } else {
                        format!(".{key}")
                    };
                    in_map = is_map(key);
                    step
                }
                Segment::Unknown => continue,
            };
            field += &step;
        }
        let field = field.trim_start_matches('.');
        type_problem(field, &error.inner().to_string(), found)
    })
}

/// Whether the keys below this field are the user's.
fn is_map(field: &str) -> bool {
    TEXT_MAPS.contains(&field)
        || matches!(
            field,
            "limits" | "requests" | "allocatable" | "capacity" | "overhead"
        )
}

/// Puts serde's message into our words. What it found is told by type: its own text quotes the value.
fn type_problem(field: &str, message: &str, found: Option<&Value>) -> Problem {
    match (message.rsplit_once(", expected "), found) {
        (Some((_, expected)), Some(found)) => {
            let expected = match expected {
                "i32" | "i64" | "u32" | "u64" => "a whole number",
                "a map" => "a mapping",
                other => other,
            };
            match found {
                // It may be whole, and beyond the range of the type.
                Value::Number(_) if expected == "a whole number" => Problem::Type {
                    field: field.to_owned(),
                    problem: "expected a whole number, found one that is too large or a fraction"
                        .to_owned(),
                },
                _ => wrong_type(field, expected, found),
            }
        }
        (Some((_, expected)), None) => Problem::Type {
            field: field.to_owned(),
            problem: format!("expected {expected}"),
        },
        (None, _) => Problem::Type {
            field: field.to_owned(),
            problem: message.to_owned(),
        },
    }
}

/// The problem of a field that holds `found` where `expected` belongs. Says types only.
pub(super) fn wrong_type(field: &str, expected: &str, found: &Value) -> Problem {
    let hint = match found {
        Value::Number(_) | Value::Bool(_) if expected == "a string" => " (quote it)",
        _ => "",
    };
    Problem::Type {
        field: field.to_owned(),
        problem: format!("expected {expected}, found {}{hint}", type_name(found)),
    }
}

/// The type of a value in a user's words.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a sequence",
        Value::Object(_) => "a mapping",
    }
}
