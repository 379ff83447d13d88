//! What a node may do to pods and requests for certificates, once it may do it at all: the NodeRestriction admission.

use http::StatusCode;
use larder_objects::{ObjectKey, api_reference};
use serde_json::Value;

use super::Authorization;
use crate::{
    ApiError, User,
    json::text,
    references::{MIRROR, account_of, typed},
    resource::Kind,
    rest::Verb,
    store::Store,
};

impl Authorization {
    /// The NodeRestriction admission: what a node may do to pods and requests for certificates, once it may do it at all. `object` is
    /// the new one for a creation.
    ///
    /// # Errors
    ///
    /// 403 or 500 with the rule, or 404 when the node or the pod does not exist.
    pub(crate) fn admit(
        self,
        store: &Store,
        user: &User,
        verb: Verb,
        (kind, key): (Kind, &ObjectKey),
        object: Option<&Value>,
    ) -> Result<(), ApiError> {
        let Some(node) = self.node(user) else {
            return Ok(());
        };
        match (kind, object) {
            (Kind::Pod, pod) => admit_pod(store, node, verb, key, pod),
            (Kind::PodCertificateRequest, Some(request)) => {
                admit_certificate_request(store, node, &key.namespace, request)
            }
            _ => Ok(()),
        }
    }

    /// The NodeRestriction admission of a pod's new status, which must not be a way to change anything else.
    ///
    /// # Errors
    ///
    /// 403 with what would change.
    pub(crate) fn admit_status(
        self,
        user: &User,
        old: &Value,
        new: &Value,
    ) -> Result<(), ApiError> {
        let Some(node) = self.node(user) else {
            return Ok(());
        };
        // An absent map is an empty one.
        let differs = |pointer| {
            let [old, new] =
                [old, new].map(|pod| pod.pointer(pointer).filter(|value| is_set(value)));
            old != new
        };
        for (pointer, what) in [
            ("/metadata/labels", "labels through pod status"),
            ("/status/resourceClaimStatuses", "resource claim statuses"),
        ] {
            if differs(pointer) {
                let why = format!("node \"{node}\" cannot update {what}");
                let name = text(old, "/metadata/name");
                return Err(ApiError::forbidden(Kind::Pod.resource(), name, &why));
            }
        }
        Ok(())
    }

    /// The node that `user` is, if nodes are restricted.
    fn node(self, user: &User) -> Option<&str> {
        let node = user.name.strip_prefix("system:node:");
        node.filter(|_| self == Self::Node)
    }
}

/// A node writes mirror pods of its own, and nothing but those.
fn admit_pod(
    store: &Store,
    node: &str,
    verb: Verb,
    key: &ObjectKey,
    pod: Option<&Value>,
) -> Result<(), ApiError> {
    let resource = Kind::Pod.resource();
    let refuse = |why: String| Err(ApiError::forbidden(resource, &key.name, &why));
    if verb != Verb::Create {
        let pod = store.get(Kind::Pod, key);
        let pod = pod.ok_or_else(|| ApiError::not_found(resource, &key.name))?;
        if pod.field("spec.nodeName") == node {
            return Ok(());
        }
        return refuse(format!(
            "node \"{node}\" can only {} pods with spec.nodeName set to itself",
            verb.as_str()
        ));
    }
    let Some(pod) = pod else {
        return Ok(());
    };
    if pod.pointer(MIRROR).is_none() {
        return refuse(format!("node \"{node}\" can only create mirror pods"));
    }
    if text(pod, "/spec/nodeName") != node {
        return refuse(format!(
            "node \"{node}\" can only create pods with spec.nodeName set to itself"
        ));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array();
    let owner = match owners.map(Vec::as_slice) {
        None | Some([]) => {
            return refuse(format!(
                "node \"{node}\" can only create pods with an owner reference set to itself"
            ));
        }
        Some([owner]) => owner,
        Some(_) => {
            return refuse(format!(
                "node \"{node}\" can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return refuse(format!(
            "node \"{node}\" can only create pods with an owner reference set to itself"
        ));
    }
    if owner["controller"] != true {
        return refuse(format!(
            "node \"{node}\" can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return refuse(format!(
            "node \"{node}\" must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let held = store.get(Kind::Node, &ObjectKey::new("", node));
    let held = held.ok_or_else(|| ApiError::not_found(Kind::Node.resource(), node))?;
    if owner["uid"] != held.uid.as_str() {
        let uid = owner["uid"].as_str().unwrap_or_default();
        return refuse(format!(
            "node {node} UID mismatch: expected {}, got {uid}",
            held.uid
        ));
    }
    match api_reference(&typed(pod)) {
        Some(resource) => refuse(format!(
            "node \"{node}\" can not create pods that reference {resource}"
        )),
        None => Ok(()),
    }
}

/// Whether `request` is about a pod of `node` and the account that it runs as.
fn admit_certificate_request(
    store: &Store,
    node: &str,
    namespace: &str,
    request: &Value,
) -> Result<(), ApiError> {
    let resource = Kind::PodCertificateRequest.resource();
    let spec = |field: &str| request["spec"][field].as_str().unwrap_or_default();
    let shown = match text(request, "/metadata/name") {
        "" => text(request, "/metadata/generateName"),
        name => name,
    };
    let refuse = |why: String| Err(ApiError::forbidden(resource, shown, &why));
    let broken = |why: String| {
        let code = StatusCode::INTERNAL_SERVER_ERROR;
        ApiError::new(code, "", why)
    };
    let asking = spec("nodeName");
    if asking != node {
        return refuse(format!(
            "PodCertificateRequest.Spec.NodeName={asking:?}, which is not the requesting node {node:?}"
        ));
    }
    let name = spec("podName");
    let (about, named) = (
        format!("PodCertificateRequest for pod \"{namespace}/{name}\""),
        |kind, namespace: &str, name: &str| store.get(kind, &ObjectKey::new(namespace, name)),
    );
    let pod = named(Kind::Pod, namespace, name).ok_or_else(|| {
        broken(format!(
            "while retrieving pod \"{namespace}/{name}\" named in the PodCertificateRequest: pod {name:?} not found"
        ))
    })?;
    if pod.field("spec.nodeName") != node {
        return refuse(format!(
            "pod \"{namespace}/{name}\" is not running on node {node:?} named in the PodCertificateRequest"
        ));
    }
    if pod.value().pointer(MIRROR).is_some() {
        return refuse(format!("pod \"{namespace}/{name}\" is a mirror pod"));
    }
    let uid = spec("podUID");
    if uid != pod.uid {
        return Err(broken(format!(
            "{about} contains pod UID ({uid:?}) which differs from running pod {:?}",
            pod.uid.as_str()
        )));
    }
    let (account, runs_as) = (spec("serviceAccountName"), account_of(&pod.value()));
    if account != runs_as {
        return refuse(format!(
            "{about} contains serviceAccountName ({account:?}) that differs from running pod ({runs_as:?})"
        ));
    }
    let held = named(Kind::ServiceAccount, namespace, account)
        .ok_or_else(|| broken(format!("{about}: serviceaccount {account:?} not found")))?;
    let uid = spec("serviceAccountUID");
    if uid != held.uid {
        return Err(broken(format!(
            "{about} names service account UID {uid:?}, which differs from the running service account ({:?})",
            held.uid.as_str()
        )));
    }
    let held = named(Kind::Node, "", node)
        .ok_or_else(|| broken(format!("{about}: node {node:?} not found")))?;
    let uid = spec("nodeUID");
    if uid != held.uid {
        return Err(broken(format!(
            "{about} names node UID {uid:?}, inconsistent with the running node ({:?})",
            held.uid.as_str()
        )));
    }
    Ok(())
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => true,
    }
}
