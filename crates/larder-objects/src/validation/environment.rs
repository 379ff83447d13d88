//! Environment of a container.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector,
    ResourceFieldSelector, Volume,
};

use super::field::Field;
use crate::{Quantity, split_subscript};

/// Field paths that a variable may show. (Volumes may show others.)
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

const TOO_MANY: &str = "may not have more than one field specified at a time";

pub(super) fn check_env_from(field: &Field<'_>, source: &EnvFromSource) {
    if let Some(prefix) = source.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
        field.child("prefix").check_environment_name(prefix);
    }
    let map = source
        .config_map_ref
        .as_ref()
        .map(|source| ("configMapRef", &source.name));
    let secret = source
        .secret_ref
        .as_ref()
        .map(|source| ("secretRef", &source.name));
    if map.is_none() && secret.is_none() {
        let one_of = "must specify one of: `configMapRef` or `secretRef`";
        field.invalid("", one_of);
    } else if map.is_some() && secret.is_some() {
        field.invalid("", TOO_MANY);
    }
    for (kind, name) in map.into_iter().chain(secret) {
        // The API server takes the name for the beginning of one.
        let check = Field::check_subdomain_prefix;
        field.child(kind).child("name").check_given(name, check);
    }
}

pub(super) fn check_env(field: &Field<'_>, variable: &EnvVar, volumes: &HashMap<&str, &Volume>) {
    let check = Field::check_environment_name;
    field.child("name").check_given(&variable.name, check);
    if let Some(source) = &variable.value_from {
        let has_value = !variable.value.as_deref().unwrap_or("").is_empty();
        check_source(&field.child("valueFrom"), source, has_value, volumes);
    }
}

fn check_source(
    field: &Field<'_>,
    source: &EnvVarSource,
    has_value: bool,
    volumes: &HashMap<&str, &Volume>,
) {
    let mut sources = 0;
    if let Some(reference) = &source.field_ref {
        sources += 1;
        check_field_ref(&field.child("fieldRef"), reference, &ENV_FIELDS);
    }
    if let Some(reference) = &source.resource_field_ref {
        sources += 1;
        check_resource_ref(&field.child("resourceFieldRef"), reference);
    }
    let map = source
        .config_map_key_ref
        .as_ref()
        .map(|key| ("configMapKeyRef", &key.name, &key.key));
    let secret = source
        .secret_key_ref
        .as_ref()
        .map(|key| ("secretKeyRef", &key.name, &key.key));
    for (kind, name, key) in map.into_iter().chain(secret) {
        sources += 1;
        field.child(kind).child("name").check_subdomain(name);
        let check = Field::check_config_map_key;
        field.child(kind).child("key").check_given(key, check);
    }
    if let Some(reference) = &source.file_key_ref {
        sources += 1;
        check_file_ref(&field.child("fileKeyRef"), reference, volumes);
    }
    if sources == 0 {
        let one_of = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        field.invalid("", one_of);
    } else if sources > 1 {
        field.invalid("", TOO_MANY);
    } else if has_value {
        field.invalid("", "may not be specified when `value` is not empty");
    }
}

/// Checks a reference to a field of the pod: one of `plain`, or a label or annotation by its key.
pub(super) fn check_field_ref(field: &Field<'_>, reference: &ObjectFieldSelector, plain: &[&str]) {
    let version = reference.api_version.as_deref().unwrap_or("v1");
    let field = field.child("fieldPath");
    let path = &*reference.field_path;
    if path.is_empty() {
        return field.required("");
    }
    if version != "v1" {
        let rule = format!("error converting fieldPath: unsupported pod version: {version}");
        return field.invalid(path, &rule);
    }
    if let Some((base, key)) = split_subscript(path) {
        return match base {
            "metadata.labels" => field.check_qualified_name(key, key),
            "metadata.annotations" => field.check_qualified_name(&key.to_lowercase(), key),
            _ => field.invalid(path, "does not support subscript"),
        };
    }
    // The old name of the field.
    let known = if path == "spec.host" {
        "spec.nodeName"
    } else {
        path
    };
    if !plain.contains(&known) {
        field.not_supported(path, plain);
    }
}

pub(super) fn check_resource_ref(field: &Field<'_>, reference: &ResourceFieldSelector) {
    let resource = &*reference.resource;
    let resource_field = field.child("resource");
    if resource.is_empty() {
        return resource_field.required("");
    }
    let name = resource
        .strip_prefix("limits.")
        .or(resource.strip_prefix("requests."));
    let known = name.is_some_and(|name| {
        matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
    });
    if !known {
        let supported = [
            "limits.cpu",
            "limits.ephemeral-storage",
            "limits.memory",
            "requests.cpu",
            "requests.ephemeral-storage",
            "requests.memory",
        ];
        return resource_field.not_supported(resource, &supported);
    }
    if let Some(divisor) = &reference.divisor {
        check_divisor(&field.child("divisor"), resource, &divisor.0);
    }
}

/// Zero stands for one; otherwise a processor is counted in units or thousandths, bytes in powers. How that is written
/// is free, `1000m` for `1`, but for exponents: a power of ten or of two keeps its sort of suffix.
fn check_divisor(field: &Field<'_>, resource: &str, divisor: &str) {
    let bytes = [
        "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
    ];
    let kind = resource.split_once('.').map_or(resource, |(_, kind)| kind);
    let supported: &[&str] = if kind == "cpu" { &["1m", "1"] } else { &bytes };
    let is_supported = divisor.parse::<Quantity>().is_ok_and(|amount| {
        let text = divisor.trim_matches(' ');
        let same =
            |name: &&str| name.ends_with('i') == text.ends_with('i') && name.parse() == Ok(amount);
        let before_suffix = text.trim_end_matches('i').trim_end_matches('E');
        let has_exponent = before_suffix.contains(['e', 'E']);
        amount.is_zero() || amount == Quantity::ONE || (!has_exponent && supported.iter().any(same))
    });
    if !is_supported {
        let kind = match kind {
            "ephemeral-storage" => "local ephemeral storage",
            kind if kind.starts_with("hugepages-") => "hugepages",
            kind => kind,
        };
        let supported = match supported {
            [one, other] => format!("{one} and {other}"),
            many => many.join(", "),
        };
        let rule =
            format!("only divisor's values {supported} are supported with the {kind} resource");
        field.invalid(resource, &rule);
    }
}

/// projection 10.6.2
fn check_file_ref(
    field: &Field<'_>,
    reference: &FileKeySelector,
    volumes: &HashMap<&str, &Volume>,
) {
    let volume_field = field.child("volumeName");
    match volumes.get(reference.volume_name.as_str()) {
        _ if reference.volume_name.is_empty() => volume_field.required(""),
        None => {
            let known = volumes.keys().copied();
            volume_field.not_found(&reference.volume_name, known);
        }
        Some(volume) if volume.empty_dir.is_none() => {
            let rule = "referenced volume must be of type emptyDir";
            volume_field.invalid(&*reference.volume_name, rule);
        }
        Some(_) => {}
    }
    let check = Field::check_environment_name;
    field.child("key").check_given(&reference.key, check);
    let check = Field::check_inside;
    field.child("path").check_given(&reference.path, check);
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::validation::FieldErrors;

    #[track_caller]
    fn check(variables: Value, expected: Expect) {
        let variables: Vec<EnvVar> = from_value(variables).unwrap();
        let volumes = json!([{"name": "e", "emptyDir": {}}, {"name": "s", "secret": {}}]);
        let volumes: Vec<Volume> = from_value(volumes).unwrap();
        let volumes = volumes
            .iter()
            .map(|volume| (&*volume.name, volume))
            .collect();
        let errors = FieldErrors::found(|object| {
            for (index, variable) in variables.iter().enumerate() {
                check_env(&object.at("env").index(index), variable, &volumes);
            }
        });
        expected.assert_eq(&errors.lines());
    }

    #[test]
    fn a_variable_has_a_name_and_at_most_one_source() {
        check(
            json!([
                {"name": "1234.a-b"},
                {"name": ""},
                {"name": "a=b"},
                {"name": "a", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "b", "valueFrom": {}},
                {"name": "c", "valueFrom": {
                    "configMapKeyRef": {"name": "m", "key": "k"}, "secretKeyRef": {"name": "S", "key": ""},
                }},
            ]),
            expect![[r#"
                env[1].name: Required value
                env[2].name: Invalid value: "a=b": a valid environment variable name must consist only of printable ASCII characters other than '='
                env[3].valueFrom: Invalid value: "": may not be specified when `value` is not empty
                env[4].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`
                env[5].valueFrom.secretKeyRef.name: Invalid value: "S": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
                env[5].valueFrom.secretKeyRef.key: Required value
                env[5].valueFrom: Invalid value: "": may not have more than one field specified at a time
            "#]],
        );
    }

    #[test]
    fn only_some_fields_of_the_pod_can_be_shown() {
        // projection 11.1
        let field =
            |path: &str| json!({"name": "a", "valueFrom": {"fieldRef": {"fieldPath": path}}});
        check(
            json!([
                field("status.podIPs"),
                field("spec.host"),
                field("metadata.labels['example.com/a']"),
                field("metadata.annotations['Www.k8s.io/a']"),
                field("metadata.labels"),
                field("metadata.labels['']"),
                field("metadata.name['a']"),
                field(""),
            ]),
            expect![[r#"
                env[4].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"
                env[5].valueFrom.fieldRef.fieldPath: Invalid value: "": name part must be non-empty
                env[5].valueFrom.fieldRef.fieldPath: Invalid value: "": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')
                env[6].valueFrom.fieldRef.fieldPath: Invalid value: "metadata.name['a']": does not support subscript
                env[7].valueFrom.fieldRef.fieldPath: Required value
            "#]],
        );
    }

    #[test]
    fn resources_are_counted_in_units_that_exist() {
        // projection 11.4
        let resource = |resource: &str, divisor: &str| json!({"name": "a", "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}});
        check(
            json!([
                resource("limits.cpu", "1m"),
                resource("requests.hugepages-2Mi", "1Mi"),
                resource("limits.memory", "0"),
                resource("limits.cpu", "1Ki"),
                resource("limits.memory", "2"),
                resource("limits.gpu", "1"),
                resource("limits.memory", "1E"),
                resource("limits.memory", "1Ei"),
                resource("limits.cpu", "0.001"),
                resource("limits.cpu", "1000m"),
                resource("limits.memory", " 1024Ki"),
                resource("limits.memory", "1000"),
                resource("limits.memory", "1024"),
                resource("limits.memory", "1e3"),
                resource("limits.memory", "-1"),
                resource("limits.memory", "x"),
            ]),
            expect![[r#"
                env[3].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.cpu": only divisor's values 1m and 1 are supported with the cpu resource
                env[4].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.memory": only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource
                env[5].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu": supported values: "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory"
                env[12].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.memory": only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource
                env[13].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.memory": only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource
                env[14].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.memory": only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource
                env[15].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.memory": only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource
            "#]],
        );
    }

    #[test]
    fn a_file_key_is_in_an_empty_dir_of_the_pod() {
        // projection 10.6
        let file = |volume: &str, path: &str, key: &str| json!({"name": "a", "valueFrom": {"fileKeyRef": {"volumeName": volume, "path": path, "key": key}}});
        check(
            json!([
                file("e", "a.env", "K"),
                file("s", "../a", "K=V"),
                file("x", "", "")
            ]),
            expect![[r#"
                env[1].valueFrom.fileKeyRef.volumeName: Invalid value: "s": referenced volume must be of type emptyDir
                env[1].valueFrom.fileKeyRef.key: Invalid value: "K=V": a valid environment variable name must consist only of printable ASCII characters other than '='
                env[1].valueFrom.fileKeyRef.path: Invalid value: "../a": must not contain '..'
                env[2].valueFrom.fileKeyRef.volumeName: Not found: "x"
                env[2].valueFrom.fileKeyRef.key: Required value
                env[2].valueFrom.fileKeyRef.path: Required value
            "#]],
        );
    }

    #[test]
    fn env_from_takes_one_object() {
        // projection 14.3
        let sources: Vec<EnvFromSource> = from_value(json!([
            {"prefix": "1-", "configMapRef": {"name": "m"}},
            {"prefix": "a=", "secretRef": {"name": ""}},
            {},
            {"configMapRef": {"name": "m"}, "secretRef": {"name": "s"}},
        ]))
        .unwrap();
        let errors = FieldErrors::found(|object| {
            for (index, source) in sources.iter().enumerate() {
                check_env_from(&object.at("envFrom").index(index), source);
            }
        });
        let fields: Vec<_> = errors.iter().map(|error| error.field.to_string()).collect();
        assert_eq!(
            fields,
            [
                "envFrom[1].prefix",
                "envFrom[1].secretRef.name",
                "envFrom[2]",
                "envFrom[3]"
            ]
        );
    }
}
