//! Completes the deletion of pods in place of a kubelet, for an API server whose pods no kubelet runs.
//!
//! An API server only marks a pod of a node as deleted, and waits for the node to report that its containers have
//! stopped. The embedded one has no containers, so without this module a deleted pod would stay forever.

use std::future::pending;

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use larder_objects::chain;
use larder_transport::path::Resource;
use larder_watch::{RequestError, request};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::task::{JoinError, JoinSet};
use tracing::warn;

const PODS: Resource = Resource::core("pods");

/// Deletes pods that are marked as deleted; owns the requests under way.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct PodDeleter {
    client: Option<Client>,
    requests: JoinSet<()>,
}

impl PodDeleter {
    /// Deletes pods at the API server of `client`; without one, does nothing.
    pub fn new(client: Option<Client>) -> Self {
        Self {
            client,
            requests: JoinSet::new(),
        }
    }

    /// Removes the pod with `metadata`, which the API server has marked as deleted.
    pub fn delete(&mut self, metadata: &ObjectMeta) {
        let (Some(client), Some(namespace), Some(name), Some(uid)) = (
            self.client.clone(),
            metadata.namespace.clone(),
            metadata.name.clone(),
            metadata.uid.clone(),
        ) else {
            return;
        };
        self.requests.spawn(async move {
            if let Err(error) = delete_pod(&client, &namespace, &name, &uid).await {
                let error = chain(&error);
                warn!(error, pod = %format_args!("{namespace}/{name}"), "failed to delete pod, will retry when it changes");
            }
        });
    }

    /// Waits until a request panics. Cancel-safe.
    pub async fn failure(&mut self) -> JoinError {
        while let Some(ended) = self.requests.join_next().await {
            if let Err(error) = ended {
                return error;
            }
        }
        pending().await
    }
}

/// Deletes the pod with exactly this UID, at once. Returns `false` if it was gone already, or another pod has its name.
///
/// # Errors
///
/// The API server rejects the request, or does not answer.
pub(crate) async fn delete_pod(
    client: &Client,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<bool, RequestError> {
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": uid},
    });
    let path = PODS.in_namespace(namespace)?.object(name)?;
    match request(client, Method::DELETE, path.as_str(), Some(&options)).await {
        Ok(IgnoredAny) => Ok(true),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}
