//! Watches a whole collection: the pods of a node, its Node, the Services.
//!
//! It uses the same [engine](crate::Engine) as the managers, and no typed method of `kube`. Objects are not kept here;
//! every change is passed on.
//!
//! Invariants:
//! 1. An object that cannot be decoded is reported, by name if possible, and the other objects are passed on.
//! 2. While the API server is unreachable or rejects requests, nothing is reported about the objects.

use std::{collections::BTreeMap, fmt, marker::PhantomData, sync::Arc};

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1 as meta};
use larder_objects::{DecodeError, ObjectKey, ObjectMeta, ResourceVersion};
use larder_transport::path::CollectionPath;
use serde::de::DeserializeOwned;

use crate::{
    api::Api,
    context::NodeContext,
    engine::Engine,
    error::{RequestError, RequestFailure},
    proof::CollectionFreshness,
    reflector::MinFreshness,
    report::{Report, TargetId},
    target::{Head, Target},
};

/// Watches the objects of type `K` at one path. They are not kept.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::Service;
/// use larder_transport::path::Resource;
/// use larder_watch::{NodeContext, collection::{Collection, CollectionEvent}};
///
/// # async fn example(client: kube::Client) {
/// let services = Resource::core("services").collection();
/// let mut services = Collection::<Service>::new(client, services, None, &NodeContext::default());
/// loop {
///     match services.next().await {
///         CollectionEvent::All(services) => println!("{} in all", services.len()),
///         CollectionEvent::One(service) => println!("{} is new or changed", service.metadata.name),
///         CollectionEvent::Gone(metadata) => println!("{} is gone", metadata.name),
///         CollectionEvent::Failed(failure) => println!("{failure}: {}, will retry", failure.error),
///         CollectionEvent::Resumed => println!("in sync"),
///     }
/// }
/// # }
/// ```
#[expect(missing_debug_implementations, reason = "it holds requests under way")]
pub struct Collection<K: CollectionItem> {
    engine: Engine<Arc<Objects<K>>>,
    freshness: CollectionFreshness,
}

/// A type of objects in a collection.
pub trait CollectionItem:
    DeserializeOwned + Metadata<Ty = meta::ObjectMeta> + Send + fmt::Debug + 'static
{
}

impl<K> CollectionItem for K where
    K: DeserializeOwned + Metadata<Ty = meta::ObjectMeta> + Send + fmt::Debug + 'static
{
}

/// A report about a collection.
#[derive(Debug)]
pub enum CollectionEvent<K> {
    /// These are all objects, sorted by namespace and name.
    All(Vec<Found<K>>),
    /// This object is new or changed.
    One(Found<K>),
    /// The object with this metadata is gone.
    Gone(ObjectMeta),
    /// A request failed and will be repeated; the known state may be stale from now on.
    Failed(RequestFailure),
    /// The known state is in sync again.
    Resumed,
}

/// One object as the API server has it.
#[derive(Debug)]
pub struct Found<K> {
    /// Which object it is, in which version. What cannot be decoded of it is empty.
    pub metadata: ObjectMeta,
    /// The object, or why it cannot be decoded.
    pub object: Result<K, DecodeError>,
}

/// The one target of the engine.
const TARGET: TargetId = TargetId::Collection(0);

impl<K: CollectionItem> Collection<K> {
    /// The objects at `path`, or those among them that `field_selector` picks. Nothing is requested before the first
    /// [`next`](Self::next). All collections and managers of a node that use one API server share a `context`.
    pub fn new(
        client: kube::Client,
        path: CollectionPath,
        field_selector: Option<&str>,
        context: &NodeContext,
    ) -> Self {
        let objects = Objects {
            path,
            field_selector: field_selector.map(str::to_owned),
            kind: PhantomData,
        };
        let random = context.fork_random();
        let mut engine = Engine::new(Api::new(client), 1, Arc::default(), context, random);
        engine.add(TARGET, Arc::new(objects));
        let mut collection = Self {
            engine,
            freshness: CollectionFreshness::default(),
        };
        collection.relist();
        collection
    }

    /// Keeps in `freshness` how fresh is what it has passed on. Of several collections that keep one, one is followed at a
    /// time.
    #[must_use]
    pub fn proving(mut self, freshness: &CollectionFreshness) -> Self {
        self.freshness = freshness.clone();
        self
    }

    /// Asks for all objects once more.
    pub fn relist(&mut self) {
        self.engine.start(TARGET, MinFreshness::Newest);
    }

    /// The next event; first of all, all objects, unless a request fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> CollectionEvent<K> {
        loop {
            let (_, report) = self.engine.next().await;
            self.freshness.take(&report);
            return match report {
                Report::Synced(snapshot) => {
                    CollectionEvent::All(snapshot.state.into_values().collect())
                }
                Report::Changed(found) => CollectionEvent::One(found),
                Report::Deleted(metadata, _) => CollectionEvent::Gone(metadata),
                Report::Failed(failure) => CollectionEvent::Failed(failure),
                Report::Resumed(_) => CollectionEvent::Resumed,
                Report::Interrupted { .. }
                | Report::Responded { .. }
                | Report::Confirmed(_)
                | Report::CheckFailed(..)
                | Report::CheckDue => continue,
            };
        }
    }
}

/// The objects at a path.
#[derive(Debug)]
struct Objects<K> {
    path: CollectionPath,
    field_selector: Option<String>,
    kind: PhantomData<fn() -> K>,
}

impl<K: CollectionItem> Target for Arc<Objects<K>> {
    type Item = Found<K>;
    type Tombstone = ObjectMeta;
    type State = BTreeMap<ObjectKey, Found<K>>;

    const KIND: &'static str = K::KIND;
    const SECRET: bool = false;

    fn path(&self) -> Result<CollectionPath, RequestError> {
        Ok(self.path.clone())
    }

    fn name(&self) -> Option<&str> {
        None
    }

    fn field_selector(&self) -> Option<String> {
        self.field_selector.clone()
    }

    fn read(&self, json: &[u8]) -> Result<Option<Found<K>>, RequestError> {
        let object = serde_json::from_slice::<K>(json);
        let metadata = match &object {
            Ok(object) => identity(object.metadata()),
            Err(_) => Head::of(json).metadata,
        };
        let object = object.map_err(|error| DecodeError::new(K::KIND, &error));
        Ok(Some(Found { metadata, object }))
    }

    fn gone(&self, head: Head) -> Option<ObjectMeta> {
        Some(head.metadata)
    }

    fn version(found: &Found<K>) -> &ResourceVersion {
        &found.metadata.resource_version
    }

    fn add(state: &mut Self::State, found: Found<K>) {
        state.insert(found.metadata.key(), found);
    }

    fn remove(state: &mut Self::State, gone: &ObjectMeta) {
        state.remove(&gone.key());
    }

    fn into_item(mut state: Self::State) -> Option<Found<K>> {
        Some(state.pop_first()?.1)
    }
}

/// What identifies an object and its version; empty where it has none.
fn identity(metadata: &meta::ObjectMeta) -> ObjectMeta {
    let text = |field: &Option<String>| field.as_deref().unwrap_or_default().to_owned();
    ObjectMeta {
        namespace: text(&metadata.namespace).into(),
        name: text(&metadata.name).into(),
        uid: text(&metadata.uid).as_str().into(),
        resource_version: ResourceVersion::new(text(&metadata.resource_version)),
        ..ObjectMeta::default()
    }
}
