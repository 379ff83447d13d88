//! An edit of many manifests at once.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use larder::{ConfigMapManager, ManagerConfig};
use larder_apiserver::{ApiServer, AuditLog, Options};
use larder_manifests::Feed;
use serde_json::json;
use tokio::{select, task::JoinSet};

/// Writes `count` ConfigMaps with `value`, in one step.
fn write(directory: &Path, count: usize, value: &str) {
    let objects = (0..count).map(|index| {
        let metadata = json!({"namespace": "n", "name": format!("c{index}")});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": value}})
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>()});
    let aside = directory.join(".new");
    fs::write(&aside, list.to_string()).unwrap();
    fs::rename(aside, directory.join("all.json")).unwrap();
}

/// How many requests an edit of `count` objects causes whose watches are open.
async fn requests_of_an_edit(count: usize) -> usize {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), count, "before");
    let options = Options::default().fill_namespaces(true);
    let server = ApiServer::new(options.audit(AuditLog::in_memory()));
    let feed = Feed::open(directory.path(), server.clone(), None, None);
    let mut tasks = JoinSet::new();
    tasks.spawn(feed.await.unwrap().run());
    let client = Client::new(server.service(), "default");
    let manager = ConfigMapManager::new(client, &ManagerConfig::default()).unwrap();
    let volumes =
        (0..count).map(|index| json!({"name": "v", "configMap": {"name": format!("c{index}")}}));
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"namespace": "n", "name": "p", "uid": "p"},
        "spec": {"containers": [], "volumes": volumes.collect::<Vec<_>>()},
    }))
    .unwrap();
    manager.register_pod(&pod);
    let mut changes = manager.subscribe();
    let all_have = async |value: &str, changes: &mut larder::Changes| {
        for index in 0..count {
            let name = format!("c{index}");
            // An error: the first answer takes longer than a read waits.
            while (manager.get("n", &name).await).map_or(true, |held| held.data["k"] != *value) {
                changes.next().await.unwrap();
            }
        }
    };
    all_have("before", &mut changes).await;
    let before = server.audit().records().len();
    write(directory.path(), count, "after");
    select! {
        () = all_have("after", &mut changes) => {}
        ended = tasks.join_next() => panic!("{ended:?}"),
    }
    server.audit().records().len() - before
}

/// More changes at once than the server remembers.
#[tokio::test]
async fn an_edit_of_many_objects_ends_no_watch_of_them() {
    assert_eq!(requests_of_an_edit(1500).await, 0);
}
