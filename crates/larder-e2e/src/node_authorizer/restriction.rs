//! The NodeRestriction admission: limits the writes of a node that the authorizer has allowed.
//!
//! Source: kube-apiserver 1.36, `plugin/pkg/admission/noderestriction/admission.go`. Messages match it byte for byte.

use std::collections::BTreeSet;

use larder_apiserver::{ApiError, ApiKind, AttemptedUpdate, AttemptedWrite, Objects};
use larder_objects::{ObjectKey, api_reference};
use serde_json::Value;

use super::{MIRROR, NODE_NAME, OTHER_LEASE, account_of, text, typed};

/// The UID of an object.
const UID: &str = "/metadata/uid";

/// The NodeRestriction admission of an update: what a node may not change of an object that it may write.
///
/// # Errors
///
/// 403 with what would change.
pub(super) fn admit_update(node: &str, update: &AttemptedUpdate<'_>) -> Result<(), ApiError> {
    let AttemptedUpdate {
        kind,
        subresource,
        old,
        new,
        ..
    } = *update;
    // An absent map or list is an empty one.
    let differs = |pointer| {
        let [old, new] =
            [old, new].map(|object| object.pointer(pointer).filter(|value| is_set(value)));
        old != new
    };
    let reject = |why: &str| {
        let name = text(old, "/metadata/name");
        Err(ApiError::forbidden(kind, name, why))
    };
    let reject_node = |why: &str| reject(&format!("node \"{node}\" {why}"));
    match (kind, subresource) {
        (ApiKind::Pod, Some("status")) => {
            for (pointer, what) in [
                ("/metadata/labels", "labels through pod status"),
                ("/status/resourceClaimStatuses", "resource claim statues"),
                (
                    "/status/extendedResourceClaimStatus",
                    "extended resource claim status",
                ),
            ] {
                if differs(pointer) {
                    return reject_node(&format!("cannot update {what}"));
                }
            }
            Ok(())
        }
        (ApiKind::Node, _) => {
            let source = "/spec/configSource";
            if new.pointer(source).is_some_and(is_set) && differs(source) {
                return reject_node(
                    "is not allowed to update configSource to a new non-nil configSource",
                );
            }
            if differs("/spec/taints") {
                return reject_node("is not allowed to modify taints");
            }
            if differs("/metadata/ownerReferences") {
                return reject_node("is not allowed to modify ownerReferences");
            }
            match forbidden_labels(Some(old), new) {
                labels if labels.is_empty() => Ok(()),
                labels => reject(&format!("is not allowed to modify labels: {labels}")),
            }
        }
        _ => Ok(()),
    }
}

/// A write of a node that the authorizer has allowed, judged before the object is read.
pub(super) struct NodeWrite<'a> {
    pub(super) objects: Objects<'a>,
    pub(super) node: &'a str,
    pub(super) write: &'a AttemptedWrite<'a>,
}

impl NodeWrite<'_> {
    /// The NodeRestriction admission of the write.
    ///
    /// # Errors
    ///
    /// 403 or 500 with the rule, or 404 when the node or the pod does not exist.
    pub(super) fn admit(&self) -> Result<(), ApiError> {
        match (self.write.kind, self.write.subresource, self.write.body) {
            (ApiKind::Pod, None, Some(pod)) => self.mirror_pod(pod),
            (ApiKind::Pod, ..) => self.pod_change(),
            (ApiKind::Node, ..) => self.own_node(),
            (ApiKind::Lease, None, Some(lease)) => match text(lease, "/metadata/name") {
                name if name == self.node => Ok(()),
                name => self.reject(name, OTHER_LEASE),
            },
            (ApiKind::ServiceAccount, Some("token"), Some(request)) => self.token(request),
            (ApiKind::PodCertificateRequest, None, Some(request)) => {
                self.certificate_request(request)
            }
            _ => Ok(()),
        }
    }

    fn reject(&self, name: &str, why: &str) -> Result<(), ApiError> {
        Err(ApiError::forbidden(self.write.kind, name, why))
    }

    /// 403 for the object `name` unless a rule holds; `why` says which one.
    fn check(&self, name: &str, holds: bool, why: impl FnOnce() -> String) -> Result<(), ApiError> {
        if holds {
            Ok(())
        } else {
            self.reject(name, &why())
        }
    }

    /// A node changes, deletes and evicts the pods that are bound to it.
    fn pod_change(&self) -> Result<(), ApiError> {
        let node = self.node;
        let pod = self.objects.require(ApiKind::Pod, self.write.key)?;
        if text(&pod, NODE_NAME) == node {
            return Ok(());
        }
        let why = match (self.write.subresource, self.write.verb) {
            (Some("eviction"), _) => {
                format!("node {node} can only evict pods with spec.nodeName set to itself")
            }
            (Some("status"), _) => format!(
                "node \"{node}\" can only update pod status for pods with spec.nodeName set to itself"
            ),
            (_, verb) => format!(
                "node \"{node}\" can only {} pods with spec.nodeName set to itself",
                verb.as_str()
            ),
        };
        self.reject(&self.write.key.name, &why)
    }

    /// A node creates and changes its own Node, without labels that would steer pods of others to it.
    fn own_node(&self) -> Result<(), ApiError> {
        let (node, created) = (self.node, self.write.body);
        let name = match created {
            Some(created) => text(created, "/metadata/name"),
            None => &self.write.key.name,
        };
        let reject =
            |why: &str| self.reject(name, &format!("node \"{node}\" is not allowed to {why}"));
        if name != node {
            return reject(&format!("modify node \"{name}\""));
        }
        let Some(created) = created else {
            return Ok(());
        };
        if created.pointer("/spec/configSource").is_some_and(is_set) {
            return reject("create pods with a non-nil configSource");
        }
        match forbidden_labels(None, created) {
            labels if labels.is_empty() => Ok(()),
            labels => reject(&format!("set the following labels: {labels}")),
        }
    }

    /// A node gets tokens that are bound to a pod of its own.
    fn token(&self, request: &Value) -> Result<(), ApiError> {
        let (node, account) = (self.node, self.write.key);
        let reject = |why: &str| self.reject(&account.name, why);
        let bound = |field: &str| text(request, &format!("/spec/boundObjectRef/{field}"));
        let (name, uid) = (bound("name"), bound("uid"));
        if bound("apiVersion") != "v1" || bound("kind") != "Pod" || name.is_empty() {
            return reject("node requested token not bound to a pod");
        }
        if uid.is_empty() {
            return reject("node requested token with a pod binding without a uid");
        }
        let pod = ObjectKey::new(account.namespace.clone(), name);
        let pod = self.objects.require(ApiKind::Pod, &pod)?;
        self.check(&account.name, uid == text(&pod, UID), || {
            format!("the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated")
        })?;
        if text(&pod, NODE_NAME) != node {
            return reject("node requested token bound to a pod scheduled on a different node");
        }
        let audience = match request["spec"]["audiences"].as_array().map(Vec::as_slice) {
            None | Some([]) => "",
            Some([audience]) => audience.as_str().unwrap_or_default(),
            Some(_) => return reject("node may only request 0 or 1 audiences"),
        };
        // CSI drivers, which may ask for other audiences, are unknown here.
        let is_projected = projects(&pod, "serviceAccountToken", "/audience", audience);
        self.check(&account.name, is_projected, || {
            format!("audience {audience:?} not found in pod spec volume, system:node:{node} is not authorized to request tokens for this audience")
        })
    }

    /// A node creates mirror pods of its own, and no other pods.
    fn mirror_pod(&self, pod: &Value) -> Result<(), ApiError> {
        let node = self.node;
        let name = match self.write.key.name.as_str() {
            "" => text(pod, "/metadata/name"),
            name => name,
        };
        let only = |holds: bool, what: &str| {
            self.check(name, holds, || {
                format!("node \"{node}\" can only create pods with {what}")
            })
        };
        self.check(name, pod.pointer(MIRROR).is_some(), || {
            format!("pod does not have \"kubernetes.io/config.mirror\" annotation, node \"{node}\" can only create mirror pods")
        })?;
        only(
            text(pod, "/spec/nodeName") == node,
            "spec.nodeName set to itself",
        )?;
        let owners = pod["metadata"]["ownerReferences"].as_array();
        let owner = match owners.map(Vec::as_slice) {
            Some([owner]) => owner,
            None | Some([]) => return only(false, "an owner reference set to itself"),
            Some(_) => return only(false, "a single owner reference set to itself"),
        };
        let is_own =
            owner["apiVersion"] == "v1" && owner["kind"] == "Node" && owner["name"] == node;
        only(is_own, "an owner reference set to itself")?;
        let is_controller = owner["controller"] == true;
        only(is_controller, "a controller owner reference set to itself")?;
        self.check(name, owner["blockOwnerDeletion"] != true, || {
            format!("node \"{node}\" must not set blockOwnerDeletion on an owner reference")
        })?;
        let held = ObjectKey::new("", node);
        let held = self.objects.require(ApiKind::Node, &held)?;
        let held = text(&held, UID);
        self.check(name, owner["uid"] == held, || {
            let uid = owner["uid"].as_str().unwrap_or_default();
            // The API server names the two in this order.
            format!("node {node} UID mismatch: expected {uid} got {held}")
        })?;
        let reference = api_reference(&typed(pod.clone()));
        self.check(name, reference.is_none(), || {
            let resource = reference.unwrap_or_default();
            format!("node \"{node}\" can not create pods that reference {resource}")
        })
    }

    /// Whether `request` is about a pod of `node` and the account that it runs as.
    fn certificate_request(&self, request: &Value) -> Result<(), ApiError> {
        let (node, namespace) = (self.node, self.write.key.namespace.as_str());
        let spec = |field: &str| request["spec"][field].as_str().unwrap_or_default();
        let shown = match text(request, "/metadata/name") {
            "" => text(request, "/metadata/generateName"),
            name => name,
        };
        let asking = spec("nodeName");
        self.check(shown, asking == node, || {
            format!("PodCertificateRequest.Spec.NodeName={asking:?}, which is not the requesting node {node:?}")
        })?;
        let name = spec("podName");
        let about = format!("PodCertificateRequest for pod \"{namespace}/{name}\"");
        let named = |kind: ApiKind, what: &str, namespace: &str, name: &str| {
            let key = ObjectKey::new(namespace, name);
            self.objects.get(kind, &key).ok_or_else(|| {
                let (shown, singular) = (key.to_string(), what.replace(' ', ""));
                ApiError::unexpected(format!(
                    "while retrieving {what} {shown:?} named in the PodCertificateRequest: {singular} {name:?} not found"
                ))
            })
        };
        let same_uid = |given: &str, held: &str, what: String| {
            let error = || ApiError::unexpected(format!("{about} {what}"));
            (given == held).then_some(()).ok_or_else(error)
        };
        let (held, uid) = (named(ApiKind::Node, "node", "", node)?, spec("nodeUID"));
        let held = text(&held, UID);
        let what = format!("names node UID {uid:?}, inconsistent with the running node ({held:?})");
        same_uid(uid, held, what)?;
        let (pod, uid) = (named(ApiKind::Pod, "pod", namespace, name)?, spec("podUID"));
        let held = text(&pod, UID);
        let what = format!("contains pod UID ({uid:?}) which differs from running pod {held:?}");
        same_uid(uid, held, what)?;
        self.check(shown, text(&pod, NODE_NAME) == node, || {
            format!("pod \"{namespace}/{name}\" is not running on node {node:?} named in the PodCertificateRequest")
        })?;
        self.check(shown, pod.pointer(MIRROR).is_none(), || {
            format!("pod \"{namespace}/{name}\" is a mirror pod")
        })?;
        let (account, runs_as) = (spec("serviceAccountName"), account_of(&pod));
        self.check(shown, account == runs_as, || {
            format!("{about} contains serviceAccountName ({account:?}) that differs from running pod ({runs_as:?})")
        })?;
        let held = named(
            ApiKind::ServiceAccount,
            "service account",
            namespace,
            account,
        )?;
        let (held, uid) = (text(&held, UID), spec("serviceAccountUID"));
        let what = format!(
            "names service account UID {uid:?}, which differs from the running service account ({held:?})"
        );
        same_uid(uid, held, what)?;
        // Since Kubernetes 1.37; the text is larder's. No user has the verb that permits other signers.
        let signer = spec("signerName");
        let is_projected = projects(&pod, "podCertificate", "/signerName", signer);
        self.check(shown, is_projected, || {
            format!("signer {signer:?} not found in pod spec volume, system:node:{node} is not authorized to request certificates of this signer")
        })
    }
}

/// The labels that a kubelet may set besides those of its own domains. Source: Kubernetes 1.36,
/// `staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go`.
const KUBELET_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// The labels, in order and joined, that differ from `old` and that a node may not change.
fn forbidden_labels(old: Option<&Value>, new: &Value) -> String {
    let labels = |object: Option<&Value>| {
        let labels = object.and_then(|object| object.pointer("/metadata/labels")?.as_object());
        labels.cloned().unwrap_or_default()
    };
    let (old, new) = (labels(old), labels(Some(new)));
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let forbidden = keys.into_iter().filter(|key| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let is_in = |parent: &str| {
            let prefix = domain.strip_suffix(parent);
            prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        };
        let restricted = is_in("node-restriction.kubernetes.io");
        let of_kubernetes = is_in("kubernetes.io") || is_in("k8s.io");
        let of_kubelet = KUBELET_LABELS.contains(&key.as_str())
            || is_in("kubelet.kubernetes.io")
            || is_in("node.kubernetes.io");
        old.get(*key) != new.get(*key) && (restricted || of_kubernetes && !of_kubelet)
    });
    forbidden.map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Whether a projected volume of `pod` has a source of the type `source_type` with this value of `field`.
fn projects<'a>(pod: &'a Value, source_type: &str, field: &str, value: &str) -> bool {
    let items = |value: &'a Value, pointer: &str| {
        let items = value.pointer(pointer).and_then(Value::as_array);
        items.into_iter().flatten()
    };
    let mut sources =
        items(pod, "/spec/volumes").flat_map(|volume| items(volume, "/projected/sources"));
    sources.any(|source| {
        let source = &source[source_type];
        source.is_object() && text(source, field) == value
    })
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}
