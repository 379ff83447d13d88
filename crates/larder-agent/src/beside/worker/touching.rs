//! The touch of a pod: queued, sent, answered.

use std::{future, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use larder_kubelet::{
    rules::TouchOutcome,
    touch::{PodToTouch, REFRESH, RefreshValue, TouchAnswer},
    touch_limiter::Urgency,
    touch_queue::{Permit, QueuedTouch},
};
use larder_watch::RequestError;
use smol_str::SmolStr;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::BesideWorker;

/// Longest wait for the answer to a touch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The progress of a touch.
pub(super) enum Touching {
    Idle,
    Queued(QueuedTouch),
    Sent(BoxFuture<'static, (Permit, Option<TouchAnswer>)>),
}

/// The result of a touch.
pub(super) enum TouchStep {
    Granted(Permit),
    /// `None` if no answer came in time.
    Answered(Permit, Option<TouchAnswer>),
}

impl Touching {
    /// Sends `request` now: the worker follows swaps before it next waits for anything, which takes a thread.
    fn start(mut request: BoxFuture<'static, (Permit, Option<TouchAnswer>)>) -> Self {
        match (&mut request).now_or_never() {
            Some(answered) => Self::Sent(future::ready(answered).boxed()),
            None => Self::Sent(request),
        }
    }

    /// Waits for the next step. Cancel-safe.
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
        let mut queued = self.beside.queue.enqueue(Urgency {
            priority: self.traits.priority,
            not_before: now,
            is_catch_up: self.rules.is_catching_up(),
        });
        match queued.try_take() {
            Some(permit) => self.send(permit),
            None => self.touching = Touching::Queued(queued),
        }
    }

    fn send(&mut self, mut permit: Permit) {
        let Some(plan) = &self.plan else { return };
        let (now, wall) = (Instant::now(), self.context.inputs.clock.now());
        let metadata = &plan.pod.metadata;
        let annotations = metadata.annotations.as_ref();
        let present = annotations.and_then(|found| found.get(REFRESH));
        let sent = self.last_value.as_ref().map(RefreshValue::as_str);
        let value = RefreshValue::next(wall, sent.or(present.map(String::as_str)));
        self.last_value = Some(value.clone());
        let text = |field: &Option<String>| SmolStr::new(field.as_deref().unwrap_or_default());
        let target = PodToTouch {
            namespace: text(&metadata.namespace),
            name: text(&metadata.name),
            uid: text(&metadata.uid),
            resource_version: text(&metadata.resource_version),
        };
        self.rules.sent(now, wall);
        self.swaps.restart();
        permit.sent();
        let toucher = self.beside.toucher.clone();
        let answer = async move {
            let answer = timeout(TIMEOUT, toucher.send(&target, &value)).await;
            (permit, answer.ok())
        };
        self.touching = Touching::start(answer.boxed());
    }

    /// Takes in a step of a touch; returns the permit to send it.
    pub(super) fn touch_stepped(&mut self, step: TouchStep) -> Option<Permit> {
        self.touching = Touching::Idle;
        match step {
            TouchStep::Granted(permit) => Some(permit),
            TouchStep::Answered(mut permit, answer) => {
                let now = Instant::now();
                let label = answer.as_ref().map_or("error", TouchAnswer::label);
                self.beside.metrics.touched(label);
                let answer = match answer {
                    None => self.failed("the API server does not answer"),
                    Some(answer) => self.answer(answer, &mut permit),
                };
                self.rules.answered(answer, now);
                None
            }
        }
    }

    /// The answer, in the terms of the rules.
    fn answer(&mut self, answer: TouchAnswer, permit: &mut Permit) -> TouchOutcome {
        let pod = &self.entry.name;
        match answer {
            TouchAnswer::Touched { resource_version } => {
                debug!(%pod, %resource_version, "touched the pod");
                TouchOutcome::Touched
            }
            TouchAnswer::NoOp => TouchOutcome::Again("it drops the annotation"),
            TouchAnswer::Conflict => TouchOutcome::Again("it reports a conflict each time"),
            TouchAnswer::Gone => TouchOutcome::Gone,
            TouchAnswer::Throttled { retry_after } => {
                permit.throttled(retry_after);
                TouchOutcome::Throttled(retry_after)
            }
            TouchAnswer::Forbidden { permission } => {
                self.beside.forbidden(&permission);
                TouchOutcome::Forbidden(permission)
            }
            TouchAnswer::Refused { message } => {
                warn!(%pod, error = message, "API server rejected the touch, will retry");
                TouchOutcome::Refused(message)
            }
            TouchAnswer::Failed(error) => {
                let text = larder_objects::chain(&error);
                debug!(%pod, error = text, "failed to touch the pod, will retry");
                self.failed(reason_of(&error))
            }
        }
    }

    fn failed(&mut self, why: &'static str) -> TouchOutcome {
        let random = self.rng.f64();
        TouchOutcome::Failed { why, random }
    }
}

/// Why a touch got no usable answer, in words that quote nothing.
fn reason_of(error: &RequestError) -> &'static str {
    if error.is_unauthorized() {
        "the API server does not accept the credentials"
    } else if error.is_transport() {
        "the API server does not answer"
    } else if error.is_unreadable() {
        "the API server's answer cannot be read"
    } else {
        "the API server has an error of its own"
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
