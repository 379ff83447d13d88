//! What the API server gives to parts, and why one of it is not known to be current.

use std::{fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};
use larder::{ObjectManager, ObjectState, ObjectStatus, Proof, RequestFailure};
use larder_inputs::{
    clock::Clock,
    cluster_state::UndecodedState,
    last_good::{UndecodedObject, UndecodedObjects},
};
use larder_objects::{Kind, Object, ObjectKey, chain};
use larder_projection::{Need, TrustBundles};
use larder_watch::CollectionFreshness;
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::delivery::inputs::NodeInputs;

/// Time for which a watch may be without proof while no request has failed: opening it again takes milliseconds.
const REOPENED_WITHIN: Duration = Duration::from_secs(5);
/// Why an object is not known to be current although no request has failed.
const SILENT: &str = "the API server does not answer";
/// The Service that every container gets variables for.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// What parts read, as far as the API server can change it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Input {
    Object(Kind, ObjectKey),
    Services,
    /// The Services of a namespace.
    ServicesOf(SmolStr),
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
            Self::ServicesOf(namespace) => write!(f, "the Services of namespace {namespace}"),
            Self::Node => f.write_str("the Node"),
            Self::TrustBundles => f.write_str("the ClusterTrustBundles"),
            Self::Pods => f.write_str("the pods of the node"),
        }
    }
}

/// Why an input is not known to be current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    /// The time of the last proof.
    pub(super) since: Timestamp,
    pub(super) why: String,
}

impl Doubt {
    fn since(since: Timestamp, failure: Option<&RequestFailure>) -> Self {
        let why = failure.map_or_else(|| SILENT.to_owned(), |failure| chain(&*failure.error));
        Self { since, why }
    }
}

/// The time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    at: Instant,
    wall: Timestamp,
}

impl Now {
    /// The present time, by this clock of the wall.
    pub(crate) fn of(clock: &Clock) -> Self {
        Self {
            at: Instant::now(),
            wall: clock.now(),
        }
    }

    /// The time of day at an earlier moment.
    pub(crate) fn wall_at(self, then: Instant) -> Timestamp {
        let age = SignedDuration::try_from(self.at.saturating_duration_since(then))
            .unwrap_or(SignedDuration::MAX);
        self.wall.checked_sub(age).unwrap_or(Timestamp::MIN)
    }
}

/// The objects of a manager that are not known to be current.
pub(super) fn unproven<K: Object>(
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
pub(super) fn of_cluster(inputs: &NodeInputs, now: Now) -> Vec<(Input, Doubt)> {
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
    let unproven = known
        .into_iter()
        .filter_map(|(input, is_known, freshness)| {
            let doubt = is_known.then(|| doubt_of_collection(freshness, state.copied_as_of, now));
            Some((input, doubt??))
        });
    of_undecoded(&state.undecoded, now)
        .chain(unproven)
        .collect()
}

/// What is made of an object whose newest version cannot be decoded. A Service counts in its namespace.
fn of_undecoded(undecoded: &UndecodedState, now: Now) -> impl Iterator<Item = (Input, Doubt)> {
    let of_service = |key: &ObjectKey| match (&*key.namespace, &*key.name) {
        API_SERVER => Input::Services,
        (namespace, _) => Input::ServicesOf(namespace.into()),
    };
    let doubts = |objects: &UndecodedObjects, input: &dyn Fn(&ObjectKey) -> Input| {
        let doubt = |(key, object): (&ObjectKey, &UndecodedObject)| Doubt {
            since: now.wall_at(object.since),
            why: format!("{key}: {}", object.why),
        };
        let doubts = objects.iter().map(|found| (input(found.0), doubt(found)));
        doubts.collect::<Vec<_>>()
    };
    let services = doubts(&undecoded.services, &of_service);
    let node = doubts(&undecoded.node, &|_| Input::Node);
    let trust_bundles = doubts(&undecoded.trust_bundles, &|_| Input::TrustBundles);
    services.into_iter().chain(node).chain(trust_bundles)
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

/// The input that a part in this namespace needs; `None` for what is issued to its pod.
pub(super) fn input(need: &Need, namespace: &str) -> Option<Input> {
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
