//! The published status of every pod, for `larder status` and the readiness check.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use larder_objects::ObjectKey;
use larder_pods::{PodSource, ResolvedPodUid};
use larder_projection::VolumeKind;
use parking_lot::Mutex;

use super::{
    journal::Journal,
    plan::{Part, PartKind, PodPlan},
};
use crate::status::{
    ContainerStatus, Delivery, DiskWaitStatus, Phase, PodOverview, PodStatus, VolumeStatus,
};

/// The published status of one pod, written by the pod's worker.
#[derive(Debug)]
pub(crate) struct PodStatusEntry {
    pub(crate) uid: ResolvedPodUid,
    /// Namespace and name; the UID stands in for the name of a pod of which only the directory was found.
    pub(crate) name: ObjectKey,
    status: Mutex<PodStatus>,
    /// The parts of its plan.
    parts: Mutex<Arc<[Part]>>,
    /// Whether the pod was tried, although it may wait for a kubelet, or for an address.
    is_settled: AtomicBool,
    /// Set when the entry is inserted.
    journal: OnceLock<Arc<Journal>>,
}

/// The published status of one part.
pub(crate) enum PartStatus {
    Volume(VolumeStatus),
    Container(ContainerStatus),
}

impl PartStatus {
    /// The status of a part of `kind`, but for its path: paths follow from UID, kind and name, and take more memory than
    /// all the rest of a status. So they are [added](add_paths) when it is shown.
    pub(crate) fn new(
        kind: &PartKind,
        delivery: Delivery,
        last_swap: Option<Timestamp>,
        files: usize,
    ) -> Self {
        match kind {
            PartKind::Volume(name, kind) => Self::Volume(VolumeStatus {
                name: name.clone(),
                type_: type_name(*kind).to_owned(),
                delivery,
                last_swap,
                files,
                ..VolumeStatus::default()
            }),
            PartKind::Environment(name, _) => Self::Container(ContainerStatus {
                name: name.clone(),
                delivery,
                last_swap,
                ..ContainerStatus::default()
            }),
        }
    }
}

/// Adds the paths of the volumes to the published status of a pod, as `path` computes them of kind and name.
pub(crate) fn add_paths(status: &mut PodStatus, path: impl Fn(VolumeKind, &str) -> PathBuf) {
    for volume in &mut status.volumes {
        let mut kinds = VolumeKind::ALL.into_iter();
        if let Some(kind) = kinds.find(|kind| type_name(*kind) == volume.type_) {
            volume.path = path(kind, &volume.name).display().to_string();
        }
    }
}

/// The field of the pod that makes a volume one of this kind.
fn type_name(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::ConfigMap => "configMap",
        VolumeKind::Secret => "secret",
        VolumeKind::Projected => "projected",
        VolumeKind::DownwardApi => "downwardAPI",
    }
}

impl PodStatusEntry {
    /// The entry of a pod below `root` of which no part was delivered yet; its source may be unknown.
    pub(crate) fn new(
        uid: ResolvedPodUid,
        name: ObjectKey,
        source: Option<PodSource>,
        root: &Path,
        now: Timestamp,
    ) -> Self {
        let status = PodStatus {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            uid: uid.to_string(),
            source: source.map_or("", PodSource::as_str).to_owned(),
            delivery: Delivery::new(Phase::Waiting, "", now),
            path: root.join("pods").join(uid.as_str()).display().to_string(),
            ..PodStatus::default()
        };
        Self {
            uid,
            name,
            status: Mutex::new(status),
            parts: Mutex::default(),
            is_settled: AtomicBool::new(false),
            journal: OnceLock::new(),
        }
    }

    /// Publishes the parts of `plan` before any of them was looked at, so that a new pod does not look like one that is
    /// delivered.
    pub(crate) fn begin(&self, plan: &PodPlan, now: Timestamp) {
        let waiting = || Delivery::new(Phase::Waiting, "", now);
        let parts = plan
            .parts
            .iter()
            .map(|part| PartStatus::new(&part.kind, waiting(), None, 0));
        self.publish(Phase::Waiting, "", parts.collect(), now);
    }

    /// Takes over the parts of the pod's plan: what each of them reads.
    pub(crate) fn set_parts(&self, parts: Arc<[Part]>) {
        *self.parts.lock() = parts;
    }

    /// The parts of the pod's plan.
    pub(crate) fn parts(&self) -> Arc<[Part]> {
        Arc::clone(&self.parts.lock())
    }

    /// What its worker has published. Whether that is still up to date is another question.
    pub(crate) fn status(&self) -> PodStatus {
        self.status.lock().clone()
    }

    /// What its work waits for, and since when, as text.
    pub(crate) fn wait(&self) -> Option<String> {
        let DiskWaitStatus { what, since } = self.status.lock().waits_for?;
        Some(format!("{} since {since:.0}", what.reason()))
    }

    pub(crate) fn phase(&self) -> Phase {
        self.status.lock().delivery.phase
    }

    pub(crate) fn overview(&self) -> PodOverview {
        let status = self.status.lock();
        PodOverview {
            key: self.name.clone(),
            uid: self.uid.clone(),
            delivery: status.delivery.clone(),
            volumes: status.volumes.len(),
        }
    }

    /// Records that the pod was tried as far as possible, and only waits for a kubelet, or for an address.
    pub(crate) fn settle(&self) {
        self.is_settled.store(true, Ordering::Relaxed);
    }

    /// Publishes the status at `now`, of a pod that waits for no disk; returns whether phase or reason differ from before.
    pub(crate) fn publish(
        &self,
        phase: Phase,
        reason: &str,
        parts: Vec<PartStatus>,
        now: Timestamp,
    ) -> bool {
        self.publish_waiting(phase, reason, parts, None, now)
    }

    /// Publishes the status of a pod that may wait for a disk; returns whether phase or reason differ from before.
    pub(crate) fn publish_waiting(
        &self,
        phase: Phase,
        reason: &str,
        parts: Vec<PartStatus>,
        waits_for: Option<DiskWaitStatus>,
        now: Timestamp,
    ) -> bool {
        let mut status = self.status.lock();
        let (mut volumes, mut containers) = (Vec::new(), Vec::new());
        for part in parts {
            match part {
                PartStatus::Volume(volume) => volumes.push(volume),
                PartStatus::Container(container) => containers.push(container),
            }
        }
        // They stay until the next change, and a node has some hundred parts.
        volumes.shrink_to_fit();
        containers.shrink_to_fit();
        let differs = status.delivery.update(phase, reason, now);
        let is_news = differs
            || status.volumes != volumes
            || status.containers != containers
            || status.waits_for != waits_for;
        (status.volumes, status.containers) = (volumes, containers);
        status.waits_for = waits_for;
        drop(status);
        if is_news && let Some(journal) = self.journal.get() {
            journal.note(&self.uid, None);
        }
        differs
    }
}

/// All entries, by UID.
#[derive(Debug)]
pub(crate) struct PodStatuses {
    entries: Mutex<BTreeMap<ResolvedPodUid, Arc<PodStatusEntry>>>,
    pub(crate) journal: Arc<Journal>,
}

impl PodStatuses {
    /// The statuses of an agent that starts at `now`.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            entries: Mutex::default(),
            journal: Arc::new(Journal::new(now)),
        }
    }

    pub(crate) fn insert(&self, entry: Arc<PodStatusEntry>) {
        let uid = entry.uid.clone();
        // An entry is inserted once.
        let _ = entry.journal.set(Arc::clone(&self.journal));
        self.entries.lock().insert(uid.clone(), entry);
        self.journal.note(&uid, None);
    }

    /// Notes that something else of the pod is shown differently, if the pod has a status.
    pub(crate) fn note_change(&self, uid: &ResolvedPodUid) {
        if self.entries.lock().contains_key(uid) {
            self.journal.note(uid, None);
        }
    }

    pub(crate) fn remove(&self, uid: &ResolvedPodUid) {
        let removed = self.entries.lock().remove(uid);
        if let Some(entry) = removed {
            self.journal.note(uid, Some(entry.name.clone()));
        }
    }

    /// The entry of a pod.
    pub(crate) fn get(&self, uid: &ResolvedPodUid) -> Option<Arc<PodStatusEntry>> {
        self.entries.lock().get(uid).cloned()
    }

    /// All entries, by namespace, name and UID.
    pub(crate) fn sorted(&self) -> Vec<Arc<PodStatusEntry>> {
        let mut entries: Vec<_> = self.entries.lock().values().cloned().collect();
        // They are sorted by UID.
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    /// Whether every pod was tried: none waits for its first attempt.
    pub(crate) fn is_settled(&self) -> bool {
        self.sorted().iter().all(|entry| {
            entry.is_settled.load(Ordering::Relaxed) || entry.phase() != Phase::Waiting
        })
    }
}
