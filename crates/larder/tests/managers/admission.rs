//! The number and the order of a node's requests.

use std::time::Duration;

use larder::{ConfigMapManager, ManagerConfig};
use tokio::task::JoinSet;

use crate::scripted::{Exchange, Script, Stream, object, pod, pod_with};

/// A manager that makes so many requests at once.
fn manager(limit: usize) -> (ConfigMapManager, Script) {
    let (client, script) = Script::new();
    let config = ManagerConfig::default().max_requests_in_flight(limit);
    (ConfigMapManager::new(client, &config).unwrap(), script)
}

/// The next request, which must be about that name.
async fn next(script: &mut Script, name: &str) -> Exchange {
    let request = script.next().await;
    request.check(&format!("fieldSelector=metadata.name%3D{name}"));
    request
}

const MOMENT: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn requests_with_pending_reads_go_first_the_rest_in_order() {
    let (manager, mut script) = manager(2);
    manager.register_pod(&pod_with("p", &["a", "b", "c", "d", "e", "f"]));
    let a = next(&mut script, "a").await;
    let b = next(&mut script, "b").await;
    script.silence(MOMENT).await;

    // A reader waits for `e`.
    let mut reader = JoinSet::new();
    reader.spawn({
        let manager = manager.clone();
        async move { manager.get_within("n", "e", Duration::from_mins(1)).await }
    });
    script.silence(MOMENT).await;
    // An established watch does not count, however long it lasts.
    let _a = a.synced(5, None);
    let e = next(&mut script, "e").await;
    script.silence(MOMENT).await;
    // Nor does a request that failed and waits out its delay.
    b.refuse(503);
    let c = next(&mut script, "c").await;
    script.silence(MOMENT).await;
    let _e = e.synced(6, None);
    assert!(
        reader
            .join_next()
            .await
            .unwrap()
            .unwrap()
            .unwrap_err()
            .is_not_found()
    );
    let _d = next(&mut script, "d").await;
    // What is answered in part is not answered.
    let c = c.stream();
    script.silence(MOMENT).await;
    drop(c);
    let _f = next(&mut script, "f").await;
}

#[tokio::test(start_paused = true)]
async fn the_last_reference_makes_room_for_others() {
    let (manager, mut script) = manager(1);
    manager.register_pod(&pod_with("p", &["a"]));
    manager.register_pod(&pod_with("q", &["b"]));
    manager.register_pod(&pod_with("r", &["c"]));
    let a = next(&mut script, "a").await;
    // One that asks, and one that waits.
    manager.unregister_pod(&pod_with("p", &["a"]));
    manager.unregister_pod(&pod_with("q", &["b"]));
    next(&mut script, "c").await;
    assert!(a.is_cancelled());
    script.silence(MOMENT).await;
}

#[tokio::test(start_paused = true)]
async fn a_proof_of_freshness_waits_for_its_permit_too() {
    let (manager, mut script) = manager(1);
    manager.register_pod(&pod("p1"));
    let _watch = script.next().await.synced(5, Some(&object(5, "one")));
    manager.get("n", "a").await.unwrap();

    manager.register_pod(&pod_with("q", &["b"]));
    let b = next(&mut script, "b").await;
    let p2 = pod("p2");
    manager.register_pod(&p2);
    let mut reader = JoinSet::new();
    reader.spawn({
        let manager = manager.clone();
        async move { manager.get_for(&larder::PodIdentity::from(&p2), "a").await }
    });
    script.silence(MOMENT).await;
    let _b = b.synced(6, None);
    let proof = script.next().await;
    assert_eq!(
        proof.path_and_query, "/api/v1/namespaces/n/configmaps/a",
        "a live GET"
    );
    proof.answer(200, &object(5, "one"));
    assert_eq!(
        reader.join_next().await.unwrap().unwrap().unwrap().data["k"],
        "one"
    );
}

/// A manager whose request for `a` has been answered with version 5 and whose request for `b`, which waited meanwhile,
/// is the next.
async fn second() -> (ConfigMapManager, Script, Exchange, Stream) {
    let (manager, mut script) = manager(1);
    manager.register_pod(&pod_with("p", &["a", "b"]));
    let a = next(&mut script, "a").await;
    a.check("!resourceVersion");
    let a = a.synced(5, None);
    let b = next(&mut script, "b").await;
    (manager, script, b, a)
}

#[tokio::test(start_paused = true)]
async fn queued_requests_reuse_the_freshness_that_one_request_confirmed() {
    let (manager, mut script, b, _a) = second().await;
    // Version 5 was the most recent one after both were registered: what is not older is new enough, and the API server
    // need not ask its storage.
    b.check("sendInitialEvents=true resourceVersionMatch=NotOlderThan resourceVersion=5");
    let _b = b.synced(5, None);
    assert!(manager.get("n", "b").await.unwrap_err().is_not_found());
    // No proof is missing, so that nothing more is asked.
    script.silence(MOMENT).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_proved_before_a_registration_does_not_serve_it() {
    let (manager, mut script) = manager(1);
    manager.register_pod(&pod_with("p", &["a"]));
    let a = next(&mut script, "a").await;
    manager.register_pod(&pod_with("q", &["b"]));
    script.silence(MOMENT).await;
    let _a = a.synced(5, None);
    next(&mut script, "b").await.check("!resourceVersion");
}

#[tokio::test(start_paused = true)]
async fn lagging_server_is_asked_for_its_most_recent_state() {
    let (manager, mut script, b, _a) = second().await;
    b.answer(
        504,
        r#"{"kind":"Status","code":504,"reason":"Timeout","message":"Too large resource version: 5, current: 4",
            "details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}}"#,
    );
    let b = next(&mut script, "b").await;
    b.check("sendInitialEvents=true !resourceVersion");
    let _b = b.synced(6, None);
    assert!(manager.get("n", "b").await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn a_confirming_plain_list_bypasses_the_cache() {
    let (manager, mut script) = manager(1);
    manager.register_pod(&pod_with("p", &["a", "b"]));
    next(&mut script, "a").await.refuse(422);
    let a = next(&mut script, "a").await;
    a.check("limit=500 !resourceVersion");
    a.list(5, None);
    let _a = next(&mut script, "a").await.stream();
    let b = next(&mut script, "b").await;
    b.check("limit=500 !resourceVersion");
}
