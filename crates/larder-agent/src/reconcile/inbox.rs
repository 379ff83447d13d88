//! How a pod's worker is told what to do.
//!
//! Not a queue: what is wanted now replaces what was wanted before, and a second word of one change adds nothing to the first.
//! So a burst costs a worker that is busy, or a disk that is slow, one more pass and no memory.

use std::{collections::BTreeSet, mem, sync::Arc};

use larder_pods::StoredPod;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::plan::Need;

/// What shall become of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wanted {
    /// Its parts are delivered and kept fresh.
    Serve(Arc<StoredPod>),
    /// It has ended or is gone: its volumes are taken down, and then the worker leaves.
    Retire,
}

/// What has changed since the worker looked last.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// What is wanted instead.
    pub(super) wanted: Option<Wanted>,
    /// What is read anew.
    pub(super) needs: BTreeSet<Need>,
    /// When the first of this arrived.
    pub(super) since: Option<Instant>,
}

/// The worker has left and reads no more; another one is needed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left;

/// The inbox of one worker.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// `None` once the worker has left.
    changes: Mutex<Option<Changes>>,
    wake: Notify,
}

impl Inbox {
    pub(super) fn new(wanted: Wanted) -> Self {
        let changes = Changes {
            wanted: Some(wanted),
            since: Some(Instant::now()),
            ..Changes::default()
        };
        let inbox = Self {
            changes: Mutex::new(Some(changes)),
            wake: Notify::new(),
        };
        inbox.wake.notify_one();
        inbox
    }

    /// Says what is wanted from now on.
    pub(super) fn want(&self, wanted: Wanted) -> Result<(), Left> {
        self.change(|changes| changes.wanted = Some(wanted))
    }

    /// Says that `need` has another value. A worker that has left does not care.
    pub(super) fn changed(&self, need: Need) {
        let _ = self.change(|changes| {
            changes.needs.insert(need);
        });
    }

    fn change(&self, change: impl FnOnce(&mut Changes)) -> Result<(), Left> {
        let mut changes = self.changes.lock();
        let changes = changes.as_mut().ok_or(Left)?;
        changes.since.get_or_insert_with(Instant::now);
        change(changes);
        self.wake.notify_one();
        Ok(())
    }

    /// Whether the worker has left.
    pub(super) fn has_left(&self) -> bool {
        self.changes.lock().is_none()
    }

    /// Waits until there may be something to take. Cancel-safe.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }

    /// Takes out what has changed.
    pub(super) fn take(&self) -> Changes {
        self.changes
            .lock()
            .as_mut()
            .map(mem::take)
            .unwrap_or_default()
    }

    /// Leaves, unless something else is wanted by now.
    pub(super) fn leave(&self) -> bool {
        let mut changes = self.changes.lock();
        let stays = changes
            .as_ref()
            .is_some_and(|changes| changes.wanted.is_some());
        if !stays {
            *changes = None;
        }
        !stays
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn need(name: &str) -> Need {
        Need::Object(larder_objects::Kind::ConfigMap, name.into())
    }

    #[tokio::test]
    async fn a_burst_is_one_change() {
        let inbox = Inbox::new(Wanted::Retire);
        inbox.take();
        for _ in 0..100 {
            inbox.changed(need("a"));
        }
        inbox.woken().await;
        assert_eq!(inbox.take().needs.len(), 1);
        assert!(inbox.take().needs.is_empty());
    }

    #[test]
    fn a_worker_does_not_leave_when_the_pod_is_wanted_again() {
        let inbox = Inbox::new(Wanted::Retire);
        inbox.take();
        let pod = Arc::new(StoredPod::new(Pod::default()).unwrap());
        inbox.want(Wanted::Serve(pod.clone())).unwrap();
        assert!(!inbox.leave());
        assert_eq!(inbox.take().wanted, Some(Wanted::Serve(pod)));
        assert!(inbox.leave());
        assert_eq!(inbox.want(Wanted::Retire), Err(Left));
    }
}
