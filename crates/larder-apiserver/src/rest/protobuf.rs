//! Bodies in Kubernetes' protobuf form, read into JSON.
//!
//! `kubectl create configmap` and its like send nothing else. Only the messages that such commands send are known: a
//! body with any other message or field is rejected (415), never read in part. Answers are always JSON, which these
//! clients take as well.
//!
//! Field numbers: Kubernetes 1.36, the `generated.proto` of `api/core/v1`, `api/authentication/v1`,
//! `api/authorization/v1`, `api/policy/v1` and `apimachinery/pkg/apis/meta/v1`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::clock::rfc3339;

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The bytes before the envelope.
const MAGIC: &[u8] = b"k8s\0";

/// Reads a whole body. `None` when it is malformed or holds what is not known here.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let (mut type_meta, mut raw) = (None, None);
    for field in fields(body.strip_prefix(MAGIC)?) {
        match field? {
            (1, WireValue::Bytes(bytes)) => type_meta = Some(message(TYPE_META, bytes)?),
            (2, WireValue::Bytes(bytes)) => raw = Some(bytes),
            // The encoding and the type of `raw`: none and protobuf.
            (3 | 4, WireValue::Bytes([])) => {}
            _ => return None,
        }
    }
    let type_meta = type_meta?;
    let schema = match type_meta.get("kind")?.as_str()? {
        "ConfigMap" => CONFIG_MAP,
        "DeleteOptions" => DELETE_OPTIONS,
        "Eviction" => EVICTION,
        "Namespace" => NAMESPACE,
        "Secret" => SECRET,
        "SelfSubjectAccessReview" => ACCESS_REVIEW,
        "SelfSubjectReview" => SUBJECT_REVIEW,
        "SelfSubjectRulesReview" => RULES_REVIEW,
        "Service" => SERVICE,
        "ServiceAccount" => SERVICE_ACCOUNT,
        "TokenRequest" => TOKEN_REQUEST,
        _ => return None,
    };
    let mut object = message(schema, raw?)?;
    object.extend(type_meta);
    Some(Value::Object(object))
}

/// The fields of a message: number, JSON name, type.
type Schema = &'static [(u64, &'static str, Type)];

/// How a field is read. The plain forms are those that Go writes though they are zero, which JSON leaves out.
#[derive(Clone, Copy)]
enum Type {
    Text,
    Bytes,
    Bool,
    PlainBool,
    Int,
    PlainInt,
    Time,
    IntOrString,
    Message(Schema),
    /// A list of the type.
    List(&'static Type),
    /// A map from strings to the type.
    Map(&'static Type),
}

use Type::{Bool, Bytes, Int, List, Message, PlainBool, PlainInt, Text, Time};

const TEXTS: Type = List(&Text);
const TEXT_MAP: Type = Type::Map(&Text);
const BYTES_MAP: Type = Type::Map(&Bytes);

const TYPE_META: Schema = &[(1, "apiVersion", Text), (2, "kind", Text)];

const METADATA: Schema = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (4, "selfLink", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", PlainInt),
    (8, "creationTimestamp", Time),
    (11, "labels", TEXT_MAP),
    (12, "annotations", TEXT_MAP),
    (13, "ownerReferences", List(&Message(OWNER))),
    (14, "finalizers", TEXTS),
];

const OWNER: Schema = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Bool),
    (7, "blockOwnerDeletion", Bool),
];

const CONFIG_MAP: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "data", TEXT_MAP),
    (3, "binaryData", BYTES_MAP),
    (4, "immutable", Bool),
];

const SECRET: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "data", BYTES_MAP),
    (3, "type", Text),
    (4, "stringData", TEXT_MAP),
    (5, "immutable", Bool),
];

const NAMESPACE: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(&[(1, "finalizers", TEXTS)])),
    (3, "status", Message(&[(1, "phase", Text)])),
];

const SERVICE_ACCOUNT: Schema = &[
    (1, "metadata", Message(METADATA)),
    (
        2,
        "secrets",
        List(&Message(&[
            (1, "kind", Text),
            (2, "namespace", Text),
            (3, "name", Text),
            (4, "uid", Text),
        ])),
    ),
    (3, "imagePullSecrets", List(&Message(&[(1, "name", Text)]))),
    (4, "automountServiceAccountToken", Bool),
];

const SERVICE: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(SERVICE_SPEC)),
    (3, "status", Message(&[(1, "loadBalancer", Message(&[]))])),
];

const SERVICE_SPEC: Schema = &[
    (1, "ports", List(&Message(SERVICE_PORT))),
    (2, "selector", TEXT_MAP),
    (3, "clusterIP", Text),
    (4, "type", Text),
    (5, "externalIPs", TEXTS),
    (7, "sessionAffinity", Text),
    (8, "loadBalancerIP", Text),
    (9, "loadBalancerSourceRanges", TEXTS),
    (10, "externalName", Text),
    (11, "externalTrafficPolicy", Text),
    (12, "healthCheckNodePort", PlainInt),
    (13, "publishNotReadyAddresses", PlainBool),
    (17, "ipFamilyPolicy", Text),
    (18, "clusterIPs", TEXTS),
    (19, "ipFamilies", TEXTS),
    (20, "allocateLoadBalancerNodePorts", Bool),
    (21, "loadBalancerClass", Text),
    (22, "internalTrafficPolicy", Text),
];

const SERVICE_PORT: Schema = &[
    (1, "name", Text),
    (2, "protocol", Text),
    (3, "port", Int),
    (4, "targetPort", Type::IntOrString),
    (5, "nodePort", PlainInt),
    (6, "appProtocol", Text),
];

const TOKEN_REQUEST: Schema = &[
    (1, "metadata", Message(METADATA)),
    (
        2,
        "spec",
        Message(&[
            (1, "audiences", TEXTS),
            (
                3,
                "boundObjectRef",
                Message(&[
                    (1, "kind", Text),
                    (2, "apiVersion", Text),
                    (3, "name", Text),
                    (4, "uid", Text),
                ]),
            ),
            (4, "expirationSeconds", Int),
        ]),
    ),
    (
        3,
        "status",
        Message(&[(1, "token", Text), (2, "expirationTimestamp", Time)]),
    ),
];

const ACCESS_REVIEW: Schema = &[
    (1, "metadata", Message(METADATA)),
    (
        2,
        "spec",
        Message(&[
            (
                1,
                "resourceAttributes",
                Message(&[
                    (1, "namespace", Text),
                    (2, "verb", Text),
                    (3, "group", Text),
                    (4, "version", Text),
                    (5, "resource", Text),
                    (6, "subresource", Text),
                    (7, "name", Text),
                ]),
            ),
            (
                2,
                "nonResourceAttributes",
                Message(&[(1, "path", Text), (2, "verb", Text)]),
            ),
        ]),
    ),
    (
        3,
        "status",
        Message(&[
            (1, "allowed", PlainBool),
            (2, "reason", Text),
            (3, "evaluationError", Text),
            (4, "denied", PlainBool),
        ]),
    ),
];

/// The status of a request is empty, but it is there.
const SUBJECT_REVIEW: Schema = &[
    (1, "metadata", Message(METADATA)),
    (
        2,
        "status",
        Message(&[(
            1,
            "userInfo",
            Message(&[
                (1, "username", Text),
                (2, "uid", Text),
                (3, "groups", TEXTS),
            ]),
        )]),
    ),
];

const RULES_REVIEW: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "spec", Message(&[(1, "namespace", Text)])),
    (
        3,
        "status",
        Message(&[(3, "incomplete", PlainBool), (4, "evaluationError", Text)]),
    ),
];

const EVICTION: Schema = &[
    (1, "metadata", Message(METADATA)),
    (2, "deleteOptions", Message(DELETE_OPTIONS)),
];

const DELETE_OPTIONS: Schema = &[
    (1, "gracePeriodSeconds", Int),
    (
        2,
        "preconditions",
        Message(&[(1, "uid", Text), (2, "resourceVersion", Text)]),
    ),
    (3, "orphanDependents", Bool),
    (4, "propagationPolicy", Text),
    (5, "dryRun", TEXTS),
];

/// A value as it stands in the bytes.
#[derive(Clone, Copy)]
enum WireValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message in their order; `None` ends those that are malformed.
fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u64, WireValue<'_>)>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let field = field(&mut bytes);
        if field.is_none() {
            bytes = &[];
        }
        Some(field)
    })
}

fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, WireValue<'a>)> {
    let tag = varint(bytes)?;
    let wire = match tag & 0b111 {
        0 => WireValue::Number(varint(bytes)?),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let (value, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            WireValue::Bytes(value)
        }
        // No message of the table has fields of a fixed width.
        _ => return None,
    };
    Some((tag >> 3, wire))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn message(schema: Schema, bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    for field in fields(bytes) {
        let (number, wire) = field?;
        let (_, name, kind) = schema.iter().find(|(known, ..)| *known == number)?;
        match kind {
            List(item) => {
                let list = object.entry(*name).or_insert_with(|| json!([]));
                list.as_array_mut()?.push(value(**item, wire)?);
            }
            Type::Map(item) => {
                let (mut key, mut held) = (String::new(), default(**item));
                let WireValue::Bytes(entry) = wire else {
                    return None;
                };
                for part in fields(entry) {
                    match part? {
                        (1, WireValue::Bytes(bytes)) => {
                            std::str::from_utf8(bytes).ok()?.clone_into(&mut key);
                        }
                        (2, wire) => held = value(**item, wire)?,
                        _ => return None,
                    }
                }
                object.entry(*name).or_insert_with(|| json!({}))[key] = held;
            }
            kind => {
                let value = value(*kind, wire)?;
                let is_absent = match kind {
                    Text | PlainInt | PlainBool => value == default(*kind),
                    _ => value.is_null(),
                };
                if !is_absent {
                    object.insert((*name).to_owned(), value);
                }
            }
        }
    }
    Some(object)
}

fn default(kind: Type) -> Value {
    match kind {
        PlainInt => json!(0),
        PlainBool => json!(false),
        _ => json!(""),
    }
}

fn value(kind: Type, wire: WireValue<'_>) -> Option<Value> {
    Some(match (kind, wire) {
        (Text, WireValue::Bytes(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
        (Bytes, WireValue::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
        (Bool | PlainBool, WireValue::Number(number)) => json!(number != 0),
        // Negative numbers are written as 64-bit two's complement.
        (Int | PlainInt, WireValue::Number(number)) => json!(number.cast_signed()),
        (Message(schema), WireValue::Bytes(bytes)) => Value::Object(message(schema, bytes)?),
        (Time, WireValue::Bytes(bytes)) => {
            let time = message(&[(1, "seconds", PlainInt), (2, "nanos", PlainInt)], bytes)?;
            match time.get("seconds").and_then(Value::as_i64) {
                Some(seconds) => json!(rfc3339(Timestamp::from_second(seconds).ok()?)),
                None => Value::Null,
            }
        }
        (Type::IntOrString, WireValue::Bytes(bytes)) => {
            let either = message(
                &[
                    (1, "type", PlainInt),
                    (2, "int", PlainInt),
                    (3, "text", Text),
                ],
                bytes,
            )?;
            if either.contains_key("type") {
                either.get("text")?.clone()
            } else {
                either.get("int").cloned().unwrap_or(json!(0))
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_map_as_kubectl_sends_it() {
        let body = b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12\x1b\n\x11\n\x01a\x12\0\x1a\0\"\0*\x002\08\0B\0\x12\x06\n\x01a\x12\x011\x1a\0\"\0";
        let expected = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "1"}});
        assert_eq!(decode(body), Some(expected));
    }

    #[test]
    fn an_access_review_as_kubectl_sends_it() {
        let body = b"k8s\0\n2\n\x17authorization.k8s.io/v1\x12\x17SelfSubjectAccessReview\x12=\n\x10\n\0\x12\0\x1a\0\"\0*\x002\08\0B\0\x12\x1f\n\x1d\n\x07default\x12\x04list\x1a\0\"\0*\x04pods2\0:\0\x1a\x08\x08\0\x12\0\x1a\0 \0\x1a\0\"\0";
        let review = decode(body).unwrap();
        let expected = json!({"namespace": "default", "verb": "list", "resource": "pods"});
        assert_eq!(review["kind"], "SelfSubjectAccessReview");
        assert_eq!(review["spec"]["resourceAttributes"], expected);
    }

    #[test]
    fn truncated_or_unknown_messages_are_rejected() {
        let body = b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12\x1b\n\x11\n\x01a\x12\0\x1a\0\"\0*\x002\08\0B\0\x12\x06\n\x01a\x12\x011\x1a\0\"\0";
        for end in 0..body.len() - 4 {
            assert_eq!(decode(&body[..end]), None, "{end}");
        }
        // Field 9 of a ConfigMap does not exist.
        assert_eq!(
            decode(b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12\x02H\x01"),
            None
        );
        assert_eq!(decode(b"k8s\0\n\x09\n\x02v1\x12\x03Pod\x12\0"), None);
    }
}
