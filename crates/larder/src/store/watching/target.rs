//! The targets of the store's watches: one object, or the referenced objects of a namespace.

use std::{collections::BTreeMap, fmt, sync::Arc};

use larder_objects::{Object, ResourceVersion};
use larder_transport::path::CollectionPath;
use larder_watch::{Head, ObjectId, RegistrationSeq, RequestError, Target, collection_path};
use smol_str::SmolStr;

use super::{WatchStoreInner, WatchedState};
use crate::store::Entry;

/// The target of one watch. Cloning is cheap.
pub(super) enum WatchTarget<K: Object> {
    /// One referenced object.
    Object(Arc<Entry<WatchedState<K>>>),
    /// The objects of a namespace that are referenced at the moment.
    Namespace(Arc<WatchStoreInner<K>>, SmolStr),
}

/// A referenced object as the API server has it.
#[derive(Debug)]
pub(super) struct SeenObject<K> {
    /// The number of its entry.
    pub(super) id: ObjectId,
    pub(super) object: Decoded<K>,
}

/// An object, if it can be decoded. Small, since a complete state has as many as there are objects.
pub(super) type Decoded<K> = Result<Arc<K>, Box<UnreadableObject>>;

#[derive(Debug)]
pub(super) struct UnreadableObject {
    version: ResourceVersion,
    pub(super) error: Arc<RequestError>,
}

impl<K: Object> Clone for WatchTarget<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Object(entry) => Self::Object(Arc::clone(entry)),
            Self::Namespace(store, namespace) => {
                Self::Namespace(Arc::clone(store), namespace.clone())
            }
        }
    }
}

impl<K: Object> fmt::Debug for WatchTarget<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(entry) => f.debug_tuple("Object").field(&entry.key).finish(),
            Self::Namespace(_, namespace) => f.debug_tuple("Namespace").field(namespace).finish(),
        }
    }
}

impl<K: Object> WatchTarget<K> {
    fn namespace(&self) -> &str {
        match self {
            Self::Object(entry) => &entry.key.namespace,
            Self::Namespace(_, namespace) => namespace,
        }
    }

    /// The entry of that name, if the target covers it.
    fn entry(&self, name: &str) -> Option<Arc<Entry<WatchedState<K>>>> {
        match self {
            Self::Object(entry) => (entry.key.name == name).then(|| Arc::clone(entry)),
            Self::Namespace(store, namespace) => store.entries.get(namespace, name),
        }
    }
}

impl<K: Object> Target for WatchTarget<K> {
    type Item = SeenObject<K>;
    type Tombstone = ObjectId;
    type State = BTreeMap<ObjectId, Decoded<K>>;

    const KIND: &'static str = K::TYPE.kind;
    const SECRET: bool = K::IS_SECRET;

    fn path(&self) -> Result<CollectionPath, RequestError> {
        collection_path(&K::TYPE, self.namespace())
    }

    fn name(&self) -> Option<&str> {
        match self {
            Self::Object(entry) => Some(&entry.key.name),
            Self::Namespace(..) => None,
        }
    }

    fn newest_registration(&self) -> Option<RegistrationSeq> {
        match self {
            Self::Object(entry) => Some(entry.newest_reference()),
            Self::Namespace(..) => None,
        }
    }

    fn known_version(&self) -> ResourceVersion {
        match self {
            Self::Object(entry) => entry.cell.version(),
            Self::Namespace(..) => ResourceVersion::default(),
        }
    }

    fn read(&self, json: &[u8]) -> Result<Option<SeenObject<K>>, RequestError> {
        // Of a namespace, most objects are dropped: only their heads are read.
        let head = Head::of(json);
        let Some(entry) = self.entry(&head.metadata.name) else {
            // One without a name may be any.
            return if head.metadata.name.is_empty() {
                Err(RequestError::Unexpected("an object without a name"))
            } else {
                Ok(None)
            };
        };
        let checked = head.check::<K>(self.namespace());
        let object = match checked.and_then(|()| Ok(K::from_json(json)?)) {
            Ok(object) => Ok(entry.cell.shared(object)),
            Err(error) => Err(Box::new(UnreadableObject {
                version: head.metadata.resource_version,
                error: Arc::new(error),
            })),
        };
        let id = entry.cell.id;
        Ok(Some(SeenObject { id, object }))
    }

    fn gone(&self, head: Head) -> Option<ObjectId> {
        head.check::<K>(self.namespace()).ok()?;
        Some(self.entry(&head.metadata.name)?.cell.id)
    }

    fn version(seen: &SeenObject<K>) -> &ResourceVersion {
        match &seen.object {
            Ok(object) => &object.metadata().resource_version,
            Err(unreadable) => &unreadable.version,
        }
    }

    fn decode_error(seen: &SeenObject<K>) -> Option<Arc<RequestError>> {
        let unreadable = seen.object.as_ref().err()?;
        Some(Arc::clone(&unreadable.error))
    }

    fn add(state: &mut Self::State, seen: SeenObject<K>) {
        state.insert(seen.id, seen.object);
    }

    fn remove(state: &mut Self::State, id: &ObjectId) {
        state.remove(id);
    }

    fn into_item(mut state: Self::State) -> Option<SeenObject<K>> {
        let (id, object) = state.pop_first()?;
        Some(SeenObject { id, object })
    }
}
