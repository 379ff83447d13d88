//! Managers against an API server whose every response is the test's; see `script`.

#[path = "../../../larder-watch/tests/engine/script.rs"]
mod script;

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use larder::{ConfigMapManager, ManagerConfig, WatchScope};
use larder_transport::ClusterSource;
use tempfile::TempDir;

pub(crate) use self::script::{Exchange, Script, Stream, immutable, named, object};

/// A manager with strategy `Watch` in that scope.
pub(crate) fn watching(scope: WatchScope, client: kube::Client) -> ConfigMapManager {
    let config = ManagerConfig::default().watch_scope(scope);
    ConfigMapManager::new(client, &config).unwrap()
}

/// The value of ConfigMap `n/<name>`, or why it has none.
pub(crate) async fn value(manager: &ConfigMapManager, name: &str) -> String {
    match manager.get("n", name).await {
        Ok(map) => map.data["k"].to_string(),
        Err(error) => error.to_string(),
    }
}

/// A kubeconfig for that server, with the token in that file, in a directory of its own.
pub(crate) fn kubeconfig(server: &str, token_file: Option<&Path>) -> (TempDir, ClusterSource) {
    let text = serde_json::json!({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"tokenFile": token_file}}],
    });
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("kubeconfig");
    std::fs::write(&path, text.to_string()).unwrap();
    let context = None;
    (directory, ClusterSource::Kubeconfig { path, context })
}

/// Lets everything that is ready happen.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// Pod `n/<uid>` that refers to ConfigMap `a`.
pub(crate) fn pod(uid: &str) -> Pod {
    pod_with(uid, &["a"])
}

/// Pod `n/<uid>` that refers to these ConfigMaps.
pub(crate) fn pod_with(uid: &str, names: &[&str]) -> Pod {
    let volumes: Vec<_> = names
        .iter()
        .map(|name| serde_json::json!({"name": name, "configMap": {"name": name}}))
        .collect();
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "n", "name": uid, "uid": uid},
        "spec": {"containers": [], "volumes": volumes},
    }))
    .unwrap()
}
