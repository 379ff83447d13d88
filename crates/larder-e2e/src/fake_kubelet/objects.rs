//! The ConfigMaps and Secrets as the kubelet sees them: their history, and the state that a reader gets.
//!
//! One watch for each kind stands in for the kubelet's watches by object. The history and the strategy decide the state
//! that a reader gets when it asks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{self as core, Node};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams},
};
use larder_objects::{Kind, Object, ObjectKey};
use larder_projection::{Need, Unavailable};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::KubeletContext;

/// `configMapAndSecretChangeDetectionStrategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectStrategy {
    /// The history from the watches.
    Watch,
    /// The copy fetched last, for the time in the Node's annotation.
    Cache,
    /// The present state.
    Get,
}

/// TTL of `Cache` without the annotation (kubelet 1.36, `pkg/kubelet/util/manager/cache_based_manager.go`).
const DEFAULT_TTL: Duration = Duration::from_mins(1);
const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// States of an object that are remembered: a reader lags by less than this many changes.
const HISTORY: usize = 1024;

#[derive(Default)]
pub(super) struct Objects(Mutex<Histories>);

type KindAndKey = (Kind, ObjectKey);

/// All ConfigMaps and Secrets.
#[derive(Default)]
struct Histories {
    /// The states of each object, the latest last.
    states: BTreeMap<KindAndKey, Vec<SeenState>>,
    /// Immutable objects that were read, while a pod references them: nothing replaces them.
    pinned: BTreeMap<KindAndKey, Arc<DynamicObject>>,
    /// For `Cache`: the fetched objects and their times.
    fetched: BTreeMap<KindAndKey, (Instant, Arc<DynamicObject>)>,
}

/// A state of an object.
struct SeenState {
    /// When the change arrived; `None` for an object that was listed at the start.
    at: Option<Instant>,
    /// `None` where the object did not exist.
    object: Option<Arc<DynamicObject>>,
}

/// Reads objects at one moment.
pub(super) struct Reader<'a> {
    objects: &'a Objects,
    strategy: ObjectStrategy,
    now: Instant,
    lag: Duration,
    ttl: Duration,
}

impl Objects {
    /// Lists all objects of a kind, like a process that has just started. Returns the version at which the watch begins.
    pub(super) async fn list(&self, kubelet: &KubeletContext, kind: Kind) -> kube::Result<String> {
        let list = api(kubelet, kind).list(&ListParams::default()).await?;
        for object in list.items {
            self.note(kind, None, object, true);
        }
        Ok(list.metadata.resource_version.unwrap_or_default())
    }

    /// Forgets all objects.
    pub(super) fn forget(&self) {
        *self.0.lock() = Histories::default();
    }

    fn note(&self, kind: Kind, at: Option<Instant>, object: DynamicObject, exists: bool) {
        let mut histories = self.0.lock();
        let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
        let states = histories.states.entry((kind, key)).or_default();
        if states.len() == HISTORY {
            states.remove(0);
        }
        let object = exists.then(|| Arc::new(object));
        states.push(SeenState { at, object });
    }

    /// Reads as a kubelet on `node` does now, whose watches are so far behind.
    pub(super) fn reader(
        &self,
        strategy: ObjectStrategy,
        node: &Node,
        lag: Duration,
    ) -> Reader<'_> {
        let ttl = node.annotations().get(TTL_ANNOTATION);
        let ttl = ttl.and_then(|ttl| ttl.parse().ok());
        Reader {
            objects: self,
            strategy,
            now: Instant::now(),
            lag,
            ttl: ttl.map_or(DEFAULT_TTL, Duration::from_secs),
        }
    }

    /// Forgets immutable and cached objects that no pod references any more.
    pub(super) fn retain(&self, referenced: &BTreeSet<KindAndKey>) {
        let mut histories = self.0.lock();
        histories.pinned.retain(|key, _| referenced.contains(key));
        histories.fetched.retain(|key, _| referenced.contains(key));
    }
}

impl Reader<'_> {
    pub(super) fn read<K: Object>(
        &self,
        kind: Kind,
        namespace: &str,
        needs: &BTreeSet<Need>,
    ) -> BTreeMap<String, Result<Arc<K>, Unavailable>> {
        let objects = needs.iter().filter_map(Need::object);
        let of_kind = objects.filter(|(found, _)| *found == kind);
        let read = of_kind.map(|(kind, name)| {
            let object = self.object((kind, ObjectKey::new(namespace, name.clone())));
            let object = object.ok_or(Unavailable::NotFound).map(|object| {
                let json = serde_json::to_vec(&*object).expect("an object is JSON");
                Arc::new(K::from_json(&json).expect("the server checks its objects"))
            });
            (name.to_string(), object)
        });
        read.collect()
    }

    fn object(&self, key: KindAndKey) -> Option<Arc<DynamicObject>> {
        let mut histories = self.objects.0.lock();
        match self.strategy {
            ObjectStrategy::Get => histories.seen(&key, self.now, Duration::ZERO),
            ObjectStrategy::Cache => {
                if let Some((at, object)) = histories.fetched.get(&key)
                    && *at + self.ttl > self.now
                {
                    return Some(Arc::clone(object));
                }
                let object = histories.seen(&key, self.now, Duration::ZERO)?;
                let fetched = (self.now, Arc::clone(&object));
                histories.fetched.insert(key, fetched);
                Some(object)
            }
            ObjectStrategy::Watch => {
                if let Some(object) = histories.pinned.get(&key) {
                    return Some(Arc::clone(object));
                }
                let object = histories.seen(&key, self.now, self.lag)?;
                if object.data["immutable"] == true {
                    histories.pinned.insert(key, Arc::clone(&object));
                }
                Some(object)
            }
        }
    }
}

impl Histories {
    /// The object as it was seen `lag` ago.
    fn seen(&self, key: &KindAndKey, now: Instant, lag: Duration) -> Option<Arc<DynamicObject>> {
        let states = self.states.get(key)?;
        let is_seen = |state: &&SeenState| state.at.is_none_or(|at| at + lag <= now);
        states.iter().rev().find(is_seen)?.object.clone()
    }
}

/// Follows all objects of a kind.
pub(super) async fn follow(kubelet: Arc<KubeletContext>, kind: Kind, listed: String) {
    let api = api(&kubelet, kind);
    watch(&api, &WatchParams::default(), listed, |object, exists| {
        let now = Some(Instant::now());
        kubelet.objects.note(kind, now, object, exists);
    })
    .await;
}

/// Passes each object that changes to `note`, with whether it exists. Watches again whenever a watch ends: no test
/// interrupts the fake's own watches for longer than the server's history.
pub(super) async fn watch<R>(
    api: &Api<R>,
    params: &WatchParams,
    mut version: String,
    mut note: impl FnMut(R, bool),
) where
    R: kube::Resource + Clone + DeserializeOwned + Debug,
{
    loop {
        if let Ok(events) = api.watch(params, &version).await {
            let mut events = std::pin::pin!(events);
            while let Ok(Some(event)) = events.try_next().await {
                let (object, exists) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
                    WatchEvent::Deleted(object) => (object, false),
                    WatchEvent::Bookmark(bookmark) => {
                        version = bookmark.metadata.resource_version;
                        continue;
                    }
                    WatchEvent::Error(error) => {
                        panic!("the fake kubelet missed objects: {error:?}")
                    }
                };
                version = object.meta().resource_version.clone().unwrap_or_default();
                note(object, exists);
            }
        }
        tokio::task::yield_now().await;
    }
}

fn api(kubelet: &KubeletContext, kind: Kind) -> Api<DynamicObject> {
    let resource = match kind {
        Kind::ConfigMap => ApiResource::erase::<core::ConfigMap>(&()),
        Kind::Secret => ApiResource::erase::<core::Secret>(&()),
    };
    Api::all_with(kubelet.client.clone(), &resource)
}
