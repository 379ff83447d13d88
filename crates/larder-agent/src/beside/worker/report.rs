//! Metrics, log messages, events and status of a worker's pod.

use std::collections::BTreeSet;

use larder_kubelet::{
    outdated::{OutdatedContent, OutdatedKind, SourceObject},
    rules::Notice,
};
use larder_pods::events::{EventSubject, PodReason};
use tracing::{info, warn};

use super::BesideWorker;
use crate::{
    beside::metrics::PodCounts,
    delivery::{
        plan::{PartKind, PodPlan},
        pod_statuses::PartStatus,
        sub_paths,
    },
    status::{OutdatedStatus, Phase},
};

impl BesideWorker {
    /// Counts, logs and posts.
    pub(super) fn handle(&self, plan: &PodPlan, notices: Vec<Notice>) {
        let pod = &self.work.entry.name;
        let metrics = &self.beside.metrics;
        for notice in notices {
            match notice {
                Notice::Verified {
                    volume,
                    arrival,
                    delay,
                    touches,
                } => {
                    metrics.verified(arrival.as_str());
                    if let Some(delay) = delay {
                        metrics.delivered(delay, touches);
                        info!(%pod, %volume, touches, millis = delay.as_millis(), "changed");
                    }
                }
                Notice::Unverified => metrics.verified("unverified"),
                Notice::Detached { volume, containers } => {
                    metrics.verified("detached");
                    let containers = containers.join(", ");
                    let message = format!(
                        "Volume {volume:?} was torn down under its running containers and set up again; they do not see \
                         its changes until they are restarted: {containers}"
                    );
                    warn!(%pod, %volume, containers, "volume was torn down under running containers");
                    self.post(plan, PodReason::VolumeDetached, &message);
                }
                Notice::NotRefreshed { volume } => {
                    let message = format!(
                        "The kubelet has not refreshed the outdated volume {volume:?} for 3 minutes"
                    );
                    warn!(%pod, %volume, "the kubelet does not refresh the volume");
                    self.post(plan, PodReason::VolumeNotRefreshed, &message);
                }
            }
        }
    }

    fn post(&self, plan: &PodPlan, reason: PodReason, message: &str) {
        let subject = EventSubject::Pod(reason);
        self.work.node.post(&plan.pod, subject, message);
    }

    /// Publishes the status of every part. The pod's own phase is that of the volume that needs attention most.
    pub(super) fn publish(&mut self, plan: &PodPlan) {
        let wall = self.work.wall();
        if let Some(reason) = self.beside.config.excludes(&plan.pod) {
            self.gauges.set(PodCounts::default());
            self.work
                .entry
                .publish(Phase::Excluded, reason, Vec::new(), wall);
            return;
        }
        let (mut worst, mut reason) = (Phase::Delivered, String::new());
        let mut statuses = Vec::new();
        let (mut is_tried, mut restart_needed) = (true, Vec::new());
        let mut counts = PodCounts::default();
        for (index, part) in plan.parts.iter().enumerate() {
            let name = self.part_name(part);
            match &part.kind {
                PartKind::Volume(..) => {
                    let state = &mut self.work.parts[index];
                    match name.as_ref().map(|name| self.rules.state(name, wall)) {
                        Some(Some(shown)) => state.show(shown, wall),
                        Some(None) => is_tried = false,
                        // A look at it has set the delivery, or there was none.
                        None => {
                            let delivery = &state.delivery;
                            is_tried &=
                                delivery.phase != Phase::Waiting || !delivery.reason.is_empty();
                        }
                    }
                    counts.volumes[state.of_mode.state as usize] += 1;
                    let state = &self.work.parts[index];
                    let shown = self.work.shown(index);
                    if shown.phase > worst {
                        worst = shown.phase;
                        reason = format!("{}: {}", part.kind, shown.reason);
                    }
                    let verified_in = name.and_then(|name| self.rules.verified_in(&name));
                    let verified_in = verified_in
                        .map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
                    let mut status = state.status(&part.kind, shown);
                    if let PartStatus::Volume(volume) = &mut status {
                        volume.verified_in_ms = verified_in;
                        volume.sub_paths = sub_paths::statuses(&self.sub_paths, &volume.name);
                    }
                    statuses.push(status);
                }
                PartKind::Environment(container, _) => {
                    let mut outdated = self.outdated.of(container, wall);
                    outdated.retain(|found| {
                        found.kind != OutdatedKind::SubPath
                            || !self.sub_paths.is_live(container, &found.name)
                    });
                    if self.beside.config.restart_events {
                        let objects = self.outdated.announce(container, &outdated);
                        if !objects.is_empty() {
                            restart_needed.push((container.clone(), names(&objects)));
                        }
                    }
                    for found in &outdated {
                        counts.outdated[found.kind as usize] += 1;
                    }
                    let state = &self.work.parts[index];
                    let mut status = state.status(&part.kind, self.work.shown(index));
                    if let PartStatus::Container(container) = &mut status {
                        container.outdated = outdated.into_iter().map(outdated_status).collect();
                    }
                    statuses.push(status);
                }
            }
        }
        self.gauges.set(counts);
        if is_tried {
            self.work.entry.settle();
        }
        let waits_for = self.work.waits_for();
        if let Some(wait) = waits_for
            && worst < Phase::Waiting
        {
            worst = Phase::Waiting;
            reason = format!("directory: {}", wait.what.reason());
        }
        self.work
            .entry
            .publish_waiting(worst, &reason, statuses, waits_for, wall);
        for (container, objects) in restart_needed {
            let message = format!(
                "Container {container:?} sees {objects} as of its start, until it is restarted"
            );
            self.post(plan, PodReason::RestartNeeded, &message);
        }
    }
}

fn outdated_status(found: OutdatedContent) -> OutdatedStatus {
    OutdatedStatus {
        kind: found.kind.as_str().to_owned(),
        name: found.name,
        object: names(&found.objects),
        since: found.since,
    }
}

fn names(objects: &BTreeSet<SourceObject>) -> String {
    let names: Vec<_> = objects.iter().map(SourceObject::to_string).collect();
    names.join(", ")
}
