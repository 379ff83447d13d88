//! A manager on the transport, against the embedded API server over TLS.

#[path = "../../../larder-transport/tests/transport/certificates.rs"]
#[expect(dead_code, reason = "shared with the tests of the transport alone")]
mod certificates;
#[path = "../../../larder-transport/tests/transport/client.rs"]
#[expect(dead_code, reason = "shared with the tests of the transport alone")]
mod client;
mod running;

use std::{fs, os::unix::fs::symlink, path::Path, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use larder::{ConfigMapManager, ManagerConfig, ObjectState};
use larder_apiserver::{ApiServer, AuditLog, Options};
use larder_e2e::reserved_port;
use larder_transport::{ClusterSource, Lane};
use rustls::ServerConfig;
use serde_json::json;
use tempfile::TempDir;

use self::{
    certificates::Authority,
    client::{Client, chain, config, kubeconfig, within},
    running::Running,
};

/// A server with ConfigMaps `object-0` and up, and a manager whose pods reference them.
struct Node {
    api: ApiServer,
    tls: Arc<ServerConfig>,
    server: Option<Running>,
    client: Client,
    manager: ConfigMapManager,
    objects: usize,
    /// Has the kubeconfig.
    _directory: Option<TempDir>,
}

impl Node {
    async fn with_objects(objects: usize) -> Self {
        let authority = Authority::new();
        let mut directory = None;
        let source = |url: String| {
            let mut kube = kube::Config::new(url.parse().unwrap());
            kube.root_cert = Some(vec![authority.der()]);
            let (files, source) = kubeconfig(&kube);
            directory = Some(files);
            source
        };
        let node = Self::start(objects, &authority, source).await;
        Self {
            _directory: directory,
            ..node
        }
    }

    /// With a server whose certificate is of that authority.
    async fn start(
        objects: usize,
        authority: &Authority,
        source: impl FnOnce(String) -> ClusterSource,
    ) -> Self {
        let tls = authority.server(&["h2"]);
        let api = ApiServer::new(Options::default().audit(AuditLog::in_memory()));
        let address = format!("127.0.0.1:{}", reserved_port().unwrap());
        let server = Running::start(&api, Arc::clone(&tls), &address).await;
        let url = format!("https://{}", server.address);
        let config = config().credentials_check_interval(Duration::ZERO);
        let client = Client::from(source(url), config).await;
        let manager =
            ConfigMapManager::new(client.kube.clone(), &ManagerConfig::default()).unwrap();
        let node = Self {
            api,
            tls,
            server: Some(server),
            client,
            manager,
            objects,
            _directory: None,
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
        let address = self.crash().await;
        for index in 0..self.objects {
            assert_eq!(self.value(index).await, format!("first-{index}"));
        }
        // Changed during the outage.
        self.set_all("second");
        let server = Running::start(&self.api, Arc::clone(&self.tls), &address).await;
        self.server = Some(server);
    }

    /// Ends the server and waits until the manager notices. Returns the server's address.
    async fn crash(&mut self) -> String {
        let address = self.server.take().unwrap().address.to_string();
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
        address
    }

    /// Watches that were opened so far.
    fn opened(&self) -> usize {
        let records = self.api.audit().records();
        records
            .iter()
            .filter(|record| record.verb == "watch")
            .count()
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
async fn hundreds_of_objects_share_few_connections() {
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
async fn goaway_interrupts_no_watch() {
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
async fn managers_catch_up_with_a_restarted_server() {
    let mut node = Node::with_objects(120).await;
    node.all_have("first").await;
    node.restart().await;
    node.all_have("second").await;
    node.client
        .until(|all| all.iter().map(|c| c.streams).sum::<usize>() == 120)
        .await;
    assert!(node.watch_connections() <= 3);
}

/// Replaces the service account by one with this `ca.crt`, as the kubelet does: all files at once.
fn mount(directory: &Path, authorities: &str) {
    let set = format!("..{}", fs::read_dir(directory).unwrap().count());
    fs::create_dir(directory.join(&set)).unwrap();
    for (file, content) in [
        ("ca.crt", authorities),
        ("token", "token"),
        ("namespace", "prod"),
    ] {
        fs::write(directory.join(&set).join(file), content).unwrap();
        if !directory.join(file).exists() {
            symlink(Path::new("..data").join(file), directory.join(file)).unwrap();
        }
    }
    symlink(set, directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
}

/// A node in a pod of a cluster with that authority, with objects that have the value `first`.
async fn in_cluster(directory: &Path, authority: &Authority) -> Node {
    mount(directory, &authority.pem());
    let source = |server| ClusterSource::ServiceAccount {
        directory: directory.to_owned(),
        server,
    };
    let node = Node::start(30, authority, source).await;
    node.all_have("first").await;
    node
}

#[tokio::test]
async fn a_new_cluster_authority_costs_at_most_one_interruption() {
    let (old, new) = (Authority::new(), Authority::new());
    let directory = TempDir::new().unwrap();
    let mut node = in_cluster(directory.path(), &old).await;
    assert_eq!(node.opened(), 30);

    // Both are trusted for a while. The next request notices, and no watch is lost.
    mount(directory.path(), &(old.pem() + &new.pem()));
    node.client.get("/readyz").await.unwrap();
    node.client
        .until(|all| all.iter().any(|c| c.lane == Lane::Watch && c.closing))
        .await;
    node.set_all("second");
    node.all_have("second").await;
    assert_eq!(node.opened(), 30);

    // The server takes its new certificate.
    let address = node.crash().await;
    node.set_all("third");
    node.server = Some(Running::start(&node.api, new.server(&["h2"]), &address).await);
    node.all_have("third").await;
    node.client
        .until(|all| all.iter().map(|c| c.streams).sum::<usize>() == 30)
        .await;
    assert_eq!(node.opened(), 60);

    // The old one is no longer trusted.
    mount(directory.path(), &new.pem());
    node.client.get("/readyz").await.unwrap();
    node.client
        .until(|all| all.iter().any(|c| c.lane == Lane::Watch && c.closing))
        .await;
    node.set_all("fourth");
    node.all_have("fourth").await;
    assert_eq!(node.opened(), 60);
}

#[tokio::test]
async fn an_authority_that_arrives_late_is_used() {
    let (old, new) = (Authority::new(), Authority::new());
    let directory = TempDir::new().unwrap();
    let mut node = in_cluster(directory.path(), &old).await;
    let address = node.crash().await;
    node.set_all("second");
    node.server = Some(Running::start(&node.api, new.server(&["h2"]), &address).await);
    within(async {
        let distrusted = || {
            let objects = node.manager.objects().into_iter();
            let failures = objects.filter_map(|object| object.failure);
            failures
                .filter(|failure| chain(failure).contains("invalid peer certificate"))
                .count()
        };
        while distrusted() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    mount(directory.path(), &new.pem());
    node.all_have("second").await;
    assert_eq!(node.opened(), 60);
}
