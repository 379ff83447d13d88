//! The stores of a manager's objects: one per change detection strategy.
//!
//! All stores share the [`Entries`]: the referenced objects, with the references to each and their sequence numbers, and
//! the subscriptions to their changes.
//! [`Store`] is their common part.

pub(crate) mod caching;
pub(crate) mod entries;
pub(crate) mod fake;
pub(crate) mod simple;
mod waiting;
pub(crate) mod watching;

use std::{marker::PhantomData, sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt, ready};
use larder_objects::Object;
use larder_watch::{Api, RegistrationSeq};

pub(crate) use self::entries::{Cell, Entries, Entry, Reference, StoreEntries};
use self::{caching::CachingStore, fake::FakeStore, simple::SimpleStore, watching::WatchStore};
use crate::{
    config::{ManagerConfig, Strategy},
    error::Error,
    metrics::Metrics,
};

/// One store per strategy.
pub(crate) enum Store<K: Object> {
    Simple(Box<SimpleStore<K>>),
    Caching(CachingStore<K>),
    Watching(WatchStore<K>),
    Fake(Arc<FakeStore<K>>),
}

/// What the strategies have in common is this list of what they do differently.
impl<K: Object> Store<K> {
    pub(crate) fn new(api: Api, config: &ManagerConfig, metrics: Arc<dyn Metrics>) -> Self {
        let random = match config.seed {
            Some(seed) => fastrand::Rng::with_seed(seed),
            None => fastrand::Rng::new(),
        };
        match config.strategy {
            Strategy::Get => Self::Simple(Box::new(SimpleStore::new(api, metrics))),
            Strategy::Cache => Self::Caching(CachingStore::new(api, config, metrics, random)),
            Strategy::Watch => Self::Watching(WatchStore::new(api, config, metrics, random)),
        }
    }

    /// The referenced objects.
    pub(crate) fn entries(&self) -> &dyn StoreEntries<K> {
        match self {
            Self::Simple(store) => &store.entries,
            Self::Caching(store) => &store.inner.entries,
            Self::Watching(store) => &store.inner.entries,
            Self::Fake(store) => &store.entries,
        }
    }

    /// Adds a reference.
    pub(crate) fn add_reference(&self, namespace: &str, name: &str) -> Reference<K> {
        match self {
            Self::Simple(store) => store
                .entries
                .add(namespace, name, Unkept::default)
                .reference(),
            Self::Caching(store) => store.add_reference(namespace, name),
            Self::Watching(store) => store.add_reference(namespace, name),
            Self::Fake(store) => store
                .entries
                .add(namespace, name, Unkept::default)
                .reference(),
        }
    }

    /// Drops a reference.
    pub(crate) fn drop_reference(&self, reference: &Reference<K>) {
        let entry = &reference.entry;
        match self {
            Self::Simple(store) => drop(store.entries.remove(entry)),
            Self::Caching(store) => drop(store.inner.entries.remove(entry)),
            Self::Watching(store) => store.drop_reference(entry),
            Self::Fake(store) => drop(store.entries.remove(entry)),
        }
    }

    /// The object, waited for at most for `within`, as new as the strategy promises to a reference that began with
    /// `required`, or to every reference.
    ///
    /// Each future is boxed by itself: hundreds wait when a node starts, and one that only waits is a fraction of one
    /// that asks. Nearly all reads get what they want from [`read_now`](StoreEntries::read_now).
    pub(crate) fn get<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        required: Option<RegistrationSeq>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Arc<K>, Error>> {
        match self {
            Self::Simple(store) => store.get(namespace, name, within).boxed(),
            Self::Caching(store) => store.get(namespace, name, required, within).boxed(),
            Self::Watching(store) => store.get(namespace, name, required, within).boxed(),
            Self::Fake(store) => ready(store.get(namespace, name)).boxed(),
        }
    }

    pub(crate) fn needs_registration(&self) -> bool {
        !matches!(self, Self::Simple(_))
    }

    /// The store of strategy `Watch`, the only one with copies, choices of scope, and a task.
    pub(crate) fn watching(&self) -> Option<&WatchStore<K>> {
        match self {
            Self::Watching(store) => Some(store),
            Self::Simple(_) | Self::Caching(_) | Self::Fake(_) => None,
        }
    }
}

/// The cell of an object of which a store keeps nothing.
pub(crate) type Unkept<K> = PhantomData<fn() -> K>;

impl<K: Object> Cell for Unkept<K> {
    type Object = K;
}
