//! The target of a list and a watch, and how their answers are read.

use std::{fmt, marker::PhantomData, sync::Arc};

use larder_objects::{Kind, Object, ObjectKey, ObjectMeta, ResourceVersion};
use larder_transport::path::{CollectionPath, Resource};
use serde::Deserialize;
use serde_json::Value;

use crate::{error::RequestError, sequence::RegistrationSeq};

/// One object by name, or a collection.
pub trait Target: fmt::Debug + Send + Sync + 'static {
    /// One object, as an answer brings it.
    type Item: Send + fmt::Debug;
    /// The remains of a deleted object.
    type Tombstone: Send + fmt::Debug;
    /// Everything that the target stands for.
    type State: Default + Send + fmt::Debug;

    /// Kind of the objects, for people to read.
    const KIND: &'static str;

    /// Whether answers may hold a Secret, so that their bytes are wiped.
    const SECRET: bool;

    /// The path of the collection.
    ///
    /// # Errors
    ///
    /// [`RequestError::Path`].
    fn path(&self) -> Result<CollectionPath, RequestError>;

    /// The one name, where the target is a single object. It is always asked for by `metadata.name=`, since the node
    /// authorizer allows nothing else.
    fn name(&self) -> Option<&str>;

    /// The restriction of a collection.
    fn field_selector(&self) -> Option<String> {
        None
    }

    /// The newest registration that needs the single object; a state that is as fresh will do.
    fn newest_registration(&self) -> Option<RegistrationSeq> {
        None
    }

    /// Reads one object; `None` if the target does not cover it. An object that cannot be decoded is an item too, as
    /// long as it is known which one it is.
    ///
    /// # Errors
    ///
    /// It cannot be said which object this is.
    fn read(&self, json: &[u8]) -> Result<Option<Self::Item>, RequestError>;

    /// What remains of the deleted object with this metadata; `None` if the target does not cover it.
    fn gone(&self, metadata: ObjectMeta) -> Option<Self::Tombstone>;

    /// The version of an item.
    fn version(item: &Self::Item) -> &ResourceVersion;

    /// Why an item cannot be decoded, if it cannot.
    fn decode_error(_item: &Self::Item) -> Option<Arc<RequestError>> {
        None
    }

    /// Adds an item to the state, or replaces it.
    fn add(state: &mut Self::State, item: Self::Item);

    /// Removes a deleted object from the state.
    fn remove(state: &mut Self::State, gone: &Self::Tombstone);

    /// The item of a state that holds one at most.
    fn into_item(state: Self::State) -> Option<Self::Item>;
}

/// One ConfigMap or Secret.
#[derive(Clone)]
pub struct ByName<K> {
    key: ObjectKey,
    kind: PhantomData<fn() -> K>,
}

impl<K> ByName<K> {
    /// The object of that name.
    pub fn new(key: ObjectKey) -> Self {
        let kind = PhantomData;
        Self { key, kind }
    }
}

impl<K> fmt::Debug for ByName<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByName").field(&self.key).finish()
    }
}

impl<K: Object> Target for ByName<K> {
    type Item = Arc<K>;
    type Tombstone = ();
    type State = Option<Arc<K>>;

    const KIND: &'static str = K::KIND.as_str();
    const SECRET: bool = matches!(K::KIND, Kind::Secret);

    fn path(&self) -> Result<CollectionPath, RequestError> {
        collection_path(K::KIND, &self.key.namespace)
    }

    fn name(&self) -> Option<&str> {
        Some(&self.key.name)
    }

    fn read(&self, json: &[u8]) -> Result<Option<Arc<K>>, RequestError> {
        let object = K::from_json(json)?;
        Ok((object.metadata().name == self.key.name).then(|| Arc::new(object)))
    }

    fn gone(&self, metadata: ObjectMeta) -> Option<()> {
        (metadata.name == self.key.name).then_some(())
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

    fn into_item(state: Option<Arc<K>>) -> Option<Arc<K>> {
        state
    }
}

/// The path of all objects of `kind` in `namespace`.
///
/// # Errors
///
/// [`RequestError::Path`].
pub fn collection_path(kind: Kind, namespace: &str) -> Result<CollectionPath, RequestError> {
    Ok(Resource::core(kind.resource()).in_namespace(namespace)?)
}

/// Only the metadata of an object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head<M> {
    metadata: M,
}

/// The metadata of any object. What cannot be read of it is empty, so that the object can be named as far as possible.
pub fn metadata(json: &[u8]) -> ObjectMeta {
    if let Ok(Head { metadata }) = serde_json::from_slice(json) {
        return metadata;
    }
    let head: Head<Value> = serde_json::from_slice(json).unwrap_or_default();
    let text = |field: &str| head.metadata[field].as_str().unwrap_or_default();
    ObjectMeta {
        namespace: text("namespace").into(),
        name: text("name").into(),
        uid: text("uid").into(),
        resource_version: ResourceVersion::new(text("resourceVersion")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_metadata_is_read_as_far_as_possible() {
        let json = br#"{"metadata":{"name":"a","namespace":7,"resourceVersion":"5","uid":[]}}"#;
        let metadata = metadata(json);
        assert_eq!(metadata.name, "a");
        assert_eq!(metadata.namespace, "");
        assert_eq!(metadata.resource_version.as_str(), "5");
        for json in ["", "[]", "{", r#"{"metadata":7}"#, "7"] {
            assert_eq!(super::metadata(json.as_bytes()).name, "");
        }
    }
}
