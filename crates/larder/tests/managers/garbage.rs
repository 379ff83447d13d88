//! Objects and frames that cannot be decoded: they are left out, and everything else is served.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap as ApiConfigMap;
use larder::{ChangeKind, ConfigMapManager, ManagerConfig, RequestPhase, Strategy, WatchScope};
use larder_transport::path::Resource;
use larder_watch::{
    NodeContext,
    collection::{Collection, CollectionEvent},
};

use crate::scripted::{Script, named, object, pod_with, settle, value, watching};

/// ConfigMap `n/<name>` whose data is not what it should be.
fn unreadable(name: &str, version: u64) -> String {
    let array = named(name, version, "hunter2").replace(r#"{"k":"hunter2"}"#, r#"["hunter2"]"#);
    assert!(array.contains("[\"hunter2\"]"));
    array
}

/// An object whose metadata says nothing.
const NAMELESS: &str = r#"{"metadata":{"name":7,"resourceVersion":[]},"data":"hunter2"}"#;

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_keeps_its_last_good_state() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Object, client);
    manager.register_pod(&pod_with("p1", &["a"]));
    let stream = script.next().await.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager, "a").await, "one");
    let mut changes = manager.subscribe();
    stream.event("MODIFIED", &unreadable("a", 6));
    let ChangeKind::Failed(error) = changes.next().await.unwrap().kind else {
        panic!("it is reported");
    };
    assert_eq!(error.phase, RequestPhase::Watch);
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    assert_eq!(value(&manager, "a").await, "one");
    // The watch continues, and the next state heals.
    stream.event("MODIFIED", &object(7, "two"));
    changes.next().await.unwrap();
    assert_eq!(value(&manager, "a").await, "two");
    assert!(manager.objects()[0].failure.is_none());
    script.silence(Duration::from_mins(1)).await;
}

/// ConfigMap `n/a` with other words in place of some.
fn foreign(version: u64, from: &str, to: &str) -> String {
    let other = object(version, "hunter2").replacen(from, to, 1);
    assert_ne!(other, object(version, "hunter2"));
    other
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_namespace_or_kind_is_not_served_under_the_name() {
    let others = [
        (r#""namespace":"n""#, r#""namespace":"m""#),
        ("{", r#"{"apiVersion":"v1","kind":"Secret","#),
        ("{", r#"{"apiVersion":"example.com/v1","kind":"ConfigMap","#),
    ];
    for scope in [WatchScope::Object, WatchScope::Namespace] {
        for (from, to) in others {
            let (client, mut script) = Script::new();
            let manager = watching(scope, client);
            manager.register_pod(&pod_with("p1", &["a"]));
            let stream = script.next().await.synced(5, Some(&object(5, "one")));
            assert_eq!(value(&manager, "a").await, "one");
            let mut changes = manager.subscribe();
            stream.event("MODIFIED", &foreign(6, from, to));
            let ChangeKind::Failed(failure) = changes.next().await.unwrap().kind else {
                panic!("it is reported");
            };
            let error = failure.error.to_string();
            assert!(error.starts_with("an object of another "), "{error}");
            stream.event("DELETED", &foreign(7, from, to));
            settle().await;
            assert_eq!(value(&manager, "a").await, "one", "{to}");
            // A freshness check gets no other object either.
            manager.register_pod(&pod_with("p2", &["a"]));
            let answer = async { script.next().await.prove(8, &foreign(8, from, to)) };
            let (read, ()) = tokio::join!(manager.get("n", "a"), answer);
            let error = larder_objects::chain(&read.unwrap_err());
            assert!(error.contains("an object of another "), "{error}");
        }
    }
    for strategy in [Strategy::Get, Strategy::Cache] {
        for (from, to) in others {
            let (client, mut script) = Script::new();
            let config = ManagerConfig::default().strategy(strategy);
            let manager = ConfigMapManager::new(client, &config).unwrap();
            manager.register_pod(&pod_with("p1", &["a"]));
            let answer = async { script.next().await.answer(200, &foreign(5, from, to)) };
            let (read, ()) = tokio::join!(manager.get("n", "a"), answer);
            let error = larder_objects::chain(&read.unwrap_err());
            assert!(error.contains("an object of another "), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_leaves_no_unreadable_object_unknown() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Object, client);
    manager.register_pod(&pod_with("p1", &["a"]));
    let stream = script.next().await.synced(5, Some(&unreadable("a", 5)));
    settle().await;
    // The watch continues from the version of the state that could not be read, and nothing happens any more.
    tokio::time::sleep(Duration::from_secs(10)).await;
    drop(stream);
    let request = script.next().await;
    request.check("resourceVersion=5 !sendInitialEvents");
    let _stream = request.stream();
    settle().await;
    let answer = async { script.next().await.prove(5, &object(5, "one")) };
    let (read, ()) = tokio::join!(value(&manager, "a"), answer);
    assert_eq!(read, "one");
}

#[tokio::test(start_paused = true)]
async fn a_version_from_the_future_ends_in_no_endless_checks() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Namespace, client);
    manager.register_pod(&pod_with("p1", &["a"]));
    let stream = script.next().await.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager, "a").await, "one");
    // A check brings a version that the namespace never reaches.
    manager.register_pod(&pod_with("p2", &["a"]));
    let answer = async { script.next().await.prove(99_999, &object(99_999, "lie")) };
    let (read, ()) = tokio::join!(value(&manager, "a"), answer);
    assert_eq!(read, "lie");
    // The watch rests meanwhile, so that only the next state says what the object is.
    while !stream.is_dropped() {
        tokio::time::sleep(Duration::from_secs(15)).await;
    }
    let answers = async {
        let stream = script.next().await.synced(7, Some(&object(6, "two")));
        script.next().await.prove(7, &object(6, "two"));
        script.next().await.prove(7, &object(6, "two"));
        stream
    };
    let (read, _stream) = tokio::join!(value(&manager, "a"), answers);
    assert_eq!(read, "two");
    let request = script.next().await;
    request.check("sendInitialEvents=true !resourceVersion");
    let _stream = request.synced(7, Some(&object(6, "two")));
    script.silence(Duration::from_mins(1)).await;
    assert_eq!(value(&manager, "a").await, "two");
}

#[tokio::test(start_paused = true)]
async fn checks_of_an_unreadable_object_back_off() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Object, client);
    manager.register_pod(&pod_with("p1", &["a"]));
    let _stream = script.next().await.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager, "a").await, "one");
    manager.register_pod(&pod_with("p2", &["a"]));
    let reads = async {
        for _ in 0..20 {
            assert!(manager.get("n", "a").await.is_err());
        }
    };
    let mut checks = 0;
    let answers = async {
        loop {
            script.next().await.answer(200, &unreadable("a", 6));
            checks += 1;
        }
    };
    tokio::select! {
        () = reads => {}
        () = answers => {}
    }
    assert!(checks < 8, "{checks} in 20 s");
    // The pod that runs is not affected.
    let running = manager
        .get_for(&larder::PodIdentity::from(&pod_with("p1", &[])), "a")
        .await
        .unwrap();
    assert_eq!(running.data["k"], "one");
}

#[tokio::test(start_paused = true)]
async fn garbage_in_a_list_hides_no_other_object() {
    for streaming in [true, false] {
        let (client, mut script) = Script::new();
        let manager = watching(WatchScope::Namespace, client);
        manager.register_pod(&pod_with("p1", &["a", "b", "c"]));
        let request = script.next().await;
        let _stream = if streaming {
            let stream = request.stream();
            for item in [&object(5, "one"), &unreadable("b", 5), NAMELESS, "7"] {
                stream.event("ADDED", item);
            }
            stream.raw("}{ no frame\n");
            stream.end_of_initial_events(5);
            stream
        } else {
            request.refuse(422);
            let items = format!("{},{},{NAMELESS},7", object(5, "one"), unreadable("b", 5));
            script.next().await.list(5, Some(&items));
            script.next().await.stream()
        };
        settle().await;
        assert_eq!(value(&manager, "a").await, "one");
        let objects = manager.objects();
        let failures = objects.iter().map(|object| object.failure.is_some());
        // `c` may be the object without a name, so it is not known to be absent.
        assert_eq!(failures.collect::<Vec<_>>(), [false, true, true]);
        assert!(!manager.get("n", "c").await.unwrap_err().is_not_found());
    }
}

#[tokio::test(start_paused = true)]
async fn garbage_in_a_watch_is_followed_by_a_new_state() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Namespace, client);
    manager.register_pod(&pod_with("p1", &["a"]));
    let stream = script.next().await.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager, "a").await, "one");
    // An object without a name is none that is referenced.
    stream.event("MODIFIED", NAMELESS);
    stream.event("NONSENSE", "7");
    settle().await;
    assert!(!stream.is_dropped());
    // What an unreadable frame was about may concern anything.
    stream.raw("\u{0}\u{7f}[[[[\n");
    let request = script.next().await;
    request.check("sendInitialEvents=true");
    assert_eq!(value(&manager, "a").await, "one");
    let _stream = request.synced(7, Some(&object(7, "two")));
    settle().await;
    assert_eq!(value(&manager, "a").await, "two");
}

#[tokio::test(start_paused = true)]
async fn a_collection_names_what_it_cannot_decode() {
    let (client, mut script) = Script::new();
    let path = Resource::core("configmaps").collection();
    let context = NodeContext::default();
    let mut collection = Collection::<ApiConfigMap>::new(client, path, None, &context);
    let answer = async {
        let stream = script.next().await.stream();
        for item in [&object(5, "one"), &unreadable("b", 5), NAMELESS] {
            stream.event("ADDED", item);
        }
        stream.end_of_initial_events(5);
        stream
    };
    let (stream, event) = tokio::join!(answer, collection.next());
    let CollectionEvent::All(all) = event else {
        panic!("{event:?}");
    };
    let describe = |found: &larder_watch::collection::Found<ApiConfigMap>| {
        let readable = if found.object.is_ok() {
            ""
        } else {
            " unreadable"
        };
        format!("{}{readable}", found.metadata.name)
    };
    let names: Vec<_> = all.iter().map(describe).collect();
    assert_eq!(names, [" unreadable", "a", "b unreadable"]);
    stream.event("MODIFIED", &unreadable("a", 6));
    let CollectionEvent::One(found) = collection.next().await else {
        panic!("the next event");
    };
    assert_eq!(describe(&found), "a unreadable");
}
