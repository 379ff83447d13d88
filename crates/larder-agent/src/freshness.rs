//! How fresh is what the agent knows, and what the status says of it.
//!
//! Invariants:
//! 1. A part is `Delivered` only while all that it reads is proven to be current: its objects, the Node, the Services, the
//!    trust bundles, and the pod itself, if that is of the API server. Otherwise it is `Stale`: its content stays in place
//!    and readable, and the reason names what is not.
//! 2. While the root directory is not at its path, no part is in place: each is `Failing`.
//! 3. Neither is stored: each is derived whenever a status is read, by [`Unproven::show`] and nothing else. So text,
//!    JSON, metrics, problems, events and the stream of changes cannot disagree.
//!
//! [`follow`] notifies clients of the stream, and posts events.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use larder::{ObjectManager, ObjectState, ObjectStatus, Proof, RequestFailure};
use larder_objects::{Kind, Object, ObjectKey, chain, manifest::KeptObjects};
use larder_pods::{
    PodSource, Pods, ResolvedPodUid,
    events::{EventSubject, PodReason},
};
use larder_projection::{Need, TrustBundles};
use larder_watch::CollectionFreshness;
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

/// What parts read, as far as the API server can change it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Input {
    Object(Kind, ObjectKey),
    Services,
    Node,
    TrustBundles,
    /// The pods that are bound to the node.
    Pods,
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(kind, key) => write!(f, "{} {key}", kind.singular()),
            Self::Services => f.write_str("the Services"),
            Self::Node => f.write_str("the Node"),
            Self::TrustBundles => f.write_str("the ClusterTrustBundles"),
            Self::Pods => f.write_str("the pods of the node"),
        }
    }
}

/// Why an input is not known to be current.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Doubt {
    /// The time of the last proof.
    since: Timestamp,
    why: String,
}

/// What is not known to be current, or in place. Usually nothing.
#[derive(Debug, Default)]
pub(crate) struct Unproven {
    /// The inputs that are not known to be current.
    inputs: HashMap<Input, Doubt>,
    /// The objects and pods whose newest manifest is rejected. Its problem says so already.
    kept: Arc<KeptObjects>,
    /// That nothing is where pods look for it.
    displaced: Option<Doubt>,
}

impl Unproven {
    /// What is unproven now.
    pub(crate) fn of(inputs: &NodeInputs) -> Self {
        let now = Now {
            at: Instant::now(),
            wall: inputs.clock.now(),
        };
        let objects = unproven(Kind::ConfigMap, &inputs.config_maps, now).chain(unproven(
            Kind::Secret,
            &inputs.secrets,
            now,
        ));
        Self {
            inputs: objects.chain(of_cluster(inputs, now)).collect(),
            kept: Arc::clone(&inputs.cluster.borrow().kept),
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
        self.inputs.is_empty() && self.kept.is_empty()
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
        let input = input(need, namespace)?;
        self.inputs
            .get(&input)
            .map(|doubt| (doubt.since, &*doubt.why))
            .or_else(|| match &input {
                Input::Object(kind, key) => self.of_kept(kind.as_str(), key),
                Input::Services | Input::Node | Input::TrustBundles | Input::Pods => None,
            })
    }

    /// Why the pod itself is not known to be current, and since when.
    fn of_pod(&self, pod: &PodStatus) -> Option<(Timestamp, String)> {
        if pod.source != PodSource::Api.as_str() {
            return None;
        }
        let doubt = self
            .inputs
            .get(&Input::Pods)
            .map(|doubt| (doubt.since, &*doubt.why));
        let key = ObjectKey::new(&*pod.namespace, &*pod.name);
        let (since, why) = doubt.or_else(|| self.of_kept("Pod", &key))?;
        Some((since, format!("the pod: {why}")))
    }

    fn of_kept(&self, kind: &str, key: &ObjectKey) -> Option<(Timestamp, &str)> {
        let kept = self.kept.get(kind, key)?;
        Some((kept.since, &kept.why))
    }
}

/// The input that a part in this namespace needs; `None` for what is issued to its pod.
fn input(need: &Need, namespace: &str) -> Option<Input> {
    match need {
        Need::Object(kind, name) => Some(Input::Object(
            *kind,
            ObjectKey::new(namespace, name.clone()),
        )),
        Need::Services => Some(Input::Services),
        Need::Node => Some(Input::Node),
        Need::TrustBundles => Some(Input::TrustBundles),
        Need::Token(_) | Need::PodCertificate(_) => None,
    }
}

impl Doubt {
    fn since(since: Timestamp, failure: Option<&RequestFailure>) -> Self {
        let why = failure.map_or_else(|| SILENT.to_owned(), |failure| chain(&*failure.error));
        Self { since, why }
    }

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

/// The time, by both clocks.
#[derive(Clone, Copy, Debug)]
struct Now {
    at: Instant,
    wall: Timestamp,
}

impl Now {
    /// The time of day at an earlier moment.
    fn wall_at(self, then: Instant) -> Timestamp {
        let age = SignedDuration::try_from(self.at.saturating_duration_since(then))
            .unwrap_or(SignedDuration::MAX);
        self.wall.checked_sub(age).unwrap_or(Timestamp::MIN)
    }
}

/// The objects of a manager that are not known to be current.
fn unproven<K: Object>(
    kind: Kind,
    manager: &ObjectManager<K>,
    now: Now,
) -> impl Iterator<Item = (Input, Doubt)> {
    manager.objects().into_iter().filter_map(move |object| {
        let doubt = doubt_of_object(&object, now)?;
        Some((Input::Object(kind, object.key), doubt))
    })
}

/// What is known of the cluster and of the node's pods, and is not known to be current.
fn of_cluster(inputs: &NodeInputs, now: Now) -> impl Iterator<Item = (Input, Doubt)> {
    let state = inputs.cluster.borrow();
    let freshness = &inputs.cluster_freshness;
    // Before there is one, nothing of it is delivered. A resource that is not served has no state to follow.
    let has_bundles = matches!(state.trust_bundles, Some(TrustBundles::Synced(_)));
    let known = [
        (
            Input::Services,
            state.services.is_some(),
            &freshness.services,
        ),
        (Input::Node, state.node.is_some(), &freshness.node),
        (Input::TrustBundles, has_bundles, &freshness.trust_bundles),
        (Input::Pods, true, &inputs.pod_freshness),
    ];
    let doubts = known.map(|(input, is_known, freshness)| {
        let doubt = is_known.then(|| doubt_of_collection(freshness, state.copied_as_of, now));
        Some((input, doubt??))
    });
    doubts.into_iter().flatten()
}

/// Why the object is not known to be current.
fn doubt_of_object(object: &ObjectStatus, now: Now) -> Option<Doubt> {
    match object.state {
        // Nothing of it is delivered.
        ObjectState::Pending | ObjectState::Idle | ObjectState::Removed => None,
        // A copy that an earlier agent kept.
        ObjectState::Stale(as_of) => Some(Doubt::since(as_of, object.failure.as_ref())),
        ObjectState::Synced | ObjectState::Absent | ObjectState::Immutable => {
            doubt(&object.proof, now)
        }
    }
}

/// Why a collection is not known to be current. Before the API server has listed it, it may be a copy of that time.
fn doubt_of_collection(
    freshness: &CollectionFreshness,
    copied_as_of: Option<Timestamp>,
    now: Now,
) -> Option<Doubt> {
    match freshness.proof(now.at) {
        Some(proof) => doubt(&proof, now),
        None => Some(Doubt::since(copied_as_of?, freshness.failure().as_ref())),
    }
}

/// Why something with this proof is not known to be current.
fn doubt(proof: &Proof, now: Now) -> Option<Doubt> {
    match proof {
        Proof::At(_) => None,
        Proof::Lost { since, failure } => {
            let is_reopened = failure.is_none() && now.at - *since < REOPENED_WITHIN;
            (!is_reopened).then(|| Doubt::since(now.wall_at(*since), failure.as_ref()))
        }
    }
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
