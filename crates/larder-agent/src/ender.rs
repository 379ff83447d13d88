//! Ending pods in place of a kubelet, for an API server whose pods nobody runs.
//!
//! An API server only marks a pod of a node as deleted, and waits for the node to say that its containers have stopped. With the
//! embedded one there are none, and without this a deleted pod would stay for ever.

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use serde_json::json;
use tokio::task::JoinSet;
use tracing::warn;

/// Deletes pods that are marked as deleted; owns the requests under way.
pub(crate) struct Ender {
    client: Option<Client>,
    requests: JoinSet<()>,
}

impl Ender {
    /// Ends pods at the API server of `client`; without one, leaves that to others.
    pub(crate) fn new(client: Option<Client>) -> Self {
        Self {
            client,
            requests: JoinSet::new(),
        }
    }

    /// Lets the API server forget the pod with `metadata`, which it has marked as deleted.
    pub(crate) fn end(&mut self, metadata: &ObjectMeta) {
        while self.requests.try_join_next().is_some() {}
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
        let request = Request::delete(format!("/api/v1/namespaces/{namespace}/pods/{name}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(options.to_string().into_bytes())
            .expect("names of the API need no escaping in a path");
        self.requests.spawn(async move {
            match client.request_text(request).await {
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => warn!(%error, pod = %format_args!("{namespace}/{name}"), "deleted pod not ended"),
                Ok(_) => {}
            }
        });
    }
}
