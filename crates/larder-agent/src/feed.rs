//! Keeps an embedded API server filled from a directory of manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use larder_apiserver::{ApiError, ApiServer, Kind};
use larder_objects::manifest::RawObject;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tracing::{debug, info, warn};

use crate::manifest_dir::{Changes, ManifestDir, ObjectId, OpenError};

/// Time for those who serve a pod to learn that it is gone or changed, before what it referred to goes. Without it, an object that
/// goes together with its pod would be reported as missing.
const PODS_FIRST: Duration = Duration::from_millis(50);

/// Follows a directory, and has the server hold what it holds.
#[derive(Debug)]
pub struct Feed {
    directory: ManifestDir,
    server: ApiServer,
    /// The node that pods without one are bound to.
    node_name: Option<String>,
    /// What the server did not take, and why.
    refused: BTreeMap<ObjectId, String>,
    problems: watch::Sender<Arc<[String]>>,
    /// Objects that were refused at the start and still are: what stood in their place before is unknown.
    lost: BTreeSet<ObjectId>,
    hides: watch::Sender<bool>,
}

impl Feed {
    /// Fills `server` from the directory `path`. With a `node_name`, pods that name no node are bound to it.
    ///
    /// # Errors
    ///
    /// The directory cannot be read. What is wrong with single files or objects is in [`Self::problems`] and in the log.
    pub async fn open(
        path: &Path,
        server: ApiServer,
        node_name: Option<String>,
    ) -> Result<Self, OpenError> {
        let (directory, changes) = ManifestDir::open(path).await?;
        let mut feed = Self {
            directory,
            server,
            node_name,
            refused: BTreeMap::new(),
            problems: watch::Sender::new(Arc::from([])),
            lost: BTreeSet::new(),
            hides: watch::Sender::new(false),
        };
        feed.apply(changes).await;
        feed.lost = feed.refused.keys().cloned().collect();
        feed.tell();
        Ok(feed)
    }

    /// What is wrong at present: with files, or with objects that the server refused.
    pub fn problems(&self) -> watch::Receiver<Arc<[String]>> {
        self.problems.subscribe()
    }

    /// Whether the server may lack objects that it had in an earlier run, because a manifest has been wrong since the start of this one.
    /// It is told after the server has what it lacked.
    pub fn hides(&self) -> watch::Receiver<bool> {
        self.hides.subscribe()
    }

    /// Follows the directory until dropped.
    pub async fn run(mut self) {
        let (mut files, mut hides) = (self.directory.problems(), self.directory.hides());
        loop {
            // Problems alone are no changes; they are passed on all the same. Changes come first: the server has them when it is
            // told that nothing is hidden any more.
            let changes = {
                let mut next = pin!(self.directory.next());
                loop {
                    tokio::select! {
                        biased;
                        changes = &mut next => break changes,
                        Ok(()) = files.changed() => {
                            let problems = all(&files.borrow_and_update(), &self.refused);
                            self.problems.send_replace(problems);
                        }
                        Ok(()) = hides.changed() => {
                            let hides = *hides.borrow_and_update() || !self.lost.is_empty();
                            self.hides.send_replace(hides);
                        }
                    }
                }
            };
            self.apply(changes).await;
        }
    }

    /// Tells how things stand.
    fn tell(&mut self) {
        self.lost.retain(|id| self.refused.contains_key(id));
        let problems = all(&self.directory.problems().borrow(), &self.refused);
        self.problems.send_replace(problems);
        let hides = *self.directory.hides().borrow() || !self.lost.is_empty();
        self.hides.send_replace(hides);
    }

    /// Pods go first and the objects that nobody wants any more last, so that no pod is without what it refers to.
    async fn apply(&mut self, changes: Changes) {
        let (pods, others): (Vec<_>, Vec<_>) =
            changes.deletes.into_iter().partition(|id| id.kind == "Pod");
        let pods_change = !pods.is_empty()
            || changes
                .upserts
                .iter()
                .any(|object| ObjectId::of(object).kind == "Pod");
        for id in pods {
            self.delete(&id);
        }
        for object in changes.upserts {
            let id = ObjectId::of(&object);
            match self.upsert(&id, object) {
                Ok(()) => {
                    self.refused.remove(&id);
                }
                Err(error) => {
                    let reason = error.to_string();
                    warn!(error = reason, object = %id, "manifest refused, what it held before stays");
                    self.refused.insert(id, reason);
                }
            }
        }
        if pods_change && !others.is_empty() {
            sleep(PODS_FIRST).await;
        }
        for id in others {
            self.delete(&id);
        }
        self.tell();
    }

    fn delete(&mut self, id: &ObjectId) {
        self.refused.remove(id);
        let deleted =
            kind(id).map(|kind| self.server.delete(kind, &id.key.namespace, &id.key.name));
        match deleted {
            // Somebody else may have deleted it before.
            Some(Err(error)) => debug!(%error, object = %id, "not deleted"),
            Some(Ok(())) => info!(object = %id, "deleted"),
            None => {}
        }
    }

    fn upsert(&self, id: &ObjectId, object: RawObject) -> Result<(), ApiError> {
        let object = match &self.node_name {
            Some(node_name) if id.kind == "Pod" => bound(object, node_name),
            _ => object,
        };
        let applied = self.server.apply(&*object)?;
        debug!(object = %id, ?applied, "applied");
        Ok(())
    }
}

fn all(files: &[String], refused: &BTreeMap<ObjectId, String>) -> Arc<[String]> {
    let refused = refused.iter().map(|(id, reason)| format!("{id}: {reason}"));
    files.iter().cloned().chain(refused).collect()
}

fn kind(id: &ObjectId) -> Option<Kind> {
    Kind::of_name(&id.kind)
}

fn bound(object: RawObject, node_name: &str) -> RawObject {
    let mut value = object.into_value();
    if let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut) {
        let unbound = spec
            .get("nodeName")
            .and_then(Value::as_str)
            .is_none_or(str::is_empty);
        if unbound {
            spec.insert("nodeName".to_owned(), json!(node_name));
        }
    }
    RawObject::new(value)
}
