//! The manager of one kind of objects: a registration and a store.

#[cfg(feature = "metrics")]
mod metered;

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::{ConfigMap, Object, ObjectKey, PodIdentity, Secret};
use larder_watch::{Api, REQUEST_TIMEOUT};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    changes::Changes,
    config::{ConfigError, ManagerConfig, NodeTtl, Strategy},
    error::{Error, ErrorKind},
    metrics::Metrics,
    registration::{Hold, PodRef, PodReferences, Registrations},
    status::{KnownObject, NamespaceScope, ObjectStatus, StaleObject},
    store::{Reference, Store, fake::FakeObjects, watching::WatchStore},
};

/// The manager of ConfigMaps.
pub type ConfigMapManager = ObjectManager<ConfigMap>;

/// The manager of Secrets.
pub type SecretManager = ObjectManager<Secret>;

/// Delivers the objects of kind `K` that registered pods refer to. Cloning is cheap; all clones are one manager, and
/// what it runs ends with the last of them.
///
/// ```no_run
/// use larder::{ManagerConfig, SecretManager};
///
/// # async fn example(client: kube::Client, pod: k8s_openapi::api::core::v1::Pod) -> Result<(), Box<dyn std::error::Error>> {
/// let secrets = SecretManager::new(client, &ManagerConfig::default())?;
/// let mut changes = secrets.subscribe();
///
/// secrets.register_pod(&pod);                        // watches what the pod refers to, waits for nothing
/// let tls = secrets.get("prod", "tls").await?;       // waits for the first answer, at most a second
/// println!("{} keys", tls.data.len());
///
/// while let Some(change) = changes.next().await {    // and hears of every later change
///     println!("{}: {:?}", change.key, change.kind);
/// }
/// secrets.unregister_pod(&pod);
/// # Ok(())
/// # }
/// ```
pub struct ObjectManager<K: Object> {
    inner: Arc<Inner<K>>,
}

struct Inner<K: Object> {
    /// Which pods are registered. Locked while the references of one pod change; by a read only if it waits, or if it
    /// names its pod instead of holding the guard.
    registrations: Mutex<Registrations<Reference<K>>>,
    store: Store<K>,
    read_timeout: Duration,
}

impl<K: Object> Clone for ObjectManager<K> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<K: Object> fmt::Debug for ObjectManager<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectManager")
            .field("kind", &K::TYPE.kind)
            .field("objects", &self.inner.store.entries().len())
            .finish_non_exhaustive()
    }
}

impl<K: Object> ObjectManager<K> {
    /// A manager with the strategy of `config`.
    ///
    /// # Errors
    ///
    /// `config` is not valid.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime, under strategy `Watch`: its worker runs there.
    pub fn new(client: kube::Client, config: &ManagerConfig) -> Result<Self, ConfigError> {
        Self::counted_in(client, config, Arc::new(()))
    }

    fn counted_in(
        client: kube::Client,
        config: &ManagerConfig,
        metrics: Arc<dyn Metrics>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let store = Store::new(Api::new(client), config, metrics);
        let read_timeout = match config.strategy {
            Strategy::Watch => config.read_timeout,
            // The reader drives the request itself and gets its answer, however slow the API server is.
            Strategy::Get | Strategy::Cache => REQUEST_TIMEOUT,
        };
        Ok(Self::over(store, read_timeout))
    }

    fn over(store: Store<K>, read_timeout: Duration) -> Self {
        Self {
            inner: Arc::new(Inner {
                registrations: Mutex::default(),
                store,
                read_timeout,
            }),
        }
    }

    /// A manager with strategy `Get` and the defaults: every read asks the API server, no registration is needed.
    pub fn simple(client: kube::Client) -> Self {
        Self::of(client, Strategy::Get)
    }

    /// A manager with strategy `Cache` and the defaults; `node_ttl` is the time for which an answer is good.
    pub fn caching(client: kube::Client, node_ttl: NodeTtl) -> Self {
        let config = ManagerConfig::default()
            .strategy(Strategy::Cache)
            .node_ttl(node_ttl);
        Self::new(client, &config).expect("the defaults are valid")
    }

    /// A manager without API server, for tests: it delivers what the test puts behind it.
    pub fn fake() -> (Self, FakeObjects<K>) {
        let objects = FakeObjects::new();
        let store = Store::Fake(Arc::clone(&objects.store));
        let manager = Self::over(store, ManagerConfig::default().read_timeout);
        (manager, objects)
    }

    /// A manager with strategy `Watch` and the defaults: one watch per referenced object.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn watching(client: kube::Client) -> Self {
        Self::of(client, Strategy::Watch)
    }

    fn of(client: kube::Client, strategy: Strategy) -> Self {
        let config = ManagerConfig::default().strategy(strategy);
        Self::new(client, &config).expect("the defaults are valid")
    }

    /// Registers `pod` with everything it refers to; from now on these objects can be read, and stay up to date.
    ///
    /// Never waits. Call it again whenever the pod has changed: references that are new are added, those that are gone
    /// are dropped, and nothing happens to the others.
    pub fn register_pod(&self, pod: &Pod) {
        self.register(pod, Hold::Plain, |_| ());
    }

    /// Ends the registration of the pod with the namespace, name and UID of `pod`, whatever else `pod` says.
    ///
    /// Never waits. The last reference on an object ends its watch for good. Does nothing if the pod is not registered.
    pub fn unregister_pod(&self, pod: &Pod) {
        self.unregister(PodRef::of(pod), Hold::Plain);
    }

    /// Registers `pod` for as long as the returned guard lives, whatever else is registered or unregistered meanwhile.
    ///
    /// The guard's reads are those of this pod: they never see data older than its registration, and a registration
    /// of another pod never makes them wait. They are also the quickest, since the guard holds the pod's references.
    pub fn registered(&self, pod: &Pod) -> RegisteredPod<K> {
        RegisteredPod {
            references: self.register(pod, Hold::Guard, |registrations| {
                let references = registrations.references(PodRef::of(pod));
                Arc::clone(references.expect("the pod has just been registered"))
            }),
            manager: self.clone(),
            pod: PodRef::of(pod).into(),
        }
    }

    /// The object, not older than the newest registration of a pod that refers to it.
    ///
    /// An object that is known is returned without waiting. Otherwise waits for the first answer, or until the known
    /// state is confirmed to be new enough, at most for [`ManagerConfig::read_timeout`].
    ///
    /// # Errors
    ///
    /// See [`Error`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing; what is under way goes on for the next read.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Arc<K>, Error> {
        let within = self.inner.read_timeout;
        self.get_within(namespace, name, within).await
    }

    /// [`get`](Self::get) that waits at most for `within`.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub async fn get_within(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<Arc<K>, Error> {
        let store = &self.inner.store;
        match store.entries().read_now(namespace, name) {
            Some(object) => Ok(object),
            None => store.get(namespace, name, None, within).await,
        }
    }

    /// The object as `pod` may see it: not older than the pod's own registration.
    ///
    /// Unlike [`get`](Self::get) it does not wait when another pod has just registered, so that a running pod goes on
    /// with the known state while the API server is unreachable.
    ///
    /// # Errors
    ///
    /// See [`Error`]; also [`ErrorKind::NotRegistered`] if `pod` itself does not refer to the object (not under strategy
    /// `Get`, which needs no registration).
    pub async fn get_for(&self, pod: &PodIdentity, name: &str) -> Result<Arc<K>, Error> {
        self.get_as(pod.into(), name, self.inner.read_timeout).await
    }

    async fn get_as(&self, pod: PodRef<'_>, name: &str, within: Duration) -> Result<Arc<K>, Error> {
        let reference = {
            let registrations = self.inner.registrations.lock();
            let references = registrations.references(pod);
            references.and_then(|references| references.find(name).cloned())
        };
        let store = &self.inner.store;
        if reference.is_none() && store.needs_registration() {
            let key = ObjectKey::new(pod.namespace, name);
            return Err(ErrorKind::NotRegistered { key }.into());
        }
        if let Some(object) = reference.as_ref().and_then(Reference::read_now) {
            return Ok(object);
        }
        let required = reference.map(|reference| reference.since);
        store.get(pod.namespace, name, required, within).await
    }

    /// Serves copies that an earlier process kept: for a start while the API server cannot be reached.
    ///
    /// Objects that are referenced and of which nothing is known become
    /// [`ObjectState::Stale`](crate::ObjectState::Stale), and so do those that are referenced later, until
    /// [`end_stale`](Self::end_stale). Subscribers hear of each. Nothing else changes: the API server is asked as ever,
    /// and its first answer about an object replaces the copy, whatever its version. An answer of 401 or 403 withdraws
    /// it. Has an effect under strategy `Watch` only.
    pub fn serve_stale(&self, objects: HashMap<ObjectKey, StaleObject<K>>) {
        // New references wait, so that each is served once.
        let _registrations = self.inner.registrations.lock();
        if let Some(store) = self.inner.store.watching() {
            store.serve_stale(objects);
        }
    }

    /// New references need an answer of the API server again. Copies that are served stay so until the API server has
    /// answered about them.
    pub fn end_stale(&self) {
        self.serve_stale(HashMap::new());
    }

    /// When the copy that reads get was made; `None` if they get no copy.
    ///
    /// Ask before the read: an object never becomes stale, so what is read after `None` is no copy.
    pub fn stale_as_of(&self, namespace: &str, name: &str) -> Option<Timestamp> {
        self.inner.store.watching()?.stale_as_of(namespace, name)
    }

    /// What is known of every referenced object, in no order; nothing under strategies other than `Watch`.
    pub fn known(&self) -> Vec<KnownObject<K>> {
        self.inner
            .store
            .watching()
            .map_or_else(Vec::new, |store| store.known(Instant::now()))
    }

    /// The changes of all referenced objects from now on.
    ///
    /// Subscribe before registering to miss none. Under strategy `Get` there are none.
    pub fn subscribe(&self) -> Changes {
        self.inner.store.entries().changes().subscribe(None)
    }

    /// The changes of one object, while it is referenced. Otherwise as [`subscribe`](Self::subscribe).
    pub fn subscribe_to(&self, namespace: &str, name: &str) -> Changes {
        let only = ObjectKey::new(namespace, name);
        self.inner.store.entries().changes().subscribe(Some(only))
    }

    /// Every referenced object with its state and the pods that refer to it, sorted by name.
    pub fn objects(&self) -> Vec<ObjectStatus> {
        let mut pods = HashMap::<_, Vec<_>>::new();
        for (pod, names) in self.inner.registrations.lock().pods() {
            for name in names {
                let key = ObjectKey::new(pod.namespace.clone(), name.clone());
                pods.entry(key).or_default().push(pod.clone());
            }
        }
        let mut objects = self.inner.store.entries().status(pods, Instant::now());
        objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        objects
    }

    /// What [`WatchScope::Auto`](crate::WatchScope::Auto) chose, for each namespace with references, sorted; the choice
    /// for a namespace is missing until it was made.
    pub fn scopes(&self) -> Vec<NamespaceScope> {
        self.inner
            .store
            .watching()
            .map_or_else(Vec::new, WatchStore::scopes)
    }

    /// The registered pods, sorted.
    pub fn pods(&self) -> Vec<PodIdentity> {
        let registrations = self.inner.registrations.lock();
        let mut pods: Vec<_> = registrations.pods().map(|(pod, _)| pod).collect();
        pods.sort_unstable();
        pods
    }

    /// Ends all watches and waits until nothing of the manager runs. Reads fail from then on, except those of immutable
    /// objects; the streams of subscribers end.
    pub async fn shut_down(&self) {
        // Under the other strategies nothing runs but what readers drive.
        if let Some(store) = self.inner.store.watching() {
            store.shut_down().await;
        }
    }

    fn register<T>(
        &self,
        pod: &Pod,
        hold: Hold,
        then: impl FnOnce(&Registrations<Reference<K>>) -> T,
    ) -> T {
        let namespace = PodRef::of(pod).namespace;
        let store = &self.inner.store;
        let add = |name: &str| store.add_reference(namespace, name);
        let release = |reference: &_| store.drop_reference(reference);
        let mut registrations = self.inner.registrations.lock();
        registrations.register::<K>(pod, hold, add, release);
        then(&registrations)
    }

    fn unregister(&self, pod: PodRef<'_>, hold: Hold) {
        let store = &self.inner.store;
        let release = |reference: &_| store.drop_reference(reference);
        let mut registrations = self.inner.registrations.lock();
        registrations.unregister(pod, hold, release);
    }
}

/// Keeps a pod registered; made by [`ObjectManager::registered`].
#[must_use = "the pod is registered only as long as the guard lives"]
pub struct RegisteredPod<K: Object> {
    manager: ObjectManager<K>,
    pod: PodIdentity,
    references: Arc<PodReferences<Reference<K>>>,
}

impl<K: Object> fmt::Debug for RegisteredPod<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegisteredPod").field(&self.pod).finish()
    }
}

impl<K: Object> RegisteredPod<K> {
    /// The registered pod.
    pub fn pod(&self) -> &PodIdentity {
        &self.pod
    }

    /// The object `name` in the pod's namespace, not older than this pod's reference on it.
    ///
    /// # Errors
    ///
    /// See [`Error`]; [`ErrorKind::NotRegistered`] only if the pod does not refer to the object.
    pub async fn get(&self, name: &str) -> Result<Arc<K>, Error> {
        self.get_within(name, self.manager.inner.read_timeout).await
    }

    /// [`get`](Self::get) that waits at most for `within`.
    ///
    /// # Errors
    ///
    /// As for `get`.
    pub async fn get_within(&self, name: &str, within: Duration) -> Result<Arc<K>, Error> {
        let reference = self.references.current(name);
        match reference.and_then(Reference::read_now) {
            Some(object) => Ok(object),
            None => self.manager.get_as((&self.pod).into(), name, within).await,
        }
    }

    /// [`ObjectManager::stale_as_of`] of the object `name` in the pod's namespace.
    pub fn stale_as_of(&self, name: &str) -> Option<Timestamp> {
        match self.references.current(name) {
            Some(reference) => reference.entry.cell.stale_as_of(),
            None => self.manager.stale_as_of(&self.pod.namespace, name),
        }
    }
}

impl<K: Object> Drop for RegisteredPod<K> {
    fn drop(&mut self) {
        self.manager.unregister((&self.pod).into(), Hold::Guard);
    }
}
