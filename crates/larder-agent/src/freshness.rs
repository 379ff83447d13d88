//! How fresh is what the agent knows, and what the status says of it.
//!
//! Invariants:
//! 1. A part is `Delivered` only while all that it reads is proven to be current: its objects, the Node, the Services, the
//!    trust bundles, and the pod itself. Otherwise it is `Stale`: its content stays in place
//!    and readable, and the reason names what is not.
//! 2. While the root directory is not at its path, no part is in place: each is `Failing`.
//! 3. Neither is stored: each is derived whenever a status is read, by [`Unproven::show`] and nothing else. So text,
//!    JSON, metrics, problems, events and the stream of changes cannot disagree.
//!
//! [`follow`] notifies clients of the stream, and posts events.

mod doubts;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use larder_objects::{Kind, ObjectKey, manifest::KeptObjects};
use larder_pods::{
    PodSource, Pods, ResolvedPodUid,
    events::{EventSubject, PodReason},
};
use larder_projection::Need;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

pub(crate) use self::doubts::Now;
use self::doubts::{Doubt, Input, input, of_cluster, unproven};
use crate::{
    delivery::{
        inputs::NodeInputs, kept_pods::KeptPods, plan::Part, pod_statuses::PodStatusEntry,
        worker::DeliveryNode,
    },
    status::{Delivery, Phase, PodOverview, PodStatus},
};

/// Time after which the objects are looked at without a change.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Pause between two looks, however many objects change.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// What is not known to be current, or in place. Usually nothing.
#[derive(Debug, Default)]
pub(crate) struct Unproven {
    /// The inputs that are not known to be current.
    inputs: HashMap<Input, Doubt>,
    /// The objects and pods of the API server whose newest manifest is rejected. Its problem says so already.
    kept: Arc<KeptObjects>,
    /// The pods whose source cannot use their newest version. Its problem says so already.
    kept_pods: KeptPods,
    /// That nothing is where pods look for it.
    displaced: Option<Doubt>,
}

impl Unproven {
    /// What is unproven now.
    pub(crate) fn of(inputs: &NodeInputs) -> Self {
        let now = Now::of(&inputs.clock);
        let objects = unproven(Kind::ConfigMap, &inputs.config_maps, now).chain(unproven(
            Kind::Secret,
            &inputs.secrets,
            now,
        ));
        Self {
            inputs: objects.chain(of_cluster(inputs, now)).collect(),
            kept: Arc::clone(&inputs.cluster.borrow().kept),
            kept_pods: inputs.kept_pods.lock().clone(),
            displaced: None,
        }
    }

    /// Besides, the directory of all volumes is not at its path, since then and because of this.
    pub(crate) fn displaced(mut self, displaced: Option<(Timestamp, String)>) -> Self {
        self.displaced = displaced.map(|(since, why)| Doubt { since, why });
        self
    }

    /// The inputs as problems: one for each cause, however many inputs it concerns.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        let mut by_cause = BTreeMap::<_, (Timestamp, BTreeSet<_>)>::new();
        for (input, doubt) in &self.inputs {
            let found = by_cause.entry(&*doubt.why);
            let (since, inputs) = found.or_insert_with(|| (doubt.since, BTreeSet::new()));
            *since = doubt.since.min(*since);
            inputs.insert(input);
        }
        by_cause.into_iter().map(|(why, (since, inputs))| {
            let mut names = inputs.iter();
            let first = names.next().map(ToString::to_string).unwrap_or_default();
            let others = match names.count() {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            format!("{first}{others} may have changed unnoticed since {since:.0}: {why}")
        })
    }

    /// Adds to a published status, of a pod with these parts, what is unproven of it.
    pub(crate) fn show(&self, parts: &[Part], pod: &mut PodStatus) {
        if let Some(doubt) = &self.displaced {
            parts_of(pod)
                .map(|(_, _, delivery)| delivery)
                .for_each(|delivery| doubt.show_displaced(delivery));
            doubt.show_displaced(&mut pod.delivery);
            return;
        }
        let doubts = self.of_parts(pod, parts);
        if doubts.is_empty() {
            return;
        }
        let mut of_pod = pod.delivery.clone();
        for (label, name, delivery) in parts_of(pod) {
            if delivery.phase != Phase::Delivered {
                continue;
            }
            let Some((part, stale)) = doubts.get(&(label, name)) else {
                continue;
            };
            delivery.clone_from(stale);
            if of_pod.phase < Phase::Stale {
                let reason = format!("{}: {}", part.kind, stale.reason);
                of_pod = Delivery::new(Phase::Stale, reason, stale.since);
            }
        }
        pod.delivery = of_pod;
    }

    /// Whether a pod of this phase is shown as it is.
    fn leaves(&self, phase: Phase) -> bool {
        match &self.displaced {
            Some(_) => !is_displaceable(phase),
            None => self.is_empty() || phase >= Phase::Stale,
        }
    }

    /// Whether all that parts read is known to be current.
    fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.kept.is_empty() && self.kept_pods.is_empty()
    }

    /// What the parts of the pod with an unproven input would show, by their keys.
    fn of_parts<'a>(
        &self,
        pod: &PodStatus,
        parts: &'a [Part],
    ) -> HashMap<(&'static str, &'a str), (&'a Part, Delivery)> {
        if self.is_empty() {
            return HashMap::new();
        }
        let of_pod = self.of_pod(pod);
        let doubted = parts.iter().filter_map(|part| {
            let found = part.reads.iter().filter_map(|need| {
                let (since, why) = self.of_need(need, &pod.namespace)?;
                // Without the namespace, which is that of the pod.
                let name = match need {
                    Need::Object(kind, name) => format!("{} {name}", kind.singular()),
                    other => other.to_string(),
                };
                Some((since, format!("{name}: {why}")))
            });
            let (since, reason) = found.min().or_else(|| of_pod.clone())?;
            let stale = Delivery::new(Phase::Stale, reason, since);
            Some((part.kind.key(), (part, stale)))
        });
        doubted.collect()
    }

    /// Why the input of a part in this namespace is not known to be current, and since when.
    fn of_need(&self, need: &Need, namespace: &str) -> Option<(Timestamp, &str)> {
        let of_input = |input: &Input| {
            let doubt = self.inputs.get(input)?;
            Some((doubt.since, &*doubt.why))
        };
        let input = input(need, namespace)?;
        of_input(&input).or_else(|| match &input {
            Input::Object(kind, key) => self.of_kept(kind.as_str(), key),
            Input::Services => of_input(&Input::ServicesOf(namespace.into())),
            Input::ServicesOf(_) | Input::Node | Input::TrustBundles | Input::Pods => None,
        })
    }

    /// Why the pod itself is not known to be current, and since when.
    fn of_pod(&self, pod: &PodStatus) -> Option<(Timestamp, String)> {
        let key = ObjectKey::new(&*pod.namespace, &*pod.name);
        let of_api = || {
            let doubt = self.inputs.get(&Input::Pods);
            let doubt = doubt.map(|doubt| (doubt.since, &*doubt.why));
            doubt.or_else(|| self.of_kept("Pod", &key))
        };
        let of_api = (pod.source == PodSource::Api.as_str()).then(of_api);
        let of_source = || {
            let kept = self.kept_pods.get(&pod.source, &key)?;
            Some((kept.since, &*kept.why))
        };
        let (since, why) = of_api.flatten().or_else(of_source)?;
        Some((since, format!("the pod: {why}")))
    }

    fn of_kept(&self, kind: &str, key: &ObjectKey) -> Option<(Timestamp, &str)> {
        let kept = self.kept.get(kind, key)?;
        Some((kept.since, &kept.why))
    }
}

impl Doubt {
    /// Shows that the part or pod is not in place.
    fn show_displaced(&self, delivery: &mut Delivery) {
        if is_displaceable(delivery.phase) {
            *delivery = Delivery::new(Phase::Failing, &self.why, self.since);
        }
    }
}

/// Whether the phase says something of a directory's content, and nothing that is worse than its absence.
fn is_displaceable(phase: Phase) -> bool {
    phase.is_in_place() || phase == Phase::Waiting
}

/// The parts of a pod: label, name and delivery.
fn parts_of(pod: &mut PodStatus) -> impl Iterator<Item = (&'static str, &str, &mut Delivery)> {
    let volumes = pod
        .volumes
        .iter_mut()
        .map(|volume| ("volume", &*volume.name, &mut volume.delivery));
    let containers = pod
        .containers
        .iter_mut()
        .map(|one| ("environment", &*one.name, &mut one.delivery));
    volumes.chain(containers)
}

/// The stale parts of a pod, with their reasons.
type StaleParts = BTreeSet<(String, String)>;

/// Notifies the clients of a pod's stream when parts of it become stale or are fresh again, and posts an event for each
/// stale part. `changed` is notified when an object may have become either. Runs until dropped.
pub(crate) async fn follow(node: Arc<DeliveryNode>, pods: Pods, changed: Arc<Notify>) {
    let mut reported = HashMap::<ResolvedPodUid, StaleParts>::new();
    loop {
        // Without a change, only time can make an object stale.
        let _ = timeout(LOOK_INTERVAL, changed.notified()).await;
        let unproven = Unproven::of(&node.inputs);
        let mut now = HashMap::new();
        if !unproven.is_empty() {
            for entry in node.statuses.sorted() {
                let mut status = entry.status();
                unproven.show(&entry.parts(), &mut status);
                let stale = stale_parts(status);
                if !stale.is_empty() {
                    now.insert(entry.uid.clone(), stale);
                }
            }
        }
        for (uid, stale) in &now {
            let before = reported.remove(uid);
            if before.as_ref() == Some(stale) {
                continue;
            }
            node.statuses.note_change(uid);
            let Some(pod) = pods.pod_by_uid(uid) else {
                continue;
            };
            let known = before.unwrap_or_default();
            for (part, reason) in stale.difference(&known) {
                let message = format!("{part} may be out of date: {reason}");
                node.post(&pod, EventSubject::Pod(PodReason::Stale), &message);
            }
        }
        for fresh in reported.keys() {
            node.statuses.note_change(fresh);
        }
        reported = now;
        sleep(LOOK_PAUSE).await;
    }
}

fn stale_parts(pod: PodStatus) -> StaleParts {
    let volumes = pod
        .volumes
        .into_iter()
        .map(|volume| (format!("volume {}", volume.name), volume.delivery));
    let containers = pod
        .containers
        .into_iter()
        .map(|one| (format!("environment of {}", one.name), one.delivery));
    volumes
        .chain(containers)
        .filter(|(_, delivery)| delivery.phase == Phase::Stale)
        .map(|(part, delivery)| (part, delivery.reason))
        .collect()
}

/// The overview of a pod, with what is unproven of it.
pub(crate) fn overview(entry: &PodStatusEntry, unproven: &Unproven) -> PodOverview {
    let overview = entry.overview();
    if unproven.leaves(overview.delivery.phase) {
        return overview;
    }
    let mut status = entry.status();
    unproven.show(&entry.parts(), &mut status);
    PodOverview {
        delivery: status.delivery,
        ..overview
    }
}

#[cfg(test)]
mod tests;
