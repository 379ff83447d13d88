//! Following the node and the Services: a list, then a watch, for ever.
//!
//! For objects that are not secret and of which every pod may need any; ConfigMaps and Secrets have managers of their own.

use std::{pin::pin, time::Duration};

use futures::TryStreamExt as _;
use http::Request;
use k8s_openapi::{
    List, ListableResource, Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Client, core::WatchEvent};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tracing::debug;

/// Bounds of the delay between two attempts, client-go 1.36 `tools/cache/reflector.go`; up to as much again is added by chance.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// How long the API server keeps a watch open: at least this, at most twice as long (as above).
const WATCH: Duration = Duration::from_mins(5);

/// What became known of the objects.
#[derive(Debug)]
pub(crate) enum Change<K> {
    /// These are all of them.
    All(Vec<K>),
    /// This one is new or changed.
    One(K),
    /// This one, as it was last, is gone.
    Gone(K),
}

/// Lists and watches the objects at `path` that `selector` (a query without `&`; may be empty) picks, and hands every change
/// to `apply`. Ends only when dropped. While the API server is away, nothing is handed over.
pub(crate) async fn follow<K>(
    client: Client,
    path: &str,
    selector: &str,
    mut apply: impl FnMut(Change<K>),
) where
    K: Clone + std::fmt::Debug + DeserializeOwned + ListableResource + Metadata<Ty = ObjectMeta>,
{
    let mut delay = BACKOFF.0;
    loop {
        let error = match client.request::<List<K>>(request(path, selector, "")).await {
            Ok(list) => {
                let version = list.metadata.resource_version.unwrap_or_default();
                apply(Change::All(list.items));
                delay = BACKOFF.0;
                watch(&client, path, selector, version, &mut apply).await
            }
            Err(error) => error,
        };
        debug!(%error, path, "following again after a pause");
        sleep(delay.mul_f64(1.0 + fastrand::f64())).await;
        delay = (delay * 2).min(BACKOFF.1);
    }
}

/// Watches on from `version`, as often as the API server ends a watch in good order; returns why it cannot go on.
async fn watch<K>(
    client: &Client,
    path: &str,
    selector: &str,
    mut version: String,
    apply: &mut impl FnMut(Change<K>),
) -> kube::Error
where
    K: Clone + std::fmt::Debug + DeserializeOwned + ListableResource + Metadata<Ty = ObjectMeta>,
{
    loop {
        let seconds = WATCH.mul_f64(1.0 + fastrand::f64()).as_secs();
        let query = format!(
            "watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}"
        );
        let mut events = match client
            .request_events::<K>(request(path, selector, &query))
            .await
        {
            Ok(events) => pin!(events),
            Err(error) => return error,
        };
        let mut quiet = true;
        loop {
            let (change, object) = match events.try_next().await {
                Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    (Change::One as fn(K) -> _, object)
                }
                Ok(Some(WatchEvent::Deleted(object))) => (Change::Gone as fn(K) -> _, object),
                Ok(Some(WatchEvent::Bookmark(bookmark))) => {
                    quiet = false;
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                Ok(Some(WatchEvent::Error(status))) => return kube::Error::Api(status),
                Ok(None) => break,
                Err(error) => return error,
            };
            quiet = false;
            if let Some(at) = object.metadata().resource_version.clone() {
                version = at;
            }
            apply(change(object));
        }
        // A watch that ends at once and empty is a server in trouble, not a watch that has run its time.
        if quiet {
            sleep(BACKOFF.0).await;
        }
    }
}

fn request(path: &str, selector: &str, query: &str) -> Request<Vec<u8>> {
    let query: Vec<_> = [selector, query]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    Request::get(format!("{path}?{}", query.join("&")))
        .body(Vec::new())
        .expect("paths and queries are made of names that need no escaping")
}
