//! The watches that count as silent.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use larder::{ConfigMapManager, ManagerConfig};
use larder_transport::path::Resource;
use larder_watch::{
    NodeContext,
    collection::{Collection, CollectionEvent},
};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::scripted::{Exchange, Script, object, pod};

const SECOND: Duration = Duration::from_secs(1);

/// A manager with pod `p1`, which is never idle, and its first request.
async fn started(context: &NodeContext) -> (ConfigMapManager, Script, Exchange) {
    let (client, mut script) = Script::new();
    let config = ManagerConfig::default()
        .node_context(context)
        .sync_frequency(Duration::from_hours(9));
    let manager = ConfigMapManager::new(client, &config).unwrap();
    manager.register_pod(&pod("p1"));
    let request = script.next().await;
    (manager, script, request)
}

#[tokio::test(start_paused = true)]
async fn a_hung_watch_is_silent_until_its_failure_is_known() {
    let context = NodeContext::default();
    let (manager, mut script, request) = started(&context).await;
    let opened = Instant::now();
    let lifetime = Duration::from_secs(request.timeout_seconds());
    let stream = request.synced(5, Some(&object(5, "one")));

    sleep_until(opened + lifetime + 20 * SECOND).await;
    assert_eq!(context.silent_watches(), []);
    assert!(!stream.is_dropped());

    // The client ends it, and gets no answer to its next request either.
    let request = script.next().await;
    request.check("watch=true resourceVersion=5");
    assert!(stream.is_dropped());
    sleep_until(opened + lifetime + 40 * SECOND).await;
    let [silent] = &*context.silent_watches() else {
        panic!("one watch is silent");
    };
    assert_eq!(silent.kind, "ConfigMap");
    assert_eq!(silent.silent_for.as_secs(), lifetime.as_secs() + 40);

    // The request times out, which status and subscribers learn.
    sleep_until(opened + lifetime + 70 * SECOND).await;
    assert_eq!(context.silent_watches(), []);
    assert!(manager.objects()[0].failure.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_hung_watch_that_is_opened_again_is_never_silent() {
    let context = NodeContext::default();
    let (_manager, mut script, request) = started(&context).await;
    let _hung = request.synced(5, Some(&object(5, "one")));
    let _stream = script.next().await.stream();
    for _ in 0..100 {
        sleep(SECOND).await;
        assert_eq!(context.silent_watches(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn bookmarks_and_resumed_watches_are_signs_of_life() {
    let context = NodeContext::default();
    let (_manager, mut script, request) = started(&context).await;
    let mut stream = request.synced(5, Some(&object(5, "one")));
    for minute in 1..300 {
        sleep(60 * SECOND).await;
        assert_eq!(context.silent_watches(), [], "{minute}");
        if minute % 29 == 0 {
            drop(stream);
            stream = script.next().await.stream();
        } else if minute % 3 == 0 {
            stream.bookmark(5 + minute);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_watch_is_silent_during_an_outage() {
    let context = NodeContext::default();
    let (_manager, mut script, request) = started(&context).await;
    drop(request);
    let end = Instant::now() + Duration::from_hours(2);
    while Instant::now() < end {
        // It is never answered, or rejected after a while.
        let request = script.next().await;
        sleep(50 * SECOND).await;
        assert_eq!(context.silent_watches(), []);
        drop(request);
    }
}

#[tokio::test(start_paused = true)]
async fn a_collection_that_is_not_polled_is_silent() {
    let (client, mut script) = Script::new();
    let context = NodeContext::default();
    let path = Resource::core("services").collection();
    let mut services = Collection::<Service>::new(client, path, None, &context);
    let mut poll = async || timeout(SECOND, services.next()).await.ok();
    let (_, request) = tokio::join!(poll(), script.next());
    let _stream = request.synced(5, None);
    assert!(poll().await.is_some());
    assert_eq!(context.silent_watches(), []);
    sleep(360 * SECOND).await;
    assert_eq!(context.silent_watches()[0].kind, "Service");
    poll().await;
    assert_eq!(context.silent_watches(), []);
}

// A resource that the API server does not serve may be asked for in another version instead.
#[tokio::test(start_paused = true)]
async fn a_collection_given_up_after_a_failure_is_not_silent() {
    let (client, mut script) = Script::new();
    let context = NodeContext::default();
    let path = Resource::core("services").collection();
    let mut services = Collection::<Service>::new(client.clone(), path.clone(), None, &context);
    let _never_polled = Collection::<Service>::new(client, path, None, &context);
    let (event, ()) = tokio::join!(services.next(), async {
        script.next().await.refuse(403);
    });
    assert!(matches!(event, CollectionEvent::Failed(_)), "{event:?}");
    sleep(Duration::from_hours(3)).await;
    assert_eq!(context.silent_watches(), []);
}
