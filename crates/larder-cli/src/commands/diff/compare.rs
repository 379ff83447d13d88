//! The differences between what containers see on two sides, and a verdict for each container.
//!
//! Invariants:
//! 1. The differences of a container, applied to what it sees on the first side, give what it sees on the second, for
//!    each way to fill in what is not known.
//! 2. A difference that a running container cannot see needs a restart: of a variable, of the owner, group or mode of a
//!    file, which the pod says, of a file that is mounted by `subPath` and that larder does not replace, of an immutable
//!    object, of the account behind a token, of the labels, annotations and resources in a pod's template, of a mount or of
//!    the definition of its volume, which Kubernetes does not change in a pod. An init container that is no sidecar has
//!    ended, and sees nothing.
//! 3. A verdict holds for each way to fill in what is not known (`outcome`); otherwise it is [`Verdict::Unknown`], with
//!    what decides.
//! 4. What could not be read of a side is neither removed nor added.
//! 5. An object that differs is unreferenced if no pod of either side references it, and unseen if one does, and no
//!    compared container sees anything of it: it is for an image pull, for a volume of another kind, or for a pod that could
//!    not be read on a side.
//! 6. A pod is the kind and name of its workload.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
};

use jiff::Timestamp;
use larder_objects::{Kind, ObjectKey, manifest::MadeObject};
use larder_projection::Need;

use super::{
    both_sides::ServiceVariables,
    changed_objects::{ChangedObjects, Object},
    container::{ContainerDiff, Remark, Verdict, states},
    edits::{Edit, edits},
    hooks::{FiredHook, fired_hooks},
    rollout::{self, ReplacedBy},
};
use crate::{
    offline::{Offline, OfflinePod, Workload},
    output::references::{References, of_pods},
    rendered::RenderedPod,
};

/// What differs between two sides.
pub(super) struct Comparison<'r> {
    /// Pods with differences, by namespace and name.
    pub(super) pods: Vec<PodDiff<'r>>,
    /// Objects that differ, and that no pod references.
    pub(super) unreferenced: Vec<(Kind, ObjectKey)>,
    /// Objects that differ, that pods reference, and of which no compared container sees anything.
    pub(super) unseen: Vec<(Kind, ObjectKey)>,
    /// What is not known of each container, with its pod, whether or not they differ.
    pub(super) unknown: Vec<(PodKey<'r>, &'r str, Remark)>,
    /// What makes some of that, by namespace and what it is: `made by SealedSecret web-db, which differs (key url)`.
    pub(super) makers: BTreeMap<(String, String), String>,
    /// The variables of Services that new pods of a namespace get or lose.
    pub(super) services: BTreeMap<String, ServiceVariables>,
    pub(super) left_out: LeftOut,
    pub(super) sides: ComparedSides,
}

/// What is said besides the differences.
#[derive(Default)]
struct Notes<'r> {
    unknown: Vec<(PodKey<'r>, &'r str, Remark)>,
    services: BTreeMap<String, ServiceVariables>,
}

impl Notes<'_> {
    fn services(&mut self, pod: PodKey<'_>) -> &mut ServiceVariables {
        self.services.entry(pod.namespace.to_owned()).or_default()
    }
}

/// What makes the objects of both sides, and whether that differs.
fn makers(from: &Offline, to: &Offline) -> BTreeMap<(String, String), String> {
    let keys = from
        .made()
        .chain(to.made())
        .map(|made| (made.kind, made.key.clone()));
    let described = keys.map(|(kind, key)| {
        let text = match (from.maker(kind, &key), to.maker(kind, &key)) {
            (Some(from), Some(to)) => {
                let maker = &to.maker;
                match differing_keys(from, to) {
                    Some(keys) if keys.is_empty() => format!("made by {maker}"),
                    _ if from.maker != *maker => {
                        format!("made by {maker}, and not by {} any more", from.maker)
                    }
                    Some(keys) => {
                        let keys: Vec<_> = keys.into_iter().collect();
                        format!("made by {maker}, which differs (key {})", keys.join(", "))
                    }
                    None => format!("made by {maker}, which differs"),
                }
            }
            (None, Some(to)) => format!("made by {} now", to.maker),
            (Some(from), None) => format!("no longer made by {}", from.maker),
            (None, None) => String::new(),
        };
        let what = format!("{} {}", kind.singular(), key.name);
        ((key.namespace.to_string(), what), text)
    });
    described.collect()
}

/// The keys whose values may differ; `None` if all may.
fn differing_keys(from: &MadeObject, to: &MadeObject) -> Option<BTreeSet<String>> {
    let keys: BTreeSet<_> = from.keys.keys().chain(to.keys.keys()).collect();
    let differing = keys
        .iter()
        .filter(|key| from.keys.get(**key) != to.keys.get(**key));
    let differing: BTreeSet<_> = differing.map(ToString::to_string).collect();
    let all_differ = !keys.is_empty() && differing.len() == keys.len() && keys.len() > 1;
    (from.others == to.others && !all_differ).then_some(differing)
}

/// What is not part of a comparison.
#[derive(Default)]
pub(super) struct LeftOut {
    /// Paths or objects that could not be read, and why.
    pub(super) not_read: BTreeSet<(String, String)>,
    /// Pods of one side that the other one may have in what could not be read of it.
    pub(super) in_doubt: HashSet<ObjectKey>,
    /// What was named, and is not compared.
    pub(super) not_compared: Vec<NotCompared>,
}

/// Something that is not compared.
pub(super) struct NotCompared {
    pub(super) sentence: String,
    /// What it is, for the headline: `3 objects of other kinds`.
    pub(super) what: String,
}

/// Which sides are compared, and when.
#[derive(Default)]
pub(super) struct ComparedSides {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) at: Timestamp,
}

impl fmt::Display for ComparedSides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.strftime("%Y-%m-%d %H:%M UTC");
        write!(f, "from {} to {}, compared on {at}", self.from, self.to)
    }
}

/// A pod of a comparison.
#[derive(Clone, Copy)]
pub(super) struct PodKey<'r> {
    pub(super) namespace: &'r str,
    pub(super) workload: &'r Workload,
    /// Whether the sides have another workload of its name.
    has_namesake: bool,
}

/// `prod/web`, or `prod/DaemonSet/web` if it has a namesake
impl fmt::Display for PodKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, Workload { kind, name }) = (self.namespace, self.workload);
        if self.has_namesake {
            write!(f, "{namespace}/{kind}/{name}")
        } else {
            write!(f, "{namespace}/{name}")
        }
    }
}

/// The differences of one pod.
pub(super) struct PodDiff<'r> {
    pub(super) key: PodKey<'r>,
    /// The pod on the sides on which it exists.
    pub(super) sides: Edit<&'r RenderedPod<'r>>,
    /// Those of a removed pod are left out.
    pub(super) containers: Vec<ContainerDiff<'r>>,
    /// The hooks that run because of the differences.
    pub(super) hooks: Vec<FiredHook>,
    /// What replaces the pod if a container needs it; `None` unless both sides have the pod.
    pub(super) replaced_by: Option<ReplacedBy>,
}

impl<'r> Comparison<'r> {
    pub(super) fn new(
        from_world: &Offline,
        from: &'r [RenderedPod<'r>],
        to_world: &Offline,
        to: &'r [RenderedPod<'r>],
        left_out: LeftOut,
        compared: ComparedSides,
    ) -> Self {
        let by_name = |pods: &'r [RenderedPod<'r>]| -> HashMap<_, _> {
            pods.iter()
                .map(|pod| ((pod.namespace(), pod.workload), pod))
                .collect()
        };
        // Whether one differs is seen in its containers.
        let (from, to) = (by_name(from).into_iter(), by_name(to).into_iter());
        let sides = edits(from, to, |_, _| false);
        let mut names = HashMap::<_, usize>::new();
        for (namespace, workload) in sides.keys() {
            *names.entry((*namespace, &*workload.name)).or_default() += 1;
        }
        let mut notes = Notes::default();
        let changed = ChangedObjects::between(from_world, to_world);
        let pods = sides
            .into_iter()
            .filter_map(|((namespace, workload), sides)| {
                let place = ObjectKey::new(namespace, workload.name.as_str());
                let is_in_doubt = left_out.in_doubt.contains(&place);
                if is_in_doubt && !matches!(sides, Edit::Changed(..)) {
                    return None;
                }
                let key = PodKey {
                    namespace,
                    workload,
                    has_namesake: names[&(namespace, &*workload.name)] > 1,
                };
                PodDiff::new(key, sides, &changed, &mut notes)
            });
        let pods = pods.collect();
        notes.services.retain(|_, services| !services.is_empty());
        let (unseen, unreferenced) =
            of_no_container(&changed, from_world, to_world, &left_out.in_doubt);
        Self {
            pods,
            unreferenced,
            unseen,
            makers: makers(from_world, to_world),
            unknown: notes.unknown,
            services: notes.services,
            left_out,
            sides: compared,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.unreferenced.is_empty() && self.unseen.is_empty()
    }
}

/// The objects that differ and that no compared container sees: those that a pod references, and the others.
fn of_no_container(
    changed: &ChangedObjects,
    from: &Offline,
    to: &Offline,
    in_doubt: &HashSet<ObjectKey>,
) -> (Vec<Object>, Vec<Object>) {
    let pods = || from.pods.iter().chain(&to.pods);
    let places = |of: &Offline| {
        of.pods
            .iter()
            .map(OfflinePod::place)
            .collect::<HashSet<_>>()
    };
    let both: HashSet<_> = places(from).intersection(&places(to)).cloned().collect();
    // The others are not compared.
    let compared = pods().filter(|pod| {
        let place = pod.place();
        both.contains(&place) || !in_doubt.contains(&place)
    });
    let referenced = of_pods(pods().map(|pod| &pod.pod), References::of);
    let seen = of_pods(compared.map(|pod| &pod.pod), |pod| Need::of_pod(pod).into());
    changed
        .all
        .difference(&seen)
        .cloned()
        .partition(|object| referenced.contains(object))
}

impl<'r> PodDiff<'r> {
    /// `None` without a difference. Adds what is to be said of its containers, whether or not they differ, to `notes`.
    fn new(
        key: PodKey<'r>,
        sides: Edit<&'r RenderedPod<'r>>,
        changed: &ChangedObjects,
        notes: &mut Notes<'r>,
    ) -> Option<Self> {
        let (from, to) = sides.sides();
        let (from, to) = (from.copied(), to.copied());
        let mut before: HashMap<_, _> = from
            .into_iter()
            .flat_map(states)
            .map(|one| (one.view.name, one))
            .collect();
        let mut containers = Vec::new();
        let after = to
            .into_iter()
            .flat_map(|to| states(to).map(move |one| (one, to)));
        for (after, to) in after {
            let name = after.view.name;
            let before = before.remove(name);
            let services = notes.services(key);
            let container = ContainerDiff::new(before, after, from, to, services);
            let what = container.remarks().map(|what| (key, name, what));
            notes.unknown.extend(what);
            containers.push(container);
        }
        let (mut hooks, mut replaced_by) = (Vec::new(), None);
        if let Edit::Changed(from, to) = sides {
            let views = from.containers.iter().map(|(view, _)| *view);
            containers.extend(
                views.filter_map(|view| Some(ContainerDiff::removed(before.remove(view.name)?))),
            );
            let mut verdicts = containers.iter().map(|container| &container.verdict);
            if verdicts.all(|verdict| matches!(verdict, Verdict::Same)) {
                return None;
            }
            hooks = fired_hooks(from, to);
            let by = rollout::replaced_by(from, to, changed);
            for container in &mut containers {
                let is_replaced = container.needs_new_pod() || by.rolls_out() == Some(true);
                container.replaced_by = is_replaced.then(|| by.clone());
            }
            replaced_by = Some(by);
        }
        Some(Self {
            key,
            sides,
            containers,
            hooks,
            replaced_by,
        })
    }
}
