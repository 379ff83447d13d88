//! Metadata, and every kind except the pod.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Namespace, Node, Service, ServiceAccount},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use serde::de::IgnoredAny;
use smol_str::SmolStr;

use super::{
    FieldErrors,
    field::Field,
    ports::{PORTS, PROTOCOLS},
};
use crate::{ConfigMap, Secret};

/// Largest sum of the values of a ConfigMap or a Secret, in bytes.
pub const MAX_OBJECT_BYTES: usize = 1 << 20;
/// Largest sum of the annotations of an object, keys and values, in bytes.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// Finalizers that need no domain.
const FINALIZERS: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];

/// The text that errors show in place of a Secret's value.
const REDACTED: &str = "<secret contents redacted>";

/// The scope of a kind's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace, which must be named.
    Namespaced,
    /// In none, so none may be named.
    Cluster,
}

/// Checks name, namespace, labels and annotations.
pub fn metadata(metadata: &ObjectMeta, scope: Scope) -> FieldErrors {
    FieldErrors::found(|object| {
        let prefix = metadata.generate_name.as_deref().unwrap_or("");
        if !prefix.is_empty() {
            object
                .at("metadata.generateName")
                .check_subdomain_prefix(prefix);
        }
        check_metadata(object, metadata, scope, Field::check_subdomain);
    })
}

pub(super) fn check_metadata<'e>(
    object: &Field<'e>,
    metadata: &ObjectMeta,
    scope: Scope,
    check_name: impl Fn(&Field<'e>, &str),
) {
    let field = &object.child("metadata");
    let name = field.child("name");
    match metadata.name.as_deref().unwrap_or("") {
        "" => name.required("name or generateName is required"),
        given => check_name(&name, given),
    }
    let namespace = field.child("namespace");
    match (scope, metadata.namespace.as_deref().unwrap_or("")) {
        (Scope::Namespaced, "") => namespace.required(""),
        (Scope::Namespaced, given) => namespace.check_label(given),
        (Scope::Cluster, "") => {}
        (Scope::Cluster, _) => namespace.forbidden("not allowed on this type"),
    }
    for owner in metadata.owner_references.iter().flatten() {
        check_owner(&field.child("ownerReferences"), owner);
    }
    let labels = field.child("labels");
    for (key, value) in metadata.labels.iter().flatten() {
        labels.check_qualified_name(key, key);
        labels.check_label_value(value);
    }
    let annotations = field.child("annotations");
    for key in metadata.annotations.iter().flat_map(BTreeMap::keys) {
        // Annotation keys may have capitals in their prefix.
        annotations.check_qualified_name(&key.to_lowercase(), key);
    }
    let all = metadata.annotations.iter().flatten();
    let size: usize = all.map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATION_BYTES {
        let rule = format!("may not be more than {MAX_ANNOTATION_BYTES} bytes");
        annotations.too_long(rule);
    }
    for (index, finalizer) in metadata.finalizers.iter().flatten().enumerate() {
        let field = field.child("finalizers").index(index);
        let before = field.errors();
        field.check_qualified_name(finalizer, finalizer);
        if field.errors() == before
            && !finalizer.contains('/')
            && !FINALIZERS.contains(&&**finalizer)
        {
            let rule = "name is neither a standard finalizer name nor is it fully qualified";
            field.invalid(&**finalizer, rule);
        }
    }
}

fn check_owner(field: &Field<'_>, owner: &OwnerReference) {
    for (name, text) in [
        ("apiVersion", &owner.api_version),
        ("kind", &owner.kind),
        ("name", &owner.name),
        ("uid", &owner.uid),
    ] {
        if text.is_empty() {
            field.child(name).invalid("", "must not be empty");
        }
    }
}

/// Checks keys and size of a ConfigMap; [`metadata`] checks the rest.
pub fn config_map(map: &ConfigMap) -> FieldErrors {
    FieldErrors::found(|object| {
        let (text, binary) = (object.child("data"), object.child("binaryData"));
        for key in map.data.keys() {
            let field = text.key(key);
            field.check_config_map_key(key);
            if map.binary_data.contains_key(key) {
                field.invalid(key, "duplicate of key present in binaryData");
            }
        }
        for key in map.binary_data.keys() {
            binary.key(key).check_config_map_key(key);
        }
        let bytes: usize = map.data.values().map(SmolStr::len).sum();
        let more: usize = map.binary_data.values().map(Vec::len).sum();
        check_size(&text, bytes + more);
    })
}

/// Checks keys, size and what its type demands of a Secret; [`metadata`] checks the rest.
pub fn secret(secret: &Secret) -> FieldErrors {
    FieldErrors::found(|object| {
        let data = object.child("data");
        for key in secret.data.keys() {
            data.key(key).check_config_map_key(key);
        }
        check_size(&data, secret.data.values().map(|value| value.len()).sum());
        let required: &[&str] = match &*secret.type_ {
            "kubernetes.io/tls" => &["tls.crt", "tls.key"],
            "kubernetes.io/dockercfg" => &[".dockercfg"],
            "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
            "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
            _ => &[],
        };
        for key in required.iter().filter(|key| !secret.data.contains_key(key)) {
            data.key(key).required("");
        }
        if let "kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson" = &*secret.type_ {
            for key in required {
                let held = secret.data.get(key);
                if held.is_some_and(|value| !is_json_object(value)) {
                    data.key(key).invalid(REDACTED, "must be a JSON object");
                }
            }
        }
        let either = ["username", "password"];
        if secret.type_ == "kubernetes.io/basic-auth"
            && !either.iter().any(|key| secret.data.contains_key(key))
        {
            for key in either {
                data.key(key).required("");
            }
        }
    })
}

/// Whether the API server would decode `bytes` into a map. Copies none of them.
fn is_json_object(bytes: &[u8]) -> bool {
    // Of what begins so, only an object and `null` are JSON, and the latter decodes into an empty map.
    matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'n'))
        && serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

fn check_size(field: &Field<'_>, bytes: usize) {
    if bytes > MAX_OBJECT_BYTES {
        let rule = format!("may not be more than {MAX_OBJECT_BYTES} bytes");
        field.too_long(rule);
    }
}

/// Checks what may not change when `old` becomes `new`.
pub fn config_map_update(new: &ConfigMap, old: &ConfigMap) -> FieldErrors {
    let errors = FieldErrors::found(|object| {
        if old.immutable {
            check_unchanged(&object.child("immutable"), new.immutable);
            check_unchanged(&object.child("data"), new.data == old.data);
            let same = new.binary_data == old.binary_data;
            check_unchanged(&object.child("binaryData"), same);
        }
    });
    errors.and(config_map(new))
}

/// Checks what may not change when `old` becomes `new`.
pub fn secret_update(new: &Secret, old: &Secret) -> FieldErrors {
    let errors = FieldErrors::found(|object| {
        if new.type_ != old.type_ {
            object
                .child("type")
                .invalid(&*new.type_, "field is immutable");
        }
        if old.immutable {
            check_unchanged(&object.child("immutable"), new.immutable);
            check_unchanged(&object.child("data"), new.data == old.data);
        }
    });
    errors.and(secret(new))
}

fn check_unchanged(field: &Field<'_>, same: bool) {
    if !same {
        field.forbidden("field is immutable when `immutable` is set");
    }
}

/// Checks names and ports of a Service.
pub fn service(service: &Service) -> FieldErrors {
    FieldErrors::found(|object| {
        let scope = Scope::Namespaced;
        check_metadata(object, &service.metadata, scope, Field::check_label);
        let ports = service.spec.iter().flat_map(|spec| &spec.ports).flatten();
        for (index, port) in ports.enumerate() {
            let field = object.at("spec.ports").index(index);
            field.child("port").check_range(port.port.into(), PORTS);
            let protocol = port.protocol.as_deref();
            field.child("protocol").check_choice(protocol, &PROTOCOLS);
        }
    })
}

/// Checks the metadata of a Node.
pub fn node(node: &Node) -> FieldErrors {
    metadata(&node.metadata, Scope::Cluster)
}

/// Checks the metadata of a Namespace, whose name is a label.
pub fn namespace(namespace: &Namespace) -> FieldErrors {
    FieldErrors::found(|object| {
        let metadata = &namespace.metadata;
        check_metadata(object, metadata, Scope::Cluster, Field::check_label);
    })
}

/// Checks the metadata of a ServiceAccount.
pub fn service_account(account: &ServiceAccount) -> FieldErrors {
    metadata(&account.metadata, Scope::Namespaced)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;
    use crate::{Object as _, SecretBytes};

    fn map(json: serde_json::Value) -> ConfigMap {
        ConfigMap::from_json(json.to_string().as_bytes()).unwrap()
    }

    fn secret_of(json: serde_json::Value) -> Secret {
        Secret::from_json(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn metadata_is_checked_in_all_its_parts() {
        let meta: ObjectMeta = from_value(json!({
            "name": "Bad_Name", "namespace": "a.b",
            "labels": {"ok/x": "not ok!"}, "annotations": {"Example.com/Fine": "", "a b": ""},
        }))
        .unwrap();
        let fields: Vec<_> = metadata(&meta, Scope::Namespaced)
            .iter()
            .map(|error| {
                (
                    error.field.to_string(),
                    error.value.clone().unwrap_or_default(),
                )
            })
            .collect();
        let expected = [
            ("metadata.name", "\"Bad_Name\""),
            ("metadata.namespace", "\"a.b\""),
            ("metadata.labels", "\"not ok!\""),
            ("metadata.annotations", "\"a b\""),
        ];
        assert_eq!(
            fields,
            expected.map(|(field, value)| (field.to_owned(), value.to_owned()))
        );
        let cluster = metadata(&meta, Scope::Cluster);
        assert_eq!(
            cluster[1].to_string(),
            "metadata.namespace: Forbidden: not allowed on this type"
        );
    }

    #[test]
    fn finalizers_and_owners_are_named_in_full() {
        let meta: ObjectMeta = from_value(json!({
            "generateName": "Made-", "name": "a", "namespace": "n",
            "finalizers": ["orphan", "example.com/f", "plain", "a b"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}],
        }))
        .unwrap();
        let errors = metadata(&meta, Scope::Namespaced);
        let fields: Vec<_> = errors.iter().map(|error| error.field.to_string()).collect();
        let expected = [
            "metadata.generateName",
            "metadata.ownerReferences.uid",
            "metadata.finalizers[2]",
            "metadata.finalizers[3]",
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn hostile_keys_are_refused() {
        // projection 14.1
        let errors = config_map(&map(
            json!({"data": {"../x": "", "ok": ""}, "binaryData": {"..": "", "ok": ""}}),
        ));
        let texts: Vec<_> = errors.iter().map(|error| error.field.to_string()).collect();
        assert_eq!(
            texts,
            ["data[../x]", "data[../x]", "data[ok]", "binaryData[..]"]
        );
        let errors = secret(&secret_of(json!({"data": {"..a": ""}})));
        assert_eq!(
            errors.to_string(),
            r#"data[..a]: Invalid value: "..a": must not start with '..'"#
        );
    }

    #[test]
    fn a_mebibyte_is_the_limit() {
        let sized = |bytes: usize| map(json!({"data": {"a": "x".repeat(bytes)}}));
        assert!(config_map(&sized(MAX_OBJECT_BYTES)).is_empty());
        assert_eq!(
            config_map(&sized(MAX_OBJECT_BYTES + 1)).to_string(),
            "data: Too long: may not be more than 1048576 bytes"
        );
    }

    #[test]
    fn typed_secrets_have_their_keys() {
        let errors = secret(&secret_of(
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}),
        ));
        assert_eq!(errors.to_string(), "data[tls.key]: Required value");
        assert!(
            secret(&secret_of(
                json!({"type": "kubernetes.io/basic-auth", "data": {"username": ""}})
            ))
            .is_empty()
        );
        assert_eq!(
            secret(&secret_of(json!({"type": "kubernetes.io/basic-auth"}))).len(),
            2
        );
    }

    #[test]
    fn registry_credentials_are_json_objects_and_never_quoted() {
        let of = |value: &str| {
            let mut secret = secret_of(json!({"type": "kubernetes.io/dockerconfigjson"}));
            let value = SecretBytes::new(value.into());
            secret.data = [(".dockerconfigjson", value)].into();
            super::secret(&secret)
        };
        for good in [r#" {"auths": {"a": {}}}"#, "{}", "null"] {
            assert!(of(good).is_empty(), "{good}");
        }
        for bad in ["", "hunter2", r#"{"auths": "hunter2""#, "[]", "1", "{} {}"] {
            assert_eq!(
                of(bad).to_string(),
                r#"data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": must be a JSON object"#,
                "{bad}"
            );
        }
    }

    #[test]
    fn immutable_objects_stay_as_they_are() {
        // projection 37
        let old = map(json!({"immutable": true, "data": {"a": "1"}}));
        assert!(config_map_update(&old.clone(), &old).is_empty());
        let changed = map(json!({"data": {"a": "2"}}));
        let errors = config_map_update(&changed, &old);
        let fields: Vec<_> = errors.iter().map(|error| error.field.to_string()).collect();
        assert_eq!(fields, ["immutable", "data"]);
        assert!(config_map_update(&changed, &map(json!({"data": {"a": "1"}}))).is_empty());
        let old =
            secret_of(json!({"type": "Opaque", "immutable": true, "data": {"p": "aHVudGVyMg=="}}));
        let errors = secret_update(&secret_of(json!({"type": "x", "immutable": true})), &old);
        assert_eq!(errors.len(), 2);
        assert!(!errors.to_string().contains("hunter2"));
    }

    #[test]
    fn a_service_has_ports_in_range() {
        let given: Service = from_value(json!({
            "metadata": {"name": "s", "namespace": "n"},
            "spec": {"ports": [{"port": 0}, {"port": 80, "protocol": "HTTP"}]},
        }))
        .unwrap();
        let errors = service(&given);
        assert_eq!(errors[0].field.to_string(), "spec.ports[0].port");
        assert_eq!(
            errors[1].to_string(),
            r#"spec.ports[1].protocol: Unsupported value: "HTTP": supported values: "SCTP", "TCP", "UDP""#
        );
    }
}
