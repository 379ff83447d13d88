//! More objects than watches (B11): reads of those without a watch fail, and say why.

use std::time::Duration;

use larder::{ConfigMapManager, ErrorKind, ManagerConfig, ObjectState};
use tokio::time::sleep;

use crate::{
    cluster::Cluster,
    scripted::{self, pod_with},
};

/// A cluster with ConfigMaps `a`, `b` and `c`, and a manager that watches one object at a time.
fn manager() -> (Cluster, ConfigMapManager) {
    let cluster = Cluster::new();
    for name in ["a", "b", "c"] {
        cluster.set(name, "one", false);
    }
    let config = ManagerConfig::default().max_watches(1);
    let manager = ConfigMapManager::new(cluster.client(), &config).unwrap();
    (cluster, manager)
}

/// The names that were asked for since the last call.
fn asked(cluster: &Cluster) -> Vec<String> {
    let requests = cluster.requests();
    let name = |request: &String| {
        let (_, name) = request.split_once("metadata.name%3D").unwrap();
        name.split('&').next().unwrap().to_owned()
    };
    requests.iter().map(name).collect()
}

async fn value(manager: &ConfigMapManager, name: &str) -> String {
    scripted::value(manager, name).await
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

const REFUSED: &str = "cannot watch configmap n/b: the limit of watches is reached";

#[tokio::test(start_paused = true)]
async fn a_read_without_a_watch_fails_and_says_so() {
    let (cluster, manager) = manager();
    manager.register_pod(&pod_with("p", &["a"]));
    assert_eq!(value(&manager, "a").await, "one");
    let second = pod_with("q", &["b"]);
    let guard = manager.registered(&second);
    // A read that waits, and one that finds the state known.
    for _ in 0..2 {
        let error = guard.get("b").await.unwrap_err();
        assert_eq!(error.to_string(), REFUSED);
        assert!(matches!(error.kind(), ErrorKind::NoWatch { .. }) && error.is_retryable());
    }
    assert_eq!(state(&manager, "b"), ObjectState::Unwatched);
    assert_eq!(value(&manager, "a").await, "one");
    assert_eq!(asked(&cluster), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn ended_watch_makes_room_for_the_longest_waiting_object() {
    let (cluster, manager) = manager();
    let first = pod_with("p", &["a"]);
    manager.register_pod(&first);
    manager.register_pod(&pod_with("q", &["b"]));
    manager.register_pod(&pod_with("r", &["c"]));
    assert_eq!(value(&manager, "b").await, REFUSED);
    cluster.requests();
    let mut changes = manager.subscribe();
    manager.unregister_pod(&first);
    // Who follows events hears when it can be read.
    assert_eq!(changes.next().await.unwrap().key.name, "b");
    assert_eq!(value(&manager, "b").await, "one");
    assert_eq!(asked(&cluster), ["b"]);
    assert_eq!(state(&manager, "c"), ObjectState::Unwatched);

    // An immutable object needs no watch.
    cluster.set("b", "final", true);
    settle().await;
    assert_eq!(state(&manager, "b"), ObjectState::Immutable);
    assert_eq!(value(&manager, "c").await, "one");
    assert_eq!(asked(&cluster), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn idle_watch_makes_room_and_queues_for_the_next_slot() {
    let (_cluster, manager) = manager();
    let first = pod_with("p", &["b"]);
    manager.register_pod(&first);
    manager.register_pod(&pod_with("q", &["a"]));
    sleep(Duration::from_mins(7)).await;
    assert_eq!(state(&manager, "b"), ObjectState::Idle);
    assert_eq!(value(&manager, "a").await, "one");
    assert_eq!(value(&manager, "b").await, REFUSED);
    assert_eq!(state(&manager, "b"), ObjectState::Unwatched);
    manager.unregister_pod(&pod_with("q", &[]));
    settle().await;
    assert_eq!(value(&manager, "b").await, "one");
}

#[tokio::test(start_paused = true)]
async fn nothing_of_an_unwatched_object_outlives_its_last_reference() {
    let (cluster, manager) = manager();
    manager.register_pod(&pod_with("p", &["a"]));
    let second = pod_with("q", &["b"]);
    manager.register_pod(&second);
    assert_eq!(value(&manager, "b").await, REFUSED);
    manager.unregister_pod(&second);
    manager.unregister_pod(&pod_with("p", &["a"]));
    settle().await;
    cluster.requests();
    sleep(Duration::from_mins(5)).await;
    assert!(asked(&cluster).is_empty());
    assert!(manager.get("n", "b").await.is_err());
}
