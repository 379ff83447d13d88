//! Strategy `Get`: every read is a request to the API server (rules S1–S4). No caching, and any name may be read.

use std::{sync::Arc, time::Duration};

use larder_objects::{Object, ObjectKey};
use larder_watch::{Api, ByName, RequestError, RequestFailure, RequestPhase};
use tokio::time::timeout;

use super::{Entries, Unkept};
use crate::{error::Error, metrics::Metrics};

/// The store of strategy `Get`. References are kept for status only.
pub(crate) struct SimpleStore<K> {
    pub(crate) entries: Entries<Unkept<K>>,
    metrics: Arc<dyn Metrics>,
    api: Api,
}

impl<K: Object> SimpleStore<K> {
    pub(crate) fn new(api: Api, metrics: Arc<dyn Metrics>) -> Self {
        Self {
            entries: Entries::default(),
            metrics,
            api,
        }
    }

    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        within: Duration,
    ) -> Result<Arc<K>, Error> {
        let key = ObjectKey::new(namespace, name);
        let target = ByName::<K>::new(key.clone());
        let answer = timeout(within, self.api.get(&target, None))
            .await
            .unwrap_or(Err(RequestError::Timeout(within)));
        let outcome = answer.as_ref().err().map_or("ok", RequestError::label);
        self.metrics.requested("get", outcome);
        answer.map_err(|error| {
            let failure = RequestFailure::new(RequestPhase::Get, error);
            Error::of_failure(K::TYPE, key, failure)
        })
    }
}
