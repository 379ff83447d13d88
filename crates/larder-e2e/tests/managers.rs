//! Managers on larder's own transport, with the identity of a node, against either API server.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use larder::{ConfigMapManager, ManagerConfig, SecretManager, transport};
use larder_e2e::{Identity, NODE, Server};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Longer than anything here takes, restarts of a real server included.
const PATIENCE: Duration = Duration::from_mins(2);

async fn node_client(server: &Server) -> Client {
    let source = transport::Source::Kubeconfig {
        path: server.kubeconfig(Identity::Node).unwrap(),
        context: None,
    };
    let (client, _) = transport::connect(
        source,
        transport::Config::default(),
        transport::Metrics::default(),
    )
    .await
    .unwrap();
    client
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

async fn create<K>(api: &Api<K>, value: Value) -> K
where
    K: DeserializeOwned + serde::Serialize + Clone + std::fmt::Debug,
{
    api.create(&PostParams::default(), &object(value))
        .await
        .unwrap()
}

/// A pod of the node that mounts ConfigMap `config` and Secret `login`.
async fn create_pod(admin: &Client, namespace: &str) -> Pod {
    let pods = Api::namespaced(admin.clone(), namespace);
    create(&pods, json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i", "envFrom": [{"secretRef": {"name": "login"}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "config"}}],
        },
    })).await
}

fn config(value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config"}, "data": {"key": value}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_what_its_pods_refer_to_and_nothing_else() {
    // managers 80
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(admin.clone(), "default");
    for name in ["login", "other"] {
        create(
            &secrets,
            json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": name}, "stringData": {"password": name},
            }),
        )
        .await;
    }
    let pod = create_pod(&admin, "default").await;

    let client = node_client(&server).await;
    let manager = SecretManager::new(client.clone(), &ManagerConfig::default()).unwrap();
    manager.register_pod(&pod);
    let login = manager
        .get_within("default", "login", PATIENCE)
        .await
        .unwrap();
    assert_eq!(&*login.data["password"], b"login");

    let as_node: Api<Secret> = Api::namespaced(client, "default");
    for refused in [
        as_node.get("other").await.unwrap_err(),
        as_node.list(&ListParams::default()).await.unwrap_err(),
        as_node
            .list(&ListParams::default().fields("metadata.name=other"))
            .await
            .unwrap_err(),
    ] {
        assert!(
            matches!(&refused, kube::Error::Api(status) if status.code == 403),
            "{refused:?}"
        );
    }
    let mine = as_node
        .list(&ListParams::default().fields("metadata.name=login"))
        .await
        .unwrap();
    assert_eq!(mine.items.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn data_stays_served_while_the_api_server_is_down_and_is_fresh_afterwards() {
    let mut server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    create(&maps, config("before")).await;
    let pod = create_pod(&admin, "default").await;
    let manager =
        ConfigMapManager::new(node_client(&server).await, &ManagerConfig::default()).unwrap();
    manager.register_pod(&pod);
    let mut changes = manager.subscribe();
    let value = async || {
        let read = manager.get_within("default", "config", PATIENCE).await;
        read.unwrap().data["key"].clone()
    };
    assert_eq!(value().await, "before");

    server.kill().await;
    tokio::time::timeout(PATIENCE, async {
        while manager
            .objects()
            .iter()
            .all(|object| object.failure.is_none())
        {
            changes.next().await.unwrap();
        }
    })
    .await
    .expect("the manager notices that the API server is gone");
    assert_eq!(value().await, "before");

    server.restart().await.unwrap();
    // Connections of kube's client died with the server; the first request may meet one of them.
    let admin = server.client().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin, "default");
    let patch = Patch::Merge(json!({"data": {"key": "after"}}));
    maps.patch("config", &PatchParams::default(), &patch)
        .await
        .unwrap();
    tokio::time::timeout(PATIENCE, async {
        while value().await != "after" {
            changes.next().await.unwrap();
        }
    })
    .await
    .expect("the change arrives after the restart");
}
