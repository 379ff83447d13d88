//! The outcome of a delivery: recorded, counted, logged, posted as an event, and published.

use larder_kubelet::backoff::RETRY;
use larder_objects::chain;
use larder_projection::{Need, disk::DiskError};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{ServingWorker, Tidying, deliver::Delivered, failure::DeliveryFailure};
use crate::{
    delivery::{
        plan::{PartKind, PodPlan},
        pod_statuses::PartStatus,
        sub_paths,
    },
    status::Phase,
};

impl ServingWorker {
    /// Records the delivery of one part; returns whether content that a reader may have seen was replaced.
    pub(super) fn record(
        &mut self,
        plan: &PodPlan,
        index: usize,
        result: Result<Delivered, DeliveryFailure>,
    ) -> bool {
        let now = self.work.wall();
        let (part, state) = (&plan.parts[index], &mut self.work.parts[index]);
        state.changed = false;
        if let Err(failure @ DeliveryFailure::NoAddress { .. }) = &result {
            // What was delivered stays so. A change of the pod or of the Node makes the part due again.
            if state.delivery.phase != Phase::Delivered {
                let reason = failure.to_string();
                state.delivery.update(Phase::Waiting, &reason, now);
            }
            return false;
        }
        self.work.node.metrics.delivered(
            part.kind.label(),
            match &result {
                Ok(delivered) if delivered.swapped => "swapped",
                Ok(_) => "unchanged",
                Err(_) => "failed",
            },
        );
        let was = state.delivery.phase;
        let seen = state.last_swap.is_some() || was == Phase::Delivered;
        let pod = &self.work.entry.name;
        let swapped = match &result {
            Ok(delivered) => {
                state.of_mode.backoff = None;
                let reads_token = |need: &Need| matches!(need, Need::Token(_));
                if part.reads.iter().any(reads_token) {
                    let tokens = &self.work.node.inputs.tokens;
                    state.of_mode.retry_at = tokens.renewal(self.work.entry.uid.as_str());
                }
                state.files = delivered.files;
                state.of_mode.left_out.clone_from(&delivered.left_out);
                let hidden: Vec<_> = delivered
                    .hidden_links
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                state.of_mode.note = hidden.join("; ");
                state.delivery.update(Phase::Delivered, "", now);
                let Delivered { swapped, files, .. } = *delivered;
                if was == Phase::Failing {
                    info!(%pod, part = part.kind.to_string(), "delivered after a failure");
                } else if swapped && seen && matches!(part.kind, PartKind::Volume(..)) {
                    info!(%pod, part = part.kind.to_string(), files, "changed");
                } else if swapped && seen {
                    info!(%pod, part = part.kind.to_string(), variables = files, "changed");
                } else {
                    debug!(%pod, part = part.kind.to_string(), files, swapped, "delivered");
                }
                swapped
            }
            Err(failure) => {
                let backoff = state.of_mode.backoff.get_or_insert(RETRY);
                state.of_mode.retry_at = Some(Instant::now() + backoff.next_delay());
                let (subject, reason) = (part.kind.event_subject(), chain(failure));
                self.work.node.post(&plan.pod, subject, &reason);
                if state.delivery.update(Phase::Failing, &reason, now) {
                    warn!(%pod, part = part.kind.to_string(), error = reason, "delivery failed, will retry");
                }
                failure.swapped()
            }
        };
        if swapped {
            state.last_swap = Some(now);
        }
        swapped && seen
    }

    /// Records that the pod's directory was tidied, but for these errors.
    pub(super) fn record_tidying(&mut self, errors: &[DiskError]) {
        let tidying = &mut self.tidying;
        if errors.is_empty() {
            *tidying = Tidying::default();
            return;
        }
        let reasons: Vec<_> = errors.iter().map(|error| chain(error)).collect();
        let failure = reasons.join(", ");
        tidying.retry_at = Some(Instant::now() + tidying.backoff.get_or_insert(RETRY).next_delay());
        if tidying.failure != failure {
            warn!(pod = %self.work.entry.name, error = failure, "failed to tidy the pod's directory, will retry");
            tidying.failure = failure;
        }
    }

    /// Publishes the status of every part. The pod's own phase is that of the
    /// part that needs attention most.
    pub(super) fn publish(&self, plan: &PodPlan) {
        let parts = plan.parts.iter().enumerate();
        let shown = parts.map(|(index, part)| (part, self.work.shown(index)));
        let worst = shown.max_by_key(|(_, delivery)| delivery.phase);
        let (mut phase, mut reason) =
            worst.map_or((Phase::Delivered, String::new()), |(part, delivery)| {
                let reason = match delivery.reason.as_str() {
                    "" => String::new(),
                    reason => format!("{}: {reason}", part.kind),
                };
                (delivery.phase, reason)
            });
        let waits_for = self.work.waits_for();
        if let Some(wait) = waits_for
            && phase < Phase::Waiting
        {
            // A change that arrives meanwhile waits as well.
            phase = Phase::Waiting;
            reason = format!("directory: {}", wait.what.reason());
        }
        if phase < Phase::Failing && !self.tidying.failure.is_empty() {
            phase = Phase::Failing;
            reason = format!("directory: {}", self.tidying.failure);
        }
        let parts = self
            .work
            .parts(plan)
            .enumerate()
            .map(|(index, (part, state))| {
                let mut status = state.status(&part.kind, self.work.shown(index));
                match &mut status {
                    PartStatus::Volume(volume) => {
                        volume.stale_as_of = state.of_mode.stale_as_of;
                        volume.left_out.clone_from(&state.of_mode.left_out);
                        volume.note.clone_from(&state.of_mode.note);
                        volume.sub_paths = sub_paths::statuses(&self.sub_paths, &volume.name);
                    }
                    PartStatus::Container(container) => {
                        container.stale_as_of = state.of_mode.stale_as_of;
                        container.left_out.clone_from(&state.of_mode.left_out);
                    }
                }
                status
            });
        let now = self.work.wall();
        self.work
            .entry
            .publish_waiting(phase, &reason, parts.collect(), waits_for, now);
        // What still waits then, waits for an address.
        if !self.work.parts.iter().any(|state| state.due || state.waits) {
            self.work.entry.settle();
        }
    }

    /// Publishes that the removal of the volumes waits.
    pub(super) fn publish_slow_removal(&self) {
        let now = self.work.wall();
        let waits_for = self.work.waits_for();
        let reason = waits_for.map_or("", |wait| wait.what.reason());
        self.work
            .entry
            .publish_waiting(Phase::Removing, reason, Vec::new(), waits_for, now);
    }
}
