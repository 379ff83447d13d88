//! The journal: pods in the order of their last change, for clients that follow them.
//!
//! Invariants:
//! 1. Each change has a sequence number greater than all before it, including those of an earlier agent: numbers begin
//!    with the time of the start in microseconds.
//! 2. For a pod with a status, the journal keeps only the last change, so it grows with the number of pods. It keeps
//!    [`MAX_REMOVED`] removed pods; a client that is further behind must list all pods again.

use std::collections::{BTreeMap, HashMap};

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
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct JournalState {
    newest: u64,
    /// Changes up to this one may have been dropped.
    dropped: u64,
    changed: BTreeMap<u64, ResolvedPodUid>,
    sequence_by_pod: HashMap<ResolvedPodUid, u64>,
    removed: BTreeMap<u64, (ResolvedPodUid, ObjectKey)>,
}

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalEntry {
    /// The pod has a status, which is read when the entry is.
    Changed(u64, ResolvedPodUid),
    /// The pod has no status any more.
    Removed(u64, ResolvedPodUid, ObjectKey),
}

impl JournalEntry {
    pub(crate) fn sequence(&self) -> u64 {
        match self {
            Self::Changed(sequence, _) | Self::Removed(sequence, ..) => *sequence,
        }
    }
}

/// The journal no longer has all changes that a client asks for, or has never had them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expired;

impl Journal {
    /// The journal of an agent that starts at `now`.
    pub(crate) fn new(now: Timestamp) -> Self {
        let first = u64::try_from(now.as_microsecond()).unwrap_or(0);
        let state = JournalState {
            newest: first,
            dropped: first,
            changed: BTreeMap::new(),
            sequence_by_pod: HashMap::new(),
            removed: BTreeMap::new(),
        };
        Self {
            state: Mutex::new(state),
            newest: watch::Sender::new(first),
        }
    }

    /// The number of the last change.
    pub(crate) fn newest(&self) -> u64 {
        self.state.lock().newest
    }

    /// Follows the number of the last change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Notes that the status of a pod has changed.
    pub(super) fn note_change(&self, uid: &ResolvedPodUid) {
        self.note(|state, sequence| {
            if let Some(earlier) = state.sequence_by_pod.insert(uid.clone(), sequence) {
                state.changed.remove(&earlier);
            }
            state.changed.insert(sequence, uid.clone());
        });
    }

    /// Notes that the status of a pod was removed.
    pub(super) fn note_removal(&self, uid: &ResolvedPodUid, name: &ObjectKey) {
        self.note(|state, sequence| {
            if let Some(earlier) = state.sequence_by_pod.remove(uid) {
                state.changed.remove(&earlier);
            }
            state.removed.insert(sequence, (uid.clone(), name.clone()));
            if state.removed.len() > MAX_REMOVED
                && let Some((oldest, _)) = state.removed.pop_first()
            {
                state.dropped = oldest;
            }
        });
    }

    fn note(&self, change: impl FnOnce(&mut JournalState, u64)) {
        let mut state = self.state.lock();
        state.newest += 1;
        let sequence = state.newest;
        change(&mut state, sequence);
        drop(state);
        self.newest
            .send_modify(|newest| *newest = sequence.max(*newest));
    }

    /// The changes after `sequence`, in order: of each pod the last one.
    ///
    /// # Errors
    ///
    /// Some may have been dropped, or the number is not one of this agent's.
    pub(crate) fn since(&self, sequence: u64) -> Result<Vec<JournalEntry>, Expired> {
        let state = self.state.lock();
        if sequence < state.dropped || sequence > state.newest {
            return Err(Expired);
        }
        let after = sequence + 1..;
        let changed = state.changed.range(after.clone());
        let changed = changed.map(|(&at, uid)| JournalEntry::Changed(at, uid.clone()));
        let removed = state.removed.range(after);
        let removed =
            removed.map(|(&at, (uid, name))| JournalEntry::Removed(at, uid.clone(), name.clone()));
        let mut entries: Vec<_> = changed.chain(removed).collect();
        entries.sort_unstable_by_key(JournalEntry::sequence);
        Ok(entries)
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
            journal.note_change(&uid(name));
        }
        let expected = [
            JournalEntry::Changed(first + 2, uid("b")),
            JournalEntry::Changed(first + 3, uid("a")),
        ];
        assert_eq!(journal.since(first).unwrap(), expected);
        assert_eq!(journal.since(first + 2).unwrap(), expected[1..]);
        assert_eq!(journal.since(first + 3).unwrap(), []);
        let key = ObjectKey::new("n", "a");
        journal.note_removal(&uid("a"), &key);
        let removed = JournalEntry::Removed(first + 4, uid("a"), key);
        assert_eq!(journal.since(first + 2).unwrap(), [removed]);
    }

    #[test]
    fn numbers_of_another_agent_have_expired() {
        let (journal, first) = journal();
        assert_eq!(journal.since(first - 1), Err(Expired));
        assert_eq!(journal.since(first + 1), Err(Expired));
        assert_eq!(journal.since(0), Err(Expired));
        assert_eq!(journal.since(u64::MAX), Err(Expired));
    }

    #[test]
    fn removed_pods_are_bounded() {
        let (journal, first) = journal();
        let key = ObjectKey::new("n", "a");
        for number in 0..=MAX_REMOVED {
            journal.note_removal(&uid(&number.to_string()), &key);
        }
        assert_eq!(journal.since(first), Err(Expired));
        assert_eq!(journal.since(first + 1).unwrap().len(), MAX_REMOVED);
    }
}
