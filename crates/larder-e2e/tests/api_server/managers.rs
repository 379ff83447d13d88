//! Managers on larder's own transport, with the identity of a node, against either API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use larder::{ConfigMapManager, ManagerConfig, SecretManager, WatchScope};
use larder_e2e::{Identity, NODE, Server};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::connect::connect;

/// Longer than anything here takes, restarts of a real server included.
const PATIENCE: Duration = Duration::from_mins(2);

async fn client_of(server: &Server, identity: Identity) -> Client {
    connect(server.kubeconfig(identity).unwrap()).await
}

fn scoped(watch_scope: WatchScope) -> ManagerConfig {
    ManagerConfig::default().watch_scope(watch_scope)
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
async fn a_node_reads_exactly_the_objects_that_its_pods_reference() {
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

    let client = client_of(&server, Identity::Node).await;
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
    an_outage(Identity::Node, WatchScope::Object).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_stays_served_while_the_api_server_is_down_and_is_fresh_afterwards() {
    an_outage(Identity::Admin, WatchScope::Namespace).await;
}

async fn an_outage(identity: Identity, scope: WatchScope) {
    let mut server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    create(&maps, config("before")).await;
    let pod = create_pod(&admin, "default").await;
    let client = client_of(&server, identity).await;
    let manager = ConfigMapManager::new(client, &scoped(scope)).unwrap();
    manager.register_pod(&pod);
    let mut changes = manager.subscribe();
    let value = async || {
        let read = manager.get_within("default", "config", PATIENCE).await;
        read.unwrap().data["key"].to_string()
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
    .expect("the manager notices that the API server is down");
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

/// A pod that mounts these Secrets.
fn pod_with(name: &str, secrets: &[&str]) -> Pod {
    let volumes: Vec<_> = secrets
        .iter()
        .map(|secret| json!({"name": secret, "secret": {"secretName": secret}}))
        .collect();
    object(json!({
        "metadata": {"namespace": "default", "name": name, "uid": name},
        "spec": {"containers": [], "volumes": volumes},
    }))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_watch_of_a_namespace_serves_its_referenced_objects() {
    let server = Server::start().await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(server.client().await.unwrap(), "default");
    let secret = |name: &str, value: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name}, "stringData": {"k": value},
        })
    };
    for name in ["a", "b", "unreferenced"] {
        create(&secrets, secret(name, "one")).await;
    }
    let client = client_of(&server, Identity::Admin).await;
    let manager = SecretManager::new(client, &scoped(WatchScope::Namespace)).unwrap();
    let read = async |name: &str| {
        let read = manager.get_within("default", name, PATIENCE).await;
        read.map(|secret| String::from_utf8(secret.data["k"].to_vec()).unwrap())
    };
    let pod = pod_with("p", &["a", "later"]);
    let mut changes = manager.subscribe();
    manager.register_pod(&pod);
    assert_eq!(read("a").await.unwrap(), "one");
    assert!(read("later").await.unwrap_err().is_not_found());

    // Created and changed while watched; joined later, changed, deleted.
    create(&secrets, secret("later", "two")).await;
    manager.register_pod(&pod_with("q", &["b"]));
    assert_eq!(read("b").await.unwrap(), "one");
    let patch = |value: &str| Patch::Merge(json!({"stringData": {"k": value}}));
    let params = PatchParams::default();
    secrets.patch("b", &params, &patch("three")).await.unwrap();
    secrets.delete("a", &DeleteParams::default()).await.unwrap();
    tokio::time::timeout(PATIENCE, async {
        loop {
            let gone = read("a").await.is_err_and(|error| error.is_not_found());
            let later = read("later").await.is_ok_and(|value| value == "two");
            if gone && later && read("b").await.is_ok_and(|value| value == "three") {
                break;
            }
            changes.next().await.unwrap();
        }
    })
    .await
    .expect("all changes arrive");

    // No subscriber gets an event about an object that no pod references.
    let known: Vec<_> = manager
        .objects()
        .iter()
        .map(|object| object.key.name.to_string())
        .collect();
    assert_eq!(known, ["a", "b", "later"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_checks_the_permissions_of_an_identity() {
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    create(
        &Api::<ConfigMap>::namespaced(admin.clone(), "default"),
        config("one"),
    )
    .await;
    let pod = create_pod(&admin, "default").await;
    for (identity, scope, reason) in [
        (
            Identity::Node,
            WatchScope::Object,
            "may not list configmaps of the namespace",
        ),
        (
            Identity::Admin,
            WatchScope::Namespace,
            "may list and watch the namespace",
        ),
    ] {
        let client = client_of(&server, identity).await;
        let manager = ConfigMapManager::new(client, &scoped(WatchScope::Auto)).unwrap();
        manager.register_pod(&pod);
        let read = manager.get_within("default", "config", PATIENCE).await;
        assert_eq!(read.unwrap().data["key"], "one");
        let choice = &manager.scopes()[0].choice;
        assert_eq!((choice.scope, &*choice.reason), (scope, reason));
    }
}
