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
use larder_watch::request;
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
        let Some(client) = self.client.clone() else {
            return;
        };
        let (Some(namespace), Some(name), Some(uid)) = (
            metadata.namespace.clone(),
            metadata.name.clone(),
            &metadata.uid,
        ) else {
            return;
        };
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        });
        let path = PODS
            .in_namespace(&namespace)
            .and_then(|pods| pods.object(&name));
        let path = match path {
            Ok(path) => path,
            Err(error) => {
                warn!(error = error.to_string(), pod = %format_args!("{namespace}/{name}"), "failed to build the path of a deleted pod, ignoring it");
                return;
            }
        };
        self.requests.spawn(async move {
            let deleted = request::<IgnoredAny>(&client, Method::DELETE, path.as_str(), Some(&options));
            match deleted.await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => {
                    let error = chain(&error);
                    warn!(error, pod = %format_args!("{namespace}/{name}"), "failed to delete pod, will retry when it changes");
                }
                Ok(_) | Err(_) => {}
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
