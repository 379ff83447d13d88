//! One watch for a namespace: what is particular about it.

use std::{sync::Arc, time::Duration};

use larder::{ChangeKind, ConfigMapManager, ObjectState, WatchScope};
use larder_apiserver::AuditRecord;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    cluster::Cluster,
    scripted::{Exchange, Script, Stream, named, object, pod, pod_with, settle, value, watching},
};

const LIST: &str = "watch=true sendInitialEvents=true !fieldSelector";

/// A manager with a pod that refers to `a`, which does not exist, and the watch of its namespace at version 5.
async fn watched() -> (ConfigMapManager, Script, Stream) {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Namespace, client);
    manager.register_pod(&pod("p1"));
    let request = script.next().await;
    request.check(LIST).check("!resourceVersion");
    let stream = request.synced(5, None);
    assert!(manager.get("n", "a").await.unwrap_err().is_not_found());
    (manager, script, stream)
}

#[tokio::test(start_paused = true)]
async fn an_object_that_joins_is_listed_once_and_then_followed() {
    let (manager, mut script, stream) = watched().await;
    // Not referenced yet: dropped.
    stream.event("ADDED", &named("b", 6, "one"));
    settle().await;
    manager.register_pod(&pod_with("p2", &["b"]));
    let request = script.next().await;
    request.check("fieldSelector=metadata.name%3Db !watch !resourceVersion");
    request.list(9, Some(&named("b", 6, "one")));
    assert_eq!(value(&manager, "b").await, "one");
    let mut changes = manager.subscribe();
    stream.event("MODIFIED", &named("b", 10, "two"));
    changes.next().await.unwrap();
    assert_eq!(value(&manager, "b").await, "two");
    script.silence(Duration::from_mins(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_older_than_the_list_is_ignored() {
    let (manager, mut script, stream) = watched().await;
    manager.register_pod(&pod_with("p2", &["b"]));
    // Deleted at 8, as the list knows; the watch is late.
    script.next().await.list(9, None);
    assert!(manager.get("n", "b").await.unwrap_err().is_not_found());
    stream.event("ADDED", &named("b", 7, "late"));
    stream.event("MODIFIED", &object(10, "other"));
    settle().await;
    assert_eq!(value(&manager, "a").await, "other");
    assert_eq!(value(&manager, "b").await, r#"configmap "b" not found"#);
    stream.event("ADDED", &named("b", 11, "new"));
    settle().await;
    assert_eq!(value(&manager, "b").await, "new");
}

#[tokio::test(start_paused = true)]
async fn object_that_joins_during_a_list_is_not_absent() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Namespace, client);
    manager.register_pod(&pod("p1"));
    let stream = script.next().await.stream();
    stream.event("ADDED", &object(4, "one"));
    // The event came before the first reference.
    stream.event("ADDED", &named("b", 3, "one"));
    settle().await;
    manager.register_pod(&pod_with("p2", &["b"]));
    // Nothing is asked by name before the state is there.
    script.silence(Duration::from_secs(1)).await;
    stream.end_of_initial_events(5);
    let request = script.next().await;
    request.check("fieldSelector=metadata.name%3Db");
    assert_eq!(value(&manager, "a").await, "one");
    let status = manager.objects();
    assert_eq!(status[1].state, ObjectState::Pending);
    request.list(6, Some(&named("b", 3, "one")));
    assert_eq!(value(&manager, "b").await, "one");
}

#[tokio::test(start_paused = true)]
async fn many_that_join_at_once_are_served_by_one_state() {
    let (manager, mut script, stream) = watched().await;
    let names: Vec<_> = (0..20).map(|number| format!("m{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    manager.register_pod(&pod_with("p2", &names));
    let request = script.next().await;
    request.check(LIST).check("!resourceVersion");
    assert!(stream.is_dropped());
    let _stream = request.synced(9, Some(&named("m7", 8, "one")));
    assert_eq!(value(&manager, "m7").await, "one");
    assert!(manager.get("n", "m8").await.unwrap_err().is_not_found());
    script.silence(Duration::from_mins(1)).await;
}

#[tokio::test(start_paused = true)]
async fn unchanged_objects_of_a_relist_share_memory() {
    let (manager, mut script, stream) = watched().await;
    manager.register_pod(&pod_with("p2", &["b", "c"]));
    for name in ["b", "c"] {
        let request = script.next().await;
        request.list(7, Some(&named(name, 6, "one")));
    }
    let before = (manager.get("n", "b").await, manager.get("n", "c").await);
    stream.error(410);
    let again = script.next().await.stream();
    again.event("ADDED", &named("b", 6, "one"));
    again.event("ADDED", &named("c", 8, "two"));
    again.end_of_initial_events(9);
    settle().await;
    let (b, c) = (manager.get("n", "b").await, manager.get("n", "c").await);
    assert!(Arc::ptr_eq(&before.0.unwrap(), &b.unwrap()));
    assert_eq!(before.1.unwrap().data["k"], "one");
    assert_eq!(c.unwrap().data["k"], "two");
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_fails_alone_and_heals() {
    let (manager, mut script, stream) = watched().await;
    manager.register_pod(&pod_with("p2", &["b"]));
    script.next().await.list(6, Some(&named("b", 6, "one")));
    assert_eq!(value(&manager, "b").await, "one");
    let mut changes = manager.subscribe();
    stream.event(
        "MODIFIED",
        &named("b", 7, "hunter2")
            .replace(r#"{"k":"#, r#"{"k":["#)
            .replace("}}", "]}}"),
    );
    let change = changes.next().await.unwrap();
    let ChangeKind::Failed(error) = change.kind else {
        panic!("{change:?}");
    };
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    // What is known stays, and the others go on.
    assert_eq!(value(&manager, "b").await, "one");
    stream.event("ADDED", &object(8, "a"));
    settle().await;
    assert_eq!(value(&manager, "a").await, "a");
    stream.event("MODIFIED", &named("b", 9, "two"));
    settle().await;
    assert_eq!(value(&manager, "b").await, "two");
    assert!(
        manager
            .objects()
            .iter()
            .all(|object| object.failure.is_none())
    );
    script.silence(Duration::from_mins(1)).await;
}

#[tokio::test(start_paused = true)]
async fn every_read_reports_a_forbidden_namespace_until_it_heals() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Namespace, client);
    manager.register_pod(&pod_with("p1", &["a", "b"]));
    let refuse = async {
        for _ in 0..5 {
            let refusal = r#"{"kind":"Status","code":403,"reason":"Forbidden",
                "message":"configmaps is forbidden: User \"u\" cannot watch resource \"configmaps\" in the namespace \"n\""}"#;
            script.next().await.answer(403, refusal);
        }
        script.next().await
    };
    let (request, a, b) = tokio::join!(refuse, manager.get("n", "a"), manager.get("n", "b"));
    for error in [a.unwrap_err(), b.unwrap_err()] {
        assert!(error.is_forbidden(), "{error:?}");
        let cause = error.request().unwrap().to_string();
        assert!(cause.contains(r#"in the namespace "n""#), "{cause}");
    }
    let _stream = request.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager, "a").await, "one");
    assert!(manager.get("n", "b").await.unwrap_err().is_not_found());
}

const COLLECTION: &str = "/api/v1/namespaces/n/configmaps";

/// The verbs of the requests for the whole namespace, and those by name.
fn asked(cluster: &Cluster) -> (Vec<&'static str>, Vec<&'static str>) {
    let records: Vec<AuditRecord> = cluster.audit.take();
    let records = records
        .iter()
        .filter(|record| record.path.starts_with(COLLECTION));
    let (by_name, whole): (Vec<_>, Vec<_>) = records.partition(|record| {
        record.path != COLLECTION || record.query.contains("fieldSelector=metadata.name")
    });
    let verbs = |records: Vec<&AuditRecord>| records.iter().map(|record| record.verb).collect();
    (verbs(whole), verbs(by_name))
}

#[tokio::test(start_paused = true)]
async fn one_watch_serves_a_namespace_until_its_last_reference() {
    let cluster = Cluster::new();
    for name in ["a", "b", "unreferenced"] {
        cluster.set(name, "one", false);
    }
    cluster.audit.take();
    let manager = watching(WatchScope::Namespace, cluster.client());
    let pods: Vec<_> = (0..50)
        .map(|number| pod_with(&format!("p{number}"), &["a", "b", "missing"]))
        .collect();
    for pod in &pods {
        manager.register_pod(pod);
    }
    for pod in &pods {
        assert_eq!(
            manager
                .get_for(&larder::PodIdentity::from(pod), "a")
                .await
                .unwrap()
                .data["k"],
            "one"
        );
        let error = manager
            .get_for(&larder::PodIdentity::from(pod), "missing")
            .await
            .unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
    cluster.set("b", "two", false);
    cluster.set("unreferenced", "two", false);
    settle().await;
    assert_eq!(value(&manager, "b").await, "two");
    assert_eq!(asked(&cluster), (vec!["watch"], vec![]));
    for pod in &pods {
        manager.unregister_pod(pod);
    }
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert_eq!(asked(&cluster), (vec![], vec![]));
    assert_eq!(cluster.server.open_watches(), 0);
}

/// Answers the reviews of what may be done, one by one.
async fn review(script: &mut Script, allowed: &[bool]) {
    for allowed in allowed {
        let request: Exchange = script.next().await;
        assert_eq!(
            request.path_and_query,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        );
        request.answer(201, &json!({"status": {"allowed": allowed}}).to_string());
    }
}

/// What was chosen for namespace `n`.
fn chosen(manager: &ConfigMapManager) -> Option<(WatchScope, String)> {
    let scopes = manager.scopes();
    let choice = &scopes.first()?.choice;
    Some((choice.scope, choice.reason.clone()))
}

#[tokio::test(start_paused = true)]
async fn auto_watches_the_namespace_where_it_may() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Auto, client);
    manager.register_pod(&pod("p1"));
    review(&mut script, &[true, true]).await;
    let request = script.next().await;
    request.check(LIST);
    let stream = request.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager, "a").await, "one");
    let reason = "may list and watch the namespace".to_owned();
    assert_eq!(chosen(&manager), Some((WatchScope::Namespace, reason)));
    // After the last reference, the permission is reviewed again.
    manager.unregister_pod(&pod("p1"));
    settle().await;
    assert!(stream.is_dropped());
    assert_eq!(chosen(&manager), None);
    manager.register_pod(&pod("p1"));
    review(&mut script, &[true, true]).await;
    script.next().await.check(LIST);
}

#[tokio::test(start_paused = true)]
async fn auto_watches_by_name_where_it_may_not() {
    for (answers, verb) in [(&[false][..], "list"), (&[true, false], "watch")] {
        let (client, mut script) = Script::new();
        let manager = watching(WatchScope::Auto, client);
        manager.register_pod(&pod("p1"));
        review(&mut script, answers).await;
        let request = script.next().await;
        request.check("fieldSelector=metadata.name%3Da sendInitialEvents=true");
        let stream = request.synced(5, Some(&object(5, "one")));
        assert_eq!(value(&manager, "a").await, "one");
        let reason = format!("may not {verb} configmaps of the namespace");
        assert_eq!(chosen(&manager), Some((WatchScope::Object, reason)));
        manager.unregister_pod(&pod("p1"));
        settle().await;
        assert!(stream.is_dropped());
        script.silence(Duration::from_hours(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn auto_falls_back_to_objects_when_permission_is_revoked() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Auto, client);
    manager.register_pod(&pod_with("p1", &["a", "b"]));
    review(&mut script, &[true, true]).await;
    let stream = script.next().await.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager, "a").await, "one");
    drop(stream);

    script.next().await.refuse(403);
    let mut requests = [script.next().await, script.next().await];
    requests.sort_by_key(|request| request.path_and_query.contains("metadata.name%3Db"));
    // Meanwhile the objects are served as they are known.
    assert_eq!(value(&manager, "a").await, "one");
    let [a, b] = requests;
    a.check("fieldSelector=metadata.name%3Da sendInitialEvents=true");
    b.check("fieldSelector=metadata.name%3Db sendInitialEvents=true");
    let streams = [a.synced(9, Some(&object(9, "two"))), b.synced(9, None)];
    settle().await;
    let reason = "may no longer list and watch configmaps of the namespace".to_owned();
    assert_eq!(chosen(&manager), Some((WatchScope::Object, reason)));
    assert_eq!(value(&manager, "a").await, "two");
    assert!(manager.get("n", "b").await.unwrap_err().is_not_found());
    let objects = manager.objects();
    assert!(objects.iter().all(|object| object.failure.is_none()));
    manager.unregister_pod(&pod_with("p1", &[]));
    settle().await;
    assert!(streams.iter().all(crate::scripted::Stream::is_dropped));
    script.silence(Duration::from_hours(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_choice_stands_until_the_last_reference_is_gone() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Auto, client);
    manager.register_pod(&pod("p1"));
    review(&mut script, &[false]).await;
    // An immutable object needs no watch, so that only a second review could be asked for.
    let frozen = object(5, "one").replace(r#""data""#, r#""immutable":true,"data""#);
    let _ended = script.next().await.synced(5, Some(&frozen));
    assert_eq!(value(&manager, "a").await, "one");
    script.silence(Duration::from_hours(3)).await;
    // Further objects follow the choice.
    manager.register_pod(&pod_with("p2", &["b"]));
    let request = script.next().await;
    request.check("fieldSelector=metadata.name%3Db");
    let _b = request.synced(6, None);
    for name in ["p1", "p2"] {
        manager.unregister_pod(&pod_with(name, &[]));
    }
    settle().await;
    assert_eq!(chosen(&manager), None);
    manager.register_pod(&pod("p1"));
    review(&mut script, &[true, true]).await;
    script.next().await.check(LIST);
}

#[tokio::test(start_paused = true)]
async fn what_joins_while_a_namespace_is_chosen_is_watched() {
    for allowed in [true, false] {
        let (client, mut script) = Script::new();
        let manager = watching(WatchScope::Auto, client);
        manager.register_pod(&pod_with("p1", &["a", "gone"]));
        let question = script.next().await;
        let mut reader = JoinSet::new();
        reader.spawn({
            let manager = manager.clone();
            async move { manager.get("n", "a").await }
        });
        settle().await;
        manager.register_pod(&pod_with("p1", &["a"]));
        let answer = json!({"status": {"allowed": allowed}}).to_string();
        question.answer(201, &answer);
        if allowed {
            review(&mut script, &[true]).await;
        }
        let request = script.next().await;
        assert_eq!(
            request.path_and_query.contains("metadata.name%3Da"),
            !allowed
        );
        let _stream = request.synced(5, Some(&object(5, "one")));
        let read = reader.join_next().await.unwrap().unwrap();
        assert_eq!(read.unwrap().data["k"], "one");
        script.silence(Duration::from_mins(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn auto_retries_its_review_only_during_an_outage() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Auto, client);
    manager.register_pod(&pod("p1"));
    let mut reader = JoinSet::new();
    reader.spawn({
        let manager = manager.clone();
        async move { manager.get("n", "a").await }
    });
    script.next().await.refuse(503);
    let error = reader.join_next().await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.request().unwrap().to_string(), "refused with 503");
    // A server that does not know such questions answers for good.
    script.next().await.refuse(404);
    script.next().await.check("fieldSelector=metadata.name%3Da");
    let (scope, reason) = chosen(&manager).unwrap();
    assert_eq!(scope, WatchScope::Object);
    assert!(reason.contains("refused with 404"), "{reason}");
}

/// Refuses connections for five minutes; one request tries at least every 10 s.
async fn outage(script: &mut Script) {
    let start = tokio::time::Instant::now();
    while start.elapsed() < Duration::from_mins(5) {
        let last = tokio::time::Instant::now();
        drop(script.next().await);
        assert!(last.elapsed() <= Duration::from_secs(10));
    }
}

/// The next request, which the one before has hurried.
async fn hurried(script: &mut Script) -> Exchange {
    let start = tokio::time::Instant::now();
    let request = script.next().await;
    assert!(start.elapsed() <= Duration::from_millis(12));
    request
}

/// Pods that refer to `a`, each in a namespace of its own.
fn register_in_two_namespaces(manager: &ConfigMapManager) {
    for namespace in ["n", "m"] {
        let mut pod = pod("p1");
        pod.metadata.namespace = Some(namespace.to_owned());
        manager.register_pod(&pod);
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_gets_through_hurries_the_others() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Namespace, client);
    register_in_two_namespaces(&manager);
    outage(&mut script).await;
    let _first = script.next().await.synced(5, None);
    let request = hurried(&mut script).await;
    request.check(LIST);
    let _second = request.synced(5, None);
    settle().await;
    let objects = manager.objects();
    assert!(objects.iter().all(|object| object.failure.is_none()));
    script.silence(Duration::from_mins(2)).await;
}

#[tokio::test(start_paused = true)]
async fn answer_after_an_outage_brings_other_retries_forward() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Auto, client);
    register_in_two_namespaces(&manager);
    outage(&mut script).await;
    // May the first be listed, and watched?
    let allowed = json!({"status": {"allowed": true}}).to_string();
    script.next().await.answer(201, &allowed);
    script.next().await.answer(201, &allowed);
    let mut later = [hurried(&mut script).await, hurried(&mut script).await];
    later.sort_by_key(|request| request.path_and_query.contains("subjectaccess"));
    later[0].check(LIST);
    assert!(later[1].path_and_query.contains("subjectaccess"));
}

#[tokio::test(start_paused = true)]
async fn auto_asks_nothing_more_once_the_last_reference_is_gone() {
    let (client, mut script) = Script::new();
    let manager = watching(WatchScope::Auto, client);
    manager.register_pod(&pod("p1"));
    let request = script.next().await;
    manager.unregister_pod(&pod("p1"));
    script.silence(Duration::from_hours(1)).await;
    assert!(request.is_cancelled());
}
