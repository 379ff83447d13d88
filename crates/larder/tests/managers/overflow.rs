//! More objects than watches (B11).

use std::time::Duration;

use larder::{ConfigMapManager, ManagerConfig, NodeTtl, ObjectState};
use tokio::time::sleep;

use crate::{cluster::Cluster, scripted::pod_with};

/// A cluster with ConfigMaps `a`, `b` and `c`, and a manager that watches one object at a time. Answers about others
/// are good for 60 s.
fn manager() -> (Cluster, ConfigMapManager, NodeTtl) {
    let cluster = Cluster::new();
    for name in ["a", "b", "c"] {
        cluster.set(name, "one", false);
    }
    let ttl = NodeTtl::default();
    let config = ManagerConfig::default()
        .max_watches(1)
        .node_ttl(ttl.clone());
    let manager = ConfigMapManager::new(cluster.client(), &config).unwrap();
    (cluster, manager, ttl)
}

/// The requests since the last call: `watch NAME` or `get NAME`.
fn asked(cluster: &Cluster) -> Vec<String> {
    let requests = cluster.requests();
    let short = |request: &String| {
        let (path, query) = request.split_once('?').unwrap_or((request, ""));
        match query.split_once("metadata.name%3D") {
            Some((_, rest)) => format!("watch {}", rest.split('&').next().unwrap()),
            None => format!("get {}", path.rsplit('/').next().unwrap()),
        }
    };
    requests.iter().map(short).collect()
}

async fn value(manager: &ConfigMapManager, name: &str) -> String {
    manager.get("n", name).await.unwrap().data["k"].to_string()
}

fn state(manager: &ConfigMapManager, name: &str) -> ObjectState {
    let objects = manager.objects();
    let status = objects.iter().find(|status| status.key.name == name);
    status.unwrap().state
}

/// Long enough for everything that needs no waiting.
async fn settle() {
    sleep(Duration::from_millis(10)).await;
}

#[tokio::test(start_paused = true)]
async fn objects_without_a_watch_are_fetched_on_read() {
    let (cluster, manager, _ttl) = manager();
    manager.register_pod(&pod_with("p", &["a"]));
    settle().await;
    assert_eq!(asked(&cluster), ["watch a"]);
    manager.register_pod(&pod_with("q", &["b"]));
    settle().await;
    // Nothing before the first read; then one request for all readers.
    assert!(asked(&cluster).is_empty());
    assert_eq!(state(&manager, "b"), ObjectState::Unwatched);
    let (first, second) = tokio::join!(value(&manager, "b"), value(&manager, "b"));
    assert_eq!((first.as_str(), second.as_str()), ("one", "one"));
    assert_eq!(asked(&cluster), ["get b"]);

    // What is known is good for the time to live, and the next read asks again.
    cluster.set("b", "two", false);
    sleep(Duration::from_secs(59)).await;
    assert_eq!(value(&manager, "b").await, "one");
    assert!(asked(&cluster).is_empty());
    sleep(Duration::from_secs(2)).await;
    let mut changes = manager.subscribe();
    assert_eq!(value(&manager, "b").await, "two");
    assert_eq!(asked(&cluster), ["get b"]);
    assert_eq!(changes.next().await.unwrap().key.name, "b");
    assert_eq!(state(&manager, "b"), ObjectState::Unwatched);
    assert_eq!(state(&manager, "a"), ObjectState::Synced);
}

#[tokio::test(start_paused = true)]
async fn the_node_says_how_long_an_answer_is_good() {
    let (cluster, manager, ttl) = manager();
    manager.register_pod(&pod_with("p", &["a", "b"]));
    ttl.set(Some(Duration::from_mins(5)));
    value(&manager, "b").await;
    sleep(Duration::from_secs(299)).await;
    cluster.requests();
    value(&manager, "b").await;
    assert!(asked(&cluster).is_empty());
    // At zero, the reads that wait for the answer still get it.
    ttl.set(Some(Duration::ZERO));
    sleep(Duration::from_secs(2)).await;
    for _ in 0..2 {
        value(&manager, "b").await;
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(asked(&cluster), ["get b", "get b"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_thread_keeps_expires_with_the_answer() {
    let (cluster, manager, ttl) = manager();
    ttl.set(Some(Duration::from_secs(7)));
    manager.register_pod(&pod_with("p", &["a", "b"]));
    value(&manager, "b").await;
    sleep(Duration::from_secs(6)).await;
    assert_eq!(value(&manager, "b").await, "one");
    cluster.set("b", "two", false);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(value(&manager, "b").await, "two");
}

#[tokio::test(start_paused = true)]
async fn read_without_a_watch_is_not_older_than_the_registration() {
    let (cluster, manager, _ttl) = manager();
    manager.register_pod(&pod_with("p", &["a", "b"]));
    assert_eq!(value(&manager, "b").await, "one");
    cluster.set("b", "two", false);
    let late = pod_with("late", &["b"]);
    manager.register_pod(&late);
    // Who ran before is not disturbed.
    let before = manager
        .get_for(&larder::PodIdentity::from(&pod_with("p", &[])), "b")
        .await
        .unwrap();
    assert_eq!(before.data["k"], "one");
    let read = manager
        .get_for(&larder::PodIdentity::from(&late), "b")
        .await
        .unwrap();
    assert_eq!(read.data["k"], "two");
}

#[tokio::test(start_paused = true)]
async fn unwatched_deletion_and_recreation_are_noticed() {
    let (cluster, manager, _ttl) = manager();
    manager.register_pod(&pod_with("p", &["a", "b"]));
    value(&manager, "b").await;
    cluster.delete("b");
    sleep(Duration::from_secs(61)).await;
    let mut changes = manager.subscribe();
    assert!(manager.get("n", "b").await.unwrap_err().is_not_found());
    let change = changes.next().await.unwrap();
    assert!(
        matches!(change.kind, larder::ChangeKind::Deleted),
        "{change:?}"
    );
    cluster.set("b", "again", false);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(value(&manager, "b").await, "again");
}

#[tokio::test(start_paused = true)]
async fn an_outage_leaves_earlier_readers_the_last_answer() {
    let (cluster, manager, _ttl) = manager();
    let running = pod_with("p", &["a", "b"]);
    manager.register_pod(&running);
    value(&manager, "b").await;
    cluster.set_down(true);
    let late = pod_with("late", &["b"]);
    // Before and after the end of the time to live, and between two attempts.
    for _ in 0..20 {
        sleep(Duration::from_secs(17)).await;
        let read = manager
            .get_for(&larder::PodIdentity::from(&running), "b")
            .await
            .unwrap();
        assert_eq!(read.data["k"], "one");
    }
    manager.register_pod(&late);
    let error = manager
        .get_for(&larder::PodIdentity::from(&late), "b")
        .await
        .unwrap_err();
    assert!(error.to_string().contains("failed to sync"), "{error}");
    cluster.set_down(false);
    cluster.set("b", "two", false);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(value(&manager, "b").await, "two");
}

#[tokio::test(start_paused = true)]
async fn ended_watch_makes_room_for_the_longest_waiting_object() {
    let (cluster, manager, _ttl) = manager();
    let first = pod_with("p", &["a"]);
    manager.register_pod(&first);
    manager.register_pod(&pod_with("q", &["b"]));
    manager.register_pod(&pod_with("r", &["c"]));
    assert_eq!(value(&manager, "b").await, "one");
    settle().await;
    cluster.requests();
    manager.unregister_pod(&first);
    settle().await;
    assert_eq!(asked(&cluster), ["watch b"]);
    assert_eq!(state(&manager, "b"), ObjectState::Synced);
    assert_eq!(state(&manager, "c"), ObjectState::Unwatched);
    // From now on it is in step.
    cluster.set("b", "two", false);
    settle().await;
    assert_eq!(value(&manager, "b").await, "two");

    // An immutable object needs no watch.
    cluster.set("b", "final", true);
    settle().await;
    assert_eq!(state(&manager, "b"), ObjectState::Immutable);
    assert_eq!(state(&manager, "c"), ObjectState::Synced);
    assert_eq!(asked(&cluster), ["watch c"]);
}

#[tokio::test(start_paused = true)]
async fn immutable_object_without_a_watch_is_fetched_once() {
    let (cluster, manager, _ttl) = manager();
    cluster.set("b", "final", true);
    manager.register_pod(&pod_with("p", &["a", "b"]));
    for _ in 0..3 {
        assert_eq!(value(&manager, "b").await, "final");
        sleep(Duration::from_mins(3)).await;
    }
    assert_eq!(state(&manager, "b"), ObjectState::Immutable);
    assert_eq!(
        asked(&cluster)
            .iter()
            .filter(|asked| *asked == "get b")
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn idle_watch_makes_room_and_queues_for_the_next_slot() {
    let (cluster, manager, _ttl) = manager();
    manager.register_pod(&pod_with("p", &["a", "b"]));
    // `b` is read, `a` is not.
    for _ in 0..14 {
        value(&manager, "b").await;
        sleep(Duration::from_secs(30)).await;
    }
    assert_eq!(state(&manager, "a"), ObjectState::Idle);
    assert_eq!(state(&manager, "b"), ObjectState::Synced);
    cluster.requests();
    assert_eq!(value(&manager, "a").await, "one");
    assert_eq!(state(&manager, "a"), ObjectState::Unwatched);
    assert_eq!(asked(&cluster), ["get a"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_an_unwatched_object_outlives_its_last_reference() {
    let (cluster, manager, _ttl) = manager();
    manager.register_pod(&pod_with("p", &["a"]));
    let second = pod_with("q", &["b"]);
    manager.register_pod(&second);
    value(&manager, "b").await;
    manager.unregister_pod(&second);
    manager.unregister_pod(&pod_with("p", &["a"]));
    settle().await;
    cluster.requests();
    sleep(Duration::from_mins(5)).await;
    assert!(asked(&cluster).is_empty());
    assert!(manager.get("n", "b").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn end_of_an_outage_brings_forward_retries_of_unwatched_objects() {
    // Chance would have it answered soon now and then.
    for _ in 0..8 {
        let (cluster, manager, _ttl) = manager();
        manager.register_pod(&pod_with("p", &["a"]));
        settle().await;
        manager.register_pod(&pod_with("q", &["b"]));
        assert_eq!(value(&manager, "b").await, "one");
        cluster.set_down(true);
        manager.register_pod(&pod_with("r", &["b"]));
        let back = async {
            sleep(Duration::from_mins(4)).await;
            cluster.set_down(false);
            tokio::time::Instant::now()
        };
        let wait = Duration::from_mins(10);
        let (read, back) = tokio::join!(manager.get_within("n", "b", wait), back);
        assert_eq!(read.unwrap().data["k"], "one");
        let waited = back.elapsed();
        assert!(waited <= Duration::from_millis(10_050), "{waited:?}");
    }
}
