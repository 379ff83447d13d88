//! The queue of a node's touches: grants permits in the order and at the rate of the [limiter](crate::touch_limiter).
//!
//! Invariants:
//! 1. A touch is sent with a permit, which is dropped when the touch is answered. So touches in flight are counted even
//!    if their worker ends.
//! 2. A permit whose receiver has stopped waiting is dropped at once.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout_at},
};

use crate::touch_limiter::{NextTouch, Throttled, TouchLimiter, Urgency};

/// The queue. Cloning shares it.
#[derive(Clone, Debug)]
pub struct TouchQueue(Arc<QueueInner>);

struct QueueInner {
    state: Mutex<QueueState>,
    changed: Notify,
}

struct QueueState {
    limiter: TouchLimiter<u64>,
    /// The receivers of permits, by the number of the touch.
    waiting: HashMap<u64, WaitingTouch>,
    last: u64,
}

impl fmt::Debug for QueueInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.lock().limiter.fmt(f)
    }
}

#[derive(Debug)]
struct WaitingTouch {
    permit: oneshot::Sender<Permit>,
    is_catch_up: bool,
}

/// The right to send one touch.
#[derive(Debug)]
#[must_use = "dropping it gives the next touch its turn"]
pub struct Permit {
    queue: TouchQueue,
    is_catch_up: bool,
    sent: Option<Instant>,
    throttled: Option<Throttled>,
}

impl Permit {
    /// The touch is sent now.
    pub fn sent(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// The API server has answered 429.
    pub fn throttled(&mut self, retry_after: Option<Duration>) {
        self.throttled = Some(Throttled { retry_after });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.queue.0.state.lock();
        match self.sent {
            Some(sent) => state.limiter.answered(now, now - sent, self.throttled),
            None => state.limiter.not_sent(self.is_catch_up),
        }
        drop(state);
        self.queue.0.changed.notify_one();
    }
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub struct QueuedTouch {
    queue: TouchQueue,
    number: u64,
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
        let mut state = self.queue.0.state.lock();
        if state.waiting.remove(&self.number).is_some() {
            state.limiter.remove(self.number);
        }
    }
}

impl TouchQueue {
    /// An empty queue. [`run`](Self::run) grants what has to wait.
    pub fn new(rng: Rng) -> Self {
        let state = QueueState {
            limiter: TouchLimiter::new(rng, Instant::now()),
            waiting: HashMap::new(),
            last: 0,
        };
        Self(Arc::new(QueueInner {
            state: Mutex::new(state),
            changed: Notify::new(),
        }))
    }

    /// Queues a touch. If the limits allow it, its permit is granted at once.
    pub fn enqueue(&self, urgency: Urgency) -> QueuedTouch {
        let (sender, permit) = oneshot::channel();
        let mut state = self.0.state.lock();
        state.last += 1;
        let number = state.last;
        let waiting = WaitingTouch {
            permit: sender,
            is_catch_up: urgency.is_catch_up,
        };
        state.waiting.insert(number, waiting);
        state.limiter.enqueue(number, urgency);
        drop(state);
        self.grant();
        // The task may have to wake earlier.
        self.0.changed.notify_one();
        QueuedTouch {
            queue: self.clone(),
            number,
            permit,
        }
    }

    /// Touches per second that the limits allow.
    pub fn rate(&self) -> u32 {
        self.0.state.lock().limiter.rate()
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
            let mut state = self.0.state.lock();
            let number = match state.limiter.next(Instant::now()) {
                NextTouch::Send(number) => number,
                NextTouch::At(at) => return Some(at),
                NextTouch::Idle => return None,
            };
            // It leaves both lists under one lock.
            let Some(waiting) = state.waiting.remove(&number) else {
                state.limiter.not_sent(false);
                continue;
            };
            drop(state);
            let permit = Permit {
                queue: self.clone(),
                is_catch_up: waiting.is_catch_up,
                sent: None,
                throttled: None,
            };
            // A worker that has left drops the permit with the receiver.
            drop(waiting.permit.send(permit));
        }
    }
}
