//! What workers show of themselves, and who reads it: `larder status` and the readiness check.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder::pods::{PodSource, ResolvedPodUid};
use larder_objects::ObjectKey;
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
    pub(super) fn new(uid: ResolvedPodUid, pod: Option<&Pod>, root: &Path, now: Timestamp) -> Self {
        let metadata = pod.map(|pod| &pod.metadata);
        let text = |field: Option<&Option<String>>| field.cloned().flatten().unwrap_or_default();
        let namespace = text(metadata.map(|metadata| &metadata.namespace));
        let name = match text(metadata.map(|metadata| &metadata.name)) {
            name if name.is_empty() => uid.to_string(),
            name => name,
        };
        let source = pod.and_then(PodSource::of);
        let status = PodStatus {
            namespace: namespace.clone(),
            name: name.clone(),
            uid: uid.to_string(),
            source: source.map_or("", PodSource::as_str).to_owned(),
            mirror: None,
            delivery: Delivery::new(Phase::Waiting, "", now),
            path: root.join("pods").join(uid.as_str()).display().to_string(),
            volumes: Vec::new(),
            containers: Vec::new(),
        };
        Self {
            uid,
            name: ObjectKey::new(namespace, name),
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
