//! The requests of the managers, as the API server's audit log shows them.

use std::time::Duration;

use larder::{ConfigMapManager, ErrorKind, ManagerConfig, ManagerMetrics, Strategy};
use larder_apiserver::AuditRecord;

use crate::{
    cluster::Cluster,
    scripted::{Script, object, pod, pod_with},
};

const COLLECTION: &str = "/api/v1/namespaces/n/configmaps";

/// The one name that a record asks for.
///
/// # Panics
///
/// If it asks for anything but one ConfigMap of namespace `n`.
fn name(record: &AuditRecord) -> &str {
    let rest = record.path.strip_prefix(COLLECTION);
    let name = match (record.verb, rest) {
        ("get", Some(rest)) => rest.strip_prefix('/'),
        ("list" | "watch", Some("")) => record
            .query
            .split('&')
            .find_map(|part| part.strip_prefix("fieldSelector=metadata.name%3D")),
        _ => None,
    };
    name.unwrap_or_else(|| panic!("not by name: {record:?}"))
}

/// What was asked since the last call, as verbs and names.
fn asked(cluster: &Cluster) -> Vec<(&'static str, String)> {
    let records = cluster.audit.take();
    let mut asked: Vec<_> = records
        .iter()
        .map(|record| (record.verb, name(record).to_owned()))
        .collect();
    asked.sort_unstable();
    asked
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

// managers 22, 23; I1, I2, I4
#[tokio::test(start_paused = true)]
async fn all_pods_share_one_streaming_list_that_continues_as_watch() {
    let cluster = Cluster::new();
    cluster.set("a", "one", false);
    cluster.set("unreferenced", "one", false);
    cluster.audit.take();
    let manager = ConfigMapManager::watching(cluster.client());
    let pods: Vec<_> = (0..50)
        .map(|number| pod_with(&format!("p{number}"), &["a", "missing"]))
        .collect();
    for pod in &pods {
        manager.register_pod(pod);
    }
    for pod in &pods {
        let read = manager
            .get_for(&larder::PodIdentity::from(pod), "a")
            .await
            .unwrap();
        assert_eq!(read.data["k"], "one");
        let error = manager
            .get_for(&larder::PodIdentity::from(pod), "missing")
            .await
            .unwrap_err();
        assert!(error.is_not_found(), "{error}");
    }
    let both = [("watch", "a".to_owned()), ("watch", "missing".to_owned())];
    assert_eq!(asked(&cluster), both);

    // Nothing on further registrations, nor for a change, nor for a name that no pod refers to.
    manager.register_pod(&pod_with("late", &["a", "missing"]));
    for pod in &pods {
        manager.register_pod(pod);
    }
    settle().await;
    cluster.set("a", "two", false);
    settle().await;
    assert_eq!(
        manager
            .get_for(&larder::PodIdentity::from(&pods[0]), "a")
            .await
            .unwrap()
            .data["k"],
        "two"
    );
    let error = manager.get("n", "unreferenced").await.unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::NotRegistered { .. }),
        "{error}"
    );
    assert_eq!(asked(&cluster), []);

    // One freshness check for all reads on behalf of the new pod.
    let reads = (0..10).map(|_| manager.get("n", "a"));
    futures::future::join_all(reads).await;
    assert_eq!(asked(&cluster), [("get", "a".to_owned())]);

    // Nothing after the last reference.
    manager.unregister_pod(&pod_with("late", &[]));
    for pod in &pods {
        manager.unregister_pod(pod);
    }
    cluster.set("a", "three", false);
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert_eq!(asked(&cluster), []);
    assert_eq!(cluster.server.open_watches(), 0);
}

// I4, whatever happens: interruptions, a forgotten past, deletion
#[tokio::test(start_paused = true)]
async fn only_referenced_names_are_ever_asked_for() {
    for strategy in [Strategy::Get, Strategy::Cache, Strategy::Watch] {
        let cluster = Cluster::new();
        cluster.set("a", "one", false);
        cluster.set("unreferenced", "one", false);
        cluster.audit.take();
        let config = ManagerConfig::default().strategy(strategy);
        let manager = ConfigMapManager::new(cluster.client(), &config).unwrap();
        manager.register_pod(&pod("p1"));
        for round in 0..5 {
            manager.get("n", "a").await.unwrap();
            cluster.set("a", &format!("round {round}"), false);
            cluster.server.compact();
            cluster.cut();
            tokio::time::sleep(Duration::from_mins(2)).await;
        }
        cluster.delete("a");
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(manager.get("n", "a").await.unwrap_err().is_not_found());
        let asked = asked(&cluster);
        assert!(asked.len() > 5, "{asked:?}");
        assert!(asked.iter().all(|(_, name)| name == "a"), "{asked:?}");
    }
}

// managers 80: the rules of the node authorizer, N1 and N2
#[tokio::test(start_paused = true)]
async fn every_request_is_one_that_a_node_may_make() {
    for strategy in [Strategy::Get, Strategy::Cache, Strategy::Watch] {
        let cluster = Cluster::new();
        cluster.set("a", "one", false);
        cluster.authorize(&["a"]);
        let config = ManagerConfig::default().strategy(strategy);
        let manager = ConfigMapManager::new(cluster.client(), &config).unwrap();
        manager.register_pod(&pod("p1"));
        assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "one");
        cluster.cut();
        cluster.set("a", "two", false);
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(manager.get("n", "a").await.unwrap().data["k"], "two");
        // The object of another node's pod.
        manager.register_pod(&pod_with("p2", &["other"]));
        let error = manager.get("n", "other").await.unwrap_err();
        assert!(error.is_forbidden() && !error.is_not_found(), "{error:?}");
        let refused = error.request().unwrap().to_string();
        assert_eq!(
            refused,
            "no relationship found between node 'n0' and this object"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_tell_states_and_outcomes_and_no_names() {
    let (client, mut script) = Script::new();
    let metrics = ManagerMetrics::default();
    let config = ManagerConfig::default();
    let manager = ConfigMapManager::with_metrics(client, &config, &metrics).unwrap();
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(registry.sub_registry_with_prefix("larder"));
    manager.register_pod(&pod_with("p1", &["a", "the-name"]));
    let _stream = script.next().await.synced(5, Some(&object(5, "one")));
    script.next().await.refuse(403);
    for _ in 0..2 {
        manager.get("n", "a").await.unwrap();
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        r#"larder_objects{kind="ConfigMap",state="synced"} 1"#,
        r#"larder_objects{kind="ConfigMap",state="pending"} 1"#,
        r#"larder_references{kind="ConfigMap"} 2"#,
        r#"larder_requests_total{kind="ConfigMap",verb="watch",outcome="forbidden"} 1"#,
        r#"larder_requests_total{kind="ConfigMap",verb="watch",outcome="ok"} 1"#,
        r#"larder_watch_restarts_total{kind="ConfigMap",reason="refused"} 1"#,
        r#"larder_cache_hits_total{kind="ConfigMap"}"#,
        r#"larder_oldest_data_seconds{kind="ConfigMap"}"#,
        r#"larder_read_wait_seconds_count{kind="ConfigMap"}"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("the-name"), "{text}");
}
