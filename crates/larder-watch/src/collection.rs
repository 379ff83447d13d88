//! Following a whole collection with the managers' watch engine: the pods of a node, its Node, the Services.
//!
//! The same rules as for the objects that pods refer to, see `watch/reflector.rs`, and again no typed method of `kube`. What an object
//! holds is not kept here: every change is handed on.
//!
//! Invariants:
//! 1. An object that cannot be decoded is named, and takes no other one with it.
//! 2. While the API server is away or refuses, nothing is said of the objects.

use std::{collections::BTreeMap, fmt, marker::PhantomData, sync::Arc};

use k8s_openapi::Resource;
use larder_objects::{DecodeError, ObjectKey, ObjectMeta, ResourceVersion};
use serde::de::DeserializeOwned;

use crate::{
    api::{self, Api, Target},
    error::RequestError,
    follower::{Follower, News},
    outages::Outages,
};

/// Follows the objects of type `K` at one path. They are not kept.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::Service;
/// use larder_watch::collection::{Change, Collection};
///
/// # async fn example(client: kube::Client) {
/// let mut services = Collection::<Service>::new(client, "/api/v1/services", None);
/// loop {
///     match services.next().await {
///         Change::All(services) => println!("{} in all", services.len()),
///         Change::One(service) => println!("{} is new or changed", service.metadata.name),
///         Change::Gone(metadata) => println!("{} is gone", metadata.name),
///         Change::Failed(error) => println!("{error}, will be tried again"),
///         Change::Resumed => println!("in step"),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Collection<K: DeserializeOwned + Resource + Send + fmt::Debug + 'static> {
    follower: Follower<Path<K>>,
}

/// What became known of a collection.
#[derive(Debug)]
pub enum Change<K> {
    /// These are all of them, sorted by namespace and name.
    All(Vec<Found<K>>),
    /// This one is new or changed.
    One(Found<K>),
    /// The one with this metadata is gone.
    Gone(ObjectMeta),
    /// A request failed and will be made again; what was known may be old from now on.
    Failed(Arc<RequestError>),
    /// What is known is in step again.
    Resumed,
}

/// One object as the API server has it.
#[derive(Debug)]
pub struct Found<K> {
    /// Which object it is, in which version.
    pub metadata: ObjectMeta,
    /// The object, or why it cannot be decoded.
    pub object: Result<K, DecodeError>,
}

impl<K: DeserializeOwned + Resource + Send + fmt::Debug + 'static> Collection<K> {
    /// The objects at `path`, or those among them that `field_selector` picks. Nothing is asked for before the first
    /// [`next`](Self::next).
    pub fn new(client: kube::Client, path: &str, field_selector: Option<&str>) -> Self {
        let path = Path {
            collection: path.into(),
            field_selector: field_selector.map(Into::into),
            kind: PhantomData,
        };
        let mut follower = Follower::new(Api::new(client), path, Outages::default());
        follower.start(true);
        Self { follower }
    }

    /// Asks for all objects anew.
    pub fn relist(&mut self) {
        self.follower.start(true);
    }

    /// The next change; first of all, all objects, unless a request fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Change<K> {
        loop {
            return match self.follower.next().await.news {
                Some(News::Synced { state, .. }) => Change::All(state.into_values().collect()),
                Some(News::Changed(found)) => Change::One(found),
                Some(News::Deleted(metadata, _)) => Change::Gone(metadata),
                Some(News::Failed(error)) => Change::Failed(error),
                Some(News::Resumed) => Change::Resumed,
                None => continue,
            };
        }
    }
}

/// The objects at a path. Cloning is cheap.
#[derive(Debug)]
struct Path<K> {
    collection: Arc<str>,
    field_selector: Option<Arc<str>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Path<K> {
    fn clone(&self) -> Self {
        Self {
            collection: Arc::clone(&self.collection),
            field_selector: self.field_selector.clone(),
            kind: PhantomData,
        }
    }
}

impl<K: DeserializeOwned + Resource + Send + fmt::Debug + 'static> Target for Path<K> {
    type Item = Found<K>;
    type Gone = ObjectMeta;
    type State = BTreeMap<ObjectKey, Found<K>>;

    const SECRET: bool = false;

    fn path(&self) -> Result<String, RequestError> {
        Ok(self.collection.to_string())
    }

    fn field_selector(&self) -> Option<String> {
        self.field_selector.as_deref().map(str::to_owned)
    }

    fn is_one(&self) -> bool {
        false
    }

    fn read(&self, json: &[u8]) -> Result<Option<Found<K>>, RequestError> {
        let metadata = api::metadata(json)?;
        let object =
            serde_json::from_slice(json).map_err(|error| DecodeError::new(K::KIND, &error));
        Ok(Some(Found { metadata, object }))
    }

    fn gone(&self, metadata: ObjectMeta) -> Option<ObjectMeta> {
        Some(metadata)
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
}
