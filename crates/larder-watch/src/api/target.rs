//! What a list and a watch are about, and how their answers are read.

use std::{fmt, marker::PhantomData, sync::Arc};

use larder_objects::{Object, ObjectKey, ObjectMeta, ResourceVersion};
use serde::Deserialize;

use super::{collection_path, escaped};
use crate::error::RequestError;

/// One object by name, or a collection.
pub trait Target: fmt::Debug + Send + Sync + 'static {
    /// One object, as an answer brings it.
    type Item: Send + fmt::Debug;
    /// What is left to say of a deleted one.
    type Gone: Send + fmt::Debug;
    /// Everything that the target stands for.
    type State: Default + Send + fmt::Debug;

    /// Whether answers may hold a Secret, so that their bytes are wiped.
    const SECRET: bool;

    /// The path of the collection.
    ///
    /// # Errors
    ///
    /// [`RequestError::NotAName`].
    fn path(&self) -> Result<String, RequestError>;

    /// What restricts the collection: a field selector.
    fn field_selector(&self) -> Option<String>;

    /// Whether one item is all that a list can find.
    fn is_one(&self) -> bool;

    /// Reads one object; `None` if it is none of the target's.
    ///
    /// # Errors
    ///
    /// The answer cannot be used. What concerns one item of many is better told in the item.
    fn read(&self, json: &[u8]) -> Result<Option<Self::Item>, RequestError>;

    /// What is to say of the deleted object with this metadata; `None` if it is none of the target's.
    fn gone(&self, metadata: ObjectMeta) -> Option<Self::Gone>;

    /// The version of an item.
    fn version(item: &Self::Item) -> &ResourceVersion;

    /// What a consistent request that is made now proves; see [`Entries::now`](larder).
    fn moment(&self) -> u64 {
        0
    }

    /// Adds an item to the state, or replaces it.
    fn add(state: &mut Self::State, item: Self::Item);

    /// Takes a deleted one out of the state.
    fn remove(state: &mut Self::State, gone: &Self::Gone);
}

/// One ConfigMap or Secret: always asked for with `metadata.name=`, since the node authorizer allows nothing else (I4).
///
/// There are thousands, so it shares the name with whatever has it already.
pub struct ByName<K> {
    named: Arc<dyn Named>,
    kind: PhantomData<fn() -> K>,
}

/// Something that has the name of an object.
pub trait Named: Send + Sync {
    fn key(&self) -> &ObjectKey;
}

impl Named for ObjectKey {
    fn key(&self) -> &ObjectKey {
        self
    }
}

impl<K> ByName<K> {
    pub fn new(named: Arc<dyn Named>) -> Self {
        let kind = PhantomData;
        Self { named, kind }
    }
}

impl<K> fmt::Debug for ByName<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByName").field(self.named.key()).finish()
    }
}

impl<K: Object> Target for ByName<K> {
    type Item = Arc<K>;
    type Gone = ();
    type State = Option<Arc<K>>;

    const SECRET: bool = matches!(K::KIND, larder_objects::Kind::Secret);

    fn path(&self) -> Result<String, RequestError> {
        collection_path(K::KIND, &self.named.key().namespace)
    }

    fn field_selector(&self) -> Option<String> {
        Some(format!("metadata.name={}", escaped(&self.named.key().name)))
    }

    fn is_one(&self) -> bool {
        true
    }

    fn read(&self, json: &[u8]) -> Result<Option<Arc<K>>, RequestError> {
        let object = K::from_json(json)?;
        Ok((object.metadata().name == self.named.key().name).then(|| Arc::new(object)))
    }

    fn gone(&self, metadata: ObjectMeta) -> Option<()> {
        (metadata.name == self.named.key().name).then_some(())
    }

    fn version(item: &Arc<K>) -> &ResourceVersion {
        &item.metadata().resource_version
    }

    fn add(state: &mut Option<Arc<K>>, item: Arc<K>) {
        *state = Some(item);
    }

    fn remove(state: &mut Option<Arc<K>>, (): &()) {
        *state = None;
    }
}

/// Only the metadata of an object, whatever else there is.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: ObjectMeta,
}

/// The metadata of any object.
///
/// # Errors
///
/// There is none.
pub fn metadata(json: &[u8]) -> Result<ObjectMeta, RequestError> {
    let head: Head =
        serde_json::from_slice(json).map_err(|_| RequestError::Unexpected("no object"))?;
    Ok(head.metadata)
}
