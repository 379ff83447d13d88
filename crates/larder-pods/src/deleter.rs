//! Completes the deletion of pods in place of a kubelet, for an API server whose pods no kubelet runs.
//!
//! An API server only marks a pod of a node as deleted, and waits for the node to report that its containers have
//! stopped. The embedded one has no containers, so without this module a deleted pod would stay forever.

use std::{collections::HashSet, future::pending, mem, time::Duration};

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use larder_objects::{ObjectKey, chain};
use larder_transport::{Backoff, path::Resource};
use larder_watch::{RequestError, request};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::{
    task::{JoinError, JoinSet},
    time::sleep,
};
use tracing::{debug, warn};

/// Delays between the attempts to delete one pod.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));

/// Deletes pods that are marked as deleted; owns the requests under way.
///
/// Invariant: a pod that is passed in is tried until it is gone, by one task.
#[expect(missing_debug_implementations, reason = "a client has none")]
pub struct PodDeleter {
    client: Option<Client>,
    /// The UIDs of the pods that are being deleted. Each task returns its own.
    under_way: HashSet<String>,
    tasks: JoinSet<String>,
}

impl PodDeleter {
    /// Deletes pods at the API server of `client`; without one, does nothing.
    pub fn new(client: Option<Client>) -> Self {
        Self {
            client,
            under_way: HashSet::new(),
            tasks: JoinSet::new(),
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
        if self.under_way.insert(uid.clone()) {
            self.tasks.spawn(async move {
                delete_until_gone(&client, &namespace, &name, &uid).await;
                uid
            });
        }
    }

    /// Waits until a task panics. Cancel-safe.
    pub async fn failure(&mut self) -> JoinError {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok(uid) => self.under_way.remove(&uid),
                Err(error) => return error,
            };
        }
        pending().await
    }
}

/// Tries until the pod is gone. One whose name cannot be part of a path cannot exist.
async fn delete_until_gone(client: &Client, namespace: &str, name: &str, uid: &str) {
    let (mut retry, mut has_failed) = (RETRY, false);
    while let Err(error) = delete_pod(client, namespace, name, uid).await {
        let pod = ObjectKey::new(namespace, name);
        let is_path = matches!(error, RequestError::Path(_));
        let error = chain(&error);
        if is_path {
            warn!(error, %pod, "failed to delete pod");
            return;
        }
        if mem::replace(&mut has_failed, true) {
            debug!(error, %pod, "failed to delete pod again, will retry");
        } else {
            warn!(error, %pod, "failed to delete pod, will retry");
        }
        sleep(retry.next_delay()).await;
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
    let path = Resource::PODS.in_namespace(namespace)?.object(name)?;
    match request(client, Method::DELETE, path.as_str(), Some(&options)).await {
        Ok(IgnoredAny) => Ok(true),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use http::{Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::*;

    /// A deleter whose requests are answered with these codes, and then with 200; and the number of requests.
    fn deleter(codes: &[u16]) -> (PodDeleter, Arc<Mutex<usize>>) {
        let codes = codes.to_vec();
        let requests = Arc::new(Mutex::new(0));
        let count = Arc::clone(&requests);
        let service = tower::service_fn(move |_: Request<Body>| {
            let mut count = count.lock();
            let code = codes.get(*count).copied().unwrap_or(200);
            *count += 1;
            let mut answer = Response::new(Body::from(b"{}".to_vec()));
            *answer.status_mut() = code.try_into().unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        (PodDeleter::new(Some(Client::new(service, "n"))), requests)
    }

    fn metadata(name: &str) -> ObjectMeta {
        let metadata = json!({"namespace": "n", "name": name, "uid": "u"});
        serde_json::from_value(metadata).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_that_fails_is_tried_until_the_pod_is_gone() {
        for (codes, expected) in [
            (&[][..], 1),
            (&[503, 403, 500], 4),
            // Gone, or another pod has its name.
            (&[503, 404], 2),
            (&[409], 1),
        ] {
            let (mut deleter, requests) = deleter(codes);
            deleter.delete(&metadata("web"));
            // The pod changes while it is being deleted.
            deleter.delete(&metadata("web"));
            let _ = timeout(Duration::from_mins(10), deleter.failure()).await;
            assert_eq!(*requests.lock(), expected, "{codes:?}");
            assert!(deleter.under_way.is_empty());
        }
        let (mut deleter, requests) = deleter(&[]);
        deleter.delete(&metadata(".."));
        let _ = timeout(Duration::from_mins(10), deleter.failure()).await;
        assert_eq!(*requests.lock(), 0);
    }
}
