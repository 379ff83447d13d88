//! Decides which rounds run at the same time: a limited number of the node and of each pod. Pods take turns; among
//! those whose turn it is, and within a pod, the most overdue round begins first (rule T5).
//!
//! A quarter of the places is reserved twice, so that hooks that hang do not hold all: once for hooks that no annotation
//! has defined, and once for pods without a running round. Annotations keep a place for a limited time. So the worst
//! case for a pod among N others whose annotated hooks hang, with P places: a hook of an annotation begins after at most
//! ⌈N / (P − P / 4)⌉ + 1 of these times, and one of the operator at once, as long as the operator's own leave places.
//!
//! Invariants:
//! 1. While two pods have rounds in the queue that may run, one gets at most one round more than the other.
//! 2. A pod without rounds takes no memory while the queue is empty.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use smol_str::SmolStr;
use tokio::time::Instant;

/// Most rounds of a pod that run at the same time on a node: a pod whose hooks hang leaves places to others.
pub(crate) const OF_POD: usize = 2;

/// Names a hook among all of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub u64);

/// The rounds that are due, and those that run.
#[derive(Debug)]
pub(crate) struct RoundQueue {
    parallelism: usize,
    of_pod: usize,
    pods: BTreeMap<SmolStr, PodQueue>,
    /// The pod of each hook that waits or runs.
    hooks: HashMap<HookId, SmolStr>,
    /// The turn of the pod that was served last. A pod that comes to wait is as far.
    turn: u64,
}

/// A round that is due. The order is that in which the rounds of a pod begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueuedRound {
    since: Instant,
    hook: HookId,
    is_annotated: bool,
}

/// The rounds of one pod.
#[derive(Debug, Default)]
struct PodQueue {
    turn: u64,
    due: BTreeSet<QueuedRound>,
    running: Vec<QueuedRound>,
}

impl RoundQueue {
    /// A queue of which at most `parallelism` rounds run at once, and `of_pod` of each pod; at least one.
    pub(crate) fn new(parallelism: usize, of_pod: usize) -> Self {
        Self {
            parallelism: parallelism.max(1),
            of_pod,
            pods: BTreeMap::new(),
            hooks: HashMap::new(),
            turn: 0,
        }
    }

    /// From now on at most `parallelism` rounds run at once; at least one. Running ones continue.
    pub(crate) fn set_parallelism(&mut self, parallelism: usize) {
        self.parallelism = parallelism.max(1);
    }

    /// Adds a hook of `pod` whose round has been due since `since`. A hook that is in the queue already keeps its earlier
    /// place.
    pub(crate) fn push(&mut self, hook: HookId, pod: &SmolStr, since: Instant, is_annotated: bool) {
        if self.hooks.insert(hook, pod.clone()).is_none() {
            let turn = self.turn;
            let pod = self.pods.entry(pod.clone()).or_default();
            pod.turn = pod.turn.max(turn);
            pod.due.insert(QueuedRound {
                since,
                hook,
                is_annotated,
            });
        }
    }

    /// Takes the hook whose round is next, if another round may run. The round runs until [`finished`](Self::finished).
    pub(crate) fn pop(&mut self) -> Option<HookId> {
        let reserved = self.parallelism / 4;
        let running = self.pods.values().flat_map(|pod| &pod.running);
        let annotated = running.clone().filter(|round| round.is_annotated);
        // The places that are left for a round of a pod that has none.
        let all = self.parallelism.saturating_sub(running.count());
        let of_annotations = (self.parallelism - reserved).saturating_sub(annotated.count());
        let of_annotations = all.min(of_annotations);
        let next = self
            .pods
            .values_mut()
            .filter(|pod| pod.running.len() < self.of_pod)
            .filter_map(|pod| {
                let kept = if pod.running.is_empty() { 0 } else { reserved };
                let mut due = pod.due.iter().copied();
                let first = due.find(|round| {
                    kept < if round.is_annotated {
                        of_annotations
                    } else {
                        all
                    }
                })?;
                Some((pod.turn, first, pod))
            });
        let (turn, round, pod) = next.min_by_key(|(turn, round, _)| (*turn, *round))?;
        pod.due.remove(&round);
        pod.running.push(round);
        pod.turn += 1;
        self.turn = turn;
        self.forget_turns();
        Some(round.hook)
    }

    /// The hook's round is over, or the hook was removed.
    pub(crate) fn finished(&mut self, hook: HookId) {
        let pod = self.hooks.remove(&hook);
        let Some(pod) = pod.and_then(|pod| self.pods.get_mut(&pod)) else {
            return;
        };
        pod.running.retain(|round| round.hook != hook);
        pod.due.retain(|round| round.hook != hook);
        self.forget_turns();
    }

    /// While no round waits, turns mean nothing.
    fn forget_turns(&mut self) {
        if self.pods.values().all(|pod| pod.due.is_empty()) {
            self.pods.retain(|_, pod| !pod.running.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pod(number: u64) -> SmolStr {
        SmolStr::from(format!("pod-{number}"))
    }

    /// Of the operator.
    const OWN: bool = false;
    const ANNOTATED: bool = true;

    fn all(queue: &mut RoundQueue) -> Vec<u64> {
        std::iter::from_fn(|| queue.pop().map(|hook| hook.0)).collect()
    }

    // on-change 34
    #[test]
    fn no_more_rounds_run_than_allowed_and_the_oldest_runs_first() {
        let start = Instant::now();
        let mut queue = RoundQueue::new(8, OF_POD);
        for id in 0..20 {
            queue.push(
                HookId(id),
                &pod(id),
                start + Duration::from_secs(20 - id),
                OWN,
            );
        }
        assert_eq!(all(&mut queue), (12..20).rev().collect::<Vec<_>>());
        queue.finished(HookId(15));
        assert_eq!(all(&mut queue), [11]);
    }

    #[test]
    fn a_running_hook_is_not_queued_again() {
        let mut queue = RoundQueue::new(1, OF_POD);
        queue.push(HookId(1), &pod(1), Instant::now(), OWN);
        queue.push(HookId(1), &pod(1), Instant::now(), OWN);
        assert_eq!(all(&mut queue), [1]);
        queue.push(HookId(1), &pod(1), Instant::now(), OWN);
        queue.finished(HookId(1));
        assert!(all(&mut queue).is_empty());
    }

    // Attack: all hooks of a pod hang.
    #[test]
    fn hooks_of_one_pod_that_hang_hold_two_places() {
        let start = Instant::now();
        let mut queue = RoundQueue::new(8, OF_POD);
        for id in 0..16 {
            queue.push(HookId(id), &pod(0), start, OWN);
        }
        queue.push(HookId(99), &pod(1), start + Duration::from_secs(1), OWN);
        assert_eq!(all(&mut queue), [0, 99, 1]);
        queue.finished(HookId(1));
        assert_eq!(all(&mut queue), [2]);
    }

    // Attack: four pods have two hooks each that hang.
    #[test]
    fn annotated_hooks_that_hang_leave_places_to_other_pods_and_to_the_operator() {
        let start = Instant::now();
        let mut queue = RoundQueue::new(8, OF_POD);
        for id in 0..8 {
            queue.push(HookId(id), &pod(id / 2), start, ANNOTATED);
        }
        assert_eq!(all(&mut queue), [0, 2, 4, 6]);
        // Two other pods, and no third: the last two places are the operator's.
        for id in 10..13 {
            queue.push(HookId(id), &pod(id), start, ANNOTATED);
        }
        assert_eq!(all(&mut queue), [10, 11]);
        queue.push(HookId(20), &pod(0), start, OWN);
        assert!(all(&mut queue).is_empty(), "its pod has a running round");
        queue.push(HookId(21), &pod(21), start, OWN);
        queue.push(HookId(22), &pod(22), start, OWN);
        assert_eq!(all(&mut queue), [21, 22]);
        queue.finished(HookId(10));
        assert_eq!(all(&mut queue), [12]);
        for id in [11, 12, 21, 22] {
            queue.finished(HookId(id));
        }
        assert_eq!(all(&mut queue), [20], "an operator's hook goes before");
    }

    // Attack: many pods, whose hooks all hang for as long as an annotation may ask for, again and again.
    #[test]
    fn a_pod_among_many_that_hang_waits_for_one_round_of_each() {
        const HOOKS: u64 = 16;
        let start = Instant::now();
        for (pods, places) in [(6, 8), (7, 8), (50, 8), (50, 3), (1, 1)] {
            for arrival in 1..20 {
                let mut queue = RoundQueue::new(places, OF_POD);
                let honest = HookId(pods * HOOKS);
                for id in 0..pods * HOOKS {
                    queue.push(HookId(id), &pod(id / HOOKS), start, ANNOTATED);
                }
                // Of each time, one part of three ends: those that hang do not keep step with each other.
                let (mut running, mut waited) = (Vec::new(), None);
                for part in 0..1000 {
                    let now = start + Duration::from_secs(part);
                    if part == arrival {
                        queue.push(honest, &pod(pods), now, ANNOTATED);
                    }
                    while let Some(hook) = queue.pop() {
                        running.push((hook, part + 3));
                    }
                    if running.iter().any(|(hook, _)| *hook == honest) {
                        waited = Some(part - arrival);
                        break;
                    }
                    let ended: Vec<_> = running
                        .extract_if(.., |(_, end)| *end == part + 1)
                        .collect();
                    for (hook, _) in ended {
                        queue.finished(hook);
                        queue.push(hook, &pod(hook.0 / HOOKS), now, ANNOTATED);
                    }
                }
                let of_annotations = (places - places / 4) as u64;
                let most = 3 * (pods.div_ceil(of_annotations) + 1);
                let waited = waited.expect("its turn comes");
                assert!(
                    waited <= most,
                    "{pods} pods, {places} places: {waited} of {most}"
                );
            }
        }
    }

    #[test]
    fn few_places_have_no_reserve() {
        let mut queue = RoundQueue::new(3, OF_POD);
        for id in 0..4 {
            queue.push(HookId(id), &pod(id / 3), Instant::now(), ANNOTATED);
        }
        assert_eq!(all(&mut queue), [0, 3, 1]);
    }

    // Attack: a pod with many hooks is due before all others.
    #[test]
    fn pods_take_turns() {
        let start = Instant::now();
        let later = |secs| start + Duration::from_secs(secs);
        let mut queue = RoundQueue::new(1, OF_POD);
        for id in 0..16 {
            queue.push(HookId(id), &pod(0), start, OWN);
        }
        queue.push(HookId(20), &pod(2), later(1), OWN);
        queue.push(HookId(21), &pod(2), later(1), OWN);
        let mut served = Vec::new();
        while let Some(hook) = queue.pop() {
            served.push(hook.0);
            queue.finished(hook);
            // A pod that comes later does not go before those that wait.
            if hook == HookId(20) {
                queue.push(HookId(30), &pod(3), later(2), OWN);
            }
        }
        assert_eq!(served[..6], [0, 20, 30, 1, 21, 2]);
        assert_eq!(served.len(), 19);
        assert!(queue.pods.is_empty() && queue.hooks.is_empty());
    }
}
