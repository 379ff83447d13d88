//! Copies that an earlier process kept: served while the API server has not been heard, and replaced by whatever it
//! says.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use larder::{ChangeKind, ConfigMapManager, ObjectState, StaleObject, WatchScope};
use larder_apiserver::Fault;
use larder_objects::{ConfigMap, Object as _, ObjectKey};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    cluster::Cluster,
    scripted::{pod_with, watching},
};

const SCOPES: [WatchScope; 2] = [WatchScope::Object, WatchScope::Namespace];

fn as_of() -> Timestamp {
    Timestamp::from_second(1_772_366_400).unwrap()
}

/// Copies of these objects, with their values in `k`; `None` for one that did not exist.
fn copies<const N: usize>(
    objects: [(&str, Option<&str>); N],
) -> HashMap<ObjectKey, StaleObject<ConfigMap>> {
    let copy = |(name, value): (&str, Option<&str>)| {
        let json = |value: &str| {
            // A version above any of the server: a cluster that was restored has lower ones.
            format!(
                r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"u","resourceVersion":"9000"}},
                    "data":{{"k":"{value}"}},"immutable":true}}"#
            )
        };
        let object = value.map(|value| ConfigMap::from_json(json(value).as_bytes()).unwrap());
        let copy = StaleObject {
            object: object.map(Arc::new),
            as_of: as_of(),
        };
        (ObjectKey::new("n", name), copy)
    };
    objects.into_iter().map(copy).collect()
}

async fn value(manager: &ConfigMapManager, name: &str) -> Result<String, larder::Error> {
    let object = manager.get("n", name).await?;
    Ok(object.data["k"].to_string())
}

fn state(manager: &ConfigMapManager, name: &str) -> ObjectState {
    let objects = manager.objects();
    let object = objects.iter().find(|object| object.key.name == name);
    object.unwrap().state
}

#[tokio::test(start_paused = true)]
async fn a_copy_is_served_until_the_api_server_answers() {
    // offline 2, 27
    for scope in SCOPES {
        let cluster = Cluster::new();
        cluster.set("a", "new", false);
        let silence = cluster.server.faults().inject(Fault::on_any().status(503));
        let manager = watching(scope, cluster.client());
        let mut changes = manager.subscribe();
        manager.register_pod(&pod_with("p1", &["a"]));
        manager.serve_stale(copies([("a", Some("old")), ("b", None)]));
        // Registered later, and read without a wait.
        manager.register_pod(&pod_with("p2", &["a", "b"]));
        let before = Instant::now();
        assert_eq!(value(&manager, "a").await.unwrap(), "old");
        assert!(value(&manager, "b").await.unwrap_err().is_not_found());
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert_eq!(state(&manager, "a"), ObjectState::Stale(as_of()));
        assert_eq!(manager.stale_as_of("n", "a"), Some(as_of()));

        silence.lift();
        let proven = async {
            while manager.stale_as_of("n", "a").is_some() || manager.stale_as_of("n", "b").is_some()
            {
                let change = changes.next().await.unwrap();
                if matches!(change.kind, ChangeKind::Updated) {
                    // Old or new, never neither.
                    assert!(["old", "new"].contains(&value(&manager, "a").await.unwrap().as_str()));
                }
            }
        };
        timeout(Duration::from_mins(2), proven).await.unwrap();
        assert_eq!(value(&manager, "a").await.unwrap(), "new");
        assert_eq!(state(&manager, "a"), ObjectState::Synced);
        assert_eq!(state(&manager, "b"), ObjectState::Absent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deleted_objects_copy_ends_with_the_first_answer() {
    // offline 3
    for scope in SCOPES {
        let cluster = Cluster::new();
        let silence = cluster.server.faults().inject(Fault::on_any().status(503));
        let manager = watching(scope, cluster.client());
        manager.register_pod(&pod_with("p1", &["a"]));
        manager.serve_stale(copies([("a", Some("old"))]));
        let mut changes = manager.subscribe();
        assert_eq!(value(&manager, "a").await.unwrap(), "old");
        silence.lift();
        while manager.stale_as_of("n", "a").is_some() {
            changes.next().await.unwrap();
        }
        assert!(value(&manager, "a").await.unwrap_err().is_not_found());
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_copy_is_withdrawn() {
    // offline 5, 6
    for code in [401, 403] {
        let cluster = Cluster::new();
        for name in ["a", "b"] {
            cluster.set(name, "new", false);
        }
        let silence = cluster.server.faults().inject(Fault::on_any().status(503));
        let manager = watching(WatchScope::Object, cluster.client());
        manager.register_pod(&pod_with("p1", &["a", "b"]));
        manager.serve_stale(copies([("a", Some("old")), ("b", Some("old"))]));
        assert_eq!(value(&manager, "a").await.unwrap(), "old");
        let denial = Fault::on_any().name("a").status(code);
        cluster.server.faults().inject(denial);
        silence.lift();
        sleep(Duration::from_mins(1)).await;
        let error = value(&manager, "a").await.unwrap_err();
        assert!(error.is_forbidden() || error.is_unauthorized(), "{error}");
        assert_eq!(state(&manager, "a"), ObjectState::Pending);
        assert_eq!(value(&manager, "b").await.unwrap(), "new");
        // It does not come back by a new reference either.
        manager.register_pod(&pod_with("p2", &["a"]));
        assert!(value(&manager, "a").await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_known_already_is_no_copy() {
    let cluster = Cluster::new();
    cluster.set("a", "new", false);
    let manager = watching(WatchScope::Object, cluster.client());
    manager.register_pod(&pod_with("p1", &["a"]));
    assert_eq!(value(&manager, "a").await.unwrap(), "new");
    manager.serve_stale(copies([("a", Some("old"))]));
    assert_eq!(value(&manager, "a").await.unwrap(), "new");
    assert_eq!(manager.stale_as_of("n", "a"), None);
}

#[tokio::test(start_paused = true)]
async fn a_reference_after_the_end_needs_an_answer() {
    let cluster = Cluster::new();
    cluster.server.faults().inject(Fault::on_any().status(503));
    let manager = watching(WatchScope::Object, cluster.client());
    manager.register_pod(&pod_with("p1", &["a"]));
    manager.serve_stale(copies([("a", Some("old")), ("b", Some("old"))]));
    manager.end_stale();
    manager.register_pod(&pod_with("p2", &["a", "b"]));
    assert!(value(&manager, "b").await.is_err());
    // The pod that had the copy keeps it; the one that has come since does not start with it.
    let identity = |name: &str| {
        let pods = manager.pods();
        pods.into_iter().find(|pod| pod.name == name).unwrap()
    };
    assert!(manager.get_for(&identity("p1"), "a").await.is_ok());
    assert!(manager.get_for(&identity("p2"), "a").await.is_err());
}
