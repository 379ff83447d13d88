//! Managers whose work is counted.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use larder_objects::Object;
use tokio::time::Instant;

use super::{Inner, ObjectManager};
use crate::{
    config::{ConfigError, ManagerConfig},
    metrics::{Census, Count, ManagerMetrics, Metrics},
    status::ObjectState,
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
        let manager = Self::counted_in(client, config, Metrics::of(K::KIND, metrics.clone()))?;
        let census: Weak<Inner<K>> = Arc::downgrade(&manager.inner);
        metrics.add(census);
        Ok(manager)
    }
}

impl<K: Object> Census for Inner<K> {
    fn count(&self) -> Count {
        let objects = self.store.status(&HashMap::new(), Instant::now());
        let in_state = |name| {
            let states = objects.iter().map(|object| object.state.as_str());
            states.filter(|state| *state == name).count()
        };
        Count {
            kind: K::KIND,
            objects: ObjectState::NAMES
                .map(|name| (name, in_state(name) as u64))
                .into(),
            references: objects.iter().map(|object| object.references as u64).sum(),
            hits: self.store.hits(),
            oldest: objects
                .iter()
                .map(|object| object.age)
                .max()
                .unwrap_or_default(),
        }
    }
}
