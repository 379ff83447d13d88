//! The touch of a pod: queued, sent, answered.

use std::future;

use futures::{FutureExt as _, future::BoxFuture};
use larder_kubelet::{
    touch::{self, REFRESH, TouchAnswer},
    touch_queue::{Permit, QueuedTouch},
};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::BesideWorker;

/// The progress of a touch.
pub(super) enum Touching {
    Idle,
    Queued(QueuedTouch),
    Sent(BoxFuture<'static, (Permit, TouchAnswer)>),
}

/// A step of a touch.
pub(super) enum TouchStep {
    /// It may be sent.
    Granted(Permit),
    Answered(Permit, TouchAnswer),
}

impl Touching {
    /// Sends `request` now: the worker follows swaps before it next waits for anything, which takes a thread.
    fn start(mut request: BoxFuture<'static, (Permit, TouchAnswer)>) -> Self {
        match (&mut request).now_or_never() {
            Some(answered) => Self::Sent(future::ready(answered).boxed()),
            None => Self::Sent(request),
        }
    }

    /// Waits for the permit to touch, then for the answer to the touch. Cancel-safe.
    pub(super) async fn next(&mut self) -> TouchStep {
        match self {
            Self::Idle => future::pending().await,
            Self::Queued(queued) => TouchStep::Granted(queued.granted().await),
            Self::Sent(answer) => {
                let (permit, answer) = answer.await;
                TouchStep::Answered(permit, answer)
            }
        }
    }
}

impl BesideWorker {
    /// Queues or sends a touch if one is due. `permit` was granted before the last look.
    pub(super) fn touch(&mut self, permit: Option<Permit>) {
        let now = Instant::now();
        if !matches!(self.touching, Touching::Idle) || !self.rules.wants_touch(now) {
            return;
        }
        if let Some(permit) = permit {
            self.send(permit);
            return;
        }
        let priority = self.traits.priority;
        let is_catch_up = self.rules.is_catching_up();
        let mut queued = self.beside.queue.enqueue(priority, is_catch_up);
        match queued.try_take() {
            Some(permit) => self.send(permit),
            None => self.touching = Touching::Queued(queued),
        }
    }

    fn send(&mut self, mut permit: Permit) {
        let Some(plan) = &self.work.plan else { return };
        let (now, wall) = (Instant::now(), self.work.wall());
        let present = plan
            .pod
            .metadata
            .annotations
            .as_ref()
            .and_then(|found| found.get(REFRESH));
        let previous = self.last_value.as_ref().or(present);
        let value = touch::next_value(wall, previous.map(String::as_str));
        self.last_value = Some(value.clone());
        let target = plan.pod.identity();
        self.rules.sent(now, wall);
        self.swaps.restart();
        permit.sent();
        let client = self.beside.client.clone();
        let answer = async move {
            let answer = touch::send(&client, &target, &value).await;
            (permit, answer)
        };
        self.touching = Touching::start(answer.boxed());
    }

    /// Takes in a step of a touch; returns the permit to send it.
    pub(super) fn touch_stepped(&mut self, step: TouchStep) -> Option<Permit> {
        self.touching = Touching::Idle;
        let (mut permit, answer) = match step {
            TouchStep::Granted(permit) => return Some(permit),
            TouchStep::Answered(permit, answer) => (permit, answer),
        };
        let pod = &self.work.entry.name;
        self.beside.metrics.touched(answer.label());
        match &answer {
            TouchAnswer::Touched { resource_version } => {
                debug!(%pod, %resource_version, "touched the pod");
            }
            TouchAnswer::Throttled { retry_after } => {
                permit.throttled(*retry_after);
                self.beside.node.throttled(*retry_after);
            }
            TouchAnswer::Forbidden { permission } => self.beside.node.forbidden(permission),
            TouchAnswer::Gone { message } => {
                debug!(%pod, error = message, "API server does not find the pod to touch");
            }
            TouchAnswer::Refused { message } => {
                warn!(%pod, error = message, "API server rejected the touch, will retry");
            }
            TouchAnswer::NoOp | TouchAnswer::Conflict | TouchAnswer::Failed { .. } => {}
        }
        self.rules
            .answered(answer, self.work.rng.f64(), Instant::now());
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    };

    use super::*;

    #[test]
    fn a_touch_is_sent_before_its_answer_is_awaited() {
        let is_sent = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_sent);
        let request = async move {
            seen.store(true, Ordering::Relaxed);
            future::pending().await
        };
        let _touching = Touching::start(request.boxed());
        assert!(is_sent.load(Ordering::Relaxed));
    }
}
