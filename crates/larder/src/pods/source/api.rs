//! The pods that the API server has bound to this node: a list, then a watch, of `spec.nodeName=<node>`.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/apiserver.go`, and its reflector. The field selector is not a matter of thrift: the
//! node authorizer allows a node nothing else. After the first list each change is reported by itself, so that its cost does not
//! grow with the pods of the node.

use std::{pin::pin, time::Duration};

use futures::TryStreamExt as _;
use http::Request;
use k8s_openapi::{List, api::core::v1::Pod};
use kube::{Client, core::WatchEvent};
use tokio::{sync::mpsc, time};

use super::{Closed, Reporter, SourceReport};
use crate::pods::{
    identity::{FullName, PodSource, PodUid},
    merge::SourcePods,
};

/// Bounds of the delay between two attempts, client-go 1.36 `tools/cache/reflector.go`; up to as much again is added by chance.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));

/// Seconds that the API server keeps a watch open: at least this, at most twice as long (as above).
const WATCH_SECS: u64 = 300;

/// The pods of one node at the API server.
#[derive(Clone)]
pub struct ApiSource {
    client: Client,
    node_name: String,
}

impl std::fmt::Debug for ApiSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiSource")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

/// Why the pods of the node are not known, or not known any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiSourceError {
    /// The list was refused, or not answered.
    #[error("failed to list the pods of node {node_name}")]
    List {
        /// The node.
        node_name: String,
        /// What went wrong.
        source: kube::Error,
    },
    /// The watch was refused, or broke.
    #[error("failed to watch the pods of node {node_name}")]
    Watch {
        /// The node.
        node_name: String,
        /// What went wrong.
        source: kube::Error,
    },
}

impl ApiSource {
    /// The pods that `client`'s API server has bound to `node_name`.
    pub fn new(client: Client, node_name: impl Into<String>) -> Self {
        Self {
            client,
            node_name: node_name.into(),
        }
    }

    /// Reports the pods until nobody receives. While the API server is away, what was reported stays.
    pub async fn run(self, reports: mpsc::Sender<SourceReport>) {
        let mut reporter = Reporter::new(PodSource::Api, reports.clone());
        // Resolves to the unit either way; the receiver's end also ends a wait or a silent watch.
        tokio::select! {
            _ = self.list_and_watch(&mut reporter) => {}
            () = reports.closed() => {}
        }
    }

    async fn list_and_watch(&self, reporter: &mut Reporter) -> Result<(), Closed> {
        let mut delay = BACKOFF.0;
        // The version that the pods reported so far are at; `None` asks for the most recent state, `0` for any.
        let mut version = Some("0".to_owned());
        loop {
            let problem = match self.list(version.as_deref()).await {
                Err(source) => {
                    version = version.filter(|_| !is_version_trouble(&source));
                    let node_name = self.node_name.clone();
                    Some(ApiSourceError::List { node_name, source })
                }
                Ok(list) => {
                    let mut at = list.metadata.resource_version.unwrap_or_default();
                    reporter.pods(SourcePods::All(list.items)).await?;
                    reporter.problems(Vec::new()).await?;
                    delay = BACKOFF.0;
                    let source = self.watch(&mut at, reporter).await?;
                    version = Some(at).filter(|_| !is_version_trouble(&source));
                    let node_name = self.node_name.clone();
                    // An expired version is how a long watch ends, nothing to tell.
                    version
                        .is_some()
                        .then_some(ApiSourceError::Watch { node_name, source })
                }
            };
            if let Some(problem) = problem {
                tracing::debug!(error = %problem, "pods of the API server are not followed");
                reporter.problem("API server", problem).await?;
            }
            time::sleep(delay.mul_f64(1.0 + fastrand::f64())).await;
            delay = (delay * 2).min(BACKOFF.1);
        }
    }

    async fn list(&self, version: Option<&str>) -> Result<List<Pod>, kube::Error> {
        let version = version.map(|version| format!("&resourceVersion={version}"));
        let request = self.request(&version.unwrap_or_default());
        self.client.request(request).await
    }

    /// Watches on from `version`, which is moved along, as often as the API server ends a watch in good order.
    async fn watch(
        &self,
        version: &mut String,
        reporter: &Reporter,
    ) -> Result<kube::Error, Closed> {
        loop {
            let timeout = fastrand::u64(WATCH_SECS..WATCH_SECS * 2);
            let request = self.request(&format!(
                "&watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={timeout}"
            ));
            let mut events = match self.client.request_events::<Pod>(request).await {
                Ok(events) => pin!(events),
                Err(error) => return Ok(error),
            };
            let mut quiet = true;
            loop {
                let (pods, at) = match events.try_next().await {
                    Ok(Some(WatchEvent::Added(pod) | WatchEvent::Modified(pod))) => {
                        let at = pod.metadata.resource_version.clone();
                        (Some(SourcePods::One(Box::new(pod))), at)
                    }
                    Ok(Some(WatchEvent::Deleted(pod))) => {
                        let gone = SourcePods::Gone(FullName::of(&pod), PodUid::of(&pod));
                        (Some(gone), pod.metadata.resource_version)
                    }
                    Ok(Some(WatchEvent::Bookmark(bookmark))) => {
                        (None, Some(bookmark.metadata.resource_version))
                    }
                    Ok(Some(WatchEvent::Error(status))) => return Ok(kube::Error::Api(status)),
                    // A watch that ends at once and empty is a server in trouble, not a watch that has run its time.
                    Ok(None) if quiet => break time::sleep(BACKOFF.0).await,
                    Ok(None) => break,
                    Err(error) => return Ok(error),
                };
                quiet = false;
                if let Some(at) = at {
                    *version = at;
                }
                if let Some(pods) = pods {
                    reporter.pods(pods).await?;
                }
            }
        }
    }

    fn request(&self, query: &str) -> Request<Vec<u8>> {
        let node_name = &self.node_name;
        Request::get(format!(
            "/api/v1/pods?fieldSelector=spec.nodeName%3D{node_name}{query}"
        ))
        .body(Vec::new())
        .expect("a node's name needs no escaping in a URL")
    }
}

/// Whether the API server has no use for the version that it was asked for: too old, or, after a restore, never reached.
fn is_version_trouble(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status)
        if status.code == 410 || status.message.contains("Too large resource version"))
}

#[cfg(test)]
mod tests;
