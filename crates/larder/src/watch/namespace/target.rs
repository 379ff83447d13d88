//! What the watch of a namespace is about: the objects in it that anybody refers to at that moment.

use std::{collections::HashMap, fmt, sync::Arc};

use larder_objects::{Kind, Object, ObjectMeta, ResourceVersion};
use larder_watch::{RequestError, Target, collection_path, metadata};
use smol_str::SmolStr;

use crate::store::{
    Entry,
    watching::{Cell, Shared},
};

/// The referenced objects of a namespace.
pub(super) struct InNamespace<K: Object> {
    pub(super) shared: Arc<Shared<K>>,
    pub(super) namespace: SmolStr,
}

/// A referenced object as the API server has it.
#[derive(Debug)]
pub(super) struct Seen<K> {
    /// The number of its cell.
    pub(super) id: u64,
    pub(super) object: Readable<K>,
}

/// An object, if it can be decoded. Small, since a complete state has as many as there are objects.
pub(super) type Readable<K> = Result<Arc<K>, Box<Unreadable>>;

#[derive(Debug)]
pub(super) struct Unreadable {
    version: ResourceVersion,
    pub(super) error: Arc<RequestError>,
}

impl<K: Object> Clone for InNamespace<K> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            namespace: self.namespace.clone(),
        }
    }
}

impl<K: Object> fmt::Debug for InNamespace<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InNamespace").field(&self.namespace).finish()
    }
}

impl<K: Object> InNamespace<K> {
    /// The entry of that name, if anybody refers to it.
    fn entry(&self, name: &str) -> Option<Arc<Entry<Cell<K>>>> {
        self.shared.entries.get(&self.namespace, name)
    }
}

impl<K: Object> Target for InNamespace<K> {
    type Item = Seen<K>;
    type Gone = u64;
    type State = HashMap<u64, Readable<K>>;

    const SECRET: bool = matches!(K::KIND, Kind::Secret);

    fn path(&self) -> Result<String, RequestError> {
        collection_path(K::KIND, &self.namespace)
    }

    fn field_selector(&self) -> Option<String> {
        None
    }

    fn is_one(&self) -> bool {
        false
    }

    fn read(&self, json: &[u8]) -> Result<Option<Seen<K>>, RequestError> {
        let metadata = metadata(json)?;
        let Some(entry) = self.entry(&metadata.name) else {
            return Ok(None);
        };
        let object = match K::from_json(json) {
            Ok(object) => Ok(entry.cell.shared(object)),
            Err(error) => Err(Box::new(Unreadable {
                version: metadata.resource_version,
                error: Arc::new(error.into()),
            })),
        };
        let id = entry.cell.id;
        Ok(Some(Seen { id, object }))
    }

    fn gone(&self, metadata: ObjectMeta) -> Option<u64> {
        Some(self.entry(&metadata.name)?.cell.id)
    }

    fn version(seen: &Seen<K>) -> &ResourceVersion {
        match &seen.object {
            Ok(object) => &object.metadata().resource_version,
            Err(unreadable) => &unreadable.version,
        }
    }

    fn moment(&self) -> u64 {
        self.shared.entries.now()
    }

    fn add(state: &mut Self::State, seen: Seen<K>) {
        state.insert(seen.id, seen.object);
    }

    fn remove(state: &mut Self::State, id: &u64) {
        state.remove(id);
    }
}
