//! Merges the reports of the sources into operations: ADD, UPDATE, DELETE, REMOVE, RECONCILE.
//!
//! Contract: kubelet 1.36, `pkg/kubelet/config/config.go`. Pure: no clock, no channel. We differ where it is weak:
//! - A source may report one pod instead of all its pods. The cost is then that of one pod, not of the node.
//! - An operation carries the new object in full, resource version and owners included. The kubelet patches some fields
//!   of the object that it saw first. So a change outside the fields that the kubelet compares is a RECONCILE too,
//!   where the kubelet drops it.
//! - Two pods of one source with one UID are reported like two with one full name.
//!
//! Invariants:
//! 1. Sources never see each other's pods.
//! 2. Within a source, full names and UIDs are unique; the pod that came first keeps them.
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
pub struct PodUpdate {
    /// The operation.
    pub operation: Operation,
    /// The source of the pods.
    pub source: PodSource,
    /// The pods, in the order of the source.
    pub pods: Vec<Arc<StoredPod>>,
}

/// A pod that was dropped because another pod of its source has its full name or UID. Text of the kubelet's event
/// `FailedValidation`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ignoring pod {full_name} of source {source_of_both}: another pod already has its {what}")]
pub struct DuplicatePod {
    /// The pod that is ignored.
    pub full_name: FullName,
    /// The source of both.
    pub source_of_both: PodSource,
    /// `full name` or `UID`.
    pub what: &'static str,
}

/// The result of one report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Merged {
    /// Updates to be handled in this order. Only the ADD that announces a source without pods is empty.
    pub updates: Vec<PodUpdate>,
    /// Pods that were ignored.
    pub duplicates: Vec<DuplicatePod>,
}

/// The pods of all sources, as reported so far.
#[derive(Debug)]
pub struct PodMerge {
    expected: BTreeSet<PodSource>,
    sources: BTreeMap<PodSource, SourceState>,
}

#[derive(Debug, Default)]
struct SourceState {
    /// Whether the source has reported a complete set.
    seen: bool,
    by_uid: HashMap<PodUid, Arc<StoredPod>>,
    uid_by_name: HashMap<FullName, PodUid>,
}

impl PodMerge {
    /// An empty merge. `expected` are the configured sources.
    pub fn new(expected: impl IntoIterator<Item = PodSource>) -> Self {
        Self {
            expected: expected.into_iter().collect(),
            sources: BTreeMap::new(),
        }
    }

    /// Whether every expected source has reported a complete set.
    ///
    /// A caller that handles updates asynchronously must ask after it has handled them.
    pub fn all_sources_seen(&self) -> bool {
        let seen = |source| self.sources.get(source).is_some_and(|state| state.seen);
        self.expected.iter().all(seen)
    }

    /// The expected sources that have not been seen.
    pub fn silent_sources(&self) -> impl Iterator<Item = PodSource> {
        let silent = |source: &PodSource| !self.sources.get(source).is_some_and(|state| state.seen);
        self.expected.iter().copied().filter(silent)
    }

    /// Merges a report of `source`, received at `now`.
    pub fn merge(&mut self, source: PodSource, pods: SourcePods, now: Timestamp) -> Merged {
        let state = self.sources.entry(source).or_default();
        let mut pass = Pass {
            state,
            source,
            now,
            operations: BTreeMap::new(),
            duplicates: Vec::new(),
        };
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
        let update = |(operation, pods)| PodUpdate {
            operation,
            source,
            pods,
        };
        Merged {
            updates: operations.into_iter().map(update).collect(),
            duplicates,
        }
    }
}

/// The merge of one report.
struct Pass<'a> {
    state: &'a mut SourceState,
    source: PodSource,
    now: Timestamp,
    operations: BTreeMap<Operation, Vec<Arc<StoredPod>>>,
    duplicates: Vec<DuplicatePod>,
}

impl Pass<'_> {
    fn all(&mut self, pods: Vec<StoredPod>) {
        let mut names = HashSet::new();
        let mut uids = HashSet::new();
        let mut accepted = HashSet::new();
        let mut unique = Vec::with_capacity(pods.len());
        for pod in pods {
            let (full_name, uid) = (FullName::of(&pod.metadata), PodUid::of(&pod.metadata));
            if !names.insert(full_name.clone()) {
                self.duplicate(full_name, "full name");
            } else if !uids.insert(uid.clone()) {
                self.duplicate(full_name, "UID");
            } else {
                accepted.insert((full_name, uid));
                unique.push(pod);
            }
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

    fn duplicate(&mut self, full_name: FullName, what: &'static str) {
        self.duplicates.push(DuplicatePod {
            full_name,
            source_of_both: self.source,
            what,
        });
    }

    fn gone(&mut self, full_name: &FullName, uid: &PodUid) {
        // The report may be about an old pod whose name belongs to another one by now.
        if self.state.uid_by_name.get(full_name) == Some(uid) {
            self.state.uid_by_name.remove(full_name);
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
        let before = self.state.by_uid.get(&uid);
        if before.is_some_and(|before| FullName::of(&before.metadata) != full_name) {
            return self.duplicate(full_name, "UID");
        }
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
