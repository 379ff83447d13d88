//! What workers show of themselves, and who reads it: `larder status` and the readiness check.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use jiff::Timestamp;
use larder_objects::ObjectKey;
use larder_pods::{PodSource, PodUid, ResolvedPodUid, StoredPod};
use parking_lot::Mutex;

use crate::status::{ContainerStatus, Delivery, Phase, PodStatus, VolumeStatus};

/// The place of one pod on the board. Its worker writes, anybody reads.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) uid: ResolvedPodUid,
    /// Namespace and name; the UID stands in for the name of a pod of which only the directory was found.
    pub(super) name: ObjectKey,
    status: Mutex<PodStatus>,
}

/// A part of a pod as shown.
pub(super) enum Shown {
    Volume(VolumeStatus),
    Container(ContainerStatus),
}

impl Place {
    pub(super) fn of(pod: &StoredPod, root: &Path, now: Timestamp) -> Self {
        let uid = ResolvedPodUid::new(PodUid::of(&pod.metadata).as_str());
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let name = ObjectKey::new(text(&pod.metadata.namespace), text(&pod.metadata.name));
        Self::new(uid, Some(name), PodSource::of(&pod.metadata), root, now)
    }

    /// The place of a pod of which only the directory was found, and perhaps a link with its name.
    pub(super) fn found(
        uid: ResolvedPodUid,
        name: Option<ObjectKey>,
        root: &Path,
        now: Timestamp,
    ) -> Self {
        Self::new(uid, name, None, root, now)
    }

    fn new(
        uid: ResolvedPodUid,
        name: Option<ObjectKey>,
        source: Option<PodSource>,
        root: &Path,
        now: Timestamp,
    ) -> Self {
        let name = name.unwrap_or_else(|| ObjectKey::new("", uid.as_str()));
        let status = PodStatus {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            uid: uid.to_string(),
            source: source.map_or("", PodSource::as_str).to_owned(),
            mirror: None,
            deletion_timestamp: None,
            delivery: Delivery::new(Phase::Waiting, "", now),
            path: root.join("pods").join(uid.as_str()).display().to_string(),
            volumes: Vec::new(),
            containers: Vec::new(),
        };
        Self {
            uid,
            name,
            status: Mutex::new(status),
        }
    }

    /// Shows the pod as it is `now`; returns whether phase or reason differ from before.
    pub(super) fn show(
        &self,
        phase: Phase,
        reason: &str,
        parts: Vec<Shown>,
        now: Timestamp,
    ) -> bool {
        let mut status = self.status.lock();
        status.volumes.clear();
        status.containers.clear();
        for part in parts {
            match part {
                Shown::Volume(volume) => status.volumes.push(volume),
                Shown::Container(container) => status.containers.push(container),
            }
        }
        status.delivery.update(phase, reason, now)
    }
}

/// All places, by UID.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<BTreeMap<ResolvedPodUid, Arc<Place>>>);

impl Board {
    pub(super) fn put(&self, place: Arc<Place>) {
        self.0.lock().insert(place.uid.clone(), place);
    }

    pub(super) fn take_away(&self, uid: &ResolvedPodUid) {
        self.0.lock().remove(uid);
    }

    /// All pods as they are now, by namespace and name.
    pub(crate) fn pods(&self) -> Vec<PodStatus> {
        let places: Vec<_> = self.0.lock().values().cloned().collect();
        let mut pods: Vec<_> = places
            .iter()
            .map(|place| place.status.lock().clone())
            .collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
        pods
    }

    /// Whether every pod has been looked at: nothing is waiting for its first attempt.
    pub(crate) fn is_settled(&self) -> bool {
        let places: Vec<_> = self.0.lock().values().cloned().collect();
        places
            .iter()
            .all(|place| place.status.lock().delivery.phase != Phase::Waiting)
    }
}
