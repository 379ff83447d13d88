//! Permissions: every user may do everything, or nodes may access only objects of their pods.
//!
//! The rules for nodes and their texts: kube-apiserver 1.36, `plugin/pkg/auth/authorizer/node/node_authorizer.go` and
//! `plugin/pkg/admission/noderestriction/admission.go`. They are evaluated against the current pods of the store, so a
//! binding takes effect without delay. This server does not know persistent volumes and resource claims, so they give
//! no access.

mod admission;

pub(crate) use admission::NodeRestriction;

use larder_objects::ObjectKey;
use smol_str::SmolStr;

use crate::{
    ApiError, User,
    references::Reference,
    request::{ResourcePath, Verb},
    resource::ApiKind,
    selector::FieldSelector,
    store::Store,
};

/// How requests are authorized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Authorization {
    /// Every authenticated user may do everything.
    #[default]
    AllowAll,
    /// `system:masters` may do everything, nodes (group `system:nodes`) what the node authorizer and the
    /// NodeRestriction admission allow, other users nothing.
    Node,
}

/// A request to authorize.
#[derive(Clone, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) verb: Verb,
    /// API group; empty for the core group.
    pub(crate) group: &'a str,
    /// As in a path: `secrets`.
    pub(crate) resource: &'a str,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    /// From the path, or the one that a field selector leaves.
    pub(crate) name: Option<&'a str>,
    /// `spec.nodeName=` of a field selector.
    pub(crate) node_name: Option<&'a str>,
}

impl<'a> Attempt<'a> {
    /// A request for `target`, `None` if it is not about objects, with this field selector.
    pub(crate) fn new(
        verb: Verb,
        target: Option<&'a ResourcePath>,
        selector: Option<&'a FieldSelector>,
    ) -> Self {
        let resource = target.map(|target| target.kind.resource());
        let name = target.and_then(|target| target.name.as_ref());
        let name = name.or(selector.and_then(FieldSelector::name));
        let node_name = selector.and_then(FieldSelector::node_name);
        Self {
            verb,
            group: resource.map_or("", |resource| resource.group),
            resource: resource.map_or("", |resource| resource.plural),
            subresource: target.and_then(|target| target.subresource.as_deref()),
            namespace: target.and_then(|target| target.namespace.as_deref()),
            name: name.map(SmolStr::as_str),
            node_name: node_name.map(SmolStr::as_str),
        }
    }
}

/// Namespace of the leases of nodes.
const NODE_LEASES: &str = "kube-node-lease";
const OTHER_LEASE: &str = "can only access node lease with the same name as the requesting node";

const READING: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];

impl Authorization {
    /// Whether `user` may make the attempt.
    ///
    /// # Errors
    ///
    /// Why not; empty when no rule says anything.
    pub(crate) fn decide(
        self,
        store: &Store,
        user: &User,
        attempt: &Attempt<'_>,
    ) -> Result<(), String> {
        let is_in = |group: &str| user.groups.iter().any(|held| held == group);
        if self == Self::AllowAll || is_in("system:masters") {
            return Ok(());
        }
        let node = user.name.strip_prefix("system:node:");
        match node.filter(|_| is_in("system:nodes")) {
            Some(node) => Node { store, node }.decide(attempt),
            None => Err(String::new()),
        }
    }
}

/// The 403 for an attempt.
pub(crate) fn denied(user: &User, attempt: &Attempt<'_>, why: &str) -> ApiError {
    let resource = match attempt.subresource {
        Some(subresource) => format!("{}/{subresource}", attempt.resource),
        None => attempt.resource.to_owned(),
    };
    let scope = match attempt.namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let mut message = format!(
        "User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\" {scope}",
        user.name,
        attempt.verb.as_str(),
        attempt.group
    );
    if !why.is_empty() {
        message += ": ";
        message += why;
    }
    let kind = ApiKind::find(|resource| resource.plural == attempt.resource);
    let kind = kind.unwrap_or(ApiKind::Namespace);
    ApiError::forbidden(kind, attempt.name.unwrap_or_default(), &message)
}

/// One node, and what it may do.
struct Node<'a> {
    store: &'a Store,
    node: &'a str,
}

impl Node<'_> {
    fn decide(&self, attempt: &Attempt<'_>) -> Result<(), String> {
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
        self.related(namespace, &(kind, name.into()))
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
        let object = self.store.get(kind, &key);
        let own = object.is_some_and(|object| object.field("spec.nodeName") == self.node);
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
        let account = (ApiKind::ServiceAccount, name.into());
        self.related(attempt.namespace.unwrap_or_default(), &account)
    }

    /// A request for a certificate: any node makes them (see [`Authorization::admit`]), and reads those about itself.
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

    /// Whether a pod of the node refers to the object.
    fn related(&self, namespace: &str, reference: &Reference) -> Result<(), String> {
        let refers = self.store.refers(self.node, namespace, reference);
        refers.then_some(()).ok_or_else(|| self.unrelated())
    }

    fn unrelated(&self) -> String {
        let node = self.node;
        format!("no relationship found between node '{node}' and this object")
    }
}
