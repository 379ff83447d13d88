//! The journal of events about pods, for tests that measure and count.

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
