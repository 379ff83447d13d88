//! Bodies in Kubernetes' protobuf form, read into JSON.
//!
//! `kubectl create configmap` and similar commands send nothing else. Only the messages of such commands are known: a
//! body with any other message or field is rejected (415), never read in part. Responses are always JSON, which these
//! clients accept as well.
//!
//! Field numbers: Kubernetes 1.36, the `generated.proto` of `api/core/v1`, `api/authentication/v1`,
//! `api/authorization/v1`, `api/policy/v1` and `apimachinery/pkg/apis/meta/v1`.

mod schema;

use serde_json::Value;

use self::schema::{
    FieldType::{Bool, Bytes, Int, IntOrString, Message, PlainBool, PlainInt, Text, Time},
    MessageSchema, WireValue, fields, list, map, one,
};

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The bytes before the envelope.
const MAGIC: &[u8] = b"k8s\0";

/// Reads a whole body. `None` when it is malformed or holds what is not known here.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let (mut type_meta, mut raw) = (None, None);
    for field in fields(body.strip_prefix(MAGIC)?) {
        match field? {
            (1, WireValue::Bytes(bytes)) => type_meta = Some(TYPE_META.decode(bytes)?),
            (2, WireValue::Bytes(bytes)) => raw = Some(bytes),
            // The encoding and the type of `raw`: none and protobuf.
            (3 | 4, WireValue::Bytes([])) => {}
            _ => return None,
        }
    }
    let type_meta = type_meta?;
    let kind = type_meta.get("kind")?.as_str()?;
    let (_, schema) = BODIES.iter().find(|(known, _)| *known == kind)?;
    let mut object = schema.decode(raw?)?;
    object.extend(type_meta);
    Some(Value::Object(object))
}

/// The kinds of bodies.
const BODIES: [(&str, &MessageSchema); 11] = [
    ("ConfigMap", &CONFIG_MAP),
    ("DeleteOptions", &DELETE_OPTIONS),
    ("Eviction", &EVICTION),
    ("Namespace", &NAMESPACE),
    ("Secret", &SECRET),
    ("SelfSubjectAccessReview", &SELF_SUBJECT_ACCESS_REVIEW),
    ("SelfSubjectReview", &SELF_SUBJECT_REVIEW),
    ("SelfSubjectRulesReview", &SELF_SUBJECT_RULES_REVIEW),
    ("Service", &SERVICE),
    ("ServiceAccount", &SERVICE_ACCOUNT),
    ("TokenRequest", &TOKEN_REQUEST),
];

const TYPE_META: MessageSchema = MessageSchema(&[one(1, "apiVersion", Text), one(2, "kind", Text)]);
const METADATA: MessageSchema = MessageSchema(&[
    one(1, "name", Text),
    one(2, "generateName", Text),
    one(3, "namespace", Text),
    one(4, "selfLink", Text),
    one(5, "uid", Text),
    one(6, "resourceVersion", Text),
    one(7, "generation", PlainInt),
    one(8, "creationTimestamp", Time),
    map(11, "labels", Text),
    map(12, "annotations", Text),
    list(13, "ownerReferences", Message(&OWNER)),
    list(14, "finalizers", Text),
]);
const OWNER: MessageSchema = MessageSchema(&[
    one(1, "kind", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
    one(5, "apiVersion", Text),
    one(6, "controller", Bool),
    one(7, "blockOwnerDeletion", Bool),
]);
const CONFIG_MAP: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    map(2, "data", Text),
    map(3, "binaryData", Bytes),
    one(4, "immutable", Bool),
]);
const SECRET: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    map(2, "data", Bytes),
    one(3, "type", Text),
    map(4, "stringData", Text),
    one(5, "immutable", Bool),
]);
const NAMESPACE: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    one(2, "spec", Message(&NAMESPACE_SPEC)),
    one(3, "status", Message(&NAMESPACE_STATUS)),
]);
const NAMESPACE_SPEC: MessageSchema = MessageSchema(&[list(1, "finalizers", Text)]);
const NAMESPACE_STATUS: MessageSchema = MessageSchema(&[one(1, "phase", Text)]);
const SERVICE_ACCOUNT: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    list(2, "secrets", Message(&SECRET_REFERENCE)),
    list(3, "imagePullSecrets", Message(&LOCAL_REFERENCE)),
    one(4, "automountServiceAccountToken", Bool),
]);
const SECRET_REFERENCE: MessageSchema = MessageSchema(&[
    one(1, "kind", Text),
    one(2, "namespace", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
]);
const LOCAL_REFERENCE: MessageSchema = MessageSchema(&[one(1, "name", Text)]);
const SERVICE: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    one(2, "spec", Message(&SERVICE_SPEC)),
    one(3, "status", Message(&SERVICE_STATUS)),
]);
const SERVICE_STATUS: MessageSchema =
    MessageSchema(&[one(1, "loadBalancer", Message(&LOAD_BALANCER))]);
const LOAD_BALANCER: MessageSchema = MessageSchema(&[]);
const SERVICE_SPEC: MessageSchema = MessageSchema(&[
    list(1, "ports", Message(&SERVICE_PORT)),
    map(2, "selector", Text),
    one(3, "clusterIP", Text),
    one(4, "type", Text),
    list(5, "externalIPs", Text),
    one(7, "sessionAffinity", Text),
    one(8, "loadBalancerIP", Text),
    list(9, "loadBalancerSourceRanges", Text),
    one(10, "externalName", Text),
    one(11, "externalTrafficPolicy", Text),
    one(12, "healthCheckNodePort", PlainInt),
    one(13, "publishNotReadyAddresses", PlainBool),
    one(17, "ipFamilyPolicy", Text),
    list(18, "clusterIPs", Text),
    list(19, "ipFamilies", Text),
    one(20, "allocateLoadBalancerNodePorts", Bool),
    one(21, "loadBalancerClass", Text),
    one(22, "internalTrafficPolicy", Text),
]);
const SERVICE_PORT: MessageSchema = MessageSchema(&[
    one(1, "name", Text),
    one(2, "protocol", Text),
    one(3, "port", Int),
    one(4, "targetPort", IntOrString),
    one(5, "nodePort", PlainInt),
    one(6, "appProtocol", Text),
]);
const TOKEN_REQUEST: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    one(2, "spec", Message(&TOKEN_REQUEST_SPEC)),
    one(3, "status", Message(&TOKEN_REQUEST_STATUS)),
]);
const TOKEN_REQUEST_SPEC: MessageSchema = MessageSchema(&[
    list(1, "audiences", Text),
    one(3, "boundObjectRef", Message(&BOUND_REFERENCE)),
    one(4, "expirationSeconds", Int),
]);
const BOUND_REFERENCE: MessageSchema = MessageSchema(&[
    one(1, "kind", Text),
    one(2, "apiVersion", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
]);
const TOKEN_REQUEST_STATUS: MessageSchema =
    MessageSchema(&[one(1, "token", Text), one(2, "expirationTimestamp", Time)]);
const SELF_SUBJECT_ACCESS_REVIEW: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    one(2, "spec", Message(&ACCESS_REVIEW_SPEC)),
    one(3, "status", Message(&ACCESS_REVIEW_STATUS)),
]);
const ACCESS_REVIEW_SPEC: MessageSchema = MessageSchema(&[
    one(1, "resourceAttributes", Message(&RESOURCE_ATTRIBUTES)),
    one(
        2,
        "nonResourceAttributes",
        Message(&NON_RESOURCE_ATTRIBUTES),
    ),
]);
const RESOURCE_ATTRIBUTES: MessageSchema = MessageSchema(&[
    one(1, "namespace", Text),
    one(2, "verb", Text),
    one(3, "group", Text),
    one(4, "version", Text),
    one(5, "resource", Text),
    one(6, "subresource", Text),
    one(7, "name", Text),
]);
const NON_RESOURCE_ATTRIBUTES: MessageSchema =
    MessageSchema(&[one(1, "path", Text), one(2, "verb", Text)]);
const ACCESS_REVIEW_STATUS: MessageSchema = MessageSchema(&[
    one(1, "allowed", PlainBool),
    one(2, "reason", Text),
    one(3, "evaluationError", Text),
    one(4, "denied", PlainBool),
]);
// The status of a request is empty, but it is there.
const SELF_SUBJECT_REVIEW: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    one(2, "status", Message(&SUBJECT_REVIEW_STATUS)),
]);
const SUBJECT_REVIEW_STATUS: MessageSchema =
    MessageSchema(&[one(1, "userInfo", Message(&USER_INFO))]);
const USER_INFO: MessageSchema = MessageSchema(&[
    one(1, "username", Text),
    one(2, "uid", Text),
    list(3, "groups", Text),
]);
const SELF_SUBJECT_RULES_REVIEW: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    one(2, "spec", Message(&RULES_REVIEW_SPEC)),
    one(3, "status", Message(&RULES_REVIEW_STATUS)),
]);
const RULES_REVIEW_SPEC: MessageSchema = MessageSchema(&[one(1, "namespace", Text)]);
const RULES_REVIEW_STATUS: MessageSchema = MessageSchema(&[
    one(3, "incomplete", PlainBool),
    one(4, "evaluationError", Text),
]);
const EVICTION: MessageSchema = MessageSchema(&[
    one(1, "metadata", Message(&METADATA)),
    one(2, "deleteOptions", Message(&DELETE_OPTIONS)),
]);
const DELETE_OPTIONS: MessageSchema = MessageSchema(&[
    one(1, "gracePeriodSeconds", Int),
    one(2, "preconditions", Message(&PRECONDITIONS)),
    one(3, "orphanDependents", Bool),
    one(4, "propagationPolicy", Text),
    list(5, "dryRun", Text),
]);
const PRECONDITIONS: MessageSchema =
    MessageSchema(&[one(1, "uid", Text), one(2, "resourceVersion", Text)]);

#[cfg(test)]
mod tests {
    use serde_json::json;

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
