//! Differences that several containers see, each shown once: one ConfigMap in 60 Deployments is one hunk.
//!
//! Invariants:
//! 1. Two differences are the same if the same of the same namespace changes to the same; the path of a file does not count.
//! 2. Each difference of a container is in its own tree, or in a [`SharedChanges`] whose number that tree has.
//! 3. What the same containers see is together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    change::{Change, ChangeKey, PodSides, file_name},
    compare::{Comparison, PodDiff},
    container::ContainerDiff,
    report,
};
use crate::output::{count, tree::Branch};

/// Most pods that are listed of a group.
const MAX_LISTED: usize = 100;

/// Differences that the same containers see.
pub(super) struct SharedChanges {
    /// Where the first of these containers has them.
    first: (usize, usize),
    keys: Vec<ChangeKey>,
    /// The containers, by the places of their pods.
    seen_by: BTreeSet<(usize, usize)>,
}

/// All differences that several containers see.
pub(super) struct AllShared<'d, 'r> {
    pods: Vec<&'d PodDiff<'r>>,
    groups: Vec<SharedChanges>,
    /// The number of each one's group, from 0.
    numbers: HashMap<ChangeKey, usize>,
}

impl<'d, 'r> AllShared<'d, 'r> {
    pub(super) fn of(comparison: &'d Comparison<'r>) -> Self {
        let pods = report::pods(comparison);
        let mut seen: HashMap<ChangeKey, (usize, BTreeSet<(usize, usize)>)> = HashMap::new();
        let mut order = 0;
        for (pod_place, pod) in pods.iter().enumerate() {
            let sides = PodSides::of(pod);
            for (place, container) in report::containers(pod).into_iter().enumerate() {
                for change in Change::all(container) {
                    order += 1;
                    let (_, seers) = seen
                        .entry(change.key(sides))
                        .or_insert_with(|| (order, BTreeSet::new()));
                    seers.insert((pod_place, place));
                }
            }
        }
        let mut shared: Vec<_> = seen
            .into_iter()
            .filter(|(_, (_, seers))| seers.len() > 1)
            .map(|(key, (order, seers))| (order, key, seers))
            .collect();
        shared.sort_by_key(|(order, ..)| *order);
        let mut groups: Vec<SharedChanges> = Vec::new();
        let mut by_seers: HashMap<BTreeSet<(usize, usize)>, usize> = HashMap::new();
        let mut numbers = HashMap::new();
        for (_, key, seers) in shared {
            let number = *by_seers.entry(seers).or_insert_with_key(|seers| {
                groups.push(SharedChanges {
                    first: seers.first().copied().unwrap_or_default(),
                    keys: Vec::new(),
                    seen_by: seers.clone(),
                });
                groups.len() - 1
            });
            groups[number].keys.push(key);
            numbers.insert(key, number);
        }
        Self {
            pods,
            groups,
            numbers,
        }
    }

    /// The pods, what needs attention first.
    pub(super) fn pods(&self) -> &[&'d PodDiff<'r>] {
        &self.pods
    }

    /// Whether several containers see it.
    pub(super) fn has(&self, key: ChangeKey) -> bool {
        self.numbers.contains_key(&key)
    }

    /// `and shared changes 1, 3`, for what a container sees of them.
    pub(super) fn reference(
        &self,
        container: &ContainerDiff<'_>,
        sides: PodSides<'_>,
    ) -> Option<Branch> {
        let keys = Change::all(container).map(|change| change.key(sides));
        let numbers: BTreeSet<_> = keys.filter_map(|key| self.numbers.get(&key)).collect();
        let texts: Vec<_> = numbers
            .iter()
            .map(|number| (*number + 1).to_string())
            .collect();
        let changes = if texts.len() == 1 {
            "change"
        } else {
            "changes"
        };
        (!texts.is_empty())
            .then(|| Branch::new().dim(format_args!("sees shared {changes} {}", texts.join(", "))))
    }

    pub(super) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// What differs in a group, and who sees it.
    pub(super) fn tree(&self, number: usize, show_secrets: bool) -> Branch {
        let group = &self.groups[number];
        let (pod, container) = group.first;
        let sides = PodSides::of(self.pods[pod]);
        let keys: BTreeSet<_> = group.keys.iter().collect();
        let containers = report::containers(self.pods[pod]);
        let mut shown = BTreeSet::new();
        let changes = Change::all(containers[container]).filter_map(|change| {
            let key = change.key(sides);
            (keys.contains(&key) && shown.insert(key))
                .then(|| change.branch(sides, show_secrets, file_name))
        });
        let title = format_args!("shared change {}", number + 1).to_string();
        let seers = count(group.seen_by.len(), "container");
        Branch::new()
            .bold(title)
            .plain(format_args!("{seers} see it"))
            .with(changes)
            .with([self.seers(group)])
            .in_state("shared")
    }

    /// The containers that see a group, by pod.
    fn seers(&self, group: &SharedChanges) -> Branch {
        let mut pods: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (pod, container) in &group.seen_by {
            let containers = report::containers(self.pods[*pod]);
            pods.entry(*pod)
                .or_default()
                .push(containers[*container].container.name);
        }
        let more = pods.len().saturating_sub(MAX_LISTED);
        let listed = pods.iter().take(MAX_LISTED).map(|(pod, containers)| {
            Branch::new()
                .plain(self.pods[*pod].key)
                .dim(containers.join(", "))
        });
        let more =
            (more > 0).then(|| Branch::new().dim(format_args!("and {}", count(more, "pod"))));
        Branch::new().plain("seen by").with(listed.chain(more))
    }
}
