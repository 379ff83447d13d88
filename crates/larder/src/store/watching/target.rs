//! The targets of the store's watches: one object, or the referenced objects of a namespace.

use std::{collections::BTreeMap, fmt, sync::Arc};

use larder_objects::{Object, ResourceVersion, Stated};
use larder_transport::path::CollectionPath;
use larder_watch::{Head, ObjectId, RegistrationSeq, RequestError, Target, check, collection_path};
use smol_str::SmolStr;

use super::{Finding, WatchStoreInner, WatchedState};
use crate::store::Entry;

/// The target of one watch. Cloning is cheap.
pub(super) enum WatchTarget<K: Object> {
    /// One referenced object.
    Object(Arc<Entry<WatchedState<K>>>),
    /// The objects of a namespace that are referenced at the moment.
    Namespace(Arc<WatchStoreInner<K>>, SmolStr),
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
    type Item = Finding<K>;
    type Tombstone = Finding<K>;
    type State = BTreeMap<ObjectId, Finding<K>>;

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

    fn read(&self, json: &[u8]) -> Result<Option<Finding<K>>, RequestError> {
        if let Self::Object(entry) = self
            && let Ok(stated) = Stated::<K>::from_json(json)
            && stated.object.metadata().name == entry.key.name
        {
            let version = stated.object.metadata().resource_version.clone();
            let object = check(&stated, self.namespace()).map(|()| Some(Arc::new(stated.object)));
            return Ok(Some(Finding {
                object: object.map_err(Arc::new),
                ..Finding::absent(Arc::clone(entry), version)
            }));
        }
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
        let object = head
            .check::<K>(self.namespace())
            .and_then(|()| Ok(Some(Arc::new(K::from_json(json)?))));
        Ok(Some(Finding {
            object: object.map_err(Arc::new),
            ..Finding::absent(entry, head.metadata.resource_version)
        }))
    }

    fn gone(&self, head: Head) -> Option<Finding<K>> {
        head.check::<K>(self.namespace()).ok()?;
        let entry = self.entry(&head.metadata.name)?;
        Some(Finding::absent(entry, head.metadata.resource_version))
    }

    fn version(finding: &Finding<K>) -> &ResourceVersion {
        &finding.version
    }

    fn decode_error(finding: &Finding<K>) -> Option<Arc<RequestError>> {
        finding.object.as_ref().err().cloned()
    }

    fn add(state: &mut Self::State, mut finding: Finding<K>) {
        finding.share();
        state.insert(finding.entry.cell.id, finding);
    }

    fn remove(state: &mut Self::State, finding: &Finding<K>) {
        state.remove(&finding.entry.cell.id);
    }

    fn into_item(mut state: Self::State) -> Option<Finding<K>> {
        Some(state.pop_first()?.1)
    }
}
