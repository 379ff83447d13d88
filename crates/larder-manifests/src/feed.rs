//! Keeps an embedded API server in sync with a directory of manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use larder_apiserver::{ApiError, ApiKind, ApiServer, Applied};
use larder_objects::{
    KeyChanges,
    manifest::{HiddenObjects, KeptObjects, KeptVersion, RawObject},
};
use serde_json::{Value, json};
use tokio::{join, sync::watch, task::yield_now, time::sleep};
use tracing::{debug, info, warn};

use crate::{
    directory::{ManifestDiff, ManifestDir, OpenError},
    object_id::ObjectId,
    record::{self, Record, RecordFile},
};

/// Pause between a change of pods and the deletion of objects, in which the agent learns of the pods. Without it, an
/// object that is deleted together with its pod would be reported as missing.
const PODS_FIRST: Duration = Duration::from_millis(50);
/// Objects after which watchers have their turn: many fewer than the server remembers changes, or every watch of a large
/// edit would expire, and its object would be listed again.
const TURN: usize = 128;
/// Number of pods that a line names; the others are counted.
const NAMED_PODS: usize = 3;

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
    /// Objects of which the server rejected the newest version.
    rejected: BTreeMap<ObjectId, KeptVersion>,
    /// Pods that state another node than that of the placement, with that node.
    elsewhere: BTreeMap<ObjectId, String>,
    notes: watch::Sender<Arc<[String]>>,
    problems: watch::Sender<Arc<[String]>>,
    waits: watch::Sender<Arc<[String]>>,
    /// Objects that were rejected at the start and still are: their previous content is unknown.
    rejected_since_start: BTreeSet<ObjectId>,
    hidden: watch::Sender<Arc<HiddenObjects>>,
    kept: watch::Sender<Arc<KeptObjects>>,
    record: watch::Sender<Record>,
    /// What writes it.
    keeper: Option<(RecordFile, watch::Receiver<Record>)>,
}

impl Feed {
    /// Fills `server` from the directory `path`. With a `placement`, pods get what they lack of it. What has been accepted
    /// is known to the next run from the file `record`.
    ///
    /// # Errors
    ///
    /// The directory cannot be read. Problems with single files or objects are in [`Self::problems`] and in the log.
    pub async fn open(
        path: &Path,
        server: ApiServer,
        placement: Option<Placement>,
        record: Option<&Path>,
    ) -> Result<Self, OpenError> {
        let clock = server.clone();
        let (file, record) = record::recall(record).await;
        let clock = Box::new(move || clock.now());
        let (directory, changes) = ManifestDir::open(path, clock, &record).await?;
        let (record, written) = watch::channel(record);
        let mut feed = Self {
            directory,
            server,
            placement,
            rejected: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            notes: watch::Sender::new(Arc::from([])),
            problems: watch::Sender::new(Arc::from([])),
            waits: watch::Sender::new(Arc::from([])),
            rejected_since_start: BTreeSet::new(),
            hidden: watch::Sender::default(),
            kept: watch::Sender::default(),
            record,
            keeper: file.map(|file| (file, written)),
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

    /// The files whose disks do not answer, which are problems too.
    pub fn waits(&self) -> watch::Receiver<Arc<[String]>> {
        self.waits.subscribe()
    }

    /// What is no problem, but may be unexpected: pods that state another node, a directory that every user may write
    /// to.
    pub fn notes(&self) -> watch::Receiver<Arc<[String]>> {
        self.notes.subscribe()
    }

    /// Objects of an earlier run that the server may lack, because a manifest has been rejected since the start of this
    /// one. One is taken from them only after the server has it, or its document is gone.
    pub fn hidden_objects(&self) -> watch::Receiver<Arc<HiddenObjects>> {
        self.hidden.subscribe()
    }

    /// The objects that the server has in an earlier version, because their newest one is rejected.
    pub fn kept_objects(&self) -> watch::Receiver<Arc<KeptObjects>> {
        self.kept.subscribe()
    }

    fn kept(&self) -> KeptObjects {
        let mut kept = self.directory.kept();
        for (id, rejected) in &self.rejected {
            if self.held(id).is_some() {
                kept.insert(&id.kind, id.key.clone(), rejected.clone());
            }
        }
        kept
    }

    /// Follows the directory until dropped.
    pub async fn run(mut self) {
        let keeper = self.keeper.take();
        let keep = async {
            if let Some((file, record)) = keeper {
                record::keep(file, record).await;
            }
        };
        let follow = async {
            loop {
                let changes = self.directory.next().await;
                self.apply(changes).await;
            }
        };
        // The disk of the record holds up no edit.
        join!(follow, keep);
    }

    /// Publishes the problems and the hidden objects, and what has been accepted.
    fn publish(&mut self) {
        let accepted = self.directory.accepted();
        self.record.send_if_modified(|record| {
            record.take_up(accepted, |id| self.rejected.contains_key(id))
        });
        self.rejected_since_start
            .retain(|id| self.rejected.contains_key(id));
        let rejected = self
            .rejected
            .iter()
            .map(|(id, rejected)| format!("{id}: {}", rejected.why));
        let problems = self.directory.problems().iter().cloned().chain(rejected);
        self.problems.send_replace(problems.collect());
        self.waits.send_replace(self.directory.waits().collect());
        let remarks = self.remarks();
        let notes = remarks.iter().chain(self.directory.open_to_all());
        let notes: Arc<[String]> = notes.cloned().collect();
        if *self.notes.borrow() != notes {
            if let Some(remark) = remarks.filter(|remark| !self.notes.borrow().contains(remark)) {
                info!("{remark}");
            }
            self.notes.send_replace(notes);
        }
        let kept = self.kept();
        self.kept.send_if_modified(|known| {
            let is_news = **known != kept;
            *known = Arc::new(kept);
            is_news
        });
        // The server has the objects of a mended file before they leave these.
        let mut hidden = self.directory.hidden_objects();
        for id in &self.rejected_since_start {
            hidden.insert(&id.kind, &id.key);
        }
        self.hidden.send_if_modified(|known| {
            let is_news = **known != hidden;
            *known = Arc::new(hidden);
            is_news
        });
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
            self.note_node(&id, &object);
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
                    let since = self
                        .rejected
                        .get(&id)
                        .map_or_else(|| self.server.now(), |known| known.since);
                    self.rejected.insert(id, KeptVersion { since, why: reason });
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

    /// Notes whether a pod states another node than that of the placement.
    fn note_node(&mut self, id: &ObjectId, object: &RawObject) {
        let node = object.text("/spec/nodeName");
        let is_elsewhere = |placement: &Placement| !["", &*placement.node_name].contains(&node);
        if id.kind == "Pod" && self.placement.as_ref().is_some_and(is_elsewhere) {
            self.elsewhere.insert(id.clone(), node.to_owned());
        } else {
            self.elsewhere.remove(id);
        }
    }

    /// What is no problem, but may be unexpected.
    fn remarks(&self) -> Option<String> {
        let mut pods = self.elsewhere.iter();
        let named: Vec<_> = pods.by_ref().take(NAMED_PODS).collect();
        let named: Vec<_> = named
            .iter()
            .map(|(id, node)| format!("{} ({node:?})", id.key))
            .collect();
        let others = match pods.count() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let ours = &self.placement.as_ref()?.node_name;
        (!named.is_empty()).then(|| {
            let named = named.join(", ");
            format!(
                "this node is {ours:?}, so it does not serve pods of other nodes: {named}{others}"
            )
        })
    }

    fn delete(&mut self, id: &ObjectId) {
        self.rejected.remove(id);
        self.elsewhere.remove(id);
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
        let has_keys = matches!(&*id.kind, "ConfigMap" | "Secret");
        let before = has_keys
            .then(|| self.held(id))
            .flatten()
            .map(RawObject::new);
        let applied = self.server.apply(&*object)?;
        if let (Applied::Changed, Some(before)) = (applied, before) {
            let file = self.directory.file_of(id).map(Path::display);
            let keys = KeyChanges::between(values(&before), values(&object));
            info!(object = %id, file = file.map(display), %keys, "changed");
        } else {
            debug!(object = %id, ?applied, "applied");
        }
        Ok(())
    }

    /// Creates the service account that a pod runs as, if no manifest has it: no controller would.
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

/// Each key with the field and the text that it has there.
fn values(object: &Value) -> BTreeMap<&str, (&str, &Value)> {
    let entries = ["data", "binaryData"].into_iter().flat_map(|field| {
        let entries = object[field].as_object().into_iter().flatten();
        entries.map(move |(key, value)| (key.as_str(), (field, value)))
    });
    entries.collect()
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
            let held = held()
                .map(|mut held| held["status"].take())
                .filter(|status| status["podIP"].is_string());
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
