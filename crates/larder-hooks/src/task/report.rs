//! Reports about hooks: their status, the metrics that count them, and the log and events at a round's end.

use std::sync::Arc;

use larder_on_change::{AttemptEnd, Ended, HookState, InvalidAnnotation, PodHooks};
use larder_pods::StoredPod;
use larder_pods::events::{EventSubject, PodReason};
use tracing::{debug, info, warn};

use super::OnChange;
use crate::{
    hooked_pod::HookedPod,
    round::AttemptReport,
    status::{HookStatus, INVALID},
};

impl OnChange {
    /// Reports errors of annotations that `before` did not have.
    pub(super) fn report_errors(
        &self,
        pod: &StoredPod,
        hooks: &PodHooks,
        before: Option<&Arc<PodHooks>>,
    ) {
        let known: &[InvalidAnnotation] = before.map_or(&[], |known| &known.errors);
        for error in hooks.errors.iter().filter(|error| !known.contains(error)) {
            let error = error.to_string();
            let shown = pod.key();
            warn!(
                pod = %shown,
                error, "invalid hooks, keeping the last valid ones"
            );
            self.post(pod, PodReason::InvalidHook, &error);
        }
    }

    /// The states of the pod's hooks, and the errors of its annotations.
    pub fn statuses(&self, uid: &str) -> Vec<HookStatus> {
        let schedule = self.0.schedule.lock();
        let Some(pod) = schedule.pod(uid) else {
            return Vec::new();
        };
        let hooks = pod.tracked().map(|(hook, tracked)| HookStatus {
            name: hook.hook.name.clone(),
            action: hook.action(),
            place: hook.place.to_string(),
            state: tracked.state().name().to_owned(),
            since: Some(tracked.since),
            reason: match (tracked.reason(), hook.note()) {
                ("", Some(note)) => note.to_owned(),
                (reason, _) => reason.to_owned(),
            },
            output: tracked.output().to_owned(),
            attempts: tracked.failures(),
            last_success: tracked.last_success,
        });
        let errors = pod.hooks().errors.iter().map(|invalid| HookStatus {
            place: invalid.annotation.to_string(),
            state: INVALID.to_owned(),
            reason: invalid.error.to_string(),
            ..HookStatus::default()
        });
        hooks.chain(errors).collect()
    }

    /// Updates the metrics that count hooks.
    pub fn count_hooks(&self) {
        let schedule = self.0.schedule.lock();
        let (mut failing, mut pending) = (0, 0);
        for hook in schedule.tracked_hooks() {
            failing += usize::from(hook.has_failed);
            pending += usize::from(hook.state() != HookState::Idle);
        }
        self.0.metrics.set_hooks(failing, pending);
        let invalid = i64::try_from(schedule.invalid_annotations());
        self.0.invalid.set(invalid.unwrap_or(i64::MAX));
    }

    /// Logs the end of a round, and posts events.
    pub(super) fn report(
        &self,
        report: &AttemptReport,
        ended: &Ended<HookedPod>,
        time: jiff::Timestamp,
    ) {
        let (pod, hook, action) = (&ended.pod.pod, &ended.hook, &ended.action);
        let shown = pod.key().to_string();
        let took = report.took;
        let changes = Some(report.summary.as_str()).filter(|changes| !changes.is_empty());
        for container in &report.restarted {
            let what = changes.unwrap_or("first delivery");
            let message = format!("container {container}: {what}");
            self.post(pod, PodReason::Restarted, &message);
        }
        match &report.end {
            AttemptEnd::Succeeded => {
                self.0.metrics.succeeded(time);
                info!(
                    pod = %shown,
                    hook,
                    action,
                    changes,
                    ?took,
                    "application notified of a change"
                );
                if ended.was_reported {
                    let message = format!("hook {hook} succeeded");
                    self.post(pod, PodReason::HookSucceeded, &message);
                }
            }
            AttemptEnd::Failed { reason, .. } => {
                macro_rules! failed {
                    ($log:ident) => {
                        $log!(
                            pod = %shown,
                            hook,
                            action,
                            changes,
                            ?took,
                            error = reason,
                            "failed to notify application of a change"
                        )
                    };
                }
                if ended.is_news {
                    failed!(warn);
                } else {
                    failed!(debug);
                }
                let message = format!("hook {hook}: {reason}");
                self.post(pod, PodReason::HookFailed, &message);
            }
            AttemptEnd::Deferred(_, reason) => {
                info!(pod = %shown, hook, action, reason, "round waits");
            }
            AttemptEnd::Interrupted => {}
        }
    }

    pub(super) fn post(&self, pod: &StoredPod, reason: PodReason, message: &str) {
        if let Some(events) = &self.0.node.events {
            let subject = EventSubject::Pod(reason);
            let now = self.0.node.clock.now();
            events.failed(&pod.metadata, subject, message, now);
        }
    }
}
