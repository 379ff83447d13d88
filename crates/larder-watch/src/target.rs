//! The target of a list and a watch, and how their responses are read.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use larder_objects::{Object, ObjectKey, ObjectMeta, ObjectType, ResourceVersion, Stated};
use larder_transport::path::{CollectionPath, Resource};
use serde::Deserialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::{error::RequestError, sequence::RegistrationSeq};

/// One object by name, or a collection.
pub trait Target: fmt::Debug + Send + Sync + 'static {
    /// One object, as a response brings it.
    type Item: Send + fmt::Debug;
    /// The remains of a deleted object.
    type Tombstone: Send + fmt::Debug;
    /// Everything that the target stands for.
    type State: Default + Send + fmt::Debug;

    /// Kind of the objects, for people to read.
    const KIND: &'static str;

    /// Whether responses may hold a Secret, so that their bytes are wiped.
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

    /// The restriction of a collection by labels.
    fn label_selector(&self) -> Option<&str> {
        None
    }

    /// When its requests are repeated.
    fn timing(&self) -> RequestTiming {
        RequestTiming::default()
    }

    /// The API server has answered a request with success, or sent an event or a bookmark. `version` is the newest one
    /// seen.
    fn verified(&self, _version: Option<&ResourceVersion>) {}

    /// The newest registration that needs the single object; a state that is as fresh will do.
    fn newest_registration(&self) -> Option<RegistrationSeq> {
        None
    }

    /// The version of the known state of the single object; empty if none is known. A state that is older is doubted.
    fn known_version(&self) -> ResourceVersion {
        ResourceVersion::default()
    }

    /// Reads one object; `None` if the target does not cover it. An object that cannot be decoded is an item too, as
    /// long as it is known which one it is.
    ///
    /// # Errors
    ///
    /// It cannot be said which object this is.
    fn read(&self, json: &[u8]) -> Result<Option<Self::Item>, RequestError>;

    /// What remains of the deleted object with this head; `None` if the target does not cover it.
    fn gone(&self, head: Head) -> Option<Self::Tombstone>;

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

/// When the requests for a target are repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTiming {
    /// The target is never watched, but listed again after this time. That takes no right to watch.
    pub poll: Option<Duration>,
    /// How long the API server keeps a watch open; `None` for 30 to 60 min, at random.
    pub watch_timeout: Option<Duration>,
    /// A watch without an event or bookmark for so long is opened again, from its last version; `None` if it may be
    /// silent until its timeout.
    pub max_silence: Option<Duration>,
    /// The shortest pause after a failed request.
    pub min_pause: Duration,
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

    const KIND: &'static str = K::TYPE.kind;
    const SECRET: bool = K::IS_SECRET;

    fn path(&self) -> Result<CollectionPath, RequestError> {
        collection_path(&K::TYPE, &self.key.namespace)
    }

    fn name(&self) -> Option<&str> {
        Some(&self.key.name)
    }

    fn read(&self, json: &[u8]) -> Result<Option<Arc<K>>, RequestError> {
        let stated = Stated::<K>::from_json(json)?;
        if stated.object.metadata().name != self.key.name {
            return Ok(None);
        }
        check(&stated, &self.key.namespace)?;
        Ok(Some(Arc::new(stated.object)))
    }

    fn gone(&self, head: Head) -> Option<()> {
        head.check::<K>(&self.key.namespace).ok()?;
        (head.metadata.name == self.key.name).then_some(())
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

/// The path of all objects of that type in `namespace`.
///
/// # Errors
///
/// [`RequestError::Path`].
pub fn collection_path(of: &ObjectType, namespace: &str) -> Result<CollectionPath, RequestError> {
    let resource = Resource::new(of.group, of.version, of.resource);
    Ok(resource.in_namespace(namespace)?)
}

/// What an object says of which one it is. What cannot be read of it is empty.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Head {
    /// Group and version. Empty in a list, like the kind.
    pub api_version: SmolStr,
    /// Kind, as written in a manifest.
    pub kind: SmolStr,
    /// Name, identity and version.
    pub metadata: ObjectMeta,
}

impl Head {
    /// The head of any object, as far as it can be read, so that the object can be named.
    pub fn of(json: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Named {
            metadata: Value,
        }
        if let Ok(head) = serde_json::from_slice(json) {
            return head;
        }
        let Named { metadata } = serde_json::from_slice(json).unwrap_or_default();
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        Self {
            metadata: ObjectMeta {
                namespace: text("namespace").into(),
                name: text("name").into(),
                uid: text("uid").into(),
                resource_version: ResourceVersion::new(text("resourceVersion")),
                ..ObjectMeta::default()
            },
            ..Self::default()
        }
    }

    /// Checks that the object is a `K` of `namespace`, as far as it says. A name alone would let an object of another
    /// namespace or kind take its place.
    ///
    /// # Errors
    ///
    /// [`RequestError::Unexpected`].
    pub fn check<K: Object>(&self, namespace: &str) -> Result<(), RequestError> {
        let own = &*self.metadata.namespace;
        check_type_and_namespace::<K>(&self.api_version, &self.kind, own, namespace)
    }
}

/// As [`Head::check`], for an object that was read.
///
/// # Errors
///
/// [`RequestError::Unexpected`].
pub fn check<K: Object>(stated: &Stated<K>, namespace: &str) -> Result<(), RequestError> {
    let own = &*stated.object.metadata().namespace;
    check_type_and_namespace::<K>(&stated.api_version, &stated.kind, own, namespace)
}

fn check_type_and_namespace<K: Object>(
    api_version: &str,
    kind: &str,
    namespace: &str,
    expected: &str,
) -> Result<(), RequestError> {
    let differs = |stated: &str, expected: &str| !stated.is_empty() && stated != expected;
    if differs(api_version, &K::TYPE.api_version()) || differs(kind, K::TYPE.kind) {
        return Err(RequestError::Unexpected("an object of another kind"));
    }
    if differs(namespace, expected) {
        return Err(RequestError::Unexpected("an object of another namespace"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use larder_objects::Secret;

    use super::*;

    #[test]
    fn broken_metadata_is_read_as_far_as_possible() {
        let json = br#"{"metadata":{"name":"a","namespace":7,"resourceVersion":"5","uid":[]}}"#;
        let metadata = Head::of(json).metadata;
        assert_eq!(metadata.name, "a");
        assert_eq!(metadata.namespace, "");
        assert_eq!(metadata.resource_version.as_str(), "5");
        for json in ["", "[]", "{", r#"{"metadata":7}"#, "7"] {
            assert_eq!(Head::of(json.as_bytes()).metadata.name, "");
        }
    }

    #[test]
    fn an_object_of_another_namespace_or_kind_does_not_take_a_names_place() {
        let target = ByName::<Secret>::new(ObjectKey::new("n", "a"));
        for (json, expected) in [
            (r#"{"metadata":{"name":"a"}}"#, "read"),
            (r#"{"metadata":{"name":"a","namespace":"n"}}"#, "read"),
            (
                r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"a","namespace":"n"}}"#,
                "read",
            ),
            (
                r#"{"metadata":{"name":"b","namespace":"n"}}"#,
                "not covered",
            ),
            (
                r#"{"metadata":{"name":"a","namespace":"m"}}"#,
                "an object of another namespace in the response",
            ),
            (
                r#"{"kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}"#,
                "an object of another kind in the response",
            ),
            (
                r#"{"apiVersion":"x/v1","kind":"Secret","metadata":{"name":"a","namespace":"n"}}"#,
                "an object of another kind in the response",
            ),
        ] {
            let read = match target.read(json.as_bytes()) {
                Ok(Some(_)) => "read".to_owned(),
                Ok(None) => "not covered".to_owned(),
                Err(error) => error.to_string(),
            };
            assert_eq!(read, expected, "{json}");
            let gone = target.gone(Head::of(json.as_bytes()));
            assert_eq!(gone.is_some(), expected == "read", "{json}");
        }
    }
}
