//! How fresh is what the agent knows, and what the status says of it.
//!
//! Invariants:
//! 1. A part is `Delivered` only while each object that it reads is proven to be current. Otherwise it is `Stale`: its
//!    content stays in place and readable, and the reason names the object.
//! 2. While the root directory is not at its path, no part is in place: each is `Failing`.
//! 3. Neither is stored: each is derived whenever a status is read, by [`Unproven::show`] and nothing else. So text,
//!    JSON, metrics, problems, events and the stream of changes cannot disagree.
//!
//! [`follow`] notifies clients of the stream, and posts events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use larder::{ObjectManager, ObjectState, ObjectStatus, Proof};
use larder_objects::{Kind, Object, ObjectKey, chain};
use larder_pods::{
    Pods, ResolvedPodUid,
    events::{EventSubject, PodReason},
};
use larder_projection::Need;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    delivery::{
        inputs::NodeInputs, plan::Part, pod_statuses::PodStatusEntry, worker::DeliveryNode,
    },
    status::{Delivery, Phase, PodOverview, PodStatus},
};

/// Time for which a watch may be without proof while no request has failed: opening it again takes milliseconds.
const REOPENED_WITHIN: Duration = Duration::from_secs(5);
/// Time after which the objects are looked at without a change.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Pause between two looks, however many objects change.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Why an object is not known to be current although no request has failed.
const SILENT: &str = "the API server does not answer";

/// Why an object is not known to be current.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Doubt {
    /// The time of the last proof.
    since: Timestamp,
    why: String,
}

/// What is not known to be current, or in place. Usually nothing.
#[derive(Debug, Default)]
pub(crate) struct Unproven {
    /// The objects that are not known to be current.
    objects: HashMap<(Kind, ObjectKey), Doubt>,
    /// That nothing is where pods look for it.
    displaced: Option<Doubt>,
}

impl Unproven {
    /// What is unproven now.
    pub(crate) fn of(inputs: &NodeInputs) -> Self {
        let (now, wall) = (Instant::now(), inputs.clock.now());
        let maps = unproven(Kind::ConfigMap, &inputs.config_maps, now, wall);
        let found = maps.chain(unproven(Kind::Secret, &inputs.secrets, now, wall));
        Self {
            objects: found.collect(),
            displaced: None,
        }
    }

    /// Besides, the directory of all volumes is not at its path, since then and because of this.
    pub(crate) fn displaced(mut self, displaced: Option<(Timestamp, String)>) -> Self {
        self.displaced = displaced.map(|(since, why)| Doubt { since, why });
        self
    }

    /// The objects as problems: one for each cause, however many objects it concerns.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        let mut by_cause = BTreeMap::<_, (Timestamp, BTreeSet<_>)>::new();
        for (object, doubt) in &self.objects {
            let found = by_cause.entry(&*doubt.why);
            let (since, objects) = found.or_insert_with(|| (doubt.since, BTreeSet::new()));
            *since = doubt.since.min(*since);
            objects.insert(object);
        }
        by_cause.into_iter().map(|(why, (since, objects))| {
            let mut names = objects.iter();
            let first = names
                .next()
                .map(|(kind, key)| format!("{} {key}", kind.singular()));
            let first = first.unwrap_or_default();
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
            let parts = parts_of(pod).map(|(_, _, delivery)| delivery);
            parts.for_each(|delivery| doubt.show_displaced(delivery));
            doubt.show_displaced(&mut pod.delivery);
            return;
        }
        let doubts = self.of_parts(&pod.namespace, parts);
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
            None => self.objects.is_empty() || phase >= Phase::Stale,
        }
    }

    /// What the parts with an unproven object would show, by their keys.
    fn of_parts<'a>(
        &self,
        namespace: &str,
        parts: &'a [Part],
    ) -> HashMap<(&'static str, &'a str), (&'a Part, Delivery)> {
        if self.objects.is_empty() {
            return HashMap::new();
        }
        let doubted = parts.iter().filter_map(|part| {
            let found = part.reads.iter().filter_map(|need| match need {
                Need::Object(kind, name) => {
                    let key = ObjectKey::new(namespace, name.clone());
                    let object = (*kind, key);
                    let doubt = self.objects.get(&object)?;
                    Some((
                        doubt.since,
                        format!("{} {name}: {}", kind.singular(), doubt.why),
                    ))
                }
                _ => None,
            });
            let (since, reason) = found.min()?;
            let stale = Delivery::new(Phase::Stale, reason, since);
            Some((part.kind.key(), (part, stale)))
        });
        doubted.collect()
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
    let volumes = pod.volumes.iter_mut();
    let volumes = volumes.map(|volume| ("volume", &*volume.name, &mut volume.delivery));
    let containers = pod.containers.iter_mut();
    let containers = containers.map(|one| ("environment", &*one.name, &mut one.delivery));
    volumes.chain(containers)
}

/// The objects of a manager that are not known to be current, at `now`.
fn unproven<K: Object>(
    kind: Kind,
    manager: &ObjectManager<K>,
    now: Instant,
    wall: Timestamp,
) -> impl Iterator<Item = ((Kind, ObjectKey), Doubt)> {
    let objects = manager.objects().into_iter();
    objects.filter_map(move |object| {
        let doubt = doubt(&object, now, wall)?;
        Some(((kind, object.key), doubt))
    })
}

/// Why the object is not known to be current.
fn doubt(object: &ObjectStatus, now: Instant, wall: Timestamp) -> Option<Doubt> {
    let lost = match &object.proof {
        Proof::At(_) => None,
        Proof::Lost { since, failure } => Some((*since, failure.as_ref())),
    };
    let since = match (object.state, lost) {
        // Nothing of it is delivered.
        (ObjectState::Pending | ObjectState::Idle | ObjectState::Removed, _) => return None,
        // A copy that an earlier agent kept.
        (ObjectState::Stale(as_of), _) => as_of,
        (_, None) => return None,
        (_, Some((since, None))) if now - since < REOPENED_WITHIN => return None,
        (_, Some((since, _))) => {
            let age = SignedDuration::try_from(now.saturating_duration_since(since));
            let age = age.unwrap_or(SignedDuration::MAX);
            wall.checked_sub(age).unwrap_or(Timestamp::MIN)
        }
    };
    let failure = lost.and_then(|(_, failure)| failure);
    let why = failure.map_or_else(|| SILENT.to_owned(), |failure| chain(&*failure.error));
    Some(Doubt { since, why })
}

/// The stale parts of a pod, with their reasons.
type StaleParts = BTreeSet<(String, String)>;

/// Notifies the clients of a pod's stream when parts of it become stale or are fresh again, and posts an event for each
/// stale part. `changed` is notified when an object
/// may have become either. Runs until dropped.
pub(crate) async fn follow(node: Arc<DeliveryNode>, pods: Pods, changed: Arc<Notify>) {
    let mut reported = HashMap::<ResolvedPodUid, StaleParts>::new();
    loop {
        // Without a change, only time can make an object stale.
        let _ = timeout(LOOK_INTERVAL, changed.notified()).await;
        let unproven = Unproven::of(&node.inputs);
        let mut now = HashMap::new();
        if !unproven.objects.is_empty() {
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
    let volumes = pod.volumes.into_iter();
    let volumes = volumes.map(|volume| (format!("volume {}", volume.name), volume.delivery));
    let containers = pod.containers.into_iter();
    let containers = containers.map(|one| (format!("environment of {}", one.name), one.delivery));
    let parts = volumes.chain(containers);
    let stale = parts.filter(|(_, delivery)| delivery.phase == Phase::Stale);
    stale
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
