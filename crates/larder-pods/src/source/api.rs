//! The pods that the API server has bound to this node: the [`Collection`] with `spec.nodeName=<node>`.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/config/apiserver.go`. The field selector is required: the node authorizer allows
//! nodes no other list. After the first list, each change is reported separately, so that its cost does not grow with
//! the pods of the node.
//!
//! Invariant: a pod that cannot be decoded stays as last reported, and is a problem. While one exists, the readable
//! pods are not the complete set. So they are reported one by one, and no pod of the node is removed because the list
//! lacks it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
};

use kube::Client;
use larder_objects::{DecodeError, ObjectMeta};
use tokio::sync::mpsc;

use super::{Closed, Reporter, SourceProblem, SourceReport, until_closed};
use larder_transport::path::{Resource, field_selector};
use larder_watch::{
    CollectionFreshness, NodeContext, RequestError,
    collection::{Collection, CollectionEvent, Found},
};

use crate::{
    identity::{FullName, PodSource, PodUid},
    merge::SourcePods,
    stored::StoredPod,
};

/// The pods of one node at the API server.
#[derive(Clone)]
pub struct ApiSource {
    client: Client,
    node_name: String,
    freshness: CollectionFreshness,
    context: NodeContext,
}

impl fmt::Debug for ApiSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiSource")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

/// Why the pods of the node are unknown or out of date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiSourceError {
    /// A list or watch was rejected, got no response, or broke.
    #[error("failed to follow the pods of node {node_name}")]
    Follow {
        /// The node.
        node_name: String,
        /// The cause.
        source: Arc<RequestError>,
    },
    /// One pod cannot be decoded.
    #[error("failed to decode pod {full_name}, keeping its last good copy")]
    Pod {
        /// The pod.
        full_name: FullName,
        /// The cause.
        source: DecodeError,
    },
}

impl ApiSource {
    /// The pods bound to `node_name` at the API server of `client`.
    pub fn new(client: Client, node_name: impl Into<String>) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            freshness: CollectionFreshness::default(),
            context: NodeContext::default(),
        }
    }

    /// Keeps in `freshness` how fresh is what it has reported.
    #[must_use]
    pub fn proving(mut self, freshness: &CollectionFreshness) -> Self {
        self.freshness = freshness.clone();
        self
    }

    /// Shares the rate limit of repeated requests, and the knowledge of outages, with the rest of the node.
    #[must_use]
    pub fn with_context(mut self, context: &NodeContext) -> Self {
        self.context = context.clone();
        self
    }

    /// The UIDs of the current pods. Requested until they are known.
    pub async fn uids(self) -> HashSet<PodUid> {
        let mut pods = self.follow();
        loop {
            if let CollectionEvent::All(found) = pods.next().await {
                return found
                    .into_iter()
                    .map(|pod| PodUid::new(pod.metadata.uid))
                    .collect();
            }
        }
    }

    fn follow(&self) -> Collection<StoredPod> {
        let selector = field_selector("spec.nodeName", &self.node_name);
        let client = self.client.clone();
        Collection::new(
            client,
            Resource::PODS.collection(),
            Some(&selector),
            &self.context,
        )
        .proving(&self.freshness)
    }

    /// Reports the pods until the receiver is dropped. During an outage the pods reported last stay.
    pub async fn run(self, reports: mpsc::Sender<SourceReport>) {
        let mut seen = Seen {
            node_name: self.node_name.clone(),
            reporter: Reporter::new(PodSource::Api, reports.clone()),
            uids: HashMap::new(),
            unreadable: BTreeMap::new(),
            failure: None,
            owes_all: false,
        };
        let report = async {
            let mut pods = self.follow();
            while seen.report(pods.next().await).await.is_ok() {
                if seen.owes_all && seen.unreadable.is_empty() {
                    seen.owes_all = false;
                    pods.relist();
                }
            }
        };
        until_closed(&reports, report).await;
    }
}

/// The pods seen and reported so far.
struct Seen {
    node_name: String,
    reporter: Reporter,
    /// The reported pods that are not gone.
    uids: HashMap<FullName, PodUid>,
    unreadable: BTreeMap<FullName, DecodeError>,
    failure: Option<Arc<RequestError>>,
    /// The last list had unreadable pods, so it was not reported as the complete set.
    owes_all: bool,
}

impl Seen {
    async fn report(&mut self, change: CollectionEvent<StoredPod>) -> Result<(), Closed> {
        match change {
            CollectionEvent::All(found) => {
                self.failure = None;
                self.all(found).await?;
            }
            CollectionEvent::One(found) => self.one(found).await?,
            CollectionEvent::Gone(metadata) => {
                let full_name = full_name(&metadata);
                self.unreadable.remove(&full_name);
                self.gone(full_name, PodUid::new(metadata.uid)).await?;
            }
            CollectionEvent::Failed(failure) => self.failure = Some(failure.error),
            CollectionEvent::Resumed => self.failure = None,
        }
        let problem = |error| SourceProblem::new("API server", Arc::new(error));
        let failure = self.failure.iter().map(|source| {
            let (node_name, source) = (self.node_name.clone(), Arc::clone(source));
            problem(ApiSourceError::Follow { node_name, source })
        });
        let unreadable = self.unreadable.iter().map(|(full_name, source)| {
            let kept = self.uids.contains_key(full_name).then(|| full_name.clone());
            let (full_name, source) = (full_name.clone(), source.clone());
            problem(ApiSourceError::Pod { full_name, source }).keeping(kept)
        });
        let problems = failure.chain(unreadable).collect();
        self.reporter.problems(problems).await
    }

    async fn all(&mut self, found: Vec<Found<StoredPod>>) -> Result<(), Closed> {
        let before = std::mem::take(&mut self.uids);
        self.unreadable.clear();
        self.owes_all = found.iter().any(|found| found.object.is_err());
        if !self.owes_all {
            let uid = |found: &Found<StoredPod>| {
                let uid = PodUid::new(found.metadata.uid.clone());
                (full_name(&found.metadata), uid)
            };
            self.uids = found.iter().map(uid).collect();
            let pods = found.into_iter().filter_map(|found| found.object.ok());
            return self.reporter.pods(SourcePods::All(pods.collect())).await;
        }
        let mut gone = before;
        for found in found {
            self.uids
                .extend(gone.remove_entry(&full_name(&found.metadata)));
            self.one(found).await?;
        }
        for (full_name, uid) in gone {
            self.gone(full_name, uid).await?;
        }
        Ok(())
    }

    async fn one(&mut self, found: Found<StoredPod>) -> Result<(), Closed> {
        let Found { metadata, object } = found;
        let (full_name, uid) = (full_name(&metadata), PodUid::new(metadata.uid));
        match object {
            Ok(pod) => {
                self.unreadable.remove(&full_name);
                self.uids.insert(full_name, uid);
                self.reporter.pods(SourcePods::One(Box::new(pod))).await
            }
            Err(error) => {
                self.unreadable.insert(full_name.clone(), error);
                match self.uids.get(&full_name) {
                    // Another pod has the name now.
                    Some(before) if *before != uid => {
                        let before = before.clone();
                        self.gone(full_name, before).await
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    async fn gone(&mut self, full_name: FullName, uid: PodUid) -> Result<(), Closed> {
        self.uids.remove(&full_name);
        self.reporter.pods(SourcePods::Gone(full_name, uid)).await
    }
}

fn full_name(metadata: &ObjectMeta) -> FullName {
    FullName {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
    }
}

#[cfg(test)]
mod tests;
