//! Which requests are made.

use std::{collections::BTreeSet, time::Duration};

use kube::client::Body;
use serde_json::json;

use crate::world::{World, until};

fn paths(world: &World) -> BTreeSet<String> {
    let requests = world.requests().into_iter();
    requests.map(|request| request.path).collect()
}

// sidecar 18
#[tokio::test(start_paused = true)]
async fn all_namespaces_take_one_watch_for_each_kind() {
    let world = World::new()
        .with("NAMESPACE", "ALL")
        .with("RESOURCE", "both");
    world.config_map("a", "x", &[("x", "1")]);
    world.secret("b", "y", &[("y", "1")]);
    let _sidecar = world.ready().await;
    world.until_files("x=1 y=1").await;
    assert_eq!(world.api.open_watches(), 2);
    let all = ["/api/v1/configmaps", "/api/v1/secrets"].map(str::to_owned);
    assert_eq!(paths(&world), BTreeSet::from(all));
    let labeled = |query: &String| query.contains("labelSelector=l");
    assert!(
        world
            .requests()
            .iter()
            .map(|request| &request.query)
            .all(labeled)
    );
}

// sidecar 21
#[tokio::test(start_paused = true)]
async fn named_object_is_watched_and_nothing_else_is_asked_for() {
    let world = World::new()
        .with("RESOURCE", "both")
        .with("RESOURCE_NAME", "configmap/x");
    world.config_map("n", "x", &[("x", "1")]);
    world.config_map("n", "other", &[("other", "1")]);
    world.secret("n", "x", &[("secret", "1")]);
    let _sidecar = world.ready().await;
    world.config_map("n", "x", &[("x", "2")]);
    world.until_files("x=2").await;
    for request in world.requests() {
        assert_eq!(request.path, "/api/v1/namespaces/n/configmaps");
        assert!(
            request.query.contains("fieldSelector=metadata.name"),
            "{}",
            request.query
        );
        assert!(!request.query.contains("labelSelector"));
    }
}

// sidecar 22
#[tokio::test(start_paused = true)]
async fn kind_and_namespace_of_a_name_count() {
    let world = World::new()
        .with("RESOURCE", "both")
        .with("NAMESPACE", "ns1,ns2")
        .with("RESOURCE_NAME", "ns1/secret/x");
    for namespace in ["ns1", "ns2"] {
        world.config_map(namespace, "x", &[("map", namespace)]);
        world.secret(namespace, "x", &[("secret", namespace)]);
    }
    let _sidecar = world.ready().await;
    world.until_files("secret=ns1").await;
    let only = "/api/v1/namespaces/ns1/secrets".to_owned();
    assert_eq!(paths(&world), BTreeSet::from([only]));
}

// sidecar 23
#[tokio::test(start_paused = true)]
async fn bare_name_is_found_in_all_namespaces() {
    let world = World::new()
        .with("NAMESPACE", "ALL")
        .with("UNIQUE_FILENAMES", "true")
        .with("RESOURCE_NAME", "x");
    for namespace in ["a", "b"] {
        world.config_map(namespace, "x", &[("k", "1")]);
        world.config_map(namespace, "y", &[("k", "1")]);
    }
    let _sidecar = world.ready().await;
    let both = "namespace_a.configmap_x.k=1 namespace_b.configmap_x.k=1";
    world.until_files(both).await;
}

// sidecar 61
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_while_nothing_changes() {
    let world = World::new();
    world.config_map("n", "x", &[("x", "1")]);
    let sidecar = world.ready().await;
    let before = world.requests().len();
    tokio::time::sleep(Duration::from_mins(25)).await;
    assert_eq!(world.requests().len(), before);
    tokio::time::sleep(Duration::from_mins(35)).await;
    let later = &world.requests()[before..];
    assert!(
        later.iter().all(|request| request.verb == "watch"),
        "{later:?}"
    );
    assert!(later.len() <= 2);
    assert!(
        sidecar
            .health
            .live(Some(Duration::from_mins(3)), tokio::time::Instant::now())
            .is_ok
    );
}

#[tokio::test(start_paused = true)]
async fn sleep_polls_and_removes_what_is_gone() {
    let world = World::new()
        .with("METHOD", "sleep")
        .with("SLEEP_TIME", "10");
    world.config_map("n", "a", &[("a", "1")]);
    let _sidecar = world.ready().await;
    world.until_files("a=1").await;
    world.delete(larder_apiserver::ApiKind::ConfigMap, "n", "a");
    world.config_map("n", "b", &[("b", "1")]);
    world.until_files("b=1").await;
    let watches = world.requests().into_iter();
    assert_eq!(watches.filter(|request| request.verb == "watch").count(), 0);
}

#[tokio::test(start_paused = true)]
async fn settings_without_a_pause_ask_with_one() {
    for (method, requests_per_minute) in [("SLEEP", 30..=61), ("WATCH", 0..=7)] {
        let world = World::new()
            .with("METHOD", method)
            .with("SLEEP_TIME", "0")
            .with("WATCH_CLIENT_TIMEOUT", "0");
        let _sidecar = world.ready().await;
        let before = world.requests().len();
        tokio::time::sleep(Duration::from_mins(1)).await;
        let requests = world.requests().len() - before;
        assert!(
            requests_per_minute.contains(&requests),
            "{method}: {requests}"
        );
    }
}

// sidecar 48
#[tokio::test(start_paused = true)]
async fn list_ends_when_everything_is_there_and_at_once_without_the_right() {
    let world = World::new().with("METHOD", "LIST");
    world.config_map("n", "a", &[("a", "1")]);
    let mut sidecar = world.start();
    assert_eq!(sidecar.ended().await, Ok(()));
    assert_eq!(world.files(), "a=1");
    let verbs: BTreeSet<_> = world
        .requests()
        .iter()
        .map(|request| request.verb)
        .collect();
    assert_eq!(verbs, BTreeSet::from(["list"]));

    let fault = larder_apiserver::Fault::on_any();
    let fault = world.api.faults().inject(fault.status(403));
    let started = tokio::time::Instant::now();
    let error = world.start().ended().await.unwrap_err().to_string();
    assert!(
        error.starts_with("cannot list configmaps in namespace n: "),
        "{error}"
    );
    assert!(started.elapsed() < Duration::from_secs(1));
    fault.lift();
    let _fault = world
        .api
        .faults()
        .inject(larder_apiserver::Fault::on_any().status(500));
    let error = world.start().ended().await.unwrap_err().to_string();
    assert!(
        error.starts_with("cannot list configmaps in namespace n: "),
        "{error}"
    );
    assert!(started.elapsed() >= Duration::from_mins(1));
}

#[tokio::test(start_paused = true)]
async fn object_whose_name_is_a_path_is_refused() {
    let world = World::new()
        .with("METHOD", "LIST")
        .with("UNIQUE_FILENAMES", "true");
    let outside = world.root.path().join("outside");
    let [bad, good] = ["/../../outside/../x", "good"]
        .map(|name| json!({"metadata": {"namespace": "n", "name": name}, "data": {"k": "1"}}));
    let list = json!({"metadata": {"resourceVersion": "1"}, "items": [bad, good]}).to_string();
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let answer = http::Response::new(Body::from(list.clone().into_bytes()));
        async { Ok::<_, kube::Error>(answer) }
    });
    let mut sidecar = world.start_with(kube::Client::new(service, "default"));
    assert_eq!(sidecar.ended().await, Ok(()));
    assert_eq!(world.files(), "namespace_n.configmap_good.k=1");
    assert!(!outside.exists());
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_and_unreadable_objects_leave_the_others() {
    let world = World::new();
    let data = |name: &str| json!({"data": {name: "1"}});
    for number in 0..600 {
        let name = format!("o{number}");
        world.object("ConfigMap", "n", &name, &data(&name));
    }
    let sidecar = world.start();
    until(|| sidecar.health.is_ready()).await;
    assert_eq!(world.files().split(' ').count(), 600);
}
