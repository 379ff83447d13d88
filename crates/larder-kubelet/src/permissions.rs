//! The permissions of larder's identity, from the API server's self subject access reviews.

use std::time::Duration;

use http::Method;
use kube::Client;
use larder_watch::{RequestError, is_allowed, request};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::warn;

const SUBJECT_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// Longest wait for a review.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The result of the last review.
#[derive(Clone, Debug)]
pub struct Permissions {
    /// The user name; empty if unknown.
    pub identity: String,
    /// The permissions that the mode uses, as an administrator grants them: touching pods, reading the lease of the node
    /// (R13), knowing the CSI drivers (R15). Whether each is granted; `None` is unknown.
    pub granted: [(&'static str, Option<bool>); 3],
}

impl Default for Permissions {
    fn default() -> Self {
        let all = ["patch pods/status", "get leases", "list csidrivers"];
        Self {
            identity: String::new(),
            granted: all.map(|permission| (permission, None)),
        }
    }
}

impl Permissions {
    /// Asks the API server. A permission without an answer stays unknown.
    pub async fn review(client: &Client, node_name: &str) -> Self {
        let subject =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let subject = request(client, Method::POST, SUBJECT_REVIEWS, Some(&subject));
        let subject: Value = answered(SUBJECT_REVIEWS, subject).await.unwrap_or_default();
        let user = subject.pointer("/status/userInfo/username");
        let mut permissions = Self::default();
        user.and_then(Value::as_str)
            .unwrap_or_default()
            .clone_into(&mut permissions.identity);
        let attributes = [
            json!({"verb": "patch", "resource": "pods", "subresource": "status"}),
            json!({
                "verb": "get", "group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-node-lease",
                "name": node_name,
            }),
            json!({"verb": "list", "group": "storage.k8s.io", "resource": "csidrivers"}),
        ];
        for ((_, granted), attributes) in permissions.granted.iter_mut().zip(attributes) {
            *granted = answered(ACCESS_REVIEWS, is_allowed(client, &attributes)).await;
        }
        permissions
    }

    /// Whether pods may be touched; `None` if that is unknown.
    pub fn may_touch(&self) -> Option<bool> {
        self.granted[0].1
    }
}

/// The answer to a review; `None` if it is not usable, which is logged without any text of the API server: that may quote
/// what it was sent.
async fn answered<T>(
    path: &str,
    review: impl Future<Output = Result<T, RequestError>>,
) -> Option<T> {
    let reason = match timeout(TIMEOUT, review).await {
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
        assert!(
            permissions
                .granted
                .iter()
                .all(|(_, granted)| granted.is_none())
        );
        assert!(sent.load(Ordering::Relaxed) > 0);
    }
}
