//! Decoding: from a body to an object of its kind, with kube-apiserver's errors.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use larder_objects::{
    canonical_quantity, go_base64,
    manifest::{drop_nulls, encode_bytes},
};
use serde_json::{Value, json};

use super::options::{FieldValidation, WriteParams};
use crate::{
    json::{MAX_DEPTH, depth, json_type, set_default},
    resource::{ApiKind, Resource},
    status::{ApiError, Cause},
};

/// Reads `body` as an object of the kind, with known fields only; and what it has of unknown ones.
///
/// # Errors
///
/// Another kind, a field of the wrong type, or, if the client wants that, an unknown field.
pub(super) fn decode(
    resource: &Resource,
    mut body: Value,
    params: WriteParams,
) -> Result<(Value, Vec<String>), ApiError> {
    let (kind, version) = (resource.name, resource.version);
    // 422 for what a patch makes of an object.
    let unfit = |why| ApiError::invalid_unnamed("", "", Cause::invalid("patch", why));
    match other_type(resource, &mut body) {
        Some(why) if params.patch => return Err(unfit(why)),
        Some(why) => return Err(ApiError::bad_request(why)),
        None => {}
    }
    try_decode(resource, body, params.field_validation).map_err(|why| {
        if params.patch {
            return unfit(why);
        }
        ApiError::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
        ))
    })
}

fn try_decode(
    resource: &Resource,
    mut body: Value,
    field_validation: FieldValidation,
) -> Result<(Value, Vec<String>), String> {
    if depth(&body) > MAX_DEPTH {
        return Err("exceeded max depth".to_owned());
    }
    if !body.is_object() {
        return Err("the body is not a JSON object".to_owned());
    }
    // `null` here stands for absence, which the typed form does not know.
    set_default(&mut body["metadata"], json!({}));
    drop_nulls(&mut body);
    if let Some(why) = wrong_type(resource, &body) {
        return Err(why);
    }
    read_bytes(resource.kind, &mut body)?;
    if matches!(resource.kind, ApiKind::Pod | ApiKind::Node) {
        for part in ["spec", "status"] {
            read_quantities(&mut body[part])?;
        }
        body.as_object_mut()
            .expect("looked at above")
            .retain(|_, part| !part.is_null());
    }
    let value = resource.canonical(&body)?;
    let mut unknown = Vec::new();
    if field_validation != FieldValidation::Ignore {
        find_unknown(&body, &value, "", &mut unknown);
    }
    if field_validation == FieldValidation::Strict && !unknown.is_empty() {
        return Err(format!("strict decoding error: {}", unknown.join(", ")));
    }
    Ok((value, unknown))
}

/// Gives `body` a type, if it states none; why it is rejected if it states another one than `resource`'s.
fn other_type(resource: &Resource, body: &mut Value) -> Option<String> {
    let (expected, expected_version) = (resource.name, resource.api_version());
    let fields = body.as_object_mut()?;
    let mut given = |field: &str, expected: &str| {
        fields
            .entry(field)
            .or_insert_with(|| expected.into())
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (kind, api_version) = (
        given("kind", expected),
        given("apiVersion", &expected_version),
    );
    if (&*kind, &api_version) == (expected, &expected_version) {
        return None;
    }
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let why = if ApiKind::of_manifest(&api_version, &kind).is_some() {
        let group = match resource.group {
            "" => "core",
            group => group.split('.').next().unwrap_or_default(),
        };
        format!("converting ({version}.{kind}) to ({group}.{expected}): unknown conversion")
    } else {
        format!(
            "no kind \"{kind}\" is registered for version \"{api_version}\" in scheme \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    Some(format!(
        "{kind} in version \"{version}\" cannot be handled as a {expected}: {why}"
    ))
}

/// A field of which people often get the type wrong, as a number or `yes` in YAML that should be text.
struct TypedField {
    /// `None`: all kinds.
    kind: Option<ApiKind>,
    /// The names that lead to it; `*` is any key or index.
    path: &'static [&'static str],
    /// The structure of Go that has it.
    structure: &'static str,
    go_type: GoType,
}

#[derive(Clone, Copy)]
enum GoType {
    Text,
    Int32,
    Bytes,
    /// Of the type that is named.
    List(&'static str),
}

impl GoType {
    const fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Int32 => "int32",
            Self::Bytes => "[]uint8",
            Self::List(name) => name,
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Int32 => value
                .as_i64()
                .is_some_and(|number| i32::try_from(number).is_ok()),
            Self::Bytes => value.is_string() || value.is_array(),
            Self::List(_) => value.is_array(),
        }
    }
}

const fn typed(
    kind: Option<ApiKind>,
    path: &'static [&'static str],
    structure: &'static str,
    go_type: GoType,
) -> TypedField {
    TypedField {
        kind,
        path,
        structure,
        go_type,
    }
}

const POD: Option<ApiKind> = Some(ApiKind::Pod);

/// For all other fields the error is that of our decoder.
const TYPED_FIELDS: &[TypedField] = {
    use GoType::{Bytes, Int32, List, Text};
    &[
        typed(None, &["metadata", "name"], "ObjectMeta", Text),
        typed(None, &["metadata", "labels", "*"], "ObjectMeta", Text),
        typed(None, &["metadata", "annotations", "*"], "ObjectMeta", Text),
        typed(Some(ApiKind::ConfigMap), &["data", "*"], "ConfigMap", Text),
        typed(Some(ApiKind::Secret), &["data", "*"], "Secret", Bytes),
        typed(Some(ApiKind::Secret), &["stringData", "*"], "Secret", Text),
        typed(POD, &["spec", "nodeSelector", "*"], "PodSpec", Text),
        typed(POD, &["spec", "volumes", "*", "name"], "Volume", Text),
        typed(POD, &["spec", "containers", "*", "name"], "Container", Text),
        typed(
            POD,
            &["spec", "containers", "*", "args", "*"],
            "Container",
            Text,
        ),
        typed(
            POD,
            &["spec", "containers", "*", "command", "*"],
            "Container",
            Text,
        ),
        typed(
            POD,
            &["spec", "containers", "*", "ports"],
            "Container",
            List("[]v1.ContainerPort"),
        ),
        typed(
            POD,
            &["spec", "containers", "*", "ports", "*", "containerPort"],
            "ContainerPort",
            Int32,
        ),
        typed(
            POD,
            &["spec", "containers", "*", "env", "*", "value"],
            "EnvVar",
            Text,
        ),
    ]
};

/// The first value of [`TYPED_FIELDS`] that is of another type, as Go reports it.
fn wrong_type(resource: &Resource, body: &Value) -> Option<String> {
    let mut fields = TYPED_FIELDS
        .iter()
        .filter(|field| field.kind.is_none_or(|kind| kind == resource.kind));
    fields.find_map(|field| {
        let mut values = at(body, field.path).into_iter();
        let found = values.find(|value| !field.go_type.fits(value))?;
        let names = field.path.iter().filter(|step| **step != "*");
        Some(format!(
            "json: cannot unmarshal {} into Go struct field {}.{} of type {}",
            json_type(found),
            field.structure,
            names.copied().collect::<Vec<_>>().join("."),
            field.go_type.name()
        ))
    })
}

/// The values at a path of which `*` stands for any key or index.
fn at<'v>(value: &'v Value, path: &[&str]) -> Vec<&'v Value> {
    path.iter().fold(vec![value], |values, step| {
        values
            .into_iter()
            .flat_map(|value| match (*step, value) {
                ("*", Value::Object(fields)) => fields.values().collect(),
                ("*", Value::Array(items)) => items.iter().collect(),
                _ => value.get(*step).into_iter().collect::<Vec<_>>(),
            })
            .collect()
    })
}

/// Decodes and encodes again the values in base64, so that the stored form is canonical. Bytes that a client lists as
/// numbers are encoded, too.
fn read_bytes(kind: ApiKind, body: &mut Value) -> Result<(), String> {
    let field = match kind {
        ApiKind::ConfigMap => "binaryData",
        ApiKind::Secret => "data",
        _ => return Ok(()),
    };
    let Some(body) = body.as_object_mut() else {
        return Ok(());
    };
    encode_bytes(body, field);
    let entries = body.get_mut(field).and_then(Value::as_object_mut);
    for value in entries.into_iter().flat_map(|entries| entries.values_mut()) {
        match value {
            Value::String(text) => {
                let bytes = go_base64::decode(text).map_err(|error| error.to_string())?;
                *text = STANDARD.encode(bytes);
            }
            Value::Array(_) => return Err("a list that is not of bytes".to_owned()),
            _ => {}
        }
    }
    Ok(())
}

/// Writes all quantities as kube-apiserver does.
fn read_quantities(value: &mut Value) -> Result<(), String> {
    let fields = match value {
        Value::Object(fields) => fields,
        Value::Array(items) => return items.iter_mut().try_for_each(read_quantities),
        _ => return Ok(()),
    };
    for (name, value) in fields {
        match (&**name, value) {
            (
                "limits" | "requests" | "overhead" | "capacity" | "allocatable",
                Value::Object(amounts),
            ) => {
                amounts.values_mut().try_for_each(read_quantity)?;
            }
            ("divisor" | "sizeLimit", value) => read_quantity(value)?,
            (_, value) => read_quantities(value)?,
        }
    }
    Ok(())
}

fn read_quantity(value: &mut Value) -> Result<(), String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return Ok(()),
    };
    let written = canonical_quantity(&text).map_err(|error| error.to_string())?;
    *value = written.into();
    Ok(())
}

/// Collects what `before` has and the canonical `after` has not.
fn find_unknown(before: &Value, after: &Value, path: &str, unknown: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in before.iter().filter(|(_, value)| !value.is_null()) {
                let path = match path {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                match after.get(key) {
                    Some(after) => find_unknown(value, after, &path, unknown),
                    None => unknown.push(format!("unknown field \"{path}\"")),
                }
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                find_unknown(before, after, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(kind: ApiKind, body: Value) -> String {
        let decoded = decode(kind.resource(), body, WriteParams::default());
        decoded.unwrap_err().to_string()
    }

    #[test]
    fn a_value_of_the_wrong_type_is_reported_as_by_go() {
        let text = rejected(
            ApiKind::ConfigMap,
            json!({"data": {"a": "1", "port": 8080}}),
        );
        let end =
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string";
        assert!(text.ends_with(end), "{text}");
        let env = json!([{"name": "A", "value": true}]);
        let text = rejected(
            ApiKind::Pod,
            json!({"spec": {"containers": [{"name": "c", "env": env}]}}),
        );
        let end = "bool into Go struct field EnvVar.spec.containers.env.value of type string";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn base64_is_stored_as_kube_apiserver_stores_it() {
        // What the bits beyond the last byte are does not matter, nor do line breaks.
        for given in ["YWI=", "YWJ=", "YW\r\nL=\n"] {
            for (kind, field) in [
                (ApiKind::Secret, "data"),
                (ApiKind::ConfigMap, "binaryData"),
            ] {
                let body = json!({"metadata": {"name": "a"}, field: {"k": given}});
                let decoded = decode(kind.resource(), body, WriteParams::default());
                let (stored, _) = decoded.unwrap();
                assert_eq!(stored[field]["k"], "YWI=", "{given:?}");
            }
        }
        let text = rejected(ApiKind::Secret, json!({"data": {"a": "hunter2!"}}));
        assert!(
            text.ends_with("illegal base64 data at input byte 7"),
            "{text}"
        );
    }

    #[test]
    fn quantities_and_bytes_are_stored_in_one_form() {
        let resources = json!({"limits": {"cpu": 0.5, "memory": "1024Mi"}});
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        let (pod, _) = decode(ApiKind::Pod.resource(), pod, WriteParams::default()).unwrap();
        assert_eq!(
            pod["spec"]["containers"][0]["resources"]["limits"],
            json!({"cpu": "500m", "memory": "1Gi"})
        );
        let secret = json!({"data": {"a": [104, 105], "b": "aG\nk=", "c": null}});
        let (secret, _) =
            decode(ApiKind::Secret.resource(), secret, WriteParams::default()).unwrap();
        assert_eq!(secret["data"], json!({"a": "aGk=", "b": "aGk=", "c": ""}));
    }
}
