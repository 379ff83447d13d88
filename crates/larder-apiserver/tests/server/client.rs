//! The server as a real `kube::Client` sees it, in process and with time paused.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams, Preconditions, WatchEvent, WatchParams},
};
use larder_apiserver::{ApiKind, ApiServer, Applied, Options};
use serde_json::json;

fn server() -> ApiServer {
    ApiServer::new(Options::default().first_version(1000))
}

fn client(server: &ApiServer) -> Client {
    Client::new(server.service(), "default")
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": value}})).unwrap()
}

fn pod(name: &str, node: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
    }))
    .unwrap()
}

/// The reason of the rejection.
#[track_caller]
fn reason<T: std::fmt::Debug>(result: kube::Result<T>) -> String {
    match result.unwrap_err() {
        kube::Error::Api(status) => status.reason,
        other => panic!("{other:?}"),
    }
}

type Events<K> = BoxStream<'static, WatchEvent<K>>;

async fn watch<K>(api: &Api<K>, params: &WatchParams, version: &str) -> Events<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + 'static + Send,
{
    let events = api.watch(params, version).await.unwrap();
    events.map(|event| event.unwrap()).boxed()
}

/// The next event as a line: type, name, and data or version.
async fn next<K: kube::Resource + std::fmt::Debug>(events: &mut Events<K>) -> String {
    match events.next().await {
        None => "end".to_owned(),
        Some(WatchEvent::Added(object)) => format!("added {}", object.name_any()),
        Some(WatchEvent::Modified(object)) => format!("modified {}", object.name_any()),
        Some(WatchEvent::Deleted(object)) => format!("deleted {}", object.name_any()),
        Some(WatchEvent::Bookmark(bookmark)) => {
            let ends = bookmark
                .metadata
                .annotations
                .contains_key("k8s.io/initial-events-end");
            format!("bookmark{}", if ends { " of the end" } else { "" })
        }
        Some(WatchEvent::Error(status)) => format!("error {} {}", status.code, status.reason),
    }
}

#[tokio::test(start_paused = true)]
async fn objects_are_created_read_replaced_and_deleted() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let created = maps
        .create(&PostParams::default(), &config_map("a", "1"))
        .await
        .unwrap();
    assert!(created.uid().is_some() && created.creation_timestamp().is_some());
    assert_eq!(created.namespace().as_deref(), Some("default"));

    let mut changed = created.clone();
    changed.data = config_map("a", "2").data;
    let changed = maps
        .replace("a", &PostParams::default(), &changed)
        .await
        .unwrap();
    assert_eq!(changed.uid(), created.uid());
    assert_ne!(changed.resource_version(), created.resource_version());
    assert_eq!(maps.get("a").await.unwrap(), changed);
    assert_eq!(
        maps.list(&ListParams::default()).await.unwrap().items,
        [changed]
    );

    maps.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(reason(maps.get("a").await), "NotFound");
    assert_eq!(
        reason(maps.delete("a", &DeleteParams::default()).await),
        "NotFound"
    );
}

#[tokio::test(start_paused = true)]
async fn stale_writes_conflict_and_unchanged_ones_store_nothing() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let post = PostParams::default();
    let first = maps.create(&post, &config_map("a", "1")).await.unwrap();
    assert_eq!(
        reason(maps.create(&post, &config_map("a", "1")).await),
        "AlreadyExists"
    );

    let unchanged = maps.replace("a", &post, &first).await.unwrap();
    assert_eq!(unchanged, first, "no new version");
    // Without a version, a replacement is unconditional.
    maps.replace("a", &post, &config_map("a", "2"))
        .await
        .unwrap();
    assert_eq!(reason(maps.replace("a", &post, &first).await), "Conflict");

    let of_another = DeleteParams::default().preconditions(Preconditions {
        uid: Some("another".to_owned()),
        resource_version: None,
    });
    assert_eq!(reason(maps.delete("a", &of_another).await), "Conflict");
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_with_the_state_and_follows_changes() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let post = PostParams::default();
    maps.create(&post, &config_map("a", "1")).await.unwrap();
    maps.create(&post, &config_map("b", "1")).await.unwrap();
    let only_a = WatchParams::default()
        .fields("metadata.name=a")
        .disable_bookmarks();
    let mut events = watch(&maps, &only_a, "0").await;
    assert_eq!(next(&mut events).await, "added a");
    maps.replace("b", &post, &config_map("b", "2"))
        .await
        .unwrap();
    maps.replace("a", &post, &config_map("a", "2"))
        .await
        .unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    maps.create(&post, &config_map("a", "3")).await.unwrap();
    assert_eq!(next(&mut events).await, "modified a");
    assert_eq!(next(&mut events).await, "deleted a");
    assert_eq!(next(&mut events).await, "added a");
    assert_eq!(server.open_watches(), 1);
    drop(events);
    tokio::task::yield_now().await;
    assert_eq!(
        server.open_watches(),
        0,
        "the end of the response ends the watch"
    );
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_marks_the_end_of_the_state() {
    // managers 39
    let server = server();
    let secrets: Api<Secret> = Api::default_namespaced(client(&server));
    let streaming = WatchParams::default()
        .fields("metadata.name=s")
        .initial_events();
    let mut events = watch(&secrets, &streaming, "").await;
    assert_eq!(next(&mut events).await, "bookmark of the end");
    server
        .apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"p": "hunter2"}}))
        .unwrap();
    assert_eq!(next(&mut events).await, "added s");
    let mut events = watch(&secrets, &streaming, "").await;
    assert_eq!(next(&mut events).await, "added s");
    assert_eq!(next(&mut events).await, "bookmark of the end");
    let secret = secrets.get("s").await.unwrap();
    assert_eq!(secret.data.unwrap()["p"].0, b"hunter2");
    assert_eq!(secret.string_data, None);
}

#[tokio::test(start_paused = true)]
async fn quiet_watches_get_bookmarks_and_end_at_their_time_limit() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let begun = tokio::time::Instant::now();
    let mut events = watch(&maps, &WatchParams::default().timeout(150), "0").await;
    let mut bookmarks = Vec::new();
    while next(&mut events).await == "bookmark" {
        bookmarks.push(begun.elapsed().as_secs());
    }
    assert_eq!(bookmarks, [60, 120, 148]);
    assert_eq!(begun.elapsed().as_secs(), 150);
}

#[tokio::test(start_paused = true)]
async fn a_version_before_the_history_is_gone_in_both_forms() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    for name in ["a", "b", "c"] {
        maps.create(&PostParams::default(), &config_map(name, "1"))
            .await
            .unwrap();
    }
    let page = maps.list(&ListParams::default().limit(2)).await.unwrap();
    let token = page.metadata.continue_.unwrap();
    assert_eq!(page.metadata.remaining_item_count, Some(1));
    maps.delete("c", &DeleteParams::default()).await.unwrap();
    let second = ListParams::default().limit(2).continue_token(&token);
    let rest = maps.list(&second).await.unwrap();
    assert_eq!(
        rest.items.len(),
        1,
        "the second page shows the state of the first"
    );
    assert_eq!(
        rest.metadata.resource_version,
        page.metadata.resource_version
    );

    server.compact();
    assert_eq!(reason(maps.list(&second).await), "Expired");
    let version = page.metadata.resource_version.unwrap();
    let mut events = watch(&maps, &WatchParams::default(), &version).await;
    assert_eq!(next(&mut events).await, "error 410 Expired");
    assert_eq!(next(&mut events).await, "end");
}

#[tokio::test(start_paused = true)]
async fn a_version_of_the_future_is_rejected() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let list = ListParams::default()
        .at("9999999")
        .matching(kube::api::VersionMatch::NotOlderThan);
    match maps.list(&list).await.unwrap_err() {
        kube::Error::Api(status) => {
            assert_eq!(status.code, 504);
            assert_eq!(
                status.details.unwrap().causes[0].reason,
                "ResourceVersionTooLarge"
            );
        }
        other => panic!("{other:?}"),
    }
    let streaming = WatchParams::default().initial_events();
    assert_eq!(
        reason(maps.watch(&streaming, "9999999").await.map(|_| ())),
        "Timeout"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_are_selected_and_wait_for_it_when_deleted() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    for (name, node) in [("mine", "n1"), ("other", "n2"), ("unbound", "")] {
        pods.create(&PostParams::default(), &pod(name, node))
            .await
            .unwrap();
    }
    let mine = ListParams::default().fields("spec.nodeName=n1");
    let listed = pods.list(&mine).await.unwrap();
    assert_eq!(
        listed
            .items
            .iter()
            .map(ResourceExt::name_any)
            .collect::<Vec<_>>(),
        ["mine"]
    );
    assert_eq!(
        pods.get("mine")
            .await
            .unwrap()
            .status
            .unwrap()
            .phase
            .as_deref(),
        Some("Pending")
    );

    pods.delete("unbound", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(reason(pods.get("unbound").await), "NotFound");
    let marked = pods
        .delete("mine", &DeleteParams::default().grace_period(20))
        .await
        .unwrap();
    let metadata = marked.left().unwrap().metadata;
    assert_eq!(metadata.deletion_grace_period_seconds, Some(20));
    assert!(metadata.deletion_timestamp.is_some());
    pods.delete("mine", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert_eq!(reason(pods.get("mine").await), "NotFound");
}

#[tokio::test(start_paused = true)]
async fn status_and_the_rest_are_written_apart() {
    let server = server();
    let nodes: Api<Node> = Api::all(client(&server));
    let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"nodeInfo": null}});
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let mut changed = node.clone();
    changed.spec = None;
    changed.status = serde_json::from_value(json!({"allocatable": {"cpu": "2"}})).unwrap();
    let changed = nodes
        .replace_status("n1", &PostParams::default(), &changed)
        .await
        .unwrap();
    assert_eq!(
        changed.spec.unwrap().pod_cidr.as_deref(),
        Some("10.0.0.0/24")
    );
    assert!(changed.status.unwrap().allocatable.is_some());
    let after = nodes
        .replace("n1", &PostParams::default(), &node)
        .await
        .unwrap();
    assert!(after.status.unwrap().allocatable.is_some());
}

#[tokio::test(start_paused = true)]
async fn finalizers_keep_an_object_until_they_are_gone() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let mut map = config_map("a", "1");
    map.metadata.finalizers = Some(vec!["example.com/wait".to_owned()]);
    maps.create(&PostParams::default(), &map).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    let mut waiting = maps.get("a").await.unwrap();
    assert!(waiting.metadata.deletion_timestamp.is_some());
    waiting.metadata.finalizers = None;
    maps.replace("a", &PostParams::default(), &waiting)
        .await
        .unwrap();
    assert_eq!(reason(maps.get("a").await), "NotFound");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_must_exist_and_takes_its_content_along() {
    let server = server();
    let client = client(&server);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "prod");
    let namespaces: Api<Namespace> = Api::all(client);
    let post = PostParams::default();
    assert_eq!(
        reason(maps.create(&post, &config_map("a", "1")).await),
        "NotFound"
    );
    let prod: Namespace = serde_json::from_value(json!({"metadata": {"name": "prod"}})).unwrap();
    namespaces.create(&post, &prod).await.unwrap();
    let mut held = config_map("held", "1");
    held.metadata.finalizers = Some(vec!["example.com/wait".to_owned()]);
    maps.create(&post, &config_map("a", "1")).await.unwrap();
    maps.create(&post, &held).await.unwrap();

    namespaces
        .delete("prod", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(reason(maps.get("a").await), "NotFound");
    assert_eq!(
        reason(maps.create(&post, &config_map("b", "1")).await),
        "Forbidden"
    );
    held.metadata.finalizers = None;
    maps.replace("held", &post, &held).await.unwrap();
    assert_eq!(reason(namespaces.get("prod").await), "NotFound");
}

#[tokio::test(start_paused = true)]
async fn the_namespaces_of_every_cluster_stay() {
    let server = server();
    let namespaces: Api<Namespace> = Api::all(client(&server));
    for name in ["default", "kube-public", "kube-system"] {
        let deleted = namespaces.delete(name, &DeleteParams::default()).await;
        assert_eq!(reason(deleted), "Forbidden", "{name}");
        namespaces.get(name).await.unwrap();
    }
    namespaces
        .delete("kube-node-lease", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(reason(namespaces.get("kube-node-lease").await), "NotFound");
}

#[tokio::test(start_paused = true)]
async fn applying_the_same_again_is_no_event() {
    let server = server();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "made-on-the-fly"}, "data": {"k": "1"}});
    assert_eq!(server.apply(&map).unwrap(), Applied::Created);
    let stored = server.get(ApiKind::ConfigMap, "made-on-the-fly", "a");
    assert_eq!(server.apply(&map).unwrap(), Applied::Unchanged);
    assert_eq!(
        server.get(ApiKind::ConfigMap, "made-on-the-fly", "a"),
        stored
    );
    let mut changed = map.clone();
    changed["data"]["k"] = "2".into();
    assert_eq!(server.apply(&changed).unwrap(), Applied::Changed);
    server
        .delete(ApiKind::ConfigMap, "made-on-the-fly", "a")
        .unwrap();
    assert_eq!(server.get(ApiKind::ConfigMap, "made-on-the-fly", "a"), None);
    assert!(
        server
            .apply(&json!({"apiVersion": "v2", "kind": "X"}))
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn unknown_fields_are_dropped_and_named() {
    let server = server();
    let client = client(&server);
    let body = json!({"metadata": {"name": "a"}, "dta": {"k": "v"}}).to_string();
    let strict =
        http::Request::post("/api/v1/namespaces/default/configmaps?fieldValidation=Strict");
    let strict = strict.body(body.clone().into_bytes()).unwrap();
    match client.request::<ConfigMap>(strict).await.unwrap_err() {
        kube::Error::Api(status) => {
            assert_eq!(status.code, 400);
            assert!(
                status.message.contains("unknown field \"dta\""),
                "{}",
                status.message
            );
        }
        other => panic!("{other:?}"),
    }
    let lax = http::Request::post("/api/v1/namespaces/default/configmaps");
    let map: ConfigMap = client
        .request(lax.body(body.into_bytes()).unwrap())
        .await
        .unwrap();
    assert_eq!(map.data, None);
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_gets_410_for_missed_events() {
    let server = ApiServer::new(Options::default().history_changes(4));
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let mut events = watch(
        &maps,
        &WatchParams::default().timeout(100).disable_bookmarks(),
        "0",
    )
    .await;
    for value in 0..10 {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": value.to_string()}});
        server.apply(&map).unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(next(&mut events).await, "error 410 Expired");
    assert_eq!(next(&mut events).await, "end");
}

#[tokio::test(start_paused = true)]
async fn watches_end_when_the_server_wants_it() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let events = watch(&maps, &WatchParams::default(), "0").await;
    server.end_watches();
    assert_eq!(
        events
            .map(Ok::<_, kube::Error>)
            .try_collect::<Vec<_>>()
            .await
            .unwrap()
            .len(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn defaults_are_filled_and_broken_rules_named() {
    let server = server();
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let post = PostParams::default();
    let created = pods.create(&post, &pod("a", "n1")).await.unwrap();
    assert_eq!(created.metadata.generation, Some(1));
    let spec = created.spec.unwrap();
    assert_eq!(spec.restart_policy.as_deref(), Some("Always"));
    assert_eq!(
        spec.containers[0].image_pull_policy.as_deref(),
        Some("Always")
    );

    let mut bad = config_map("Bad", "1");
    bad.data
        .as_mut()
        .unwrap()
        .insert("..x".to_owned(), String::new());
    match maps.create(&post, &bad).await.unwrap_err() {
        kube::Error::Api(status) => {
            assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
            let fields = status
                .details
                .unwrap()
                .causes
                .into_iter()
                .map(|cause| cause.field);
            assert_eq!(fields.collect::<Vec<_>>(), ["metadata.name", "data[..x]"]);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn fields_that_cannot_change_are_rejected_over_http_and_recreated_from_a_manifest() {
    let server = server();
    let maps: Api<ConfigMap> = Api::default_namespaced(client(&server));
    let pods: Api<Pod> = Api::default_namespaced(client(&server));
    let manifest = |value: &str, uid: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": uid}, "data": {"k": value}, "immutable": true});
    server.apply(&manifest("1", "u1")).unwrap();
    let mut held = maps.get("a").await.unwrap();
    assert_eq!(held.metadata.uid.as_deref(), Some("u1"));
    held.data = config_map("a", "2").data;
    assert_eq!(
        reason(maps.replace("a", &PostParams::default(), &held).await),
        "Invalid"
    );
    assert_eq!(
        server.apply(&manifest("1", "u1")).unwrap(),
        Applied::Unchanged
    );
    // Immutable data stays as it is in either way.
    let error = server.apply(&manifest("2", "u1")).unwrap_err();
    let rule = "data: Forbidden: field is immutable when `immutable` is set";
    assert!(error.to_string().contains(rule), "{error}");
    assert_eq!(maps.get("a").await.unwrap().data, config_map("a", "1").data);

    let created = pods
        .create(&PostParams::default(), &pod("p", "n1"))
        .await
        .unwrap();
    let mut image = created.clone();
    image.spec.as_mut().unwrap().containers[0].image = Some("other".to_owned());
    let image = pods
        .replace("p", &PostParams::default(), &image)
        .await
        .unwrap();
    assert_eq!(image.metadata.generation, Some(2));
    let mut moved = image.clone();
    moved.spec.as_mut().unwrap().node_name = Some("n2".to_owned());
    assert_eq!(
        reason(pods.replace("p", &PostParams::default(), &moved).await),
        "Invalid"
    );
    // A broken manifest leaves what is there.
    let broken = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}});
    assert_eq!(server.apply(&broken).unwrap_err().reason(), "Invalid");
    assert_eq!(pods.get("p").await.unwrap(), image);
}
