//! The inbox of a pod's worker.
//!
//! Not a queue: a new desired state replaces the previous one, and a change noted twice counts once. So a burst of
//! changes costs a busy worker, or one on a slow disk, one more pass and no memory.

use std::{collections::BTreeSet, mem, sync::Arc};

use larder_projection::Need;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::plan::PodPlan;

/// The desired state of a pod.
#[derive(Debug)]
pub(crate) enum DesiredState {
    /// The parts of the plan are delivered and kept fresh.
    Serve(Arc<PodPlan>),
    /// The pod has terminated or was removed: its volumes are torn down, and then its worker leaves.
    Retire,
}

/// Changes since the worker last took them.
#[derive(Debug, Default)]
pub(crate) struct PendingChanges {
    /// The new desired state.
    pub(crate) desired: Option<DesiredState>,
    /// Needs to read again.
    pub(crate) needs: BTreeSet<Need>,
    /// When the first of the changes arrived.
    pub(crate) since: Option<Instant>,
}

/// The inbox of one worker.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// `None` once the worker has left.
    changes: Mutex<Option<PendingChanges>>,
    wake: Notify,
}

impl Inbox {
    pub(crate) fn new(desired: DesiredState) -> Self {
        let changes = PendingChanges {
            desired: Some(desired),
            since: Some(Instant::now()),
            ..PendingChanges::default()
        };
        let inbox = Self {
            changes: Mutex::new(Some(changes)),
            wake: Notify::new(),
        };
        inbox.wake.notify_one();
        inbox
    }

    /// Sets the desired state. Returns it if the worker has left, so that another worker is needed.
    pub(crate) fn set_desired(&self, desired: DesiredState) -> Result<(), DesiredState> {
        let mut changes = self.changes.lock();
        let Some(changes) = changes.as_mut() else {
            return Err(desired);
        };
        changes.desired = Some(desired);
        self.arrived(changes);
        Ok(())
    }

    /// Notes that `need` has changed. Does nothing once the worker has left.
    pub(crate) fn note_change(&self, need: Need) {
        if let Some(changes) = self.changes.lock().as_mut() {
            changes.needs.insert(need);
            self.arrived(changes);
        }
    }

    fn arrived(&self, changes: &mut PendingChanges) {
        changes.since.get_or_insert_with(Instant::now);
        self.wake.notify_one();
    }

    /// Whether the worker has left.
    pub(crate) fn has_left(&self) -> bool {
        self.changes.lock().is_none()
    }

    /// Waits until there may be something to take. Cancel-safe.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Takes out the changes.
    pub(crate) fn take(&self) -> PendingChanges {
        let mut changes = self.changes.lock();
        changes.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Marks the worker as left, unless there is a new desired state; returns whether it has left.
    pub(crate) fn leave(&self) -> bool {
        let mut changes = self.changes.lock();
        changes.take_if(|changes| changes.desired.is_none());
        changes.is_none()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use larder_pods::StoredPod;

    use super::*;

    #[tokio::test]
    async fn burst_is_one_change() {
        let inbox = Inbox::new(DesiredState::Retire);
        inbox.take();
        for _ in 0..100 {
            inbox.note_change(Need::Node);
        }
        inbox.woken().await;
        assert_eq!(inbox.take().needs.len(), 1);
        assert!(inbox.take().needs.is_empty());
    }

    #[test]
    fn worker_stays_when_its_pod_is_served_again() {
        let inbox = Inbox::new(DesiredState::Retire);
        inbox.take();
        let pod = Pod::default();
        let stored = Arc::new(StoredPod::new(pod.clone()).unwrap());
        let plan = Arc::new(PodPlan::new(stored, &pod));
        let serve = DesiredState::Serve(plan);
        inbox.set_desired(serve).unwrap();
        assert!(!inbox.leave());
        let desired = inbox.take().desired;
        assert!(matches!(desired, Some(DesiredState::Serve(_))));
        assert!(inbox.leave());
        assert!(inbox.set_desired(DesiredState::Retire).is_err());
    }
}
