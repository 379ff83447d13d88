//! The recent past of one kind, for watches that resume and lists of older versions.

use std::{collections::VecDeque, sync::Arc};

use super::Compacted;
use crate::object::Object;

/// How much of the past is kept for each kind; the oldest changes are dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Number of changes.
    pub(crate) changes: usize,
    /// Bytes of the objects that these changes made.
    pub(crate) bytes: usize,
}

/// One change: creation, replacement or deletion.
#[derive(Debug)]
pub(super) struct Change {
    /// The state after it; for a deletion the last state, with the version of the deletion.
    pub(super) object: Arc<Object>,
    /// The state before it.
    pub(super) previous: Option<Arc<Object>>,
}

#[derive(Debug)]
pub(super) struct History {
    limits: Limits,
    /// By version, oldest first.
    changes: VecDeque<Change>,
    /// Sum over `changes`.
    bytes: usize,
    /// Changes up to this version are forgotten.
    compacted: u64,
}

impl History {
    pub(super) fn new(version: u64, limits: Limits) -> Self {
        Self {
            limits,
            changes: VecDeque::new(),
            bytes: 0,
            compacted: version,
        }
    }

    pub(super) fn push(&mut self, change: Change) {
        self.bytes += change.object.json().len();
        self.changes.push_back(change);
        // The last change stays whatever its size: an idle watcher must be able to take it.
        while self.changes.len() > 1
            && (self.changes.len() > self.limits.changes || self.bytes > self.limits.bytes)
        {
            self.forget_oldest();
        }
    }

    /// Forgets all changes up to `version`.
    pub(super) fn compact(&mut self, version: u64) {
        while self
            .changes
            .front()
            .is_some_and(|change| change.object.version <= version)
        {
            self.forget_oldest();
        }
        self.compacted = self.compacted.max(version);
    }

    fn forget_oldest(&mut self) {
        if let Some(change) = self.changes.pop_front() {
            self.bytes -= change.object.json().len();
            self.compacted = change.object.version;
        }
    }

    /// The changes after `version`, oldest first.
    ///
    /// # Errors
    ///
    /// Some of them are forgotten.
    pub(super) fn after(
        &self,
        version: u64,
    ) -> Result<impl DoubleEndedIterator<Item = &Change>, Compacted> {
        if version < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        let first = self
            .changes
            .partition_point(|change| change.object.version <= version);
        Ok(self.changes.range(first..))
    }
}
