//! The journal: pods in the order of their last change, for clients that follow them.
//!
//! Invariants:
//! 1. Each change has a sequence number greater than all before it, including those of an earlier agent: numbers begin
//!    with the time of the start in microseconds.
//! 2. For a pod with a status, the journal keeps only the last change, so it grows with the number of pods. It keeps
//!    [`MAX_REMOVED`] removed pods; a client that is further behind must list all pods again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::Timestamp;
use larder_objects::ObjectKey;
use larder_pods::ResolvedPodUid;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Removed pods that are kept.
const MAX_REMOVED: usize = 1024;

/// The changes of the pods of one agent.
#[derive(Debug)]
pub(crate) struct Journal {
    state: Mutex<JournalState>,
    /// Set while `state` is locked.
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct JournalState {
    /// Changes up to this one may have been dropped.
    dropped: u64,
    entries: BTreeMap<u64, JournalEntry>,
    /// Of the pods with a status.
    sequence_by_pod: HashMap<ResolvedPodUid, u64>,
    /// Of the pods that were removed, oldest first.
    removed: VecDeque<u64>,
}

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    pub(crate) sequence: u64,
    pub(crate) uid: ResolvedPodUid,
    /// The name of a pod that has no status any more. A status is read when the entry is.
    pub(crate) removed: Option<ObjectKey>,
}

impl Journal {
    /// The journal of an agent that starts at `now`.
    pub(crate) fn new(now: Timestamp) -> Self {
        let first = u64::try_from(now.as_microsecond()).unwrap_or(0);
        let state = JournalState {
            dropped: first,
            ..JournalState::default()
        };
        Self {
            state: Mutex::new(state),
            newest: watch::Sender::new(first),
        }
    }

    /// The number of the last change.
    pub(crate) fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    /// Follows the number of the last change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Notes that the status of a pod has changed, or that the one of this name was removed.
    pub(super) fn note(&self, uid: &ResolvedPodUid, removed: Option<ObjectKey>) {
        let mut state = self.state.lock();
        let sequence = self.newest() + 1;
        let earlier = if removed.is_some() {
            state.removed.push_back(sequence);
            state.sequence_by_pod.remove(uid)
        } else {
            state.sequence_by_pod.insert(uid.clone(), sequence)
        };
        if let Some(earlier) = earlier {
            state.entries.remove(&earlier);
        }
        let entry = JournalEntry {
            sequence,
            uid: uid.clone(),
            removed,
        };
        state.entries.insert(sequence, entry);
        if state.removed.len() > MAX_REMOVED
            && let Some(oldest) = state.removed.pop_front()
        {
            state.entries.remove(&oldest);
            state.dropped = oldest;
        }
        self.newest.send_replace(sequence);
    }

    /// The changes after `sequence`, in order: of each pod the last one. `None` if some may have been dropped, or the
    /// number is not one of this agent's.
    pub(crate) fn since(&self, sequence: u64) -> Option<Vec<JournalEntry>> {
        let state = self.state.lock();
        if sequence < state.dropped || sequence > self.newest() {
            return None;
        }
        let entries = state.entries.range(sequence + 1..);
        Some(entries.map(|(_, entry)| entry.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> (Journal, u64) {
        let journal = Journal::new("2026-01-01T00:00:00Z".parse().unwrap());
        let first = journal.newest();
        (journal, first)
    }

    fn uid(name: &str) -> ResolvedPodUid {
        ResolvedPodUid::new(name)
    }

    #[test]
    fn each_pod_appears_once_with_its_last_change() {
        let (journal, first) = journal();
        for name in ["a", "b", "a"] {
            journal.note(&uid(name), None);
        }
        let entry = |sequence, name: &str, removed| JournalEntry {
            sequence,
            uid: uid(name),
            removed,
        };
        let expected = [entry(first + 2, "b", None), entry(first + 3, "a", None)];
        assert_eq!(journal.since(first).unwrap(), expected);
        assert_eq!(journal.since(first + 2).unwrap(), expected[1..]);
        assert_eq!(journal.since(first + 3).unwrap(), []);
        let key = ObjectKey::new("n", "a");
        journal.note(&uid("a"), Some(key.clone()));
        let removed = entry(first + 4, "a", Some(key));
        assert_eq!(journal.since(first + 2).unwrap(), [removed]);
    }

    #[test]
    fn numbers_of_another_agent_have_expired() {
        let (journal, first) = journal();
        assert_eq!(journal.since(first - 1), None);
        assert_eq!(journal.since(first + 1), None);
        assert_eq!(journal.since(0), None);
        assert_eq!(journal.since(u64::MAX), None);
    }

    #[test]
    fn removed_pods_are_bounded() {
        let (journal, first) = journal();
        let key = ObjectKey::new("n", "a");
        for number in 0..=MAX_REMOVED {
            journal.note(&uid(&number.to_string()), Some(key.clone()));
        }
        assert_eq!(journal.since(first), None);
        assert_eq!(journal.since(first + 1).unwrap().len(), MAX_REMOVED);
    }
}
