//! The input that a store passes to an engine.

use crate::report::ObjectId;

/// The known state of an object that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The state is unknown.
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Present,
    /// It exists, and cannot change any more.
    Final,
}

/// An object for which a reader needs a fresher state than the known one.
#[derive(Clone, Copy, Debug)]
pub struct Need<T> {
    /// The object.
    pub object: ObjectId,
    /// Its known state.
    pub known: Presence,
    /// The object as a target of its own.
    pub target: T,
}

impl Presence {
    pub(super) fn is_present(self) -> bool {
        matches!(self, Self::Present | Self::Final)
    }
}
