//! Collections pass on what the API server has, and keep nothing.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use larder_transport::path::Resource;
use larder_watch::{
    NodeContext,
    collection::{Collection, CollectionEvent, Found},
};

use crate::script::{Script, Stream};

/// The next event in a few words.
async fn next(services: &mut Collection<Service>) -> String {
    let found = |found: &Found<Service>| {
        let state = found.object.as_ref().map_or("unreadable", |_| "ok");
        format!("{} {state}", found.metadata.key())
    };
    match services.next().await {
        CollectionEvent::All(all) => all.iter().map(found).collect::<Vec<_>>().join(", "),
        CollectionEvent::One(one) => found(&one),
        CollectionEvent::Gone(metadata) => format!("{} gone", metadata.key()),
        CollectionEvent::Failed(failure) => failure.to_string(),
        CollectionEvent::Resumed => "resumed".to_owned(),
    }
}

fn service(name: &str, version: u64) -> String {
    format!(
        r#"{{"metadata":{{"namespace":"n","name":"{name}","resourceVersion":"{version}"}},"spec":{{}}}}"#
    )
}

async fn follow() -> (Collection<Service>, Script, Stream) {
    let (client, mut script) = Script::new();
    let path = Resource::core("services").collection();
    let context = NodeContext::with_seed(7);
    let mut services = Collection::new(client, path, Some("x=y"), &context);
    let stream = async {
        let request = script.next().await;
        request.check("fieldSelector=x%3Dy sendInitialEvents=true");
        let stream = request.stream();
        stream.event("ADDED", &service("b", 4));
        stream.event("ADDED", &service("a", 3));
        stream.end_of_initial_events(5);
        stream
    };
    let (all, stream) = tokio::join!(next(&mut services), stream);
    assert_eq!(all, "n/a ok, n/b ok");
    (services, script, stream)
}

#[tokio::test(start_paused = true)]
async fn every_change_is_passed_on() {
    let (mut services, _script, stream) = follow().await;
    stream.event("MODIFIED", &service("a", 6));
    stream.event("ADDED", &service("c", 7).replace("{}", "7"));
    stream.event("DELETED", &service("b", 8));
    assert_eq!(next(&mut services).await, "n/a ok");
    assert_eq!(next(&mut services).await, "n/c unreadable");
    assert_eq!(next(&mut services).await, "n/b gone");
}

#[tokio::test(start_paused = true)]
async fn an_interruption_is_reported_with_its_end() {
    let (mut services, mut script, stream) = follow().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(stream);
    let refuse = async { script.next().await.refuse(500) };
    let (failed, ()) = tokio::join!(next(&mut services), refuse);
    assert_eq!(failed, "failed to watch");
    let synced = async { script.next().await.synced(9, Some(&service("a", 9))) };
    let (all, _stream) = tokio::join!(next(&mut services), synced);
    assert_eq!(all, "n/a ok");
}
