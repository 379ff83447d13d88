//! Metrics, log messages, events and status of a worker's pod.

use std::collections::BTreeSet;

use jiff::Timestamp;
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
        plan::{Part, PartKind, PodPlan},
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
        let mut shown = ShownPod::new(wall);
        for (index, part) in plan.parts.iter().enumerate() {
            let status = match &part.kind {
                PartKind::Volume(..) => self.volume_status(index, part, &mut shown),
                PartKind::Environment(container, _) => {
                    self.container_status(index, part, container, &mut shown)
                }
            };
            shown.parts.push(status);
        }
        self.gauges.set(shown.counts);
        if !shown.has_untried {
            self.work.entry.settle();
        }
        let waits_for = self.work.waits_for();
        if let Some(wait) = waits_for
            && shown.worst < Phase::Waiting
        {
            shown.worst = Phase::Waiting;
            shown.reason = format!("directory: {}", wait.what.reason());
        }
        let (phase, reason) = (shown.worst, &shown.reason);
        self.work
            .entry
            .publish_waiting(phase, reason, shown.parts, waits_for, wall);
        for (container, objects) in shown.restart_needed {
            let message = format!(
                "Container {container:?} sees {objects} as of its start, until it is restarted"
            );
            self.post(plan, PodReason::RestartNeeded, &message);
        }
    }

    fn volume_status(&mut self, index: usize, part: &Part, pod: &mut ShownPod) -> PartStatus {
        let name = self.part_name(part);
        let state = &mut self.work.parts[index];
        match name.as_ref().map(|name| self.rules.state(name, pod.wall)) {
            Some(Some(shown)) => state.show(shown, pod.wall),
            Some(None) => pod.has_untried = true,
            // A look at it has set the delivery, or there was none.
            None => {
                let delivery = &state.delivery;
                pod.has_untried |= delivery.phase == Phase::Waiting && delivery.reason.is_empty();
            }
        }
        pod.counts.volumes[state.of_mode.state as usize] += 1;
        let state = &self.work.parts[index];
        let shown = self.work.shown(index);
        if shown.phase > pod.worst {
            pod.worst = shown.phase;
            pod.reason = format!("{}: {}", part.kind, shown.reason);
        }
        let verified_in = name.and_then(|name| self.rules.verified_in(&name));
        let mut status = state.status(&part.kind, shown);
        if let PartStatus::Volume(volume) = &mut status {
            volume.verified_in_ms =
                verified_in.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
            volume.sub_paths = sub_paths::statuses(&self.sub_paths, &volume.name);
        }
        status
    }

    fn container_status(
        &mut self,
        index: usize,
        part: &Part,
        container: &str,
        pod: &mut ShownPod,
    ) -> PartStatus {
        let mut outdated = self.outdated.of(container, pod.wall);
        outdated.retain(|found| {
            found.kind != OutdatedKind::SubPath || !self.sub_paths.is_live(container, &found.name)
        });
        if self.beside.config.restart_events {
            let objects = self.outdated.announce(container, &outdated);
            if !objects.is_empty() {
                pod.restart_needed
                    .push((container.to_owned(), names(&objects)));
            }
        }
        for found in &outdated {
            pod.counts.outdated[found.kind as usize] += 1;
        }
        let state = &self.work.parts[index];
        let mut status = state.status(&part.kind, self.work.shown(index));
        if let PartStatus::Container(container) = &mut status {
            container.outdated = outdated.into_iter().map(outdated_status).collect();
        }
        status
    }
}

/// The state of a pod, collected from its parts.
struct ShownPod {
    /// The time of the look.
    wall: Timestamp,
    worst: Phase,
    /// Why the worst part is so.
    reason: String,
    parts: Vec<PartStatus>,
    /// A part was not looked at yet.
    has_untried: bool,
    counts: PodCounts,
    /// Containers, each with the objects that it sees as of its start.
    restart_needed: Vec<(String, String)>,
}

impl ShownPod {
    fn new(wall: Timestamp) -> Self {
        Self {
            wall,
            worst: Phase::Delivered,
            reason: String::new(),
            parts: Vec::new(),
            has_untried: false,
            counts: PodCounts::default(),
            restart_needed: Vec::new(),
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
