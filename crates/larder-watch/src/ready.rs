//! Tracks which of very many futures of one task need polling.
//!
//! Each has a waker of its own, which notes its key. No future is polled without need, regardless of their number, and
//! they are polled in the order in which they were woken.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::task::coop::consume_budget;

/// The keys of the futures that were woken.
#[derive(Debug)]
pub(crate) struct ReadySet<R> {
    keys: Mutex<VecDeque<R>>,
    task: AtomicWaker,
}

/// Wakes the future of one key.
#[derive(Debug)]
pub(crate) struct ReadyWaker<R> {
    key: R,
    /// The key is in the set.
    woken: AtomicBool,
    set: Arc<ReadySet<R>>,
}

impl<R> Default for ReadySet<R> {
    fn default() -> Self {
        Self {
            keys: Mutex::default(),
            task: AtomicWaker::new(),
        }
    }
}

impl<R> ReadySet<R> {
    /// A waker for the future of `key`.
    pub(crate) fn waker(self: &Arc<Self>, key: R) -> Arc<ReadyWaker<R>> {
        Arc::new(ReadyWaker {
            key,
            woken: AtomicBool::new(false),
            set: Arc::clone(self),
        })
    }

    /// The next key; its future may have ended meanwhile. Cancel-safe.
    pub(crate) async fn next(&self) -> R {
        // The futures are polled between two calls, at the cost of this task. When its budget is used up they all are
        // pending and woken at once, so the task has to yield.
        consume_budget().await;
        poll_fn(|context| {
            self.task.register(context.waker());
            match self.keys.lock().pop_front() {
                Some(key) => Poll::Ready(key),
                None => Poll::Pending,
            }
        })
        .await
    }
}

impl<R: Copy + Send + Sync + 'static> ReadyWaker<R> {
    /// Polls the future.
    pub(crate) fn poll<T>(
        self: &Arc<Self>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // What wakes the future from now on may not be seen by this poll.
        self.woken.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(self));
        poll(&mut Context::from_waker(&waker))
    }
}

impl<R: Copy + Send + Sync> Wake for ReadyWaker<R> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.set.keys.lock().push_back(self.key);
            self.set.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn woken_keys_come_in_order_and_once() {
        let set = Arc::new(ReadySet::default());
        let wakers = [1, 2, 3].map(|key| set.waker(key));
        wakers[2].wake_by_ref();
        wakers[0].wake_by_ref();
        wakers[2].wake_by_ref();
        assert_eq!((set.next().await, set.next().await), (3, 1));
        assert!(set.next().now_or_never().is_none());
        // Polling makes the key wakeable again, also from within the poll.
        let poll = wakers[0].poll(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(poll.is_pending());
        assert_eq!(set.next().await, 1);
    }
}
