//! A store without API server, for tests of code that uses a manager.

use std::{collections::HashMap, sync::Arc};

use larder_objects::{Object, ObjectKey};
use parking_lot::Mutex;

use super::{Entries, Unkept};
use crate::{
    changes::ChangeKind,
    error::{Error, ErrorKind},
};

/// The store of a fake manager.
#[derive(Debug)]
pub(crate) struct FakeStore<K> {
    pub(crate) entries: Entries<Unkept<K>>,
    objects: Mutex<HashMap<ObjectKey, Result<Arc<K>, Error>>>,
}

impl<K: Object> FakeStore<K> {
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Result<Arc<K>, Error> {
        let entry = self.entries.require(namespace, name)?;
        let objects = self.objects.lock();
        objects.get(&entry.key).cloned().unwrap_or_else(|| {
            let (kind, key) = (K::TYPE, entry.key.clone());
            Err(ErrorKind::NotFound { kind, key }.into())
        })
    }
}

/// The objects behind a fake manager; made by [`ObjectManager::fake`](crate::ObjectManager::fake).
///
/// ```
/// use larder::ConfigMapManager;
/// use larder_objects::{ConfigMap, ObjectMeta};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let (manager, objects) = ConfigMapManager::fake();
/// objects.set(ConfigMap {
///     metadata: ObjectMeta { namespace: "prod".into(), name: "app".into(), ..Default::default() },
///     data: [("level", "debug".into())].into(),
///     ..Default::default()
/// });
///
/// // As with the real one, only what a registered pod refers to can be read.
/// let error = manager.get("prod", "app").await.unwrap_err();
/// assert_eq!(error.to_string(), r#"object "prod"/"app" not registered"#);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FakeObjects<K> {
    pub(crate) store: Arc<FakeStore<K>>,
}

impl<K: Object> FakeObjects<K> {
    pub(crate) fn new() -> Self {
        Self {
            store: Arc::new(FakeStore {
                entries: Entries::default(),
                objects: Mutex::default(),
            }),
        }
    }

    /// Creates the object or replaces it.
    pub fn set(&self, object: K) {
        let key = object.metadata().key();
        self.put(key, Some(Ok(Arc::new(object))), &ChangeKind::Updated);
    }

    /// Deletes the object.
    pub fn remove(&self, namespace: &str, name: &str) {
        let key = ObjectKey::new(namespace, name);
        self.put(key, None, &ChangeKind::Deleted);
    }

    /// Lets reads of the object fail with `error` until it is set or removed.
    pub fn fail(&self, namespace: &str, name: &str, error: Error) {
        let key = ObjectKey::new(namespace, name);
        self.store.objects.lock().insert(key, Err(error));
    }

    fn put(&self, key: ObjectKey, object: Option<Result<Arc<K>, Error>>, event: &ChangeKind) {
        let mut objects = self.store.objects.lock();
        match object {
            Some(object) => objects.insert(key.clone(), object),
            None => objects.remove(&key),
        };
        drop(objects);
        let entries = &self.store.entries;
        if entries.get(&key.namespace, &key.name).is_some() {
            entries.changes.publish(&key, event);
        }
    }
}
