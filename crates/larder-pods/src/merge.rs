//! Merges the reports of the sources into operations: ADD, UPDATE, DELETE, REMOVE, RECONCILE.
//!
//! Contract: kubelet 1.36, `pkg/kubelet/config/config.go`. Pure: no clock, no channel. Different where the kubelet is
//! weak:
//! - A source may report one pod instead of all its pods. The cost is then that of one pod, not of the node.
//! - An operation carries the new object in full, resource version and owners included. The kubelet patches some fields
//!   of the object that it saw first. So a change outside the fields that the kubelet compares is a RECONCILE too,
//!   where the kubelet drops it.
//! - A manifest may state the UID of another pod. The pod that came first keeps it, whether or not the two have the
//!   same source; the other one waits. The kubelet would take one for an update of the other.
//!
//! Invariants:
//! 1. Sources never see each other's pods, and none changes or removes another's.
//! 2. Within a source, full names are unique; among all sources, UIDs are. The pod that came first keeps them: after a
//!    restart, the one whose volumes are on disk. While it may still be reported, or its volumes are there, no other
//!    pod gets its UID.
//! 3. Every pod of an operation carries its source, and the time when its UID was first seen.
//! 4. Until every expected source has been seen, [`PodMerge::all_sources_seen`] is false and no pod may be removed for
//!    good.
//! 5. The cost of a report grows with the pods in it, and for a full set with those known before, times the logarithm
//!    of their number at most.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    sync::Arc,
};

use jiff::Timestamp;

use super::{
    identity::{
        CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, FullName, PodSource, PodUid, annotation,
        set_annotation,
    },
    stored::StoredPod,
};

/// A report of a source about its pods.
#[derive(Clone, Debug, PartialEq)]
pub enum SourcePods {
    /// The complete set.
    All(Vec<StoredPod>),
    /// A pod that is new, or replaces the pod with its full name.
    One(Box<StoredPod>),
    /// The pod with this full name and UID is gone.
    Gone(FullName, PodUid),
}

/// The operation for some pods. The operations of one report are handled in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// They are gone from the source. The pods are those last seen.
    Remove,
    /// They are new in the source. Without pods it announces a source whose first set was empty.
    Add,
    /// Their desired state has changed: spec, labels, annotations or deletion.
    Update,
    /// As UPDATE, and they have a deletion timestamp.
    Delete,
    /// Only observed state has changed: status, owners or resource version.
    Reconcile,
}

/// One operation on some pods of one source.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PodUpdate {
    /// The operation.
    pub operation: Operation,
    /// The source of the pods.
    pub source: PodSource,
    /// The pods, in the order of the source.
    pub pods: Vec<Arc<StoredPod>>,
}

/// A pod that is not served because another pod has its full name or UID. Text of the kubelet's event
/// `FailedValidation`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("ignoring pod {} of source {pod_source}: {holder} already has its {what}", FullName::of(&pod.metadata))]
#[non_exhaustive]
pub struct DuplicatePod {
    /// The pod that is ignored.
    pub pod: Arc<StoredPod>,
    /// Its source.
    pub pod_source: PodSource,
    /// The other pod.
    pub holder: String,
    /// `full name` or `UID`.
    pub what: &'static str,
}

/// The result of one report.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Merged {
    /// Updates to be handled in this order. Only the ADD that announces a source without pods is empty.
    pub updates: Vec<PodUpdate>,
    /// Pods of this report that were ignored.
    pub duplicates: Vec<DuplicatePod>,
}

/// The pods of all sources, as reported so far.
#[derive(Debug)]
pub struct PodMerge {
    expected: BTreeSet<PodSource>,
    sources: BTreeMap<PodSource, SourceState>,
    uids: UidHolders,
}

/// The pods that have each UID.
#[derive(Debug, Default)]
struct UidHolders {
    present: HashMap<PodUid, (PodSource, FullName)>,
    /// Those whose volumes an earlier run left, until a source has them or the volumes are gone.
    earlier: HashMap<PodUid, FullName>,
    /// The pods that wait for a UID, each of which is in `waiting` of its source.
    waiting: HashMap<PodUid, BTreeSet<(PodSource, FullName)>>,
    /// The UIDs that pods wait for and that have become free since such pods were last admitted.
    freed: BTreeSet<PodUid>,
}

impl UidHolders {
    /// No pod has `uid` any more.
    fn free(&mut self, uid: &PodUid) {
        if self.waiting.contains_key(uid) {
            self.freed.insert(uid.clone());
        }
    }

    fn ends_waiting(&mut self, uid: &PodUid, source: PodSource, full_name: &FullName) {
        if let Some(waiting) = self.waiting.get_mut(uid) {
            waiting.remove(&(source, full_name.clone()));
            if waiting.is_empty() {
                self.waiting.remove(uid);
            }
        }
    }

    /// The pod that keeps others from having `uid`, if it is not the pod `full_name` of `source`.
    fn other(&self, uid: &PodUid, source: PodSource, full_name: &FullName) -> Option<String> {
        match (self.present.get(uid), self.earlier.get(uid)) {
            (Some((of, name)), _) if (*of, name) == (source, full_name) => None,
            (Some((of, name)), _) => Some(format!("pod {name} of source {of}")),
            (None, Some(name)) if name != full_name => {
                Some(format!("pod {name} of an earlier run"))
            }
            (None, _) => None,
        }
    }
}

#[derive(Debug, Default)]
struct SourceState {
    /// Whether the source has reported a complete set.
    seen: bool,
    by_uid: HashMap<PodUid, Arc<StoredPod>>,
    uid_by_name: HashMap<FullName, PodUid>,
    /// Pods whose UID another pod has.
    waiting: BTreeMap<FullName, StoredPod>,
}

impl PodMerge {
    /// An empty merge. `expected` are the configured sources.
    pub fn new(expected: impl IntoIterator<Item = PodSource>) -> Self {
        Self {
            expected: expected.into_iter().collect(),
            sources: BTreeMap::new(),
            uids: UidHolders::default(),
        }
    }

    /// Keeps UIDs for the pods whose volumes an earlier run left, until those are [gone](Self::volumes_gone).
    #[must_use]
    pub fn keeping(mut self, earlier: impl IntoIterator<Item = (PodUid, FullName)>) -> Self {
        self.uids.earlier = earlier.into_iter().collect();
        self
    }

    /// The pods that are not served because another pod has their UID.
    pub fn waiting(&self) -> impl Iterator<Item = DuplicatePod> {
        self.sources.iter().flat_map(move |(&source, state)| {
            state.waiting.iter().filter_map(move |(name, pod)| {
                let uid = PodUid::of(&pod.metadata);
                let holder = self.uids.other(&uid, source, name)?;
                Some(DuplicatePod {
                    pod: Arc::new(pod.clone()),
                    pod_source: source,
                    holder,
                    what: "UID",
                })
            })
        })
    }

    /// Whether every expected source has reported a complete set.
    ///
    /// A caller that handles updates asynchronously must ask after it has handled them.
    pub fn all_sources_seen(&self) -> bool {
        self.silent_sources().next().is_none()
    }

    /// The expected sources that have not been seen.
    pub fn silent_sources(&self) -> impl Iterator<Item = PodSource> {
        let silent = |source: &PodSource| !self.sources.get(source).is_some_and(|state| state.seen);
        self.expected.iter().copied().filter(silent)
    }

    /// Merges a report of `source`, received at `now`.
    pub fn merge(&mut self, source: PodSource, pods: SourcePods, now: Timestamp) -> Merged {
        let mut pass = self.pass(source, now);
        let is_first_set = match pods {
            SourcePods::All(pods) => {
                pass.all(pods);
                !mem::replace(&mut pass.state.seen, true)
            }
            SourcePods::One(pod) => {
                pass.one(*pod);
                false
            }
            SourcePods::Gone(full_name, uid) => {
                pass.gone(&full_name, &uid);
                false
            }
        };
        let Pass {
            mut operations,
            duplicates,
            ..
        } = pass;
        let announcing = [Operation::Add, Operation::Update, Operation::Delete];
        if is_first_set
            && !announcing
                .iter()
                .any(|operation| operations.contains_key(operation))
        {
            operations.insert(Operation::Add, Vec::new());
        }
        let mut merged = Merged {
            updates: updates(source, operations).collect(),
            duplicates,
        };
        merged.updates.extend(self.admit_waiting(now));
        merged
    }

    /// The volumes that an earlier run left of the pod with `uid` are gone: the pod that waits for the UID is added.
    pub fn volumes_gone(&mut self, uid: &PodUid, now: Timestamp) -> Vec<PodUpdate> {
        if self.uids.earlier.remove(uid).is_none() {
            return Vec::new();
        }
        self.uids.free(uid);
        self.admit_waiting(now)
    }

    fn pass(&mut self, source: PodSource, now: Timestamp) -> Pass<'_> {
        Pass {
            state: self.sources.entry(source).or_default(),
            uids: &mut self.uids,
            source,
            now,
            operations: BTreeMap::new(),
            duplicates: Vec::new(),
        }
    }

    /// Adds the waiting pods whose UIDs have become free, once every source has been seen.
    fn admit_waiting(&mut self, now: Timestamp) -> Vec<PodUpdate> {
        if !self.all_sources_seen() {
            return Vec::new();
        }
        let freed = mem::take(&mut self.uids.freed).into_iter();
        let free: Vec<_> = freed
            .filter_map(|uid| self.uids.waiting.get(&uid))
            .flatten()
            .cloned()
            .collect();
        let mut admitted = Vec::new();
        for (source, full_name) in free {
            let mut pass = self.pass(source, now);
            if let Some(pod) = pass.take_waiting(&full_name) {
                pass.one(pod);
            }
            admitted.extend(updates(source, pass.operations));
        }
        admitted
    }
}

fn updates(
    source: PodSource,
    operations: BTreeMap<Operation, Vec<Arc<StoredPod>>>,
) -> impl Iterator<Item = PodUpdate> {
    let update = move |(operation, pods)| PodUpdate {
        operation,
        source,
        pods,
    };
    operations.into_iter().map(update)
}

/// The merge of one report.
struct Pass<'a> {
    state: &'a mut SourceState,
    uids: &'a mut UidHolders,
    source: PodSource,
    now: Timestamp,
    operations: BTreeMap<Operation, Vec<Arc<StoredPod>>>,
    duplicates: Vec<DuplicatePod>,
}

impl Pass<'_> {
    fn all(&mut self, pods: Vec<StoredPod>) {
        let mut names = HashSet::new();
        let mut accepted = HashSet::new();
        let mut unique = Vec::with_capacity(pods.len());
        for pod in pods {
            let (full_name, uid) = (FullName::of(&pod.metadata), PodUid::of(&pod.metadata));
            if names.insert(full_name.clone()) {
                accepted.insert((full_name, uid));
                unique.push(pod);
            } else {
                self.duplicate(Arc::new(pod), "another pod".to_owned(), "full name");
            }
        }
        let waiting: Vec<_> = self.state.waiting.keys().cloned().collect();
        for full_name in waiting {
            self.take_waiting(&full_name);
        }
        // First the pods that are gone, so that their names and UIDs are free for new ones.
        let identity =
            |pod: &Arc<StoredPod>| (FullName::of(&pod.metadata), PodUid::of(&pod.metadata));
        let known = self.state.by_uid.values().map(identity);
        let mut gone: Vec<_> = known
            .filter(|identity| !accepted.contains(identity))
            .collect();
        gone.sort();
        for (full_name, uid) in gone {
            self.gone(&full_name, &uid);
        }
        for pod in unique {
            self.one(pod);
        }
    }

    /// Ends the wait of the pod with this name.
    fn take_waiting(&mut self, full_name: &FullName) -> Option<StoredPod> {
        let pod = self.state.waiting.remove(full_name)?;
        let uid = PodUid::of(&pod.metadata);
        self.uids.ends_waiting(&uid, self.source, full_name);
        Some(pod)
    }

    fn duplicate(&mut self, pod: Arc<StoredPod>, holder: String, what: &'static str) {
        self.duplicates.push(DuplicatePod {
            pod,
            pod_source: self.source,
            holder,
            what,
        });
    }

    fn gone(&mut self, full_name: &FullName, uid: &PodUid) {
        let waiting = self.state.waiting.get(full_name);
        if waiting.is_some_and(|pod| PodUid::of(&pod.metadata) == *uid) {
            self.take_waiting(full_name);
        }
        // The report may be about an old pod whose name belongs to another one by now.
        if self.state.uid_by_name.get(full_name) == Some(uid) {
            self.state.uid_by_name.remove(full_name);
            self.uids.present.remove(uid);
            self.uids.free(uid);
            let pod = self.state.by_uid.remove(uid);
            self.operations
                .entry(Operation::Remove)
                .or_default()
                .extend(pod);
        }
    }

    fn one(&mut self, mut pod: StoredPod) {
        let metadata = &mut pod.metadata;
        let full_name = FullName::of(metadata);
        let uid = PodUid::of(metadata);
        // A pod recreated under its name replaces the old one in one step.
        if let Some(holder) = self.state.uid_by_name.get(&full_name)
            && *holder != uid
        {
            let holder = holder.clone();
            self.gone(&full_name, &holder);
        }
        self.take_waiting(&full_name);
        if let Some(holder) = self.uids.other(&uid, self.source, &full_name) {
            self.duplicate(Arc::new(pod.clone()), holder, "UID");
            self.uids
                .waiting
                .entry(uid)
                .or_default()
                .insert((self.source, full_name.clone()));
            self.state.waiting.insert(full_name, pod);
            return;
        }
        let before = self.state.by_uid.get(&uid);
        let operation = match before {
            None => {
                set_annotation(metadata, CONFIG_SOURCE, Some(self.source.to_string()));
                set_annotation(metadata, CONFIG_SEEN, Some(seen(self.now)));
                Some(Operation::Add)
            }
            Some(before) => {
                for key in LOCAL_ANNOTATIONS {
                    let kept = annotation(&before.metadata, key).map(str::to_owned);
                    set_annotation(metadata, key, kept);
                }
                operation(before, &pod)
            }
        };
        if let Some(operation) = operation {
            let pod = Arc::new(pod);
            self.state.by_uid.insert(uid.clone(), Arc::clone(&pod));
            let holder = (self.source, full_name.clone());
            self.uids.present.insert(uid.clone(), holder);
            self.uids.earlier.remove(&uid);
            self.state.uid_by_name.insert(full_name, uid);
            self.operations.entry(operation).or_default().push(pod);
        }
    }
}

/// Annotations that the node's copy of a pod keeps as first seen. So a later edit cannot make a pod static or a mirror.
const LOCAL_ANNOTATIONS: [&str; 3] = [CONFIG_SOURCE, CONFIG_MIRROR, CONFIG_SEEN];

/// The operation for the change from `before` to `after`, whose local annotations are equal.
fn operation(before: &StoredPod, after: &StoredPod) -> Option<Operation> {
    let (old, new) = (&before.metadata, &after.metadata);
    let same = before.same_spec(after)
        && same_map(old.labels.as_ref(), new.labels.as_ref())
        && same_map(old.annotations.as_ref(), new.annotations.as_ref())
        && old.deletion_timestamp == new.deletion_timestamp
        && old.deletion_grace_period_seconds == new.deletion_grace_period_seconds;
    if !same && new.deletion_timestamp.is_some() {
        Some(Operation::Delete)
    } else if !same {
        Some(Operation::Update)
    } else if before != after {
        Some(Operation::Reconcile)
    } else {
        None
    }
}

/// Whether two maps are equal. A missing map is an empty one.
fn same_map(
    one: Option<&BTreeMap<String, String>>,
    other: Option<&BTreeMap<String, String>>,
) -> bool {
    one.into_iter().flatten().eq(other.into_iter().flatten())
}

/// RFC 3339 with exactly nine fractional digits, as the kubelet writes [`CONFIG_SEEN`].
fn seen(now: Timestamp) -> String {
    format!("{now:.9}")
}

#[cfg(test)]
mod tests;
