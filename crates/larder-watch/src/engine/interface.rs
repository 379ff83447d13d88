//! The input that a store passes to an engine, and the engine's reports.

use crate::{
    driver::{Finding, Progress},
    error::RequestFailure,
    freshness::Confirmed,
    reflector::Restart,
    target::Target,
};

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

/// An event of a target.
#[derive(Debug)]
pub struct Report<T: Target> {
    /// The target that it is about.
    pub target: u64,
    /// Verb of a request that was answered, and its outcome as a label.
    pub answered: Option<(&'static str, &'static str)>,
    /// Why the watch must be opened again.
    pub restart: Option<Restart>,
    /// The object.
    pub event: Option<Event<T>>,
}

/// A report that a store must act on.
#[derive(Debug)]
pub enum Event<T: Target> {
    /// The finding about the target.
    Found(Finding<T>),
    /// A freshness check was answered.
    Confirmed(Confirmed<T>),
    /// The freshness check of this object failed, and is due again after a while.
    CheckFailed(u64, RequestFailure),
    /// The freshness check of this object is due again.
    CheckDue(u64),
    /// The target waited for a slot, and can be started.
    SlotGranted,
}

impl Known {
    pub(super) fn is_present(self) -> bool {
        matches!(self, Self::Present | Self::Final)
    }
}

impl<T: Target> Report<T> {
    pub(super) fn of(target: u64, event: Event<T>) -> Self {
        Self {
            target,
            answered: None,
            restart: None,
            event: Some(event),
        }
    }

    /// The report of a progress, if there is anything to report.
    pub(super) fn of_progress(target: u64, progress: Progress<T>) -> Option<Self> {
        let report = Self {
            target,
            answered: progress.answered,
            restart: progress.restart,
            event: progress.finding.map(Event::Found),
        };
        let empty = report.answered.is_none() && report.restart.is_none() && report.event.is_none();
        (!empty).then_some(report)
    }
}
