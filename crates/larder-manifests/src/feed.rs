//! Keeps an embedded API server in sync with a directory of manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use larder_apiserver::{ApiError, ApiKind, ApiServer};
use larder_objects::manifest::RawObject;
use serde_json::{Value, json};
use tokio::{sync::watch, task::yield_now, time::sleep};
use tracing::{debug, info, warn};

use crate::directory::{ManifestDiff, ManifestDir, ObjectId, OpenError};

/// Pause between a change of pods and the deletion of objects, in which the agent learns of the pods. Without it, an
/// object that is deleted together with its pod would be reported as missing.
const PODS_FIRST: Duration = Duration::from_millis(50);
/// Objects after which watchers have their turn: many fewer than the server remembers changes, or every watch of a large
/// edit would expire, and its object would be listed again.
const TURN: usize = 128;

/// What a scheduler and a runtime would give pods.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The node that pods without one are bound to.
    pub node_name: String,
    /// The address of pods without one that are not in the network of their node; `None` gives them none.
    pub pod_address: Option<IpAddr>,
}

/// Follows a directory, and keeps the server's objects the same as those of the directory.
#[derive(Debug)]
pub struct Feed {
    directory: ManifestDir,
    server: ApiServer,
    placement: Option<Placement>,
    /// Objects that the server rejected, and why.
    rejected: BTreeMap<ObjectId, String>,
    problems: watch::Sender<Arc<[String]>>,
    /// Objects that were rejected at the start and still are: their previous content is unknown.
    rejected_since_start: BTreeSet<ObjectId>,
    incomplete: watch::Sender<bool>,
}

impl Feed {
    /// Fills `server` from the directory `path`. With a `placement`, pods get what they lack of it.
    ///
    /// # Errors
    ///
    /// The directory cannot be read. Problems with single files or objects are in [`Self::problems`] and in the log.
    pub async fn open(
        path: &Path,
        server: ApiServer,
        placement: Option<Placement>,
    ) -> Result<Self, OpenError> {
        let (directory, changes) = ManifestDir::open(path).await?;
        let mut feed = Self {
            directory,
            server,
            placement,
            rejected: BTreeMap::new(),
            problems: watch::Sender::new(Arc::from([])),
            rejected_since_start: BTreeSet::new(),
            incomplete: watch::Sender::new(false),
        };
        feed.apply(changes).await;
        feed.rejected_since_start = feed.rejected.keys().cloned().collect();
        feed.publish();
        Ok(feed)
    }

    /// The present problems: with files, or with objects that the server rejected.
    pub fn problems(&self) -> watch::Receiver<Arc<[String]>> {
        self.problems.subscribe()
    }

    /// Whether the server may lack objects of an earlier run, because a manifest has been broken since the start of
    /// this one. Turns false only after the server has these objects.
    pub fn incomplete(&self) -> watch::Receiver<bool> {
        self.incomplete.subscribe()
    }

    /// Follows the directory until dropped.
    pub async fn run(mut self) {
        loop {
            let changes = self.directory.next().await;
            self.apply(changes).await;
        }
    }

    /// Publishes the problems and whether the server is incomplete.
    fn publish(&mut self) {
        self.rejected_since_start
            .retain(|id| self.rejected.contains_key(id));
        let rejected = self.rejected.iter();
        let rejected = rejected.map(|(id, reason)| format!("{id}: {reason}"));
        let problems = self.directory.problems().iter().cloned().chain(rejected);
        self.problems.send_replace(problems.collect());
        // The server has the objects of a mended file before this turns false.
        let incomplete = self.directory.is_incomplete() || !self.rejected_since_start.is_empty();
        self.incomplete.send_replace(incomplete);
    }

    /// Deletes pods first and other objects last, so that no pod is without the objects that it refers to.
    async fn apply(&mut self, changes: ManifestDiff) {
        let (pods, others): (Vec<_>, Vec<_>) =
            changes.deletes.into_iter().partition(|id| id.kind == "Pod");
        // Pods come last.
        let last = changes.upserts.last();
        let pods_change = !pods.is_empty() || last.is_some_and(|last| last.text("/kind") == "Pod");
        for id in pods {
            self.delete(&id);
        }
        for (index, object) in changes.upserts.into_iter().enumerate() {
            if index % TURN == TURN - 1 {
                yield_now().await;
            }
            let id = ObjectId::of(&object);
            match self.upsert(&id, object) {
                Ok(()) => {
                    self.rejected.remove(&id);
                }
                Err(error) => {
                    let reason = error.to_string();
                    if self.held(&id).is_some() {
                        warn!(error = reason, object = %id, "object rejected, keeping its last good version");
                    } else {
                        warn!(error = reason, object = %id, "object rejected");
                    }
                    self.rejected.insert(id, reason);
                }
            }
        }
        if pods_change && !others.is_empty() {
            sleep(PODS_FIRST).await;
        }
        for id in others {
            self.delete(&id);
        }
        self.publish();
    }

    fn delete(&mut self, id: &ObjectId) {
        self.rejected.remove(id);
        let Some(kind) = ApiKind::of_name(&id.kind) else {
            return;
        };
        match self.server.delete(kind, &id.key.namespace, &id.key.name) {
            Ok(()) => info!(object = %id, "deleted"),
            // Another client may have deleted it before.
            Err(error) => {
                debug!(%error, object = %id, "object was already gone, nothing to delete");
            }
        }
    }

    fn upsert(&self, id: &ObjectId, object: RawObject) -> Result<(), ApiError> {
        let object = match &self.placement {
            Some(placement) if id.kind == "Pod" => {
                self.add_account(id, &object);
                placement.complete(object, || self.held(id))
            }
            _ => object,
        };
        let applied = self.server.apply(&*object)?;
        debug!(object = %id, ?applied, "applied");
        Ok(())
    }

    /// Creates the service account that a pod runs as, if no manifest has it: no controller and nobody else would.
    fn add_account(&self, pod: &ObjectId, object: &RawObject) {
        let name = object.text("/spec/serviceAccountName");
        let namespace = &pod.key.namespace;
        let kind = ApiKind::ServiceAccount;
        if name.is_empty() || self.server.get(kind, namespace, name).is_some() {
            return;
        }
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": namespace, "name": name},
        });
        match self.server.apply(&account) {
            Ok(_) => {
                info!(%pod, account = name, "no manifest has the service account of the pod, created it");
            }
            // The pod is rejected for the same reason, or its tokens say that the account is missing.
            Err(error) => {
                debug!(%error, %pod, account = name, "failed to create the service account of the pod");
            }
        }
    }

    /// The object as the server has it.
    fn held(&self, id: &ObjectId) -> Option<Value> {
        let kind = ApiKind::of_name(&id.kind)?;
        self.server.get(kind, &id.key.namespace, &id.key.name)
    }
}

impl Placement {
    /// Completes `pod`. An address that `held`, the pod as the server has it, got from elsewhere stays.
    fn complete(&self, pod: RawObject, held: impl FnOnce() -> Option<Value>) -> RawObject {
        let mut pod = pod.into_value();
        let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
            return RawObject::new(pod);
        };
        let node = spec.get("nodeName").and_then(Value::as_str);
        if node.is_none_or(str::is_empty) {
            spec.insert("nodeName".to_owned(), json!(self.node_name));
        }
        let has_host_network = spec.get("hostNetwork") == Some(&json!(true));
        if let Some(address) = self.pod_address.filter(|_| !has_host_network)
            && pod["status"]["podIP"].is_null()
            && pod["status"]["podIPs"].is_null()
        {
            let held = held().map(|mut held| held["status"].take());
            let held = held.filter(|status| status["podIP"].is_string());
            pod["status"] = match (pod["status"].take(), held) {
                (Value::Null, Some(held)) => held,
                (mut status, _) => {
                    status["podIP"] = json!(address);
                    status["podIPs"] = json!([{"ip": address}]);
                    status
                }
            };
        }
        RawObject::new(pod)
    }
}
