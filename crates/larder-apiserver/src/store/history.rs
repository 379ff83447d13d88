//! The recent past of one kind, for watches that resume and lists of older versions.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use larder_objects::ObjectKey;

use super::Compacted;
use crate::{object::Object, selector::Filter};

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
    /// The versions of `changes` by their object, oldest first.
    versions: HashMap<ObjectKey, VecDeque<u64>>,
    /// Sum over `changes`.
    bytes: usize,
    /// Changes up to this version are forgotten.
    compacted: u64,
    /// How many changes watchers have read.
    #[cfg(test)]
    pub(super) read: std::cell::Cell<usize>,
}

impl History {
    pub(super) fn new(version: u64, limits: Limits) -> Self {
        Self {
            limits,
            changes: VecDeque::new(),
            versions: HashMap::new(),
            bytes: 0,
            compacted: version,
            #[cfg(test)]
            read: std::cell::Cell::default(),
        }
    }

    pub(super) fn push(&mut self, change: Change) {
        let object = &change.object;
        self.bytes += object.json().len();
        self.versions
            .entry(object.key.clone())
            .or_default()
            .push_back(object.version);
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
        let is_old = |change: &Change| change.object.version <= version;
        while self.changes.front().is_some_and(is_old) {
            self.forget_oldest();
        }
        self.compacted = self.compacted.max(version);
    }

    fn forget_oldest(&mut self) {
        if let Some(change) = self.changes.pop_front() {
            self.bytes -= change.object.json().len();
            self.compacted = change.object.version;
            if let Some(versions) = self.versions.get_mut(&change.object.key) {
                versions.pop_front();
                if versions.is_empty() {
                    self.versions.remove(&change.object.key);
                }
            }
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
        Ok(self.changes.range(self.position(version + 1)..))
    }

    /// Those of [`Self::after`] that a watcher with `filter` may see: of one object, without a look at the others.
    ///
    /// # Errors
    ///
    /// As [`Self::after`].
    pub(super) fn after_for(
        &self,
        version: u64,
        filter: &Filter,
    ) -> Result<impl Iterator<Item = &Change>, Compacted> {
        let all = self.after(version)?;
        let key = filter.key();
        let others = all.take(if key.is_none() { usize::MAX } else { 0 });
        let versions = key.and_then(|key| self.versions.get(&key));
        let missed = versions
            .map(|versions| versions.range(versions.partition_point(|made| *made <= version)..));
        let own = missed
            .into_iter()
            .flatten()
            .map(|made| &self.changes[self.position(*made)]);
        let read = own.chain(others);
        #[cfg(test)]
        let read = read.inspect(|_| self.read.update(|read| read + 1));
        Ok(read)
    }

    /// Where the changes from `version` on begin.
    fn position(&self, version: u64) -> usize {
        self.changes
            .partition_point(|change| change.object.version < version)
    }
}
