//! What the watch of a namespace is about: the objects in it that anybody refers to at that moment.

use std::{collections::HashMap, fmt, sync::Arc};

use larder_objects::{Kind, Object, ObjectMeta, ResourceVersion};
use smol_str::SmolStr;

use crate::{
    api::{self, Target},
    error::RequestError,
    store::watching::Shared,
};

/// The referenced objects of a namespace.
pub(super) struct InNamespace<K: Object> {
    pub(super) shared: Arc<Shared<K>>,
    pub(super) namespace: SmolStr,
}

/// A referenced object as the API server has it.
#[derive(Debug)]
pub(super) enum Seen<K> {
    Object(Arc<K>),
    /// It cannot be decoded.
    Unreadable(ObjectMeta, Arc<RequestError>),
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
    fn is_referenced(&self, name: &str) -> bool {
        let entries = &self.shared.entries;
        entries.with(&self.namespace, name, |_| ()).is_some()
    }
}

impl<K: Object> Target for InNamespace<K> {
    type Item = Seen<K>;
    type Gone = SmolStr;
    type State = HashMap<SmolStr, Seen<K>>;

    const SECRET: bool = matches!(K::KIND, Kind::Secret);

    fn path(&self) -> Result<String, RequestError> {
        api::collection(K::KIND, &self.namespace)
    }

    fn field_selector(&self) -> Option<String> {
        None
    }

    fn is_one(&self) -> bool {
        false
    }

    fn read(&self, json: &[u8]) -> Result<Option<Seen<K>>, RequestError> {
        let metadata = api::metadata(json)?;
        if !self.is_referenced(&metadata.name) {
            return Ok(None);
        }
        Ok(Some(match K::from_json(json) {
            Ok(object) => Seen::Object(Arc::new(object)),
            Err(error) => Seen::Unreadable(metadata, Arc::new(error.into())),
        }))
    }

    fn gone(&self, metadata: ObjectMeta) -> Option<SmolStr> {
        self.is_referenced(&metadata.name).then_some(metadata.name)
    }

    fn version(seen: &Seen<K>) -> &ResourceVersion {
        &seen.metadata().resource_version
    }

    fn moment(&self) -> u64 {
        self.shared.entries.now()
    }

    fn add(state: &mut Self::State, seen: Seen<K>) {
        state.insert(seen.metadata().name.clone(), seen);
    }

    fn remove(state: &mut Self::State, name: &SmolStr) {
        state.remove(name);
    }
}

impl<K: Object> Seen<K> {
    pub(super) fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Object(object) => object.metadata(),
            Self::Unreadable(metadata, _) => metadata,
        }
    }
}
