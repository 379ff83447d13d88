//! The pods that the API server has bound to this node: a list, then a watch, of `spec.nodeName=<node>`.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/apiserver.go`, and its reflector. The field selector is not a matter of thrift: the
//! node authorizer allows a node nothing else. After the first list each change is reported by itself, so that its cost does not
//! grow with the pods of the node.

use std::{fmt, pin::pin, time::Duration};

use futures::TryStreamExt as _;
use http::Request;
use k8s_openapi::{List, api::core::v1::Pod};
use kube::{Client, core::WatchEvent};
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use super::{Closed, Reporter, SourceReport};
use crate::{
    RequestError,
    api::percent_encoded,
    backoff::Backoff,
    pods::{
        identity::{FullName, PodSource, PodUid},
        merge::SourcePods,
    },
};

/// Longest wait for a list, and for a watch to open; the API server's own limit is 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The API server is asked to keep a watch open for at least this, and at most twice as long (client-go 1.36,
/// `tools/cache/reflector.go`).
const WATCH_TIME: Duration = Duration::from_mins(5);

/// After this much more without an end the connection is taken for dead.
const OVERTIME: Duration = Duration::from_secs(30);

/// A watch that ended at once, without an event, is not opened again before this.
const HASTY: Duration = Duration::from_millis(800);

/// The pods of one node at the API server.
#[derive(Clone)]
pub struct ApiSource {
    client: Client,
    node_name: String,
}

impl fmt::Debug for ApiSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        source: RequestError,
    },
    /// The watch was refused, or broke.
    #[error("failed to watch the pods of node {node_name}")]
    Watch {
        /// The node.
        node_name: String,
        /// What went wrong.
        source: RequestError,
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
        let mut backoff = Backoff::new();
        // The version that the pods reported so far are at; `None` asks for the most recent state, `0` for any.
        let mut version = Some("0".to_owned());
        loop {
            let node_name = self.node_name.clone();
            let (error, told) = match self.list(version.as_deref()).await {
                Err(source) => (ApiSourceError::List { node_name, source }, true),
                Ok(list) => {
                    let mut at = list.metadata.resource_version.unwrap_or_default();
                    reporter.pods(SourcePods::All(list.items)).await?;
                    reporter.problems(Vec::new()).await?;
                    let listed_at = at.clone();
                    let source = self.watch(&mut at, reporter).await?;
                    if at != listed_at {
                        backoff.reset();
                    }
                    version = Some(at);
                    // That its version expires is how a long watch ends, nothing to tell.
                    let told = !source.is_expired();
                    (ApiSourceError::Watch { node_name, source }, told)
                }
            };
            let (ApiSourceError::List { source, .. } | ApiSourceError::Watch { source, .. }) =
                &error;
            // The API server has no use for the version: too old or, after a restore, never reached.
            version = version.filter(|_| !source.is_expired() && !source.is_version_too_large());
            let delay = backoff.delay(Instant::now(), source.is_forbidden(), fastrand::f64());
            let delay = delay.max(source.retry_after().unwrap_or_default());
            if told {
                reporter.problem("API server", error).await?;
            }
            time::sleep(delay).await;
        }
    }

    async fn list(&self, version: Option<&str>) -> Result<List<Pod>, RequestError> {
        let version = version.map(|version| ("resourceVersion", version));
        let request = self.request(version);
        let list = time::timeout(REQUEST_TIMEOUT, self.client.request(request)).await;
        Ok(list.map_err(|_| RequestError::Timeout(REQUEST_TIMEOUT))??)
    }

    /// Watches on from `version`, which is moved along, as often as the API server ends a watch in good order.
    async fn watch(
        &self,
        version: &mut String,
        reporter: &Reporter,
    ) -> Result<RequestError, Closed> {
        loop {
            let watch_time = WATCH_TIME.mul_f64(1.0 + fastrand::f64());
            let deadline = Instant::now() + watch_time + OVERTIME;
            let request = self.request([
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("resourceVersion", version),
                ("timeoutSeconds", &watch_time.as_secs().to_string()),
            ]);
            let opening = self.client.request_events::<Pod>(request);
            let mut events = match time::timeout(REQUEST_TIMEOUT, opening).await {
                Ok(Ok(events)) => pin!(events),
                Ok(Err(error)) => return Ok(error.into()),
                Err(_) => return Ok(RequestError::Timeout(REQUEST_TIMEOUT)),
            };
            let mut quiet = true;
            loop {
                let Ok(event) = time::timeout_at(deadline, events.try_next()).await else {
                    break;
                };
                let (pods, at) = match event {
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
                    Ok(Some(WatchEvent::Error(status))) => {
                        return Ok(kube::Error::Api(status).into());
                    }
                    // A server in trouble, not a watch that has run its time.
                    Ok(None) if quiet => break time::sleep(HASTY).await,
                    Ok(None) => break,
                    Err(error) => return Ok(error.into()),
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

    fn request<'a>(&self, query: impl IntoIterator<Item = (&'a str, &'a str)>) -> Request<Vec<u8>> {
        let node_name = percent_encoded(&self.node_name);
        let mut uri = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node_name}");
        for (name, value) in query {
            uri.extend(["&", name, "=", &percent_encoded(value)]);
        }
        Request::get(uri)
            .body(Vec::new())
            .expect("the values are percent-encoded")
    }
}

#[cfg(test)]
mod tests;
