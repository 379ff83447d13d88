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

use self::schema::{Schema, WireValue, fields};

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The bytes before the envelope.
const MAGIC: &[u8] = b"k8s\0";

/// Reads a whole body. `None` when it is malformed or holds what is not known here.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    let (mut type_meta, mut raw) = (None, None);
    for field in fields(body.strip_prefix(MAGIC)?) {
        match field? {
            (1, WireValue::Bytes(bytes)) => type_meta = Some(SCHEMA.decode("TypeMeta", bytes)?),
            (2, WireValue::Bytes(bytes)) => raw = Some(bytes),
            // The encoding and the type of `raw`: none and protobuf.
            (3 | 4, WireValue::Bytes([])) => {}
            _ => return None,
        }
    }
    let type_meta = type_meta?;
    let kind = type_meta.get("kind")?.as_str()?;
    if !BODIES.contains(&kind) {
        return None;
    }
    let mut object = SCHEMA.decode(kind, raw?)?;
    object.extend(type_meta);
    Some(Value::Object(object))
}

/// The kinds of bodies.
const BODIES: [&str; 11] = [
    "ConfigMap",
    "DeleteOptions",
    "Eviction",
    "Namespace",
    "Secret",
    "SelfSubjectAccessReview",
    "SelfSubjectReview",
    "SelfSubjectRulesReview",
    "Service",
    "ServiceAccount",
    "TokenRequest",
];

#[rustfmt::skip]
const SCHEMA: Schema = Schema { messages: &[
    ("TypeMeta", "1 apiVersion Text, 2 kind Text"),
    ("Metadata", "1 name Text, 2 generateName Text, 3 namespace Text, 4 selfLink Text, 5 uid Text, \
        6 resourceVersion Text, 7 generation PlainInt, 8 creationTimestamp Time, 11 labels {Text}, \
        12 annotations {Text}, 13 ownerReferences [Owner], 14 finalizers [Text]"),
    ("Owner", "1 kind Text, 3 name Text, 4 uid Text, 5 apiVersion Text, 6 controller Bool, 7 blockOwnerDeletion Bool"),
    ("ConfigMap", "1 metadata Metadata, 2 data {Text}, 3 binaryData {Bytes}, 4 immutable Bool"),
    ("Secret", "1 metadata Metadata, 2 data {Bytes}, 3 type Text, 4 stringData {Text}, 5 immutable Bool"),
    ("Namespace", "1 metadata Metadata, 2 spec NamespaceSpec, 3 status NamespaceStatus"),
    ("NamespaceSpec", "1 finalizers [Text]"),
    ("NamespaceStatus", "1 phase Text"),
    ("ServiceAccount", "1 metadata Metadata, 2 secrets [SecretReference], 3 imagePullSecrets [LocalReference], \
        4 automountServiceAccountToken Bool"),
    ("SecretReference", "1 kind Text, 2 namespace Text, 3 name Text, 4 uid Text"),
    ("LocalReference", "1 name Text"),
    ("Service", "1 metadata Metadata, 2 spec ServiceSpec, 3 status ServiceStatus"),
    ("ServiceStatus", "1 loadBalancer LoadBalancer"),
    ("LoadBalancer", ""),
    ("ServiceSpec", "1 ports [ServicePort], 2 selector {Text}, 3 clusterIP Text, 4 type Text, 5 externalIPs [Text], \
        7 sessionAffinity Text, 8 loadBalancerIP Text, 9 loadBalancerSourceRanges [Text], 10 externalName Text, \
        11 externalTrafficPolicy Text, 12 healthCheckNodePort PlainInt, 13 publishNotReadyAddresses PlainBool, \
        17 ipFamilyPolicy Text, 18 clusterIPs [Text], 19 ipFamilies [Text], 20 allocateLoadBalancerNodePorts Bool, \
        21 loadBalancerClass Text, 22 internalTrafficPolicy Text"),
    ("ServicePort", "1 name Text, 2 protocol Text, 3 port Int, 4 targetPort IntOrString, 5 nodePort PlainInt, \
        6 appProtocol Text"),
    ("TokenRequest", "1 metadata Metadata, 2 spec TokenRequestSpec, 3 status TokenRequestStatus"),
    ("TokenRequestSpec", "1 audiences [Text], 3 boundObjectRef BoundReference, 4 expirationSeconds Int"),
    ("BoundReference", "1 kind Text, 2 apiVersion Text, 3 name Text, 4 uid Text"),
    ("TokenRequestStatus", "1 token Text, 2 expirationTimestamp Time"),
    ("SelfSubjectAccessReview", "1 metadata Metadata, 2 spec AccessReviewSpec, 3 status AccessReviewStatus"),
    ("AccessReviewSpec", "1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes NonResourceAttributes"),
    ("ResourceAttributes", "1 namespace Text, 2 verb Text, 3 group Text, 4 version Text, 5 resource Text, \
        6 subresource Text, 7 name Text"),
    ("NonResourceAttributes", "1 path Text, 2 verb Text"),
    ("AccessReviewStatus", "1 allowed PlainBool, 2 reason Text, 3 evaluationError Text, 4 denied PlainBool"),
    // The status of a request is empty, but it is there.
    ("SelfSubjectReview", "1 metadata Metadata, 2 status SubjectReviewStatus"),
    ("SubjectReviewStatus", "1 userInfo UserInfo"),
    ("UserInfo", "1 username Text, 2 uid Text, 3 groups [Text]"),
    ("SelfSubjectRulesReview", "1 metadata Metadata, 2 spec RulesReviewSpec, 3 status RulesReviewStatus"),
    ("RulesReviewSpec", "1 namespace Text"),
    ("RulesReviewStatus", "3 incomplete PlainBool, 4 evaluationError Text"),
    ("Eviction", "1 metadata Metadata, 2 deleteOptions DeleteOptions"),
    ("DeleteOptions", "1 gracePeriodSeconds Int, 2 preconditions Preconditions, 3 orphanDependents Bool, \
        4 propagationPolicy Text, 5 dryRun [Text]"),
    ("Preconditions", "1 uid Text, 2 resourceVersion Text"),
] };

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
