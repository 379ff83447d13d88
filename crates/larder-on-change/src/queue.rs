//! Decides which rounds run at the same time: a limited number, the one that has been due longest first (rule T5).

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

/// Names a hook among all of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub u64);

/// The rounds that are due, and those that run.
#[derive(Debug)]
pub struct RoundQueue {
    parallelism: usize,
    due: BTreeSet<(Instant, HookId)>,
    /// The place in `due` of each hook that waits.
    since: BTreeMap<HookId, Instant>,
    running: BTreeSet<HookId>,
}

impl RoundQueue {
    /// A queue of which at most `parallelism` rounds run at once; at least one.
    pub fn new(parallelism: usize) -> Self {
        Self {
            parallelism: parallelism.max(1),
            due: BTreeSet::new(),
            since: BTreeMap::new(),
            running: BTreeSet::new(),
        }
    }

    /// From now on at most `parallelism` rounds run at once; at least one. Running ones continue.
    pub fn set_parallelism(&mut self, parallelism: usize) {
        self.parallelism = parallelism.max(1);
    }

    /// Adds a hook whose round has been due since `since`. A hook that is in the queue already keeps its earlier place.
    pub fn push(&mut self, hook: HookId, since: Instant) {
        if !self.since.contains_key(&hook) && !self.running.contains(&hook) {
            self.since.insert(hook, since);
            self.due.insert((since, hook));
        }
    }

    /// Takes the hook that has been due longest, if another round may run. The round runs until
    /// [`finished`](Self::finished).
    pub fn pop(&mut self) -> Option<HookId> {
        if self.running.len() >= self.parallelism {
            return None;
        }
        let (_, hook) = self.due.pop_first()?;
        self.since.remove(&hook);
        self.running.insert(hook);
        Some(hook)
    }

    /// The hook's round is over, or the hook was removed.
    pub fn finished(&mut self, hook: HookId) {
        self.running.remove(&hook);
        if let Some(since) = self.since.remove(&hook) {
            self.due.remove(&(since, hook));
        }
    }

    /// Number of hooks that wait for another round to end.
    pub fn waiting(&self) -> usize {
        self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    // on-change 34
    #[test]
    fn no_more_rounds_run_than_allowed_and_the_oldest_runs_first() {
        let start = Instant::now();
        let mut queue = RoundQueue::new(8);
        for id in 0..20 {
            queue.push(HookId(id), start + Duration::from_secs(20 - id));
        }
        let first: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(first, (12..20).rev().map(HookId).collect::<Vec<_>>());
        assert_eq!(queue.waiting(), 12);
        queue.finished(HookId(15));
        assert_eq!(queue.pop(), Some(HookId(11)));
        assert_eq!(queue.pop(), None);
    }

    #[test]
    fn a_running_hook_is_not_queued_again() {
        let mut queue = RoundQueue::new(1);
        queue.push(HookId(1), Instant::now());
        queue.push(HookId(1), Instant::now());
        assert_eq!(queue.pop(), Some(HookId(1)));
        queue.push(HookId(1), Instant::now());
        queue.finished(HookId(1));
        assert_eq!(queue.pop(), None);
    }
}
