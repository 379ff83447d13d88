//! The permissions of larder's identity, from the API server's self subject access reviews.

use std::time::Duration;

use http::Method;
use kube::Client;
use larder_watch::request;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::warn;

/// Longest wait for a review.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A permission that the mode uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Touching pods.
    Touch,
    /// Reading the lease of the node (R13).
    Lease,
    /// Knowing the CSI drivers (R15).
    Drivers,
}

impl Permission {
    const ALL: [Self; 3] = [Self::Touch, Self::Lease, Self::Drivers];

    /// Verb and resource, as an administrator grants it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Touch => "patch pods/status",
            Self::Lease => "get leases",
            Self::Drivers => "list csidrivers",
        }
    }

    fn attributes(self, node_name: &str) -> Value {
        match self {
            Self::Touch => json!({"verb": "patch", "resource": "pods", "subresource": "status"}),
            Self::Lease => json!({
                "verb": "get", "group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-node-lease",
                "name": node_name,
            }),
            Self::Drivers => {
                json!({"verb": "list", "group": "storage.k8s.io", "resource": "csidrivers"})
            }
        }
    }
}

/// The result of the last review.
#[derive(Clone, Debug, Default)]
pub struct Permissions {
    /// The user name; empty if unknown.
    pub identity: String,
    /// Whether each is granted, in the order of [`Permission::ALL`]; `None` is unknown.
    granted: [Option<bool>; 3],
}

impl Permissions {
    /// Asks the API server. A permission without an answer stays unknown.
    pub async fn review(client: &Client, node_name: &str) -> Self {
        let subject =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let subject = post(
            client,
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            &subject,
        );
        let subject = subject.await.unwrap_or_default();
        let user = subject.pointer("/status/userInfo/username");
        let identity = user.and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut granted = [None; 3];
        for (permission, granted) in Permission::ALL.into_iter().zip(&mut granted) {
            let review = json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": permission.attributes(node_name)},
            });
            let answer = post(
                client,
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                &review,
            );
            *granted = answer
                .await
                .and_then(|answer| answer.pointer("/status/allowed")?.as_bool());
        }
        Self { identity, granted }
    }

    /// Whether the permission is granted; `None` if that is unknown.
    pub fn may(&self, permission: Permission) -> Option<bool> {
        self.all()
            .find(|(found, _)| *found == permission)
            .and_then(|(_, granted)| granted)
    }

    /// Every permission, and whether it is granted.
    pub fn all(&self) -> impl Iterator<Item = (Permission, Option<bool>)> {
        Permission::ALL.into_iter().zip(self.granted)
    }
}

/// Creates a review; `None` if there is no usable answer, which is logged without any text of the API server: that may
/// quote what it was sent.
async fn post(client: &Client, path: &str, body: &Value) -> Option<Value> {
    let answer = timeout(TIMEOUT, request(client, Method::POST, path, Some(body))).await;
    let reason = match answer {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(error)) => error.label(),
        Err(_) => "timeout",
    };
    warn!(
        path,
        reason, "failed to review permissions, leaving them unknown"
    );
    None
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// Bytes of one frame; four requests stop at 3 MiB each.
    const FRAME: usize = 1 << 20;

    #[tokio::test]
    async fn an_answer_without_end_is_not_collected() {
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let counted = Arc::clone(&counted);
            let frames = stream::repeat_with(move || {
                let total = counted.fetch_add(FRAME, Ordering::Relaxed);
                assert!(total < 100 * FRAME, "the answer is read without limit");
                Ok::<_, Infallible>(Frame::data(bytes::Bytes::from(vec![b' '; FRAME])))
            });
            let body = StreamBody::new(frames);
            async move { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let permissions = Permissions::review(&Client::new(service, "n"), "node-1").await;
        assert_eq!(permissions.identity, "");
        assert!(permissions.all().all(|(_, granted)| granted.is_none()));
        assert!(sent.load(Ordering::Relaxed) > 0);
    }
}
