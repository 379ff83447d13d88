//! The journal of events about pods, for tests that measure and count.

use parking_lot::Mutex;
use tokio::time::Instant;

/// An event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// When.
    pub at: Instant,
    /// Name of the pod.
    pub pod: String,
    /// The event.
    pub stage: Stage,
}

/// The stages from a change of a pod to its files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The pod is new, or differs in more than its status.
    Update,
    /// A sync has begun its work: the runtime was listed since the last one.
    Sync,
    /// The populator has flagged the pod's volumes.
    Flagged,
    /// A volume was set up.
    SetUp {
        /// Its name.
        volume: String,
        /// Whether its content differs from before.
        swapped: bool,
    },
    /// A set-up failed.
    SetUpFailed {
        /// Name of the volume.
        volume: String,
        /// The kubelet's words.
        reason: String,
    },
    /// The containers run.
    Started,
    /// The volumes are gone.
    TornDown,
}

#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<Vec<Happening>>);

impl Journal {
    pub(super) fn note(&self, pod: String, stage: Stage) {
        let at = Instant::now();
        self.0.lock().push(Happening { at, pod, stage });
    }

    pub(super) fn all(&self) -> Vec<Happening> {
        self.0.lock().clone()
    }

    pub(super) fn count(&self, pod: &str, counts: impl Fn(&Stage) -> bool) -> usize {
        let journal = self.0.lock();
        let fits = |happening: &&Happening| happening.pod == pod && counts(&happening.stage);
        journal.iter().filter(fits).count()
    }
}
