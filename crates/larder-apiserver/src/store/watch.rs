//! Watchers: which of them a change affects, and how they catch up.
//!
//! A watcher has no queue. A change that its filter lets through marks it as pending from that version on and wakes it;
//! it then reads what it missed from the history. So a thousand watchers share one copy of the past, and one that is
//! too slow finds the version it is pending from compacted.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    task::{Poll, Waker},
};

use larder_objects::ObjectKey;
use smol_str::SmolStr;

use super::{Compacted, Store, history::Change};
use crate::{
    object::{EventType, Object},
    resource::ApiKind,
    selector::Filter,
};

/// The start of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the present state, each object as added.
    State,
    /// After a version.
    After(u64),
}

/// The result of a read from a watcher.
#[derive(Debug)]
pub(crate) enum Taken {
    /// Changes, never none, oldest first.
    Events(Vec<WatchEvent>),
    /// Changes that this watcher has not seen are forgotten.
    Expired,
    /// The watch is over.
    Over(End),
}

/// How a watch comes to its end from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In order: the server goes down.
    Ended,
    /// A fault breaks the connection.
    #[cfg(feature = "faults")]
    Cut,
}

/// A change as a watcher sees it through its filter.
#[derive(Clone, Debug)]
pub(crate) struct WatchEvent {
    pub(crate) event: EventType,
    pub(crate) object: Arc<Object>,
}

/// An open watch; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    store: Arc<Store>,
    kind: ApiKind,
    id: WatcherId,
}

type WatcherId = u64;

#[derive(Debug, Default)]
pub(super) struct Watchers {
    last_id: WatcherId,
    by_id: BTreeMap<WatcherId, Watcher>,
    by_scope: HashMap<Scope, BTreeSet<WatcherId>>,
    /// How many watchers changes were compared with.
    #[cfg(test)]
    pub(super) compared: usize,
}

/// The namespace and the name that a filter insists on.
type Scope = (Option<SmolStr>, Option<SmolStr>);

fn scope(filter: &Filter) -> Scope {
    (filter.namespace.clone(), filter.name().cloned())
}

#[derive(Debug)]
struct Watcher {
    filter: Arc<Filter>,
    /// The first change that waits to be taken.
    pending: Option<u64>,
    /// Wakes the stream that waits for a change.
    waker: Option<Waker>,
    /// The watch is over.
    end: Option<End>,
}

impl Store {
    /// Opens a watch. Returns it with the state it begins from (empty for [`Start::After`]) and the version of that
    /// state.
    ///
    /// # Errors
    ///
    /// The version to begin after is older than the history.
    pub(crate) fn watch(
        self: &Arc<Self>,
        kind: ApiKind,
        filter: Arc<Filter>,
        start: Start,
    ) -> Result<(Watch, Vec<Arc<Object>>, u64), Compacted> {
        let mut inner = self.inner.lock();
        let version = inner.version;
        let table = inner.table(kind);
        let (mut state, pending) = match start {
            Start::State => {
                let state = table.at(version, &filter, None)?;
                (state, None)
            }
            Start::After(version) => {
                let mut changes = table.history.after_for(version, &filter)?;
                let missed = changes.find(|change| change.concerns(&filter));
                (Vec::new(), missed.map(|change| change.object.version))
            }
        };
        let watcher = Watcher {
            filter: filter.clone(),
            pending,
            waker: None,
            end: None,
        };
        let id = table.watchers.insert(watcher);
        drop(inner);
        let store = self.clone();
        // After the lock: a selector may be long.
        state.retain(|object| filter.matches(object));
        Ok((Watch { store, kind, id }, state, version))
    }
}

impl Watch {
    /// The changes since the last call; waits while there are none.
    pub(crate) fn poll_take(&self, waker: &Waker) -> Poll<Taken> {
        let mut inner = self.store.inner.lock();
        let paused = inner.paused;
        let table = inner.table(self.kind);
        let watcher = table.watchers.get(self.id);
        if let Some(end) = watcher.end {
            return Poll::Ready(Taken::Over(end));
        }
        let Some(pending) = watcher.pending.take_if(|_| !paused) else {
            watcher
                .waker
                .get_or_insert_with(|| waker.clone())
                .clone_from(waker);
            return Poll::Pending;
        };
        let filter = watcher.filter.clone();
        match table.history.after_for(pending - 1, &filter) {
            Ok(changes) => Poll::Ready(Taken::Events(
                changes
                    .filter_map(|change| change.through(&filter))
                    .collect(),
            )),
            Err(Compacted { .. }) => Poll::Ready(Taken::Expired),
        }
    }

    /// The version that this watcher is in step with; `None` while changes wait for it.
    pub(crate) fn in_step_with(&self) -> Option<u64> {
        let mut inner = self.store.inner.lock();
        let (version, paused) = (inner.version, inner.paused);
        let watcher = inner.table(self.kind).watchers.get(self.id);
        (watcher.pending.is_none() && !paused).then_some(version)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut inner = self.store.inner.lock();
        inner.table(self.kind).watchers.remove(self.id);
    }
}

impl Watchers {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    fn insert(&mut self, watcher: Watcher) -> WatcherId {
        self.last_id += 1;
        self.by_scope
            .entry(scope(&watcher.filter))
            .or_default()
            .insert(self.last_id);
        self.by_id.insert(self.last_id, watcher);
        self.last_id
    }

    fn get(&mut self, id: WatcherId) -> &mut Watcher {
        self.by_id
            .get_mut(&id)
            .expect("a watch removes its watcher when it is dropped, not before")
    }

    fn remove(&mut self, id: WatcherId) {
        let Some(watcher) = self.by_id.remove(&id) else {
            return;
        };
        let scope = scope(&watcher.filter);
        if let Some(ids) = self.by_scope.get_mut(&scope) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_scope.remove(&scope);
            }
        }
    }

    /// Marks the watchers that `change` concerns, and returns their wakers.
    pub(super) fn notice(&mut self, change: &Change) -> Vec<Waker> {
        let ObjectKey { namespace, name } = &change.object.key;
        let [namespace, name] = [namespace, name].map(|part| Some(part.clone()));
        let scopes = [
            (namespace.clone(), name.clone()),
            (namespace, None),
            (None, name),
            (None, None),
        ];
        let ids = scopes.iter().filter_map(|scope| self.by_scope.get(scope));
        let mut wakers = Vec::new();
        for id in ids.flatten() {
            let watcher = self
                .by_id
                .get_mut(id)
                .expect("the index holds ids of `by_id`");
            #[cfg(test)]
            {
                self.compared += 1;
            }
            if watcher.pending.is_none() && change.concerns(&watcher.filter) {
                watcher.pending = Some(change.object.version);
                wakers.extend(watcher.waker.take());
            }
        }
        wakers
    }

    /// Ends all watches, and returns their wakers.
    pub(super) fn end_all(&mut self, end: End) -> Vec<Waker> {
        for watcher in self.by_id.values_mut() {
            watcher.end = Some(end);
        }
        self.wake_all()
    }

    pub(super) fn wake_all(&mut self) -> Vec<Waker> {
        let watchers = self.by_id.values_mut();
        watchers
            .filter_map(|watcher| watcher.waker.take())
            .collect()
    }
}

impl Change {
    /// Whether a watcher with `filter` sees this change at all.
    fn concerns(&self, filter: &Filter) -> bool {
        let previous = self.previous.as_ref();
        filter.matches(&self.object) || previous.is_some_and(|object| filter.matches(object))
    }

    /// This change as a watcher with `filter` sees it: an object that begins to match is added, one that stops is
    /// deleted.
    fn through(&self, filter: &Filter) -> Option<WatchEvent> {
        let before = self
            .previous
            .as_ref()
            .filter(|object| filter.matches(object));
        let deleted = self.object.event == EventType::Deleted;
        let after = (!deleted && filter.matches(&self.object)).then_some(&self.object);
        let (event, object) = match (before, after) {
            (None, None) => return None,
            (None, Some(after)) => (EventType::Added, after.clone()),
            (Some(_), Some(after)) => (EventType::Modified, after.clone()),
            (Some(_), None) if deleted => (EventType::Deleted, self.object.clone()),
            // The state that matched, with the version at which it stopped.
            (Some(before), None) => {
                let last = before.deleted_at(self.object.version);
                (last.event, Arc::new(last))
            }
        };
        Some(WatchEvent { event, object })
    }
}
