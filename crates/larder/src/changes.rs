//! Change events, which the kubelet's managers lack, and which make polling unnecessary.
//!
//! Invariants:
//! 1. No event is lost silently, and memory is bounded: a subscriber that lags gets the newest event of each changed
//!    object.
//! 2. Publishing never waits for a subscriber.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
};

use futures::{Stream, StreamExt, task::AtomicWaker};
use larder_objects::ObjectKey;
use parking_lot::Mutex;

use larder_watch::RequestFailure;

/// Something happened to a referenced object.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ObjectChange {
    /// The object.
    pub key: ObjectKey,
    /// The event.
    pub kind: ChangeKind,
}

/// An event about an object.
#[derive(Clone, Debug)]
pub enum ChangeKind {
    /// The object is there and can be read: for the first time, in a new version, or again after [`ChangeKind::Failed`]
    /// or after a read that gave up waiting for it.
    Updated,
    /// The object is known not to exist, or no longer to exist.
    Deleted,
    /// Requests for the object fail; what was read before stays readable. Sent when the cause changes, not for each
    /// attempt.
    Failed(RequestFailure),
}

/// The events since [`ObjectManager::subscribe`](crate::ObjectManager::subscribe) or
/// [`ObjectManager::subscribe_to`](crate::ObjectManager::subscribe_to).
///
/// A [`Stream`] of events, which ends with the manager. [`ChangeKind::Updated`] may also come for a version that a read
/// has returned already: the event says that there is a new version, not that no read has returned it.
///
/// A slow subscriber loses nothing that matters: of several events about one object it gets the last. Events about an
/// object end with its last reference, and pause while its watch is idle (see
/// [`ObjectState::Idle`](crate::ObjectState)).
#[derive(Debug)]
#[must_use = "events are collected until they are read"]
pub struct Changes {
    subscription: Arc<Subscription>,
}

impl Changes {
    /// The next event; `None` when the manager is gone.
    ///
    /// # Cancel safety
    ///
    /// An event is taken in the moment it is returned; dropping the future loses none.
    pub async fn next(&mut self) -> Option<ObjectChange> {
        StreamExt::next(self).await
    }

    /// The next event, if one is there already.
    pub fn try_next(&mut self) -> Option<ObjectChange> {
        self.subscription.pending.lock().take()
    }
}

impl Stream for Changes {
    type Item = ObjectChange;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ObjectChange>> {
        // Before the look, so that an event in between wakes the reader.
        self.subscription.reader.register(context.waker());
        let mut pending = self.subscription.pending.lock();
        match pending.take() {
            None if !pending.closed => Poll::Pending,
            next => Poll::Ready(next),
        }
    }
}

#[derive(Debug, Default)]
struct Subscription {
    /// The one object whose events are wanted; `None` for all.
    only: Option<ObjectKey>,
    /// Events not yet read.
    pending: Mutex<Pending>,
    /// The one reader.
    reader: AtomicWaker,
}

#[derive(Debug, Default)]
struct Pending {
    by_key: HashMap<ObjectKey, (u64, ChangeKind)>,
    in_order: BTreeMap<u64, ObjectKey>,
    last: u64,
    closed: bool,
}

impl Pending {
    fn put(&mut self, key: &ObjectKey, kind: ChangeKind) {
        self.forget(key);
        self.last += 1;
        self.in_order.insert(self.last, key.clone());
        self.by_key.insert(key.clone(), (self.last, kind));
    }

    fn forget(&mut self, key: &ObjectKey) {
        if let Some((order, _)) = self.by_key.remove(key) {
            self.in_order.remove(&order);
        }
    }

    fn take(&mut self) -> Option<ObjectChange> {
        let (_, key) = self.in_order.pop_first()?;
        let (_, kind) = self.by_key.remove(&key)?;
        Some(ObjectChange { key, kind })
    }
}

/// The sending side; one for each manager.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    subscriptions: Mutex<Vec<Weak<Subscription>>>,
}

impl Publisher {
    /// The events from now on: all, or those of `only` one object.
    pub(crate) fn subscribe(&self, only: Option<ObjectKey>) -> Changes {
        let subscription = Arc::new(Subscription {
            only,
            ..Subscription::default()
        });
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.retain(|subscription| subscription.strong_count() > 0);
        subscriptions.push(Arc::downgrade(&subscription));
        Changes { subscription }
    }

    pub(crate) fn publish(&self, key: &ObjectKey, kind: &ChangeKind) {
        self.each(|subscription| {
            if subscription.only.as_ref().is_none_or(|only| only == key) {
                subscription.pending.lock().put(key, kind.clone());
                subscription.reader.wake();
            }
        });
    }

    /// The object is no longer referenced: its pending events no longer matter.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.each(|subscription| subscription.pending.lock().forget(key));
    }

    /// Lets subscribers read the pending events; after them, the stream ends.
    pub(crate) fn close(&self) {
        self.each(|subscription| {
            subscription.pending.lock().closed = true;
            subscription.reader.wake();
        });
    }

    fn each(&self, notify: impl Fn(&Subscription)) {
        for subscription in self.subscriptions.lock().iter() {
            if let Some(subscription) = subscription.upgrade() {
                notify(&subscription);
            }
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("n", name)
    }

    #[tokio::test]
    async fn a_slow_subscriber_gets_the_last_event_of_each_object() {
        let publisher = Publisher::default();
        let mut changes = publisher.subscribe(None);
        for _ in 0..1000 {
            publisher.publish(&key("a"), &ChangeKind::Updated);
            publisher.publish(&key("b"), &ChangeKind::Updated);
            publisher.publish(&key("gone"), &ChangeKind::Updated);
        }
        publisher.publish(&key("a"), &ChangeKind::Deleted);
        publisher.forget(&key("gone"));
        drop(publisher);
        let first = changes.next().await.unwrap();
        assert_eq!(first.key, key("b"));
        let second = changes.next().await.unwrap();
        assert!(second.key == key("a") && matches!(second.kind, ChangeKind::Deleted));
        assert!(changes.next().await.is_none());
    }

    #[tokio::test]
    async fn subscriber_to_one_object_hears_of_no_other() {
        let publisher = Publisher::default();
        let mut changes = publisher.subscribe(Some(key("a")));
        publisher.publish(&key("b"), &ChangeKind::Updated);
        assert!(changes.try_next().is_none());
        publisher.publish(&key("a"), &ChangeKind::Deleted);
        drop(publisher);
        let change = changes.next().await.unwrap();
        assert!(change.key == key("a") && matches!(change.kind, ChangeKind::Deleted));
        assert!(changes.next().await.is_none());
    }

    #[tokio::test]
    async fn a_waiting_subscriber_is_woken() {
        let publisher = Publisher::default();
        let mut changes = publisher.subscribe(None);
        let (change, ()) = tokio::join!(changes.next(), async {
            publisher.publish(&key("a"), &ChangeKind::Updated);
        });
        assert_eq!(change.unwrap().key, key("a"));
        assert!(changes.try_next().is_none());
    }
}
