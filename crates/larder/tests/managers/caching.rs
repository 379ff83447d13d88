//! Strategies `Cache` and `Get`, and the fake, against a scripted API server.

use std::time::Duration;

use futures::future::join_all;
use larder::{ChangeKind, ConfigMapManager, Error, ErrorKind, NodeTtl, RequestPhase};
use larder_objects::{ConfigMap, ObjectMeta};
use tokio::time::advance;

use crate::scripted::{Script, named, object, pod, pod_with};

fn manager() -> (ConfigMapManager, Script, NodeTtl) {
    let (client, script) = Script::new();
    let node_ttl = NodeTtl::default();
    let manager = ConfigMapManager::caching(client, node_ttl.clone());
    (manager, script, node_ttl)
}

async fn value(manager: &ConfigMapManager) -> String {
    match manager.get("n", "a").await {
        Ok(map) => map.data["k"].to_string(),
        Err(error) => chain(&error),
    }
}

/// The texts of an error and its causes.
fn chain(error: &Error) -> String {
    use std::error::Error as _;

    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// One read that takes one request: checks the query, answers, and returns what the reader got.
async fn fetch(
    manager: &ConfigMapManager,
    script: &mut Script,
    query: &str,
    code: u16,
    body: &str,
) -> String {
    let (read, ()) = tokio::join!(value(manager), async {
        let request = script.next().await;
        assert_eq!(
            request.path_and_query,
            format!("/api/v1/namespaces/n/configmaps/a{query}")
        );
        request.answer(code, body);
    });
    read
}

/// One read that takes no request.
async fn cached(manager: &ConfigMapManager, script: &mut Script) -> String {
    let read = value(manager).await;
    script.none();
    read
}

const LIVE: &str = "";
const REFRESH: &str = "?resourceVersion=0";
const FAILURE: &str = r#"{"kind":"Status","message":"broken"}"#;

fn names() -> Vec<String> {
    (0..10).map(|number| format!("a{number}")).collect()
}

/// Reads 10 objects 10 times each, at once; returns how many requests that took.
async fn read_a_hundred_times(manager: &ConfigMapManager, script: &mut Script) -> usize {
    let names = names();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    manager.register_pod(&pod_with("p1", &names));
    let reads = names
        .iter()
        .flat_map(|name| (0..10).map(|_| manager.get("n", name)));
    let mut requests = 0;
    let answer = async {
        loop {
            let exchange = script.next().await;
            let name = exchange
                .path_and_query
                .rsplit(['/', '?'])
                .find(|part| part.starts_with('a'))
                .unwrap();
            let answer = named(name, 5, "one");
            exchange.answer(200, &answer);
            requests += 1;
        }
    };
    tokio::select! {
        () = answer => unreachable!("answers forever"),
        reads = join_all(reads) => assert!(reads.iter().all(Result::is_ok)),
    }
    requests
}

// managers 9, 10, B12: upstream makes 100 requests with a time to live of 0; readers of one object share one here
#[tokio::test(start_paused = true)]
async fn readers_of_one_object_share_a_request() {
    for ttl in [Duration::ZERO, Duration::from_mins(1)] {
        let (manager, mut script, node) = manager();
        node.set(Some(ttl));
        assert_eq!(read_a_hundred_times(&manager, &mut script).await, 10);
    }
}

// managers 8, 13
#[tokio::test(start_paused = true)]
async fn only_refreshes_of_known_objects_accept_a_cached_answer() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    manager.register_pod(&pod("p2"));
    manager.unregister_pod(&pod("p2"));
    script.silence(Duration::from_mins(5)).await;
    let one = object(5, "one");
    assert_eq!(fetch(&manager, &mut script, LIVE, 200, &one).await, "one");
    advance(Duration::from_mins(1)).await;
    let missing = fetch(&manager, &mut script, REFRESH, 404, FAILURE).await;
    assert_eq!(missing, r#"configmap "a" not found"#);
    assert_eq!(fetch(&manager, &mut script, LIVE, 200, &one).await, "one");
}

// managers 11
#[tokio::test(start_paused = true)]
async fn a_changed_node_ttl_applies_to_the_next_read() {
    let (manager, mut script, node) = manager();
    manager.register_pod(&pod("p1"));
    let one = object(5, "one");
    fetch(&manager, &mut script, LIVE, 200, &one).await;
    assert_eq!(cached(&manager, &mut script).await, "one");
    node.set(Some(Duration::ZERO));
    fetch(&manager, &mut script, REFRESH, 200, &one).await;
    node.set(Some(Duration::from_mins(5)));
    cached(&manager, &mut script).await;
    advance(Duration::from_mins(4)).await;
    cached(&manager, &mut script).await;
    advance(Duration::from_mins(1)).await;
    fetch(&manager, &mut script, REFRESH, 200, &one).await;
    node.set(None);
    advance(Duration::from_secs(55)).await;
    cached(&manager, &mut script).await;
    advance(Duration::from_secs(5)).await;
    fetch(&manager, &mut script, REFRESH, 200, &one).await;
}

// I3
#[tokio::test(start_paused = true)]
async fn a_longer_time_to_live_brings_no_old_answer_back() {
    let (manager, mut script, node) = manager();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(5, "one")).await;
    // A reader holds it all the time.
    let in_use = manager.get("n", "a").await.unwrap();
    node.set(Some(Duration::ZERO));
    fetch(&manager, &mut script, REFRESH, 200, &object(6, "two")).await;
    node.set(Some(Duration::from_mins(5)));
    assert_eq!(cached(&manager, &mut script).await, "two");
    assert_eq!(in_use.data["k"], "one");
}

// managers 14
#[tokio::test(start_paused = true)]
async fn a_failed_first_read_returns_the_cause() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    let expired = r#"{"kind":"Status","reason":"Expired","message":"too old"}"#;
    let read = fetch(&manager, &mut script, LIVE, 410, expired).await;
    assert_eq!(read, "failed to read configmap n/a: too old");
}

// managers 15, B13: upstream asks again on every read
#[tokio::test(start_paused = true)]
async fn failed_refresh_keeps_the_object_and_backs_off() {
    let (manager, mut script, _node) = manager();
    let mut changes = manager.subscribe();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(5, "one")).await;
    assert!(matches!(
        changes.try_next().unwrap().kind,
        ChangeKind::Updated
    ));
    advance(Duration::from_mins(2)).await;
    let read = fetch(&manager, &mut script, REFRESH, 500, FAILURE).await;
    assert_eq!(read, "one");
    assert_eq!(cached(&manager, &mut script).await, "one");
    let ChangeKind::Failed(failure) = changes.try_next().unwrap().kind else {
        panic!("the refresh has failed");
    };
    assert_eq!(failure.phase, RequestPhase::Get);
    let failure = manager.objects()[0].failure.clone().unwrap();
    assert_eq!(failure.phase, RequestPhase::Get);
    assert_eq!(failure.error.to_string(), "broken");
    advance(Duration::from_secs(2)).await;
    fetch(&manager, &mut script, REFRESH, 500, FAILURE).await;
    advance(Duration::from_secs(4)).await;
    let read = fetch(&manager, &mut script, REFRESH, 200, &object(6, "two")).await;
    assert_eq!(read, "two");
    assert!(manager.objects()[0].failure.is_none());
}

// managers 16, B13: upstream repeats the remembered "not found" and hides the cause
#[tokio::test(start_paused = true)]
async fn a_failure_after_not_found_is_a_failure() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(5, "one")).await;
    advance(Duration::from_mins(2)).await;
    let read = fetch(&manager, &mut script, REFRESH, 404, FAILURE).await;
    assert_eq!(read, r#"configmap "a" not found"#);
    let read = fetch(&manager, &mut script, LIVE, 500, FAILURE).await;
    assert_eq!(read, "failed to read configmap n/a: broken");
    advance(Duration::from_secs(2)).await;
    let read = fetch(&manager, &mut script, LIVE, 200, &object(9, "two")).await;
    assert_eq!(read, "two");
}

// managers 17
#[tokio::test(start_paused = true)]
async fn an_older_answer_does_not_replace_a_newer_one() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(10, "ten")).await;
    advance(Duration::from_mins(1)).await;
    let read = fetch(&manager, &mut script, REFRESH, 200, &object(9, "nine")).await;
    assert_eq!(read, "ten");
    // Upstream would ask a cache again; a live answer settles it.
    let read = fetch(&manager, &mut script, LIVE, 200, &object(11, "eleven")).await;
    assert_eq!(read, "eleven");
    assert_eq!(cached(&manager, &mut script).await, "eleven");
}

// B14
#[tokio::test(start_paused = true)]
async fn a_restored_server_is_believed_when_it_insists() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(10, "ten")).await;
    advance(Duration::from_mins(1)).await;
    let restored = object(3, "restored");
    assert_eq!(
        fetch(&manager, &mut script, REFRESH, 200, &restored).await,
        "ten"
    );
    assert_eq!(
        fetch(&manager, &mut script, LIVE, 200, &restored).await,
        "ten"
    );
    assert_eq!(
        fetch(&manager, &mut script, LIVE, 200, &restored).await,
        "restored"
    );
    assert_eq!(cached(&manager, &mut script).await, "restored");
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_another_object_is_refused() {
    let (client, mut script) = Script::new();
    let manager = ConfigMapManager::simple(client);
    for answer in ["{}", &named("b", 5, "one")] {
        let (read, ()) = tokio::join!(manager.get("n", "a"), async {
            script.next().await.answer(200, answer);
        });
        let error = read.unwrap_err();
        let cause = error.request().unwrap().to_string();
        assert!(cause.contains("another object"), "{cause}");
    }
}

// managers 18
#[tokio::test(start_paused = true)]
async fn a_new_reference_makes_reads_live() {
    let (client, mut script) = Script::new();
    let manager = ConfigMapManager::caching(client, NodeTtl::default());
    let read = async |script: &mut Script, names: &[&str]| {
        let mut requests = 0;
        for name in names {
            let answer = async {
                script.next().await.answer(200, &named(name, 5, "one"));
                requests += 1;
            };
            tokio::select! {
                biased;
                read = manager.get("n", name) => { read.unwrap(); }
                () = async { answer.await; std::future::pending().await } => {}
            }
        }
        requests
    };
    manager.register_pod(&pod_with("p1", &["s1", "s10", "s2"]));
    assert_eq!(read(&mut script, &["s1", "s10", "s2"]).await, 3);
    manager.register_pod(&pod_with("p1", &["s1", "s2", "s20", "s3"]));
    assert_eq!(read(&mut script, &["s1", "s2", "s20", "s3"]).await, 2);
    manager.register_pod(&pod_with("p2", &["s1", "s10", "s2"]));
    assert_eq!(
        read(&mut script, &["s1", "s10", "s2", "s20", "s3"]).await,
        3
    );
}

// managers 19
#[tokio::test(start_paused = true)]
async fn unregistered_objects_are_not_requested() {
    let (manager, mut script, _node) = manager();
    let error = r#"object "n"/"a" not registered"#;
    assert_eq!(cached(&manager, &mut script).await, error);
    manager.register_pod(&pod("p1"));
    manager.unregister_pod(&pod("p1"));
    assert_eq!(cached(&manager, &mut script).await, error);
    let not_its_own = manager
        .get_for(&larder::PodIdentity::from(&pod_with("p2", &["b"])), "a")
        .await
        .unwrap_err();
    assert!(matches!(
        not_its_own.kind(),
        ErrorKind::NotRegistered { .. }
    ));
}

// managers 20, I3: upstream's hanging reader gets the old object, although the new one is known by then
#[tokio::test(start_paused = true)]
async fn a_hung_request_serves_no_later_reader() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    let read = manager.get_within("n", "a", Duration::from_mins(1));
    let (hanging, ()) = tokio::join!(read, async {
        let request = script.next().await;
        manager.register_pod(&pod("p2"));
        let read = fetch(&manager, &mut script, LIVE, 200, &object(6, "new")).await;
        assert_eq!(read, "new");
        request.answer(200, &object(5, "old"));
    });
    assert_eq!(hanging.unwrap().data["k"], "new");
    assert_eq!(cached(&manager, &mut script).await, "new");
}

// managers 17, I3
#[tokio::test(start_paused = true)]
async fn what_an_overtaken_request_has_shown_is_not_taken_back() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    let read = manager.get_within("n", "a", Duration::from_mins(1));
    let (overtaken, ()) = tokio::join!(read, async {
        let request = script.next().await;
        manager.register_pod(&pod("p2"));
        let read = fetch(&manager, &mut script, LIVE, 200, &object(6, "new")).await;
        assert_eq!(read, "new");
        request.answer(200, &object(7, "newest"));
    });
    assert_eq!(overtaken.unwrap().data["k"], "newest");
    assert_eq!(cached(&manager, &mut script).await, "newest");
}

// managers 17, I2, I3: upstream's reader gets the old object, although it may have seen a newer one
#[tokio::test(start_paused = true)]
async fn a_request_overtaken_by_the_last_unregistration_answers_no_read() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(6, "seen")).await;
    advance(Duration::from_mins(1)).await;
    let (overtaken, ()) = tokio::join!(value(&manager), async {
        let refresh = script.next().await;
        manager.unregister_pod(&pod("p1"));
        manager.register_pod(&pod("p2"));
        let read = fetch(&manager, &mut script, LIVE, 200, &object(7, "new")).await;
        assert_eq!(read, "new");
        // A cache that lags behind.
        refresh.answer(200, &object(5, "old"));
    });
    assert_eq!(overtaken, r#"object "n"/"a" not registered"#);
    assert_eq!(cached(&manager, &mut script).await, "new");
}

// managers 18, T7
#[tokio::test(start_paused = true)]
async fn a_new_pod_joins_no_cached_refresh() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(5, "one")).await;
    manager.register_pod(&pod("p2"));
    advance(Duration::from_mins(1)).await;
    let (p1, p2) = (pod("p1"), pod("p2"));
    let p1 = larder::PodIdentity::from(&p1);
    let (running, new, ()) = tokio::join!(
        manager.get_for(&p1, "a"),
        async {
            tokio::task::yield_now().await;
            manager.get_for(&larder::PodIdentity::from(&p2), "a").await
        },
        async {
            let refresh = script.next().await;
            assert!(refresh.path_and_query.ends_with(REFRESH));
            let proof = script.next().await;
            assert!(!proof.path_and_query.ends_with(REFRESH));
            refresh.answer(200, &object(5, "one"));
            proof.answer(200, &object(6, "two"));
        }
    );
    assert_eq!(running.unwrap().data["k"], "one");
    assert_eq!(new.unwrap().data["k"], "two");
}

#[tokio::test(start_paused = true)]
async fn a_registration_during_an_outage_leaves_running_pods_their_data() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    fetch(&manager, &mut script, LIVE, 200, &object(5, "one")).await;
    manager.register_pod(&pod("p2"));
    let read = fetch(&manager, &mut script, LIVE, 503, FAILURE).await;
    assert_eq!(read, "failed to read configmap n/a: broken");
    let running = manager
        .get_for(&larder::PodIdentity::from(&pod("p1")), "a")
        .await
        .unwrap();
    assert_eq!(running.data["k"], "one");
    let new = manager
        .get_for(&larder::PodIdentity::from(&pod("p2")), "a")
        .await
        .unwrap_err();
    assert!(matches!(new.kind(), ErrorKind::Request { .. }));
}

#[tokio::test(start_paused = true)]
async fn the_last_reader_that_leaves_cancels_the_request() {
    let (manager, mut script, _node) = manager();
    manager.register_pod(&pod("p1"));
    let read = manager.get_within("n", "a", Duration::from_secs(1));
    let (read, request) = tokio::join!(read, script.next());
    let error = read.unwrap_err().to_string();
    assert!(
        error.starts_with("failed to sync configmap cache"),
        "{error}"
    );
    assert!(request.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn strategy_get_asks_every_time_and_for_any_name() {
    let (client, mut script) = Script::new();
    let manager = ConfigMapManager::simple(client);
    for text in ["one", "two"] {
        let read = fetch(&manager, &mut script, LIVE, 200, &object(5, text)).await;
        assert_eq!(read, text);
    }
    let read = fetch(&manager, &mut script, LIVE, 403, FAILURE).await;
    assert_eq!(read, "not allowed to read configmap n/a: broken");
}

#[tokio::test]
async fn the_fake_delivers_what_a_test_puts_behind_it() {
    let (manager, objects) = ConfigMapManager::fake();
    let mut changes = manager.subscribe();
    assert_eq!(value(&manager).await, r#"object "n"/"a" not registered"#);
    manager.register_pod(&pod("p1"));
    assert_eq!(value(&manager).await, r#"configmap "a" not found"#);
    objects.set(ConfigMap {
        metadata: ObjectMeta {
            namespace: "n".into(),
            name: "a".into(),
            ..ObjectMeta::default()
        },
        data: [("k", "v".into())].into(),
        ..ConfigMap::default()
    });
    assert_eq!(value(&manager).await, "v");
    assert!(matches!(
        changes.try_next().unwrap().kind,
        ChangeKind::Updated
    ));
    objects.remove("n", "a");
    assert!(matches!(
        changes.try_next().unwrap().kind,
        ChangeKind::Deleted
    ));
    assert_eq!(value(&manager).await, r#"configmap "a" not found"#);
}
