//! The node authorizer for the embedded API server: nodes may access only objects of their pods.
//!
//! The rules for nodes and their texts: kube-apiserver 1.36, `plugin/pkg/auth/authorizer/node/node_authorizer.go` and
//! `plugin/pkg/admission/noderestriction/admission.go`. They are evaluated against the pods that the server holds, so a
//! binding takes effect without delay. This server does not know persistent volumes and resource claims, so they give
//! no access.

mod restriction;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::Pod;
use larder_apiserver::{
    ApiError, ApiKind, Attempt, AttemptedUpdate, AttemptedWrite, Authorization, Objects, User, Verb,
};
use larder_objects::{ObjectKey, references};
use serde_json::Value;

use restriction::{NodeWrite, admit_update};

/// `system:masters` may do everything, nodes (group `system:nodes`) what the node authorizer and the NodeRestriction
/// admission allow, other users nothing.
#[derive(Clone, Copy, Debug)]
pub struct NodeAuthorizer;

impl Authorization for NodeAuthorizer {
    fn authorize(
        &self,
        objects: Objects<'_>,
        user: &User,
        attempt: &Attempt<'_>,
    ) -> Result<(), String> {
        if is_in(user, MASTERS) {
            return Ok(());
        }
        match node(user).filter(|_| is_in(user, "system:nodes")) {
            Some(node) => NodePermissions { objects, node }.authorize(attempt),
            None => Err(String::new()),
        }
    }

    fn admit(
        &self,
        objects: Objects<'_>,
        user: &User,
        write: &AttemptedWrite<'_>,
    ) -> Result<(), ApiError> {
        let restricted = node(user).map(|node| NodeWrite {
            objects,
            node,
            write,
        });
        restricted.map_or(Ok(()), |restricted| restricted.admit())
    }

    fn admit_update(&self, user: &User, update: &AttemptedUpdate<'_>) -> Result<(), ApiError> {
        node(user).map_or(Ok(()), |node| admit_update(node, update))
    }

    fn why_unlisted(&self, user: &User) -> Option<&'static str> {
        let why = "node authorizer does not support user rule resolution";
        (!is_in(user, MASTERS)).then_some(why)
    }
}

const MASTERS: &str = "system:masters";

fn is_in(user: &User, group: &str) -> bool {
    user.groups.iter().any(|held| held == group)
}

/// The node that `user` is.
fn node(user: &User) -> Option<&str> {
    user.name.strip_prefix("system:node:")
}

/// Namespace of the leases of nodes.
const NODE_LEASES: &str = "kube-node-lease";
const OTHER_LEASE: &str = "can only access node lease with the same name as the requesting node";

const READING: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];

/// One node, and what it may do.
struct NodePermissions<'a> {
    objects: Objects<'a>,
    node: &'a str,
}

impl NodePermissions<'_> {
    fn authorize(&self, attempt: &Attempt<'_>) -> Result<(), String> {
        let reads = READING.contains(&attempt.verb);
        let changes = matches!(attempt.verb, Verb::Update | Verb::Patch);
        match (attempt.resource, attempt.subresource) {
            ("secrets", _) => self.object(attempt, ApiKind::Secret),
            ("configmaps", _) => self.object(attempt, ApiKind::ConfigMap),
            ("pods", None) => match attempt.verb {
                Verb::List | Verb::Watch if attempt.node_name == Some(self.node) => Ok(()),
                Verb::Get | Verb::List | Verb::Watch if attempt.name.is_none() => {
                    Err("can only list/watch pods with spec.nodeName field selector".to_owned())
                }
                Verb::Get | Verb::List | Verb::Watch => self.own(ApiKind::Pod, attempt),
                // NodeRestriction limits the node to mirror pods and to pods bound to it.
                Verb::Create | Verb::Delete => Ok(()),
                _ => Err(String::new()),
            },
            ("pods", Some("eviction")) if attempt.verb == Verb::Create => Ok(()),
            // NodeRestriction limits the node to its own Node.
            ("pods" | "nodes", Some("status")) if changes => Ok(()),
            ("nodes" | "events", None) if changes || attempt.verb == Verb::Create => Ok(()),
            ("nodes", None) if reads => self.own_node(attempt),
            ("serviceaccounts", None) if attempt.verb == Verb::Get => {
                self.object(attempt, ApiKind::ServiceAccount)
            }
            ("serviceaccounts", _) => self.token(attempt),
            ("services" | "clustertrustbundles" | "csidrivers", None) if reads => Ok(()),
            ("leases", _) => self.lease(attempt),
            ("podcertificaterequests", _) => self.certificate_request(attempt),
            _ => Err(String::new()),
        }
    }

    /// A Secret, ConfigMap or service account: by name, and only if a pod of the node names it.
    fn object(&self, attempt: &Attempt<'_>, kind: ApiKind) -> Result<(), String> {
        if !READING.contains(&attempt.verb) {
            return Err("can only read resources of this type".to_owned());
        }
        if attempt.subresource.is_some() {
            return Err("cannot read subresource".to_owned());
        }
        let Some(namespace) = attempt.namespace else {
            return Err("can only read namespaced object of this type".to_owned());
        };
        let Some(name) = attempt.name else {
            return Err("No Object name found".to_owned());
        };
        self.related(namespace, kind, name)
    }

    fn own_node(&self, attempt: &Attempt<'_>) -> Result<(), String> {
        let (node, others) = match attempt.name {
            Some(name) if name == self.node => return Ok(()),
            Some(name) => (self.node, format!("'{name}'")),
            None => (self.node, "all nodes".to_owned()),
        };
        Err(format!(
            "node '{node}' cannot read {others}, only its own Node object"
        ))
    }

    /// An object whose spec names the node.
    fn own(&self, kind: ApiKind, attempt: &Attempt<'_>) -> Result<(), String> {
        let name = attempt.name.unwrap_or_default();
        let key = ObjectKey::new(attempt.namespace.unwrap_or_default(), name);
        let object = self.objects.get(kind, &key);
        let own = object.is_some_and(|object| text(&object, NODE_NAME) == self.node);
        own.then_some(()).ok_or_else(|| self.unrelated())
    }

    /// The lease that shows that the node is alive.
    fn lease(&self, attempt: &Attempt<'_>) -> Result<(), String> {
        let of_many = [Verb::List, Verb::Watch, Verb::DeleteCollection];
        if of_many.contains(&attempt.verb) {
            let why = "can only get, create, update, patch, or delete a node lease";
            return Err(why.to_owned());
        }
        if attempt.namespace != Some(NODE_LEASES) {
            return Err(format!(
                "can only access leases in the {NODE_LEASES:?} system namespace"
            ));
        }
        // The name of a new one is NodeRestriction's to check.
        if attempt.verb == Verb::Create || attempt.name == Some(self.node) {
            Ok(())
        } else {
            Err(OTHER_LEASE.to_owned())
        }
    }

    /// A token of the service account of a pod of the node.
    fn token(&self, attempt: &Attempt<'_>) -> Result<(), String> {
        let Some(name) = attempt.name.filter(|_| attempt.verb == Verb::Create) else {
            let why = "can only create tokens for individual service accounts";
            return Err(why.to_owned());
        };
        if attempt.subresource != Some("token") {
            return Err("can only create token subresource of serviceaccount".to_owned());
        }
        let namespace = attempt.namespace.unwrap_or_default();
        self.related(namespace, ApiKind::ServiceAccount, name)
    }

    /// A request for a certificate: any node makes them (see [`NodeWrite`]), and reads those about itself.
    fn certificate_request(&self, attempt: &Attempt<'_>) -> Result<(), String> {
        if attempt.subresource.is_some() {
            return Err(
                "nodes may not access the status subresource of PodCertificateRequests".to_owned(),
            );
        }
        match attempt.verb {
            Verb::Create => Ok(()),
            Verb::List | Verb::Watch if attempt.node_name == Some(self.node) => Ok(()),
            Verb::List | Verb::Watch => Err(
                "can only list/watch podcertificaterequests with nodeName field selector"
                    .to_owned(),
            ),
            Verb::Get => self.own(ApiKind::PodCertificateRequest, attempt),
            verb => Err(format!(
                "nodes may not {} podcertificaterequests",
                verb.as_str()
            )),
        }
    }

    /// Whether a pod of the node refers to the object. A mirror pod grants nothing, since the node itself creates it.
    fn related(&self, namespace: &str, kind: ApiKind, name: &str) -> Result<(), String> {
        let mut pods = self.objects.list(ApiKind::Pod, namespace);
        let is_related = pods.any(|pod| {
            let own = text(&pod, NODE_NAME) == self.node && pod.pointer(MIRROR).is_none();
            own && refers(pod, kind, name)
        });
        is_related.then_some(()).ok_or_else(|| self.unrelated())
    }

    fn unrelated(&self) -> String {
        let node = self.node;
        format!("no relationship found between node '{node}' and this object")
    }
}

/// Whether `pod` refers to an object in its namespace. Source: Kubernetes 1.36,
/// `plugin/pkg/auth/authorizer/node/graph.go`.
fn refers(pod: Value, kind: ApiKind, name: &str) -> bool {
    match kind {
        ApiKind::ServiceAccount => account_of(&pod) == name,
        ApiKind::Secret => references::secrets(&typed(pod)).contains(name),
        ApiKind::ConfigMap => references::config_maps(&typed(pod)).contains(name),
        _ => false,
    }
}

/// The node that runs a pod, or that asks for a certificate.
const NODE_NAME: &str = "/spec/nodeName";
/// The annotation of mirror pods; its value does not matter.
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";

/// The service account that a pod runs as.
fn account_of(pod: &Value) -> &str {
    match text(pod, "/spec/serviceAccountName") {
        "" => "default",
        named => named,
    }
}

/// A pod's JSON as a pod. The server has decoded what it holds.
fn typed(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap_or_default()
}

/// The text at `pointer`; empty when there is none.
fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default()
}
