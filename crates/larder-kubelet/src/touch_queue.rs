//! The queue of a node's touches: grants permits in the order and at the rate of the [limiter](crate::touch_limiter).
//!
//! Invariants:
//! 1. A touch is sent with a permit, which is dropped when the touch is answered. So touches in flight are counted even
//!    if their worker ends.
//! 2. A permit whose receiver has stopped waiting is dropped at once.

use std::{sync::Arc, time::Duration};

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

use crate::touch_limiter::{Rank, TouchLimiter};

/// The queue. Cloning shares it.
#[derive(Clone, Debug)]
pub struct TouchQueue(Arc<QueueInner>);

#[derive(Debug)]
struct QueueInner {
    limiter: Mutex<TouchLimiter<oneshot::Sender<Permit>>>,
    changed: Notify,
}

/// The right to send one touch.
#[derive(Debug)]
#[must_use = "dropping it gives the next touch its turn"]
pub struct Permit {
    queue: TouchQueue,
    is_catch_up: bool,
    sent: Option<Instant>,
    throttled: Option<Duration>,
}

impl Permit {
    /// The touch is sent now.
    pub fn sent(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// The API server has answered 429: no touch is sent for this time.
    pub fn throttled(&mut self, retry_after: Duration) {
        self.throttled = Some(retry_after);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut limiter = self.queue.0.limiter.lock();
        match self.sent {
            Some(sent) => limiter.answered(now, now - sent, self.throttled),
            None => limiter.not_sent(self.is_catch_up),
        }
        drop(limiter);
        self.queue.0.changed.notify_one();
    }
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub struct QueuedTouch {
    queue: TouchQueue,
    rank: Rank,
    permit: oneshot::Receiver<Permit>,
}

impl QueuedTouch {
    /// The permit, if it has been granted already.
    pub fn try_take(&mut self) -> Option<Permit> {
        self.permit.try_recv().ok()
    }

    /// Waits for the permit. Cancel-safe.
    pub async fn granted(&mut self) -> Permit {
        match (&mut self.permit).await {
            Ok(permit) => permit,
            // The queue lives as long as this.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for QueuedTouch {
    fn drop(&mut self) {
        self.queue.0.limiter.lock().remove(self.rank);
    }
}

impl TouchQueue {
    /// An empty queue. [`run`](Self::run) grants what has to wait.
    pub fn new(rng: Rng) -> Self {
        Self(Arc::new(QueueInner {
            limiter: Mutex::new(TouchLimiter::new(rng, Instant::now())),
            changed: Notify::new(),
        }))
    }

    /// Queues a touch, as [`TouchLimiter::enqueue`] says. If the limits allow it, its permit is granted at once.
    pub fn enqueue(&self, priority: i32, is_catch_up: bool) -> QueuedTouch {
        let (sender, permit) = oneshot::channel();
        let rank = (self.0.limiter.lock()).enqueue(sender, priority, is_catch_up);
        self.grant();
        // The task may have to wake earlier.
        self.0.changed.notify_one();
        QueuedTouch {
            queue: self.clone(),
            rank,
            permit,
        }
    }

    /// Touches per second that the limits allow.
    pub fn rate(&self) -> u32 {
        self.0.limiter.lock().rate()
    }

    /// Grants permits when they are due. Runs until dropped.
    pub async fn run(self) {
        loop {
            let changed = self.0.changed.notified();
            match self.grant() {
                // A timeout and a change both lead to another round of grants.
                Some(at) => drop(timeout_at(at, changed).await),
                None => changed.await,
            }
        }
    }

    /// Grants the permits that are due now; returns when the next one is.
    fn grant(&self) -> Option<Instant> {
        loop {
            let next = self.0.limiter.lock().next(Instant::now());
            let (sender, is_catch_up) = match next {
                Ok(touch) => touch,
                Err(at) => return at,
            };
            let permit = Permit {
                queue: self.clone(),
                is_catch_up,
                sent: None,
                throttled: None,
            };
            // A worker that has left drops the permit with the receiver.
            drop(sender.send(permit));
        }
    }
}
