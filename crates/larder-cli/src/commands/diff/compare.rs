//! The differences between what containers see on two sides, and a verdict for each container.
//!
//! Invariants:
//! 1. The differences of a container, applied to what it sees on the first side, give what it sees on the second. A
//!    container that would not start sees nothing.
//! 2. A difference that a running container cannot see needs a restart: of a variable, of the owner, group or mode of a
//!    file,
//!    which the pod says, of a file that is mounted by `subPath` and that larder does not replace, of an immutable object,
//!    of a mount or of the definition of its volume, which Kubernetes does not change in a pod.
//! 3. What is not known on both sides counts as equal, and is in [`Comparison::unknown`].
//! 4. What could not be read of a side is neither removed nor added.
//! 5. An object that differs is unreferenced if no pod of either side references it, and unseen if one does, and no
//!    container sees anything of it: it is for an image pull, or for a volume of another kind.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    hash::Hash,
};

use larder_objects::{Kind, ObjectKey};
use larder_projection::{ContainerView, Environment, Mount, Needs, Origin, Variable};

use super::{
    hooks::{FiredHook, fired_hooks},
    sub_paths::SubPathDiff,
};
use crate::{
    offline::Offline,
    output::references::{References, of_pods},
    rendered::{ContainerContent, MountedFile, RenderedPod},
};

/// What differs between two sides.
pub(super) struct Comparison<'r> {
    /// Pods with differences, by namespace and name.
    pub(super) pods: Vec<PodDiff<'r>>,
    /// Objects that differ, and that no pod references.
    pub(super) unreferenced: Vec<(Kind, ObjectKey)>,
    /// Objects that differ, that pods reference, and of which no container sees anything.
    pub(super) unseen: Vec<(Kind, ObjectKey)>,
    /// What is not known of each container, with its pod, whether or not they differ.
    pub(super) unknown: Vec<(ObjectKey, &'r str, String)>,
    /// What some of that may be instead.
    pub(super) hints: BTreeMap<String, String>,
    pub(super) left_out: LeftOut,
}

/// What is not part of a comparison.
#[derive(Default)]
pub(super) struct LeftOut {
    /// Paths or objects that could not be read, and why.
    pub(super) not_read: BTreeSet<(String, String)>,
    /// Pods of one side that the other one may have in what could not be read of it.
    pub(super) in_doubt: HashSet<ObjectKey>,
    /// Sentences about objects that no pod's containers see, as far as larder knows.
    pub(super) not_compared: Vec<String>,
}

/// The differences of one pod.
pub(super) struct PodDiff<'r> {
    pub(super) key: ObjectKey,
    /// The pod on the sides on which it exists.
    pub(super) sides: Edit<&'r RenderedPod<'r>>,
    /// Those of a removed pod are left out.
    pub(super) containers: Vec<ContainerDiff<'r>>,
    /// The hooks that run because of the differences.
    pub(super) hooks: Vec<FiredHook>,
}

/// The differences of one container.
pub(super) struct ContainerDiff<'r> {
    pub(super) container: ContainerView<'r>,
    pub(super) verdict: Verdict,
    pub(super) variables: Edits<&'r str, &'r Variable<'r>>,
    pub(super) files: Edits<String, MountedFile<'r>>,
    pub(super) mounts: Edits<&'r str, &'r Mount<'r>>,
    pub(super) sub_paths: SubPathDiff,
    /// The immutable objects whose changes are among the differences.
    pub(super) immutable: BTreeSet<String>,
    /// What is not known of it on a side.
    pub(super) unknown: BTreeSet<String>,
}

/// What a difference means for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It sees what it saw.
    Same,
    /// It would start on neither side.
    Unknown,
    /// A running container sees the difference.
    Live,
    /// Only a new start shows the difference.
    Restart,
    /// It is new, or did not start.
    Starts,
    /// It would not start, for this reason.
    Fails(String),
    /// The pod has it no longer.
    Removed,
}

/// Differences by key.
pub(super) type Edits<K, T> = BTreeMap<K, Edit<T>>;

/// One difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edit<T> {
    Added(T),
    Removed(T),
    Changed(T, T),
}

impl<T: Copy> Edit<T> {
    /// The value of each side.
    pub(super) fn sides(self) -> (Option<T>, Option<T>) {
        match self {
            Self::Added(to) => (None, Some(to)),
            Self::Removed(from) => (Some(from), None),
            Self::Changed(from, to) => (Some(from), Some(to)),
        }
    }

    fn values(&self) -> impl Iterator<Item = T> {
        let (from, to) = self.sides();
        from.into_iter().chain(to)
    }
}

impl<'r> Comparison<'r> {
    pub(super) fn new(
        from_world: &Offline,
        from: &'r [RenderedPod<'r>],
        to_world: &Offline,
        to: &'r [RenderedPod<'r>],
        left_out: LeftOut,
    ) -> Self {
        let by_name = |pods: &'r [RenderedPod<'r>]| -> HashMap<_, _> {
            let pods = pods.iter().map(|pod| ((pod.namespace(), pod.name()), pod));
            pods.collect()
        };
        // Whether one differs is seen in its containers.
        let (from, to) = (by_name(from).into_iter(), by_name(to).into_iter());
        let sides = edits(from, to, |_, _| false);
        let (mut unknown, mut hints) = (Vec::new(), BTreeMap::new());
        let pods = sides.into_iter().filter_map(|((namespace, name), sides)| {
            let key = ObjectKey::new(namespace, name);
            let is_in_doubt = left_out.in_doubt.contains(&key);
            if is_in_doubt && !matches!(sides, Edit::Changed(..)) {
                return None;
            }
            PodDiff::new(key, sides, &mut unknown, &mut hints)
        });
        let pods = pods.collect();
        let (unseen, unreferenced) = of_no_container(from_world, to_world);
        Self {
            pods,
            unreferenced,
            unseen,
            unknown,
            hints,
            left_out,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.unreferenced.is_empty() && self.unseen.is_empty()
    }
}

/// The objects that differ and that no container sees: those that a pod references, and the others.
fn of_no_container(from: &Offline, to: &Offline) -> (Vec<Object>, Vec<Object>) {
    let pods = || from.pods.iter().chain(&to.pods).map(|pod| &pod.pod);
    let referenced = of_pods(pods(), References::of);
    let seen = of_pods(pods(), |pod| Needs::of_pod(pod).into());
    let objects = from.objects().chain(to.objects());
    let changed = objects.filter(|(kind, key)| !from.has_same_object(to, *kind, key));
    let changed: BTreeSet<_> = changed.map(|(kind, key)| (kind, key.clone())).collect();
    let unseen = changed.difference(&seen).cloned();
    unseen.partition(|object| referenced.contains(object))
}

type Object = (Kind, ObjectKey);

impl<'r> PodDiff<'r> {
    /// `None` without a difference. Adds what is not known of its containers to `unknown`, and to `hints` what that may
    /// be.
    fn new(
        key: ObjectKey,
        sides: Edit<&'r RenderedPod<'r>>,
        unknown: &mut Vec<(ObjectKey, &'r str, String)>,
        hints: &mut BTreeMap<String, String>,
    ) -> Option<Self> {
        let (from, to) = sides.sides();
        let asks = to.is_some_and(RenderedPod::updates_sub_paths);
        let pinned = |origin: &Origin<'_>| from?.pinned(to?, origin);
        let before = from.into_iter().flat_map(contents);
        let mut before: HashMap<_, _> = before.map(|(view, one)| (view.name, one)).collect();
        let after = to.into_iter().flat_map(contents);
        let mut containers: Vec<_> = after
            .map(|(view, one)| {
                let sources = one.iter().flat_map(ContainerContent::unknown);
                let found = sources
                    .filter_map(|source| Some((source.what.to_string(), to?.key_hint(source)?)));
                hints.extend(found);
                ContainerDiff::new(view, before.remove(view.name), Some(one), asks, pinned)
            })
            .collect();
        for container in &containers {
            let found = container.unknown.iter();
            unknown.extend(found.map(|what| (key.clone(), container.container.name, what.clone())));
        }
        let mut hooks = Vec::new();
        if let Edit::Changed(from, to) = sides {
            let views = from.containers.iter().map(|(view, _)| *view);
            containers.extend(views.filter_map(|view| {
                let one = before.remove(view.name)?;
                Some(ContainerDiff::new(view, Some(one), None, asks, pinned))
            }));
            let mut verdicts = containers.iter().map(|container| &container.verdict);
            if verdicts.all(|verdict| matches!(verdict, Verdict::Same | Verdict::Unknown)) {
                return None;
            }
            hooks = fired_hooks(from, to);
        }
        Some(Self {
            key,
            sides,
            containers,
            hooks,
        })
    }
}

type ContentResult<'r> = Result<ContainerContent<'r>, String>;

fn contents<'r>(
    pod: &'r RenderedPod<'r>,
) -> impl Iterator<Item = (ContainerView<'r>, ContentResult<'r>)> {
    let containers = pod.containers.iter().enumerate();
    containers.map(|(index, (container, _))| (*container, pod.content(index)))
}

impl<'r> ContainerDiff<'r> {
    fn new(
        container: ContainerView<'r>,
        before: Option<ContentResult<'r>>,
        after: Option<ContentResult<'r>>,
        asks: bool,
        pinned: impl Fn(&Origin<'_>) -> Option<String>,
    ) -> Self {
        let verdict = match (&before, &after) {
            (_, None) => Verdict::Removed,
            (Some(Err(_)), Some(Err(_))) => Verdict::Unknown,
            (_, Some(Err(error))) => Verdict::Fails(error.clone()),
            (None | Some(Err(_)), Some(Ok(_))) => Verdict::Starts,
            (Some(Ok(_)), Some(Ok(_))) => Verdict::Same,
        };
        let known = [&before, &after].into_iter().flatten().flatten();
        let unknown = known.flat_map(ContainerContent::unknown);
        let mut unknown: BTreeSet<_> = unknown.map(|source| source.what.to_string()).collect();
        match &after {
            None => unknown.clear(),
            Some(Err(error)) if verdict == Verdict::Unknown => {
                unknown.insert(format!("would start on neither side: {error}"));
            }
            _ => {}
        }
        let (before, after) = match verdict {
            Verdict::Removed | Verdict::Fails(_) | Verdict::Unknown => (None, None),
            _ => (before.and_then(Result::ok), after.and_then(Result::ok)),
        };
        let variables = |content: &Option<ContainerContent<'r>>| {
            let environment = content.as_ref().map(|content| content.environment);
            environment.into_iter().flat_map(variables)
        };
        let variables = edits(variables(&before), variables(&after), |one, other| {
            one.value == other.value
        });
        let mounts = |content: &Option<ContainerContent<'r>>| {
            let mounts = content.as_ref().map_or(&[][..], |content| content.mounts);
            mounts.iter().map(|mount| (&*mount.mount_path, mount))
        };
        let mounts = edits(mounts(&before), mounts(&after), |one, other| {
            let mut other = (*other).clone();
            other.index = one.index;
            **one == other
        });
        let shown = after.as_ref().map(SubPathDiff::shown).unwrap_or_default();
        let files = |content: Option<ContainerContent<'r>>| content.map(|content| content.files);
        let files = edits(
            files(before).into_iter().flatten(),
            files(after).into_iter().flatten(),
            |one, other| {
                one.file == other.file
                    && one.group == other.group
                    && one.is_secret() == other.is_secret()
            },
        );
        let sides = files.iter();
        let sides = sides.map(|(path, edit)| (path.as_str(), edit.sides()));
        let has_other_mount = |path: &str| mounts.contains_key(path);
        let sub_paths = SubPathDiff::of(sides, has_other_mount, &shown, asks);
        let of_files = files.values().flat_map(Edit::values);
        let origins = of_files.filter_map(|file| file.origin);
        let of_variables = variables.values().flat_map(Edit::values);
        let origins = origins.chain(of_variables.map(|variable| &variable.origin));
        let immutable: BTreeSet<_> = origins.filter_map(pinned).collect();
        let has_new_start = !variables.is_empty()
            || !mounts.is_empty()
            || sub_paths.is_fixed()
            || has_other_permissions(&files)
            || !immutable.is_empty();
        let verdict = match verdict {
            // It would start on both sides.
            Verdict::Same if has_new_start => Verdict::Restart,
            Verdict::Same if !files.is_empty() => Verdict::Live,
            verdict => verdict,
        };
        Self {
            container,
            verdict,
            variables,
            files,
            mounts,
            sub_paths,
            immutable,
            unknown,
        }
    }
}

/// Whether the mode, owner or group of a file differs.
pub(super) fn has_other_permissions(files: &Edits<String, MountedFile<'_>>) -> bool {
    let of = |one: &MountedFile<'_>| (one.file.mode, one.file.owner, one.group);
    let mut edits = files.values();
    edits.any(|edit| matches!(edit, Edit::Changed(from, to) if of(from) != of(to)))
}

/// The variables, and those of objects that are not known.
fn variables<'r>(
    environment: &'r Environment<'r>,
) -> impl Iterator<Item = (&'r str, &'r Variable<'r>)> {
    environment.iter().chain(environment.opaque())
}

/// The differences between two sets, by key.
fn edits<K: Ord + Hash, T>(
    from: impl Iterator<Item = (K, T)>,
    to: impl Iterator<Item = (K, T)>,
    is_same: impl Fn(&T, &T) -> bool,
) -> Edits<K, T> {
    let mut before: HashMap<K, T> = from.collect();
    let mut found = Edits::new();
    for (key, to) in to {
        let edit = match before.remove(&key) {
            None => Edit::Added(to),
            Some(from) if is_same(&from, &to) => continue,
            Some(from) => Edit::Changed(from, to),
        };
        found.insert(key, edit);
    }
    let removed = before.into_iter();
    found.extend(removed.map(|(key, from)| (key, Edit::Removed(from))));
    found
}
