//! The input that a store passes to an engine, and the engine's answers.

/// The limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most requests that wait for their answer at the same time.
    pub max_requests_in_flight: usize,
    /// Most single objects that are watched at the same time.
    pub max_watches: usize,
}

/// The known state of an object that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The state is unknown.
    Nothing,
    /// It does not exist.
    Absent,
    /// It exists.
    Present,
    /// It exists, and cannot change any more.
    Final,
}

/// An object for which a reader needs a fresher state than the known one.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The object.
    pub object: u64,
    /// Its known state.
    pub known: Known,
}

/// Whether a target is watched from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Start {
    /// It is watched, or about to be.
    Started,
    /// The limit of watches of single objects is reached; the target waits for a slot.
    NoSlot,
}

/// The meaning of an answer that is older than the known state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum OlderAnswer {
    /// Nothing yet: the object is checked once more.
    AskedAgain,
    /// Events overtook the answer, so the known state is at least as fresh.
    Overtaken,
    /// A second request returned an older state again: the API server was restored. The store accepts the answer, and
    /// the complete state of the target is requested.
    Restored,
}

impl Known {
    pub(super) fn is_present(self) -> bool {
        matches!(self, Self::Present | Self::Final)
    }
}
