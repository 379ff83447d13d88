//! A manager on the transport, against the embedded API server over TLS.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use larder::{ConfigMapManager, ManagerConfig, ObjectState, transport::Lane};
use larder_apiserver::{ApiServer, Options};
use rustls::ServerConfig;
use serde_json::json;

use crate::{Client, api_server::Running, certificates::Authority, config, within};

/// A server with ConfigMaps `object-0` and up, and a manager whose pods refer to them.
struct Node {
    api: ApiServer,
    tls: Arc<ServerConfig>,
    server: Option<Running>,
    client: Client,
    manager: ConfigMapManager,
    objects: usize,
}

impl Node {
    async fn with_objects(objects: usize) -> Self {
        let authority = Authority::new();
        let tls = authority.server(&["h2"]);
        let api = ApiServer::new(Options::default());
        let server = Running::start(&api, Arc::clone(&tls), "127.0.0.1:0").await;
        let url = format!("https://{}", server.address);
        let mut kube = kube::Config::new(url.parse().unwrap());
        kube.root_cert = Some(vec![authority.der()]);
        let client = Client::new(kube, config()).await;
        let manager =
            ConfigMapManager::new(client.kube.clone(), &ManagerConfig::default()).unwrap();
        let node = Self {
            api,
            tls,
            server: Some(server),
            client,
            manager,
            objects,
        };
        node.set_all("first");
        for index in 0..objects {
            node.manager.register_pod(&pod(index));
        }
        node
    }

    fn set(&self, index: usize, value: &str) {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": "prod", "name": format!("object-{index}")},
            "data": {"key": format!("{value}-{index}")},
        });
        self.api.apply(&object).unwrap();
    }

    fn set_all(&self, value: &str) {
        (0..self.objects).for_each(|index| self.set(index, value));
    }

    async fn value(&self, index: usize) -> String {
        let name = format!("object-{index}");
        let wait = Duration::from_mins(1);
        let object = self.manager.get_within("prod", &name, wait).await;
        object.unwrap().data["key"].to_string()
    }

    /// Waits until every object has `value`.
    async fn all_have(&self, value: &str) {
        let mut changes = self.manager.subscribe();
        for index in 0..self.objects {
            let wanted = format!("{value}-{index}");
            while self.value(index).await != wanted {
                within(changes.next()).await.unwrap();
            }
        }
    }

    async fn restart(&mut self) {
        let address = self.server.take().unwrap().address.to_string();
        // The manager has noticed.
        within(async {
            let mut changes = self.manager.subscribe();
            while self
                .manager
                .objects()
                .iter()
                .all(|object| object.failure.is_none())
            {
                changes.next().await.unwrap();
            }
        })
        .await;
        for index in 0..self.objects {
            assert_eq!(self.value(index).await, format!("first-{index}"));
        }
        // Changed while nobody could see it.
        self.set_all("second");
        let server = Running::start(&self.api, Arc::clone(&self.tls), &address).await;
        self.server = Some(server);
    }

    fn watch_connections(&self) -> usize {
        let connections = self.client.transport.connections();
        let watching = connections
            .iter()
            .filter(|c| c.lane == Lane::Watch && !c.closing);
        watching.count()
    }
}

fn pod(index: usize) -> Pod {
    let pod = json!({
        "metadata": {"namespace": "prod", "name": format!("pod-{index}"), "uid": format!("uid-{index}")},
        "spec": {"containers": [], "volumes": [{"name": "v", "configMap": {"name": format!("object-{index}")}}]},
    });
    serde_json::from_value(pod).unwrap()
}

#[tokio::test]
async fn hundreds_of_objects_share_few_connections_and_follow_every_change() {
    let node = Node::with_objects(350).await;
    node.all_have("first").await;
    assert_eq!(node.watch_connections(), 4);
    assert_eq!(node.api.open_watches(), 350);
    node.set_all("second");
    node.all_have("second").await;
    assert!(
        node.manager
            .objects()
            .iter()
            .all(|object| object.state == ObjectState::Synced)
    );

    for index in 0..350 {
        node.manager.unregister_pod(&pod(index));
    }
    within(async {
        while node.api.open_watches() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(node.client.transport.streams(), 0);
}

#[tokio::test]
async fn goaway_moves_no_watch() {
    let node = Node::with_objects(150).await;
    node.all_have("first").await;
    node.server.as_ref().unwrap().drain();
    node.client.until(|all| all.iter().all(|c| c.closing)).await;
    node.set_all("second");
    node.all_have("second").await;
    assert_eq!(node.client.transport.streams(), 150);
    assert_eq!(node.client.metric("dials_total{outcome=\"connected\"}"), 2);
    // Only new watches open new connections.
    node.manager.register_pod(&pod(150));
    node.client
        .until(|all| all.iter().any(|c| !c.closing && c.streams == 1))
        .await;
}

#[tokio::test]
async fn a_restarted_server_is_caught_up_with() {
    let mut node = Node::with_objects(120).await;
    node.all_have("first").await;
    node.restart().await;
    node.all_have("second").await;
    node.client
        .until(|all| all.iter().map(|c| c.streams).sum::<usize>() == 120)
        .await;
    assert!(node.watch_connections() <= 3);
}
