//! The wait of a read, under every strategy: limited by a timeout, and measured.

use std::{sync::Arc, time::Duration};

use larder_objects::{Object, ObjectKey};
use larder_watch::RequestFailure;
use tokio::time::{Instant, timeout};

use crate::{
    error::{Error, ErrorKind},
    metrics::Metrics,
};

/// Waits for the answer about object `key`, at most for `within`; then `failure` returns the likely cause.
pub(super) async fn wait<K: Object>(
    key: &ObjectKey,
    within: Duration,
    metrics: &dyn Metrics,
    answer: impl Future<Output = Result<Arc<K>, Error>>,
    failure: impl FnOnce() -> Option<RequestFailure>,
) -> Result<Arc<K>, Error> {
    let started = Instant::now();
    let answer = timeout(within, answer).await;
    metrics.waited(started.elapsed());
    answer.unwrap_or_else(|_| {
        let source = failure().map(|failure| Error::of_failure(K::TYPE, key.clone(), failure));
        let not_synced = ErrorKind::NotSynced {
            kind: K::TYPE,
            key: key.clone(),
            waited: within,
            source,
        };
        Err(not_synced.into())
    })
}
