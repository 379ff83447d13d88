//! The versioned store: all objects, one counter of versions, and for each kind its recent past and its watchers.
//!
//! Invariants:
//! 1. Every change takes the next version, under one lock: versions are a total order of changes over all kinds.
//! 2. An object's bytes exist once. Lists, watch frames and history share them.
//! 3. A watcher gets every change that its filter lets through, in order, or gets [`Taken::Expired`]. A watcher that
//!    never looks costs its entry and nothing per change; the past that waits for it is the history, which is bounded.
//! 4. A change costs the watchers whose namespace and name, where their filters state them, are the object's.
//!    A watcher of one object reads only that object's changes from the history.
//! 5. No method awaits or calls out under the lock; wakers are called after it.

mod history;
mod watch;

use std::{collections::BTreeMap, ops::Bound, sync::Arc, task::Waker};

use larder_objects::ObjectKey;
use parking_lot::Mutex;
use serde_json::Value;
use smol_str::SmolStr;

pub(crate) use history::Limits;
pub(crate) use watch::{End, Start, Taken, Watch, WatchEvent};

use crate::{
    ApiError,
    object::{EventType, Object},
    resource::{ApiKind, RESOURCES},
    selector::Filter,
};
use history::{Change, History};
use watch::Watchers;

/// All objects of the server.
#[derive(Debug)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
}

/// The state behind the lock: everything.
#[derive(Debug)]
struct Inner {
    /// Version of the last change.
    version: u64,
    /// A fault holds watches back.
    paused: bool,
    /// By [`ApiKind`].
    tables: [Table; RESOURCES.len()],
}

/// The objects of one kind.
#[derive(Debug)]
struct Table {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    history: History,
    watchers: Watchers,
}

/// The version asked for lies before the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The oldest version that can still be asked for.
    pub(crate) oldest: u64,
}

/// The object was changed, created or deleted since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed;

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    /// The version whose state this is.
    pub(crate) version: u64,
    pub(crate) objects: Vec<Arc<Object>>,
    /// The last object of this page, when there are more.
    pub(crate) last: Option<ObjectKey>,
    /// How many more there are.
    pub(crate) remaining: usize,
}

impl Store {
    /// An empty store whose first change gets the version after `version`.
    pub(crate) fn new(version: u64, limits: Limits) -> Self {
        let table = || Table {
            objects: BTreeMap::new(),
            history: History::new(version, limits),
            watchers: Watchers::default(),
        };
        Self {
            inner: Mutex::new(Inner {
                version,
                paused: false,
                tables: std::array::from_fn(|_| table()),
            }),
        }
    }

    /// Version of the last change.
    pub(crate) fn version(&self) -> u64 {
        self.inner.lock().version
    }

    /// The current version.
    ///
    /// # Errors
    ///
    /// 504: it has not reached `asked` yet.
    pub(crate) fn version_from(&self, asked: u64) -> Result<u64, ApiError> {
        match self.version() {
            current if asked > current => Err(ApiError::version_too_large(asked, current)),
            current => Ok(current),
        }
    }

    pub(crate) fn get(&self, kind: ApiKind, key: &ObjectKey) -> Option<Arc<Object>> {
        self.inner.lock().table(kind).objects.get(key).cloned()
    }

    /// [`get`](Self::get) of an object that must exist.
    pub(crate) fn require(&self, kind: ApiKind, key: &ObjectKey) -> Result<Arc<Object>, ApiError> {
        let missing = || ApiError::not_found(kind, &key.name);
        self.get(kind, key).ok_or_else(missing)
    }

    /// Up to `limit` objects that `filter` lets through, after `after`, by namespace and name, as they were at version
    /// `at` (`None`: now).
    ///
    /// # Errors
    ///
    /// `at` is older than the history.
    pub(crate) fn list(
        &self,
        kind: ApiKind,
        filter: &Filter,
        at: Option<u64>,
        after: Option<&ObjectKey>,
        limit: Option<usize>,
    ) -> Result<Page, Compacted> {
        let (version, mut matching) = {
            let mut inner = self.inner.lock();
            let version = at.unwrap_or(inner.version);
            (version, inner.table(kind).at(version, filter, after)?)
        };
        // After the lock: a selector may be long.
        matching.retain(|object| filter.matches(object));
        let kept = limit.map_or(matching.len(), |limit| limit.min(matching.len()));
        let remaining = matching.len() - kept;
        matching.truncate(kept);
        let last = matching.last().filter(|_| remaining > 0);
        Ok(Page {
            version,
            last: last.map(|object| object.key.clone()),
            objects: matching,
            remaining,
        })
    }

    /// Stores a new object.
    ///
    /// # Errors
    ///
    /// There is one of that name.
    pub(crate) fn create(&self, kind: ApiKind, value: Value) -> Result<Arc<Object>, Changed> {
        self.commit(None, |version| {
            Object::new(kind, value, version, EventType::Added)
        })
    }

    /// Replaces `current` by `value`, which has the same name.
    ///
    /// # Errors
    ///
    /// `current` is no longer what the store holds.
    pub(crate) fn replace(
        &self,
        current: &Arc<Object>,
        value: Value,
    ) -> Result<Arc<Object>, Changed> {
        self.commit(Some(current), |version| {
            Object::new(current.kind, value, version, EventType::Modified)
        })
    }

    /// Deletes `current` and returns its last state, which has the version of the deletion.
    ///
    /// # Errors
    ///
    /// `current` is no longer what the store holds.
    pub(crate) fn delete(&self, current: &Arc<Object>) -> Result<Arc<Object>, Changed> {
        self.commit(Some(current), |version| current.deleted_at(version))
    }

    /// Puts what `make` makes of the next version in place of `previous`, if the store holds that; `None`: nothing of
    /// the name. Records the change and wakes its watchers.
    fn commit(
        &self,
        previous: Option<&Arc<Object>>,
        make: impl FnOnce(u64) -> Object,
    ) -> Result<Arc<Object>, Changed> {
        let (object, wakers) = {
            let mut inner = self.inner.lock();
            let version = inner.version + 1;
            let object = Arc::new(make(version));
            let table = inner.table(object.kind);
            let held = table.objects.get(&object.key);
            if held.map(Arc::as_ptr) != previous.map(Arc::as_ptr) {
                return Err(Changed);
            }
            match object.event {
                EventType::Deleted => table.objects.remove(&object.key),
                _ => table.objects.insert(object.key.clone(), object.clone()),
            };
            let change = Change {
                object: object.clone(),
                previous: previous.cloned(),
            };
            let wakers = table.watchers.notice(&change);
            table.history.push(change);
            inner.version = version;
            (object, wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
        Ok(object)
    }

    /// Forgets the past: what asks for a version before the present one is answered with 410 from now on.
    pub(crate) fn compact(&self) {
        let mut inner = self.inner.lock();
        let version = inner.version;
        for table in &mut inner.tables {
            table.history.compact(version);
        }
    }

    /// Ends all watches that are open, as if their time were up.
    pub(crate) fn end_watches(&self) {
        self.disturb(|_| {}, |watchers| watchers.end_all(End::Ended));
    }

    /// Pauses all watches, or lets them continue.
    #[cfg(feature = "faults")]
    pub(crate) fn pause(&self, paused: bool) {
        self.disturb(|inner| inner.paused = paused, Watchers::wake_all);
    }

    /// Breaks all watches that are open.
    #[cfg(feature = "faults")]
    pub(crate) fn cut(&self) {
        self.disturb(|_| {}, |watchers| watchers.end_all(End::Cut));
    }

    fn disturb(&self, state: impl FnOnce(&mut Inner), wake: fn(&mut Watchers) -> Vec<Waker>) {
        let wakers: Vec<_> = {
            let mut inner = self.inner.lock();
            state(&mut inner);
            inner
                .tables
                .iter_mut()
                .flat_map(|table| wake(&mut table.watchers))
                .collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Number of watches that are open.
    pub(crate) fn watchers(&self) -> usize {
        let inner = self.inner.lock();
        inner.tables.iter().map(|table| table.watchers.len()).sum()
    }
}

impl Inner {
    fn table(&mut self, kind: ApiKind) -> &mut Table {
        &mut self.tables[kind as usize]
    }
}

impl Table {
    /// The objects of `filter`'s namespace after `after`, as they were at `version`, in order.
    fn at(
        &self,
        version: u64,
        filter: &Filter,
        after: Option<&ObjectKey>,
    ) -> Result<Vec<Arc<Object>>, Compacted> {
        // What has changed since, each with the oldest state that a later change replaced.
        let mut undone: BTreeMap<&ObjectKey, Option<&Arc<Object>>> = BTreeMap::new();
        for change in self.history.after(version)?.rev() {
            undone.insert(&change.object.key, change.previous.as_ref());
        }
        let namespace = filter.namespace.as_ref();
        let wanted = |key: &ObjectKey| {
            namespace.is_none_or(|namespace| *namespace == key.namespace)
                && after.is_none_or(|after| after < key)
        };
        if let (Some(namespace), Some(name)) = (namespace, filter.name())
            && undone.is_empty()
        {
            let key = ObjectKey::new(namespace.clone(), name.clone());
            let found = self.objects.get(&key).filter(|_| wanted(&key));
            return Ok(found.cloned().into_iter().collect());
        }
        let first = match (after, namespace) {
            (Some(after), _) => Bound::Excluded(after.clone()),
            (None, Some(namespace)) => {
                Bound::Included(ObjectKey::new(namespace.clone(), SmolStr::default()))
            }
            (None, None) => Bound::Unbounded,
        };
        let mut objects: Vec<_> = self
            .objects
            .range((first, Bound::Unbounded))
            .take_while(|(key, _)| namespace.is_none_or(|namespace| *namespace == key.namespace))
            .filter(|(key, _)| !undone.contains_key(key))
            .map(|(_, object)| object.clone())
            .collect();
        if !undone.is_empty() {
            let restored = undone.into_iter().filter(|(key, _)| wanted(key));
            objects.extend(restored.filter_map(|(_, object)| object.cloned()));
            objects.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(objects)
    }
}

#[cfg(test)]
mod tests;
