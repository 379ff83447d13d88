//! Requests for mirror pods and for the Node that owns them.

use std::sync::Arc;

use http::Method;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Client;
use larder_objects::{ApiJson as _, StableHash};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

use larder_transport::path::{CollectionPath, ObjectPath, Resource};
use larder_watch::{RequestError, request};

use crate::{
    deleter::delete_pod,
    identity::{
        CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, FullName, MirrorPodUid, annotation,
        is_mirror_pod, is_mirror_pod_of, set_annotation,
    },
    static_pod::canonical_json,
    stored::StoredPod,
};

/// Annotation of a mirror pod with the hash of its static pod's content. It is larder's own; a kubelet's mirror pods
/// lack it.
pub(super) const CONTENT_HASH: &str = "larder.dev/static-pod-content";

/// The owner of this node's mirror pods.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeIdentity {
    /// Name of the Node.
    pub name: String,
    /// UID of the Node object; never empty.
    pub uid: String,
}

/// Why a mirror pod is missing or outdated.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// The Node cannot be read or created.
    #[error("failed to {verb} node {name}")]
    Node {
        /// `get` or `create`.
        verb: &'static str,
        /// Name of the Node.
        name: String,
        /// The API server's error.
        source: Arc<RequestError>,
    },
    /// The Node does not exist, and larder is not configured to register one, or it cannot own a pod.
    #[error("node {name} {problem}")]
    UnusableNode {
        /// Its name.
        name: String,
        /// `does not exist`, `has no UID` or `is being deleted`.
        problem: &'static str,
    },
    /// The mirror pod could not be created, read or deleted.
    #[error("failed to {verb} mirror pod {full_name}")]
    Pod {
        /// `create`, `get` or `delete`.
        verb: &'static str,
        /// The pod.
        full_name: FullName,
        /// The API server's error.
        source: Arc<RequestError>,
    },
    /// An outdated mirror pod survives its deletion: it has finalizers, or another client recreates it.
    #[error("outdated mirror pod {full_name} still exists after its deletion")]
    InTheWay {
        /// The pod.
        full_name: FullName,
    },
    /// A pod that is not a mirror pod has the name, and is left alone.
    #[error("the name {full_name} belongs to a pod that is not a mirror pod")]
    NameTaken {
        /// The name.
        full_name: FullName,
    },
}

/// The result of [`MirrorClient::create`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// The mirror pod was created.
    Now,
    /// The current mirror pod existed before.
    Before,
    /// An outdated mirror pod exists, with this UID. Nothing was changed.
    Outdated(MirrorPodUid),
}

/// Client for this node's mirror pods. Cheap to clone.
#[derive(Clone)]
pub struct MirrorClient {
    client: Client,
    node_name: String,
    /// The Node to create if it does not exist: `registerNode`.
    registration: Option<Arc<Node>>,
}

impl std::fmt::Debug for MirrorClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorClient")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

impl MirrorClient {
    /// A client for the mirror pods of the node `node_name`.
    pub fn new(client: Client, node_name: impl Into<String>) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            registration: None,
        }
    }

    /// Creates `node` if no Node of this name exists: `registerNode: true`.
    #[must_use]
    pub fn registering(mut self, node: Node) -> Self {
        self.registration = Some(Arc::new(node));
        self
    }

    /// The Node that owns the mirror pods. Created first if [registering](Self::registering).
    ///
    /// # Errors
    ///
    /// It cannot be read or created, has no UID, or is being deleted.
    pub async fn node(&self) -> Result<NodeIdentity, MirrorError> {
        let name = self.node_name.clone();
        let failed = |verb| {
            let name = self.node_name.clone();
            move |source: RequestError| MirrorError::Node {
                verb,
                name,
                source: Arc::new(source),
            }
        };
        let unusable = |problem| {
            let name = self.node_name.clone();
            MirrorError::UnusableNode { name, problem }
        };
        let found = self.get_node().await.map_err(failed("get"))?;
        let node = match (found, &self.registration) {
            (Some(node), _) => node,
            (None, None) => return Err(unusable("does not exist")),
            (None, Some(node)) => {
                let mut node = Node::clone(node);
                node.metadata.name = Some(name.clone());
                let nodes = NODES.collection();
                match request(&self.client, Method::POST, nodes.as_str(), Some(&node)).await {
                    Ok(node) => {
                        tracing::info!(node = %name, "registered the node");
                        node
                    }
                    // Another client was faster.
                    Err(error) if error.is_conflict() => self
                        .get_node()
                        .await
                        .map_err(failed("get"))?
                        .ok_or_else(|| unusable("does not exist"))?,
                    Err(error) => return Err(failed("create")(error)),
                }
            }
        };
        if node.metadata.deletion_timestamp.is_some() {
            return Err(unusable("is being deleted"));
        }
        match node.metadata.uid.filter(|uid| !uid.is_empty()) {
            Some(uid) => Ok(NodeIdentity { name, uid }),
            None => Err(unusable("has no UID")),
        }
    }

    /// Creates the mirror pod of `pod` if it does not exist.
    ///
    /// # Errors
    ///
    /// The API server rejects it, or a pod that is not a mirror pod has its name.
    pub async fn create(
        &self,
        pod: &StoredPod,
        node: &NodeIdentity,
    ) -> Result<Created, MirrorError> {
        let full_name = FullName::of(&pod.metadata);
        let mirror = mirror_of(pod, node);
        let failed = |verb| failed(verb, &full_name);
        let conflict = match self.create_pod(&full_name, &mirror).await {
            Ok(()) => return Ok(Created::Now),
            Err(error) if error.is_conflict() => error,
            Err(error) => return Err(failed("create")(error)),
        };
        match self.get_pod(&full_name).await.map_err(failed("get"))? {
            // Deleted in between: the next attempt creates it.
            None => Err(failed("create")(conflict)),
            Some(found) if !is_mirror_pod(&found.metadata) => {
                Err(MirrorError::NameTaken { full_name })
            }
            Some(found) if is_current(&found.metadata, pod) => Ok(Created::Before),
            Some(found) => Ok(Created::Outdated(MirrorPodUid::new(
                found.metadata.uid.unwrap_or_default(),
            ))),
        }
    }

    /// Deletes the mirror pod with exactly this UID, at once. Returns `false` if it was gone already.
    ///
    /// # Errors
    ///
    /// The API server rejects the request. (The kubelet only logs that.)
    pub async fn delete(
        &self,
        full_name: &FullName,
        uid: &MirrorPodUid,
    ) -> Result<bool, MirrorError> {
        let FullName { name, namespace } = full_name;
        delete_pod(&self.client, namespace, name, uid.as_str())
            .await
            .map_err(failed("delete", full_name))
    }

    async fn get_node(&self) -> Result<Option<Node>, RequestError> {
        self.get(NODES.collection().object(&self.node_name)?).await
    }

    async fn get_pod(&self, full_name: &FullName) -> Result<Option<Pod>, RequestError> {
        self.get(pods_path(full_name)?.object(&full_name.name)?)
            .await
    }

    /// The object at `path`, if there is one.
    async fn get<T: DeserializeOwned>(&self, path: ObjectPath) -> Result<Option<T>, RequestError> {
        match request(&self.client, Method::GET, path.as_str(), None::<&Value>).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create_pod(&self, full_name: &FullName, pod: &Pod) -> Result<(), RequestError> {
        let path = pods_path(full_name)?;
        // As a tree, so that there is one serializer of pods.
        let json = pod.to_json().and_then(|json| serde_json::from_slice(&json));
        let pod: Value = json.expect("its keys are text, and its times were read from JSON");
        request(&self.client, Method::POST, path.as_str(), Some(&pod))
            .await
            .map(|_: IgnoredAny| ())
    }
}

const NODES: Resource = Resource::core("nodes");
fn failed(verb: &'static str, full_name: &FullName) -> impl FnOnce(RequestError) -> MirrorError {
    let full_name = full_name.clone();
    move |source| MirrorError::Pod {
        verb,
        full_name,
        source: Arc::new(source),
    }
}

fn pods_path(full_name: &FullName) -> Result<CollectionPath, RequestError> {
    Ok(Resource::PODS.in_namespace(&full_name.namespace)?)
}

/// The mirror pod of `pod`, ready to be created.
fn mirror_of(pod: &StoredPod, node: &NodeIdentity) -> Pod {
    let mut mirror = pod.decode();
    let hash = annotation(&pod.metadata, CONFIG_HASH)
        .unwrap_or_default()
        .to_owned();
    let content = content_hash(pod);
    let metadata = &mut mirror.metadata;
    set_annotation(metadata, CONFIG_MIRROR, Some(hash));
    set_annotation(metadata, CONTENT_HASH, Some(content));
    metadata.resource_version = None;
    // Exactly what the NodeRestriction admission plugin requires of a node.
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name.clone(),
        uid: node.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror
}

/// Whether the mirror pod with the metadata `mirror` shows the current `pod` and is not being deleted.
pub(super) fn is_current(mirror: &ObjectMeta, pod: &StoredPod) -> bool {
    mirror.deletion_timestamp.is_none()
        && is_mirror_pod_of(mirror, &pod.metadata)
        && annotation(mirror, CONTENT_HASH).is_none_or(|hash| hash == content_hash(pod))
}

/// Hash of the content of `pod` that users see: labels, annotations and spec.
fn content_hash(pod: &StoredPod) -> String {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    for key in [CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR, CONTENT_HASH] {
        annotations.remove(key);
    }
    let content = json!({
        "labels": pod.metadata.labels,
        "annotations": annotations,
        "spec": pod.spec_tree(),
    });
    StableHash::EMPTY.with(canonical_json(&content)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn static_pod() -> crate::testing::PodBuilder {
        pod("web")
            .annotation(CONFIG_SOURCE, "file")
            .annotation(CONFIG_SEEN, "2026-01-01T00:00:00.000000000Z")
            .annotation(CONFIG_HASH, "hash")
    }

    fn node() -> NodeIdentity {
        NodeIdentity {
            name: "n1".to_owned(),
            uid: "node-uid".to_owned(),
        }
    }

    #[test]
    fn a_mirror_pod_has_hash_and_owner_node() {
        // managers 52, 81: exactly what a real cluster lets a node create.
        let mirror = mirror_of(&static_pod().stored(), &node());
        assert_eq!(annotation(&mirror.metadata, CONFIG_MIRROR), Some("hash"));
        assert_eq!(annotation(&mirror.metadata, CONFIG_SOURCE), Some("file"));
        let owners = serde_json::to_value(mirror.metadata.owner_references).unwrap();
        assert_eq!(
            owners,
            json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true}])
        );
    }

    #[test]
    fn a_mirror_pod_is_current_while_hash_and_content_match() {
        let mirror = mirror_of(&static_pod().stored(), &node());
        assert!(is_current(&mirror.metadata, &static_pod().stored()));
        // The time of first sight is not part of the content.
        let seen_again = static_pod().annotation(CONFIG_SEEN, "later");
        assert!(is_current(&mirror.metadata, &seen_again.stored()));
        for changed in [
            static_pod().annotation(CONFIG_HASH, "other"),
            static_pod().image("i:2"),
            static_pod().label("l", "1"),
            static_pod().annotation("a", "1"),
        ] {
            assert!(!is_current(&mirror.metadata, &changed.stored()));
        }
        let mut ending = mirror.clone();
        ending.metadata.deletion_timestamp =
            static_pod().deleted().build().metadata.deletion_timestamp;
        assert!(!is_current(&ending.metadata, &static_pod().stored()));
        // A kubelet's mirror pod has the hash only.
        let mut kubelets = mirror;
        set_annotation(&mut kubelets.metadata, CONTENT_HASH, None);
        assert!(is_current(
            &kubelets.metadata,
            &static_pod().image("i:2").stored()
        ));
    }
}
