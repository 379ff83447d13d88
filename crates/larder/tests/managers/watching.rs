//! Strategy `Watch` against a scripted API server, with time paused: the same promises in either scope.

use std::time::Duration;

use futures::FutureExt as _;
use larder::{
    ChangeKind, ConfigMap, ConfigMapManager, ErrorKind, ManagerConfig, ObjectState, RegisteredPod,
    Strategy, WatchScope,
};

use super::SCOPE;
use crate::{
    cluster::{Cluster, rounds},
    scripted::{self, Script, Stream, immutable, object, pod, pod_with, settle, watching},
};

fn manager() -> (ConfigMapManager, Script) {
    let (client, script) = Script::new();
    (watching(SCOPE, client), script)
}

/// The same, with pod `p1`, which refers to `a`.
fn registered() -> (ConfigMapManager, Script) {
    let (manager, script) = manager();
    manager.register_pod(&pod("p1"));
    (manager, script)
}

/// The same, whose first request is answered with `object` at `version`, and its watch.
async fn synced(version: u64, object: Option<&str>) -> (ConfigMapManager, Script, Stream) {
    let (manager, mut script) = registered();
    let stream = script.next().await.synced(version, object);
    (manager, script, stream)
}

async fn value(manager: &ConfigMapManager) -> String {
    scripted::value(manager, "a").await
}

// managers 21
#[tokio::test(start_paused = true)]
async fn readers_follow_the_object() {
    let (manager, _script, stream) = synced(5, None).await;
    assert_eq!(value(&manager).await, r#"configmap "a" not found"#);

    let mut changes = manager.subscribe();
    stream.event("ADDED", &object(6, "one"));
    changes.next().await.unwrap();
    assert_eq!(value(&manager).await, "one");
    stream.event("DELETED", &object(7, "one"));
    changes.next().await.unwrap();
    assert_eq!(value(&manager).await, r#"configmap "a" not found"#);

    manager.unregister_pod(&pod("p1"));
    assert_eq!(value(&manager).await, r#"object "n"/"a" not registered"#);
}

// managers 22, 23
#[tokio::test(start_paused = true)]
async fn all_pods_share_one_watch_that_ends_with_the_last() {
    let (manager, mut script) = registered();
    let request = script.next().await;
    assert!(
        request
            .path_and_query
            .starts_with("/api/v1/namespaces/n/configmaps?")
    );
    request.check("watch=true allowWatchBookmarks=true !resourceVersion");
    request.check(match SCOPE {
        WatchScope::Object => "fieldSelector=metadata.name%3Da",
        _ => "!fieldSelector",
    });
    // managers 83
    assert_eq!(request.headers["accept-encoding"], "identity");
    let stream = request.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager).await, "one");

    for round in 0..20 {
        let pod = pod(&format!("q{round}"));
        manager.register_pod(&pod);
        manager.unregister_pod(&pod);
    }
    manager.unregister_pod(&pod("p1"));
    script.silence(Duration::from_secs(10)).await;
    assert!(stream.is_dropped());
    assert!(manager.objects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_never_reads_data_older_than_its_registration() {
    let (manager, mut script, _stream) = synced(5, Some(&object(5, "old"))).await;
    assert_eq!(value(&manager).await, "old");

    manager.register_pod(&pod("p2"));
    let (read, ()) = tokio::join!(value(&manager), async {
        let request = script.next().await;
        let about_it = match SCOPE {
            WatchScope::Object => "/api/v1/namespaces/n/configmaps/a",
            _ => "/api/v1/namespaces/n/configmaps?fieldSelector=metadata.name%3Da&limit=500",
        };
        assert_eq!(request.path_and_query, about_it);
        // The running pod does not wait for it.
        assert_eq!(
            manager
                .get_for(&larder::PodIdentity::from(&pod("p1")), "a")
                .await
                .unwrap()
                .data["k"],
            "old"
        );
        request.prove(6, &object(6, "new"));
    });
    assert_eq!(read, "new");
    assert_eq!(value(&manager).await, "new");
    script.silence(Duration::from_secs(10)).await;
    assert_eq!(manager.objects()[0].state, ObjectState::Synced);
}

/// What the guard's pod reads without waiting.
fn now(guard: &RegisteredPod<ConfigMap>) -> Option<String> {
    let read = guard.get("a").now_or_never()?;
    Some(match read {
        Ok(map) => map.data["k"].to_string(),
        Err(error) => error.to_string(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_guard_reads_at_once_what_its_own_pod_may_see() {
    let (manager, mut script, stream) = synced(5, Some(&object(5, "old"))).await;
    let running = manager.registered(&pod("p1"));
    assert_eq!(value(&manager).await, "old");
    let new = manager.registered(&pod("p2"));
    assert_eq!(now(&running).as_deref(), Some("old"));
    assert_eq!(now(&new), None);
    settle().await;
    script.next().await.prove(6, &object(6, "new"));
    settle().await;
    assert_eq!(now(&new).as_deref(), Some("new"));
    assert_eq!(now(&running).as_deref(), Some("new"));
    stream.event("MODIFIED", &object(7, "newest"));
    settle().await;
    assert_eq!(now(&new).as_deref(), Some("newest"));

    // The pod no longer refers to it, although another one does, and although the guard lives on.
    let changed = manager.registered(&pod_with("p2", &[]));
    let not_registered = Some(r#"object "n"/"a" not registered"#);
    assert_eq!(now(&new).as_deref(), not_registered);
    assert_eq!(now(&changed).as_deref(), not_registered);
    assert_eq!(now(&running).as_deref(), Some("newest"));
    drop((new, changed));
    // The first guard of `p1` is not the only hold on it.
    drop(running);
    assert_eq!(value(&manager).await, "newest");
    script.none();
}

// managers 26
#[tokio::test(start_paused = true)]
async fn a_recreated_immutable_object_is_noticed_by_a_new_pod() {
    let (manager, mut script, stream) = synced(5, Some(&immutable(5, "u1", "old"))).await;
    assert_eq!(value(&manager).await, "old");
    script.silence(Duration::from_hours(1)).await;
    assert!(stream.is_dropped());
    assert_eq!(manager.objects()[0].state, ObjectState::Immutable);

    // Upstream serves the old data to every pod; B5: looked at once more for a new one.
    manager.register_pod(&pod("p2"));
    let (read, ()) = tokio::join!(value(&manager), async {
        script.next().await.prove(9, &immutable(9, "u2", "new"));
    });
    assert_eq!(read, "new");
    assert_eq!(
        manager
            .get_for(&larder::PodIdentity::from(&pod("p1")), "a")
            .await
            .unwrap()
            .data["k"],
        "new"
    );
    script.silence(Duration::from_hours(1)).await;
}

// B15
#[tokio::test(start_paused = true)]
async fn the_last_reference_cancels_what_is_under_way() {
    let (manager, mut script) = registered();
    let request = script.next().await;
    manager.unregister_pod(&pod("p1"));
    script.silence(Duration::from_secs(10)).await;
    assert!(request.is_cancelled());
}

// B9: a list that is answered after its watch was stopped
#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_reach_the_next_incarnation() {
    let (manager, mut script) = registered();
    let late = script.next().await;
    manager.unregister_pod(&pod("p1"));
    manager.register_pod(&pod("p2"));
    let _late = late.synced(5, Some(&object(5, "late")));
    let request = script.next().await;
    let error = manager.get("n", "a").await.unwrap_err();
    assert!(error.to_string().contains("failed to sync"), "{error}");
    let _stream = request.synced(6, Some(&object(6, "new")));
    assert_eq!(value(&manager).await, "new");
}

/// Sends `event` and waits until the manager has seen it.
async fn deliver(manager: &ConfigMapManager, stream: &Stream, kind: &str, object: &str) {
    let mut changes = manager.subscribe();
    stream.event(kind, object);
    changes.next().await.unwrap();
}

fn state(manager: &ConfigMapManager) -> ObjectState {
    manager.objects()[0].state
}

// managers 24
#[tokio::test(start_paused = true)]
async fn an_immutable_object_ends_its_watch() {
    let (mutable, frozen) = (object(6, "one"), immutable(7, "u1", "two"));
    // Absent, mutable, mutable, immutable: the watch continues until the last. The kubelet notices it only on a read.
    let (manager, mut script, stream) = synced(5, None).await;
    value(&manager).await;
    deliver(&manager, &stream, "ADDED", &mutable).await;
    deliver(&manager, &stream, "MODIFIED", &object(7, "two")).await;
    assert_eq!(state(&manager), ObjectState::Synced);
    assert!(!stream.is_dropped());
    deliver(&manager, &stream, "MODIFIED", &immutable(8, "u1", "three")).await;
    assert_eq!(state(&manager), ObjectState::Immutable);
    script.silence(Duration::from_hours(1)).await;
    assert!(stream.is_dropped());
    assert_eq!(value(&manager).await, "three");

    // Immutable when it appears, and immutable from the beginning.
    for there in [false, true] {
        let (manager, mut script) = self::manager();
        manager.register_pod(&pod("p1"));
        let first = there.then_some(frozen.as_str());
        let stream = script.next().await.synced(7, first);
        value(&manager).await;
        if !there {
            deliver(&manager, &stream, "ADDED", &immutable(8, "u1", "two")).await;
        }
        assert_eq!(value(&manager).await, "two");
        script.silence(Duration::from_hours(1)).await;
        assert!(stream.is_dropped());
    }
}

// managers 25, 26
#[tokio::test(start_paused = true)]
async fn immutable_object_needs_no_request_until_the_next_registration() {
    let (manager, mut script, _stream) = synced(7, Some(&immutable(7, "u1", "old"))).await;
    assert_eq!(value(&manager).await, "old");
    for _ in 0..20 {
        script.silence(Duration::from_mins(10)).await;
        assert_eq!(value(&manager).await, "old");
    }
    manager.unregister_pod(&pod("p1"));
    manager.register_pod(&pod("p1"));
    let _stream = script
        .next()
        .await
        .synced(9, Some(&immutable(9, "u2", "new")));
    assert_eq!(value(&manager).await, "new");
}

// an immutable object deleted and recreated as a mutable one
#[tokio::test(start_paused = true)]
async fn a_formerly_immutable_object_is_watched_again() {
    let (manager, mut script) = registered();
    let _ended = script
        .next()
        .await
        .synced(7, Some(&immutable(7, "u1", "old")));
    assert_eq!(value(&manager).await, "old");
    manager.register_pod(&pod("p2"));
    let (read, stream) = tokio::join!(value(&manager), async {
        script.next().await.prove(9, &object(9, "new"));
        let request = script.next().await;
        request.check("sendInitialEvents=true");
        request.synced(9, Some(&object(9, "new")))
    });
    assert_eq!(read, "new");
    deliver(&manager, &stream, "MODIFIED", &object(10, "newer")).await;
    assert_eq!(value(&manager).await, "newer");
}

#[tokio::test(start_paused = true)]
async fn a_freshness_check_that_finds_nothing_leads_to_a_list() {
    let (manager, mut script) = registered();
    let _late = script.next().await.synced(7, Some(&object(7, "old")));
    assert_eq!(value(&manager).await, "old");
    manager.register_pod(&pod("p2"));
    let (read, _stream) = tokio::join!(value(&manager), async {
        let request = script.next().await;
        if SCOPE == WatchScope::Namespace {
            // This list has the version of the absence.
            request.list(9, None);
            return None;
        }
        request.refuse(404);
        let request = script.next().await;
        request.check("sendInitialEvents=true !resourceVersion");
        Some(request.synced(9, None))
    });
    assert_eq!(read, r#"configmap "a" not found"#);
}

#[tokio::test(start_paused = true)]
async fn running_pods_read_on_during_an_outage_new_ones_fail() {
    let (manager, mut script, _stream) = synced(7, Some(&object(7, "old"))).await;
    assert_eq!(value(&manager).await, "old");
    let new = manager.registered(&pod("p2"));
    let outage = async {
        loop {
            script.next().await.refuse(503);
        }
    };
    let error = tokio::select! {
        () = outage => unreachable!("an outage without end"),
        read = new.get("a") => read.unwrap_err(),
    };
    assert_eq!(error.request().unwrap().to_string(), "refused with 503");
    assert_eq!(
        manager
            .get_for(&larder::PodIdentity::from(&pod("p1")), "a")
            .await
            .unwrap()
            .data["k"],
        "old"
    );

    // The reader that gave up hears when its answer is there, although the object is the same.
    let mut changes = manager.subscribe();
    script.next().await.prove(7, &object(7, "old"));
    assert!(matches!(
        changes.next().await.unwrap().kind,
        ChangeKind::Updated
    ));
    assert_eq!(new.get("a").await.unwrap().data["k"], "old");
}

/// A manager whose watches idle after a minute, and its first watch.
async fn idling() -> (ConfigMapManager, Script, Stream) {
    let (client, mut script) = Script::new();
    let config = ManagerConfig::default()
        .sync_frequency(Duration::from_secs(1))
        .watch_scope(SCOPE);
    let manager = ConfigMapManager::new(client, &config).unwrap();
    manager.register_pod(&pod("p1"));
    let stream = script.next().await.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager).await, "one");
    (manager, script, stream)
}

// managers 27, 32
#[tokio::test(start_paused = true)]
async fn an_idle_watch_restarts_with_the_next_read() {
    let (manager, mut script, stream) = idling().await;
    for _ in 0..10 {
        script.silence(Duration::from_secs(20)).await;
        assert_eq!(value(&manager).await, "one");
    }
    assert!(!stream.is_dropped());
    script.silence(Duration::from_secs(105)).await;
    assert!(stream.is_dropped());
    assert_eq!(state(&manager), ObjectState::Idle);

    let (read, _stream) = tokio::join!(value(&manager), async {
        let request = script.next().await;
        request.check("sendInitialEvents=true resourceVersion=5");
        request.synced(8, Some(&object(8, "two")))
    });
    assert_eq!(read, "two");
    assert_eq!(state(&manager), ObjectState::Synced);
}

// managers 28
#[tokio::test(start_paused = true)]
async fn a_slow_first_list_is_not_idle() {
    let (client, mut script) = Script::new();
    let manager = watching(SCOPE, client);
    manager.register_pod(&pod("p1"));
    // Each request ends at its own deadline and is made again.
    let slow = async {
        let start = tokio::time::Instant::now();
        loop {
            let request = script.next().await;
            if start.elapsed() >= Duration::from_mins(2) {
                break request.synced(5, Some(&object(5, "one")));
            }
            tokio::time::sleep(Duration::from_secs(40)).await;
        }
    };
    let reads = async {
        tokio::time::sleep(Duration::from_secs(90)).await;
        let read = value(&manager).await;
        assert_eq!(
            read,
            "failed to sync configmap cache: timed out waiting for the condition"
        );
        tokio::time::sleep(Duration::from_mins(4)).await;
        assert_eq!(value(&manager).await, "one");
    };
    let (_stream, ()) = tokio::join!(slow, reads);
}

// managers 30: upstream stops it at the next pass; B7: registration counts as access
#[tokio::test(start_paused = true)]
async fn an_unread_object_is_watched_for_a_while() {
    let (client, mut script) = Script::new();
    let manager = watching(SCOPE, client);
    manager.register_pod(&pod("p1"));
    let stream = script.next().await.synced(5, Some(&object(5, "one")));
    script.silence(Duration::from_mins(4)).await;
    assert!(!stream.is_dropped());
    script.silence(Duration::from_mins(3)).await;
    assert!(stream.is_dropped());
    assert_eq!(manager.objects().len(), 1);
    let (read, _stream) = tokio::join!(value(&manager), async {
        script.next().await.synced(6, Some(&object(6, "two")))
    });
    assert_eq!(read, "two");
}

// managers 31
#[tokio::test(start_paused = true)]
async fn what_idled_is_not_served_without_the_api_server() {
    let (manager, mut script, stream) = idling().await;
    script.silence(Duration::from_mins(2)).await;
    assert!(stream.is_dropped());
    let (read, ()) = tokio::join!(value(&manager), async {
        drop(script.next().await);
    });
    assert_eq!(
        read,
        "failed to sync configmap cache: timed out waiting for the condition"
    );
}

// managers 36, B3: a read that races with the last unregistration
#[tokio::test(start_paused = true)]
async fn a_read_never_revives_what_was_unregistered() {
    let cluster = Cluster::new();
    let manager = watching(SCOPE, cluster.client());
    for round in 0..rounds("LARDER_RACE_ROUNDS", 2_000) {
        manager.register_pod(&pod("p1"));
        let read = manager.get("n", "a");
        let last = async {
            for _ in 0..round % 7 {
                tokio::task::yield_now().await;
            }
            manager.unregister_pod(&pod("p1"));
        };
        let (read, ()) = tokio::join!(read, last);
        let error = read.unwrap_err();
        assert!(
            error.is_not_found() || matches!(error.kind(), ErrorKind::NotRegistered { .. }),
            "{error}"
        );
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(cluster.server.open_watches(), 0);
    cluster.requests();
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert_eq!(cluster.requests(), Vec::<String>::new());
}

// managers 36, on two threads and with a guard: its reads never fail with "not registered"
#[test]
fn a_guards_holder_reads_whatever_is_unregistered_meanwhile() {
    let rounds = rounds("LARDER_RACE_ROUNDS", 2_000);
    let cluster = Cluster::new();
    cluster.set("a", "one", false);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let manager = watching(SCOPE, cluster.client());
        let mut tasks = tokio::task::JoinSet::new();
        let (racer, p1) = (manager.clone(), pod("p1"));
        tasks.spawn(async move {
            for _ in 0..rounds {
                racer.register_pod(&p1);
                tokio::task::yield_now().await;
                racer.unregister_pod(&p1);
            }
        });
        let reader = manager.clone();
        tasks.spawn(async move {
            let minute = Duration::from_mins(1);
            for round in 0..rounds {
                // Half of them take part in the race for the registration of the same pod.
                let guard = reader.registered(&pod(if round % 2 == 0 { "p1" } else { "p2" }));
                let read = guard.get_within("a", minute).await;
                assert_eq!(read.unwrap().data["k"], "one");
            }
        });
        tasks.join_all().await;
        assert!(manager.pods().is_empty() && manager.objects().is_empty());
        manager.shut_down().await;
    });
    assert_eq!(cluster.server.open_watches(), 0);
}

// P5: no store keeps the bytes of what it no longer hands out
#[tokio::test(start_paused = true)]
async fn replaced_and_removed_objects_go_with_their_last_reader() {
    for strategy in [Strategy::Cache, Strategy::Watch] {
        let cluster = Cluster::new();
        let config = ManagerConfig::default()
            .strategy(strategy)
            .watch_scope(SCOPE);
        let manager = ConfigMapManager::new(cluster.client(), &config).unwrap();
        manager.register_pod(&pod("p1"));
        cluster.set("a", "one", false);
        let one = manager.get("n", "a").await.unwrap();
        cluster.set("a", "two", false);
        tokio::time::sleep(config.default_ttl).await;
        let two = manager.get("n", "a").await.unwrap();
        manager.get("n", "a").await.unwrap();
        assert_eq!((&*one.data["k"], &*two.data["k"]), ("one", "two"));
        assert_eq!(std::sync::Arc::strong_count(&one), 1, "{strategy}");
        manager.unregister_pod(&pod("p1"));
        // Nor can it be read any more, although it is there.
        let error = manager.get("n", "a").await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotRegistered { .. }));
        assert_eq!(std::sync::Arc::strong_count(&two), 1, "{strategy}");
    }
}

// managers 37
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_after_shutdown() {
    let (manager, mut script, stream) = synced(5, Some(&object(5, "one"))).await;
    // A reader still holds the object.
    let _in_use = manager.get("n", "a").await.unwrap();
    // The second one is what the thread keeps.
    assert_eq!(value(&manager).await, "one");
    let mut changes = manager.subscribe();
    manager.shut_down().await;
    assert!(stream.is_dropped());
    assert!(changes.next().await.is_none());
    manager.register_pod(&pod_with("p2", &["b"]));
    for name in ["a", "b"] {
        let error = manager.get("n", name).await.unwrap_err();
        assert_eq!(error.to_string(), "the configmap manager is shut down");
    }
    script.silence(Duration::from_mins(5)).await;
}

// managers 38
#[tokio::test(start_paused = true)]
async fn a_thousand_objects_in_ten_streams_all_arrive() {
    let cluster = Cluster::new();
    let manager = watching(SCOPE, cluster.client());
    let streams = (0..10).map(|stream| {
        let (manager, cluster) = (manager.clone(), &cluster);
        async move {
            for number in 0..100 {
                let name = format!("m-{stream}-{number}");
                cluster.set(&name, &name, false);
                manager.register_pod(&pod_with(&name, &[&name]));
                tokio::task::yield_now().await;
            }
            for number in 0..100 {
                let name = format!("m-{stream}-{number}");
                let read = manager
                    .get_within("n", &name, Duration::from_secs(10))
                    .await;
                assert_eq!(read.unwrap().data["k"], name);
            }
        }
    });
    futures::future::join_all(streams).await;
    let watches = match SCOPE {
        WatchScope::Object => 1000,
        _ => 1,
    };
    assert_eq!(cluster.server.open_watches(), watches);
    if SCOPE != WatchScope::Object {
        return;
    }
    // One streaming list each, which is the watch as well.
    assert_eq!(
        cluster
            .requests()
            .iter()
            .filter(|request| request.contains("watch=true"))
            .count(),
        1000
    );
}

// I3: an event that a live GET has overtaken
#[tokio::test(start_paused = true)]
async fn an_overtaken_event_takes_no_reader_back() {
    let (manager, mut script, stream) = synced(5, Some(&object(5, "one"))).await;
    assert_eq!(value(&manager).await, "one");
    manager.register_pod(&pod("p2"));
    let (read, ()) = tokio::join!(value(&manager), async {
        script.next().await.prove(12, &object(12, "twelve"));
    });
    assert_eq!(read, "twelve");
    stream.event("MODIFIED", &immutable(10, "u1", "ten"));
    stream.event("DELETED", &object(11, "ten"));
    stream.event("ADDED", &object(12, "twelve"));
    deliver(&manager, &stream, "MODIFIED", &object(13, "thirteen")).await;
    assert_eq!(value(&manager).await, "thirteen");
    assert!(!stream.is_dropped());
}
