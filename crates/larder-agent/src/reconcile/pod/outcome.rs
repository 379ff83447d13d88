//! What came of a delivery: noted, counted, told in the log and in events, and shown.

use larder_projection::VolumeKind;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Upkeep, Worker};
use crate::{
    backoff::Backoff,
    metrics,
    reconcile::{
        board::Shown,
        deliver::{Done, Failed},
        inbox::Wanted,
        plan::{Need, Target},
    },
    status::{ContainerStatus, Delivery, Phase, VolumeStatus},
};

impl Worker {
    /// Notes and tells how the delivery of one part went; returns whether something that was there before was replaced.
    pub(super) fn record(&mut self, index: usize, outcome: Result<Done, Failed>) -> bool {
        let now = self.shared.clock.now();
        let state = &mut self.parts[index];
        self.shared.metrics.delivered(
            state.part.target.noun(),
            match &outcome {
                Ok(done) if done.swapped => metrics::Outcome::Swapped,
                Ok(_) => metrics::Outcome::Unchanged,
                Err(_) => metrics::Outcome::Failed,
            },
        );
        let was = state.delivery.phase;
        let seen = state.last_swap.is_some() || was == Phase::Delivered;
        let (part, pod) = (&state.part.target, &self.place.name);
        let swapped = match &outcome {
            Ok(done) => {
                state.backoff = Backoff::default();
                let reads_token = |need: &Need| matches!(need, Need::Token(_));
                if state.part.reads.iter().any(reads_token) {
                    state.retry_at = self.shared.tokens.renewal(self.place.uid.as_str());
                }
                state.files = done.files;
                state.delivery.update(Phase::Delivered, "", now);
                if was == Phase::Failing {
                    info!(%pod, %part, "delivered after all");
                } else if done.swapped && seen {
                    info!(%pod, %part, files = done.files, "changed");
                } else {
                    debug!(%pod, %part, files = done.files, swapped = done.swapped, "delivered");
                }
                done.swapped
            }
            Err(failed) => {
                let wait = state.backoff.failed();
                state.retry_at = Some(Instant::now() + wait);
                if let (Some(events), Wanted::Serve(pod)) = (&self.shared.events, &self.wanted) {
                    events.failed(&pod.decode(), part.about(), &failed.reason, now);
                }
                if state.delivery.update(Phase::Failing, &failed.reason, now) {
                    warn!(%pod, %part, error = failed.reason, "not delivered, will be tried again");
                }
                failed.swapped
            }
        };
        if swapped {
            state.last_swap = Some(now);
        }
        swapped && seen
    }

    pub(super) fn record_upkeep(&mut self, failure: String) {
        let upkeep = &mut self.upkeep;
        if failure.is_empty() {
            *upkeep = Upkeep::default();
            return;
        }
        upkeep.retry_at = Some(Instant::now() + upkeep.backoff.failed());
        if upkeep.failure != failure {
            warn!(pod = %self.place.name, error = failure, "directory of the pod not in order, will be tried again");
            upkeep.failure = failure;
        }
    }

    /// Shows how far everything is. The pod's own phase is that of the part that needs attention most.
    pub(super) fn publish(&self) {
        let worst = self.parts.iter().max_by_key(|state| state.delivery.phase);
        let (mut phase, mut reason) = worst.map_or((Phase::Delivered, String::new()), |state| {
            let Delivery { phase, reason, .. } = &state.delivery;
            let reason = match reason.as_str() {
                "" => String::new(),
                reason => format!("{}: {reason}", state.part.target),
            };
            (*phase, reason)
        });
        if phase < Phase::Failing && !self.upkeep.failure.is_empty() {
            phase = Phase::Failing;
            reason = format!("directory: {}", self.upkeep.failure);
        }
        let parts = self.parts.iter().map(|state| match &state.part.target {
            Target::Volume(name, kind) => Shown::Volume(VolumeStatus {
                name: name.clone(),
                type_: type_name(*kind).to_owned(),
                path: self.volume_path(name, *kind),
                delivery: state.delivery.clone(),
                last_swap: state.last_swap,
                files: state.files,
            }),
            Target::Environment(name) => Shown::Container(ContainerStatus {
                name: name.clone(),
                path: self.environment_path(name),
                delivery: state.delivery.clone(),
            }),
        });
        let now = self.shared.clock.now();
        self.place.show(phase, &reason, parts.collect(), now);
    }

    fn environment_path(&self, container: &str) -> String {
        let host = &self.shared.host;
        host.environment_path(self.place.uid.as_str(), container)
            .display()
            .to_string()
    }

    fn volume_path(&self, name: &str, kind: VolumeKind) -> String {
        let host = &self.shared.host;
        host.volume_path(self.place.uid.as_str(), kind, name)
            .display()
            .to_string()
    }
}

/// The field of the pod that makes a volume one of this kind.
fn type_name(kind: VolumeKind) -> &'static str {
    match kind {
        VolumeKind::ConfigMap => "configMap",
        VolumeKind::Secret => "secret",
        VolumeKind::Projected => "projected",
        VolumeKind::DownwardApi => "downwardAPI",
    }
}
