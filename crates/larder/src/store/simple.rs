//! Strategy `Get`: every read asks the API server (rules S1–S4). No caching, and any name may be read.

use std::{sync::Arc, time::Duration};

use larder_objects::{Object, ObjectKey};
use tokio::time::timeout;

use super::Entries;
use crate::{api::Api, changes::Publisher, error::Error, metrics::Metrics};

/// The store of strategy `Get`. References are kept for status only.
#[derive(Debug)]
pub(crate) struct SimpleStore {
    pub(crate) entries: Entries<()>,
    /// Nothing ever changes unasked here.
    pub(crate) changes: Publisher,
    pub(crate) metrics: Metrics,
    api: Api,
}

impl SimpleStore {
    pub(crate) fn new(api: Api, metrics: Metrics) -> Self {
        Self {
            entries: Entries::default(),
            changes: Publisher::default(),
            metrics,
            api,
        }
    }

    pub(crate) async fn get<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<Arc<K>, Error> {
        let key = ObjectKey::new(namespace, name);
        let kind = K::KIND;
        match timeout(within, self.api.get(&key, None)).await {
            Ok(Ok(object)) => {
                self.metrics.requested("get", "ok");
                Ok(object)
            }
            Ok(Err(error)) => {
                self.metrics.requested("get", error.label());
                Err(Error::of_request(kind, key, Arc::new(error)))
            }
            Err(_) => {
                self.metrics.requested("get", "timeout");
                Err(Error::NotSynced {
                    kind,
                    key,
                    waited: within,
                    source: None,
                })
            }
        }
    }
}
