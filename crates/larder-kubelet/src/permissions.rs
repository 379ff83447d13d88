//! The permissions of larder's identity, from the API server's self subject access reviews.

use std::{collections::BTreeMap, time::Duration};

use http::Method;
use kube::Client;
use larder_watch::{RequestError, is_allowed, request};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::warn;

const SUBJECT_REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
/// A review of this namespace is about all of them.
const ALL_NAMESPACES: &str = "";
/// Longest wait for a review.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A permission that the mode uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Permission {
    /// Touching pods.
    TouchPods,
    /// Reading the lease of the node (R13).
    GetLease,
    /// Knowing the CSI drivers (R15).
    ListDrivers,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Self; 3] = [Self::TouchPods, Self::GetLease, Self::ListDrivers];

    /// The permission as an administrator grants it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TouchPods => "patch pods/status",
            Self::GetLease => "get leases",
            Self::ListDrivers => "list csidrivers",
        }
    }

    /// What a review asks about it, for the node of this name.
    fn attributes(self, node_name: &str) -> Value {
        match self {
            Self::TouchPods => touching_in(ALL_NAMESPACES),
            Self::GetLease => json!({
                "verb": "get", "group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-node-lease",
                "name": node_name,
            }),
            Self::ListDrivers => {
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
    /// Whether a permission is granted. One that is not in the map is unknown.
    granted: BTreeMap<Permission, bool>,
}

impl Permissions {
    /// Asks the API server. A permission without an answer stays unknown.
    pub async fn review(client: &Client, node_name: &str) -> Self {
        let subject =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let subject = request(client, Method::POST, SUBJECT_REVIEWS, Some(&subject));
        let subject: Value = answered(SUBJECT_REVIEWS, subject).await.unwrap_or_default();
        let identity = subject
            .pointer("/status/userInfo/username")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let mut granted = BTreeMap::new();
        for permission in Permission::ALL {
            let attributes = permission.attributes(node_name);
            let review = is_allowed(client, &attributes);
            let answer = answered(ACCESS_REVIEWS, review).await;
            granted.extend(answer.map(|is_granted| (permission, is_granted)));
        }
        Self { identity, granted }
    }

    /// Whether it is granted; `None` if that is unknown.
    pub fn is_granted(&self, permission: Permission) -> Option<bool> {
        self.granted.get(&permission).copied()
    }
}

/// Whether pods of `namespace` may be touched, which is asked now; `None` if that is unknown.
pub(crate) async fn may_touch_in(client: &Client, namespace: &str) -> Option<bool> {
    answered(ACCESS_REVIEWS, is_allowed(client, &touching_in(namespace))).await
}

fn touching_in(namespace: &str) -> Value {
    json!({"verb": "patch", "resource": "pods", "subresource": "status", "namespace": namespace})
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
        for permission in Permission::ALL {
            assert_eq!(permissions.is_granted(permission), None);
        }
        assert!(sent.load(Ordering::Relaxed) > 0);
    }
}
