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
    Api,
    api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams},
};
use larder_objects::{ConfigMap, Object, ObjectKey, Secret};
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

#[derive(Debug, Default)]
pub(super) struct Objects {
    config_maps: Mutex<Histories<ConfigMap>>,
    secrets: Mutex<Histories<Secret>>,
}

/// All objects of a kind.
#[derive(Debug)]
struct Histories<K> {
    /// The states of each object, the latest last.
    states: BTreeMap<ObjectKey, Vec<SeenState<K>>>,
    /// Immutable objects that were read, while a pod references them: nothing replaces them.
    pinned: BTreeMap<ObjectKey, Arc<K>>,
    /// For `Cache`: the fetched objects and their times.
    fetched: BTreeMap<ObjectKey, (Instant, Arc<K>)>,
}

/// A state of an object.
#[derive(Debug)]
struct SeenState<K> {
    /// When the change arrived; `None` for an object that was listed at the start.
    at: Option<Instant>,
    /// `None` where the object did not exist.
    object: Option<Arc<K>>,
}

impl<K> Default for Histories<K> {
    fn default() -> Self {
        Self {
            states: BTreeMap::new(),
            pinned: BTreeMap::new(),
            fetched: BTreeMap::new(),
        }
    }
}

/// Reads objects at one moment.
pub(super) struct Reader<'a> {
    objects: &'a Objects,
    view: ObjectView,
}

#[derive(Clone, Copy)]
struct ObjectView {
    strategy: ObjectStrategy,
    now: Instant,
    lag: Duration,
    ttl: Duration,
}

/// The versions at which the watches begin.
pub(super) struct Listed {
    config_maps: String,
    secrets: String,
}

impl Objects {
    /// Lists all objects, like a process that has just started: objects that an earlier one has read are forgotten.
    pub(super) async fn start(&self, kubelet: &KubeletContext) -> anyhow::Result<Listed> {
        *self.config_maps.lock() = Histories::default();
        *self.secrets.lock() = Histories::default();
        Ok(Listed {
            config_maps: list::<core::ConfigMap, ConfigMap>(kubelet, &self.config_maps).await?,
            secrets: list::<core::Secret, Secret>(kubelet, &self.secrets).await?,
        })
    }

    /// Reads as a kubelet on `node` does now, whose watches are so far behind.
    pub(super) fn reader(
        &self,
        strategy: ObjectStrategy,
        node: &Node,
        lag: Duration,
    ) -> Reader<'_> {
        let annotations = node.metadata.annotations.as_ref();
        let ttl = annotations.and_then(|annotations| annotations.get(TTL_ANNOTATION)?.parse().ok());
        let view = ObjectView {
            strategy,
            now: Instant::now(),
            lag,
            ttl: ttl.map_or(DEFAULT_TTL, Duration::from_secs),
        };
        Reader {
            objects: self,
            view,
        }
    }

    /// Forgets immutable and cached objects that no pod references any more.
    pub(super) fn retain(&self, config_maps: &BTreeSet<ObjectKey>, secrets: &BTreeSet<ObjectKey>) {
        self.config_maps.lock().retain(config_maps);
        self.secrets.lock().retain(secrets);
    }
}

impl Reader<'_> {
    pub(super) fn config_map(&self, key: &ObjectKey) -> Option<Arc<ConfigMap>> {
        self.objects.config_maps.lock().read(key, self.view)
    }

    pub(super) fn secret(&self, key: &ObjectKey) -> Option<Arc<Secret>> {
        self.objects.secrets.lock().read(key, self.view)
    }
}

impl<K: Object> Histories<K> {
    fn note(&mut self, key: ObjectKey, at: Option<Instant>, object: Option<Arc<K>>) {
        let states = self.states.entry(key).or_default();
        if states.len() == HISTORY {
            states.remove(0);
        }
        states.push(SeenState { at, object });
    }

    /// The object as it was seen `lag` ago.
    fn seen(&self, key: &ObjectKey, now: Instant, lag: Duration) -> Option<Arc<K>> {
        let states = self.states.get(key)?;
        let is_seen = |state: &&SeenState<K>| state.at.is_none_or(|at| at + lag <= now);
        states.iter().rev().find(is_seen)?.object.clone()
    }

    fn read(&mut self, key: &ObjectKey, view: ObjectView) -> Option<Arc<K>> {
        match view.strategy {
            ObjectStrategy::Get => self.seen(key, view.now, Duration::ZERO),
            ObjectStrategy::Cache => {
                if let Some((at, object)) = self.fetched.get(key)
                    && *at + view.ttl > view.now
                {
                    return Some(Arc::clone(object));
                }
                let object = self.seen(key, view.now, Duration::ZERO)?;
                let fetched = (view.now, Arc::clone(&object));
                self.fetched.insert(key.clone(), fetched);
                Some(object)
            }
            ObjectStrategy::Watch => {
                if let Some(object) = self.pinned.get(key) {
                    return Some(Arc::clone(object));
                }
                let object = self.seen(key, view.now, view.lag)?;
                if object.is_immutable() {
                    self.pinned.insert(key.clone(), Arc::clone(&object));
                }
                Some(object)
            }
        }
    }

    fn retain(&mut self, referenced: &BTreeSet<ObjectKey>) {
        self.pinned.retain(|key, _| referenced.contains(key));
        self.fetched.retain(|key, _| referenced.contains(key));
    }
}

/// Stores all objects of a kind; returns the version of the list.
async fn list<R, K>(
    kubelet: &KubeletContext,
    histories: &Mutex<Histories<K>>,
) -> anyhow::Result<String>
where
    R: kube::Resource<DynamicType = ()>,
    K: Object,
{
    let list = api::<R>(kubelet).list(&ListParams::default()).await?;
    for object in &list.items {
        let (key, object) = decode(object)?;
        histories.lock().note(key, None, Some(Arc::new(object)));
    }
    Ok(list.metadata.resource_version.unwrap_or_default())
}

/// Follows all objects.
pub(super) async fn follow(kubelet: Arc<KubeletContext>, listed: Listed) {
    let (config_maps, secrets) = (&kubelet.objects.config_maps, &kubelet.objects.secrets);
    tokio::join!(
        watch_kind::<core::ConfigMap, ConfigMap>(&kubelet, config_maps, listed.config_maps),
        watch_kind::<core::Secret, Secret>(&kubelet, secrets, listed.secrets),
    );
}

async fn watch_kind<R, K>(
    kubelet: &KubeletContext,
    histories: &Mutex<Histories<K>>,
    version: String,
) where
    R: kube::Resource<DynamicType = ()>,
    K: Object,
{
    let api = api::<R>(kubelet);
    watch(&api, &WatchParams::default(), version, |object, exists| {
        let (key, decoded) = decode::<K>(&object).expect("the server checks its objects");
        let object = exists.then(|| Arc::new(decoded));
        histories.lock().note(key, Some(Instant::now()), object);
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

fn api<R: kube::Resource<DynamicType = ()>>(kubelet: &KubeletContext) -> Api<DynamicObject> {
    Api::all_with(kubelet.client.clone(), &ApiResource::erase::<R>(&()))
}

fn decode<K: Object>(object: &DynamicObject) -> anyhow::Result<(ObjectKey, K)> {
    let object = K::from_json(&serde_json::to_vec(object)?)?;
    Ok((object.metadata().key(), object))
}
