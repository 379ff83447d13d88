//! Managers with metrics.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use larder_objects::Object;
use tokio::time::Instant;

use super::{Inner, ObjectManager};
use crate::{
    config::{ConfigError, ManagerConfig},
    metrics::{Count, CountObjects, KindMetrics, ManagerMetrics},
};

impl<K: Object> ObjectManager<K> {
    /// [`new`](Self::new), counted in `metrics`.
    ///
    /// # Errors
    ///
    /// As for `new`.
    ///
    /// # Panics
    ///
    /// As `new`.
    pub fn with_metrics(
        client: kube::Client,
        config: &ManagerConfig,
        metrics: &ManagerMetrics,
    ) -> Result<Self, ConfigError> {
        let counted = KindMetrics::new(K::TYPE.kind, metrics.clone());
        let manager = Self::counted_in(client, config, Arc::new(counted))?;
        let census: Weak<Inner<K>> = Arc::downgrade(&manager.inner);
        metrics.add(census);
        Ok(manager)
    }
}

impl<K: Object> CountObjects for Inner<K> {
    fn count(&self) -> Count {
        Count {
            kind: K::TYPE.kind,
            objects: self.store.entries().status(HashMap::new(), Instant::now()),
            hits: self.store.entries().hits(),
        }
    }
}
