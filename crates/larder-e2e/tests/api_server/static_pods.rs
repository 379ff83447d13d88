//! Static pods and their mirror pods: the whole agent with the identity of a node, against either API server.

use std::{fs, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::DeleteParams};
use larder_agent::{
    TaskError,
    agent::{Agent, AgentHandle},
    config::{Config, Flags, Host},
    root_dir::RootDir,
    status::PodStatus,
};
use larder_e2e::{Identity, NODE, Server};
use larder_projection::disk::VolumeHost;
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::connect::connect;

/// Longer than anything here takes, restarts of a real server included.
const PATIENCE: Duration = Duration::from_mins(2);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The static pod with the name of the node.
const WEB: &str = "web-n0";

/// An agent that serves the static pods of a directory, and the server that it knows.
struct StaticNode {
    server: Server,
    agent: AgentHandle,
    manifests: TempDir,
    root: TempDir,
    _tasks: JoinSet<Result<(), TaskError>>,
}

impl StaticNode {
    async fn start() -> Self {
        Self::at(Server::start().await.unwrap()).await
    }

    async fn at(server: Server) -> Self {
        let (manifests, root) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let client = connect(server.kubeconfig(Identity::Node).unwrap()).await;
        let flags = Flags {
            node_name: Some(NODE.to_owned()),
            root_dir: Some(root.path().to_owned()),
            ..Flags::default()
        };
        let (mut config, _) = Config::load(None, flags, &Host::current()).unwrap();
        config.static_pod_path = Some(manifests.path().to_owned());
        config.register_node = true;
        let volumes = VolumeHost::open_without_mounts(root.path()).unwrap();
        let agent = Agent::builder(config, RootDir::lock(root.path()).unwrap(), volumes, client)
            .build()
            .unwrap();
        let handle = agent.handle();
        let mut tasks = JoinSet::new();
        tasks.spawn(agent.run(CancellationToken::new()));
        Self {
            server,
            agent: handle,
            manifests,
            root,
            _tasks: tasks,
        }
    }

    fn manifest(&self) -> PathBuf {
        self.manifests.path().join("web.yaml")
    }

    /// The manifest now gives its container this variable.
    fn write(&self, value: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  \
             - {{name: c, image: i, env: [{{name: V, value: {value:?}}}]}}\n"
        );
        // As an editor does.
        let aside = self.manifests.path().join(".web.yaml");
        fs::write(&aside, text).unwrap();
        fs::rename(aside, self.manifest()).unwrap();
    }

    fn pod(&self) -> Option<PodStatus> {
        let mut pods = self.agent.status().pods.into_iter();
        pods.find(|pod| pod.name == WEB)
    }

    /// The variable as it was delivered.
    fn delivered(&self) -> Option<String> {
        let link = self.root.path().join("by-name/default").join(WEB);
        let text = fs::read(link.join("containers/c/env.json")).ok()?;
        let environment: serde_json::Value = serde_json::from_slice(&text).unwrap();
        Some(environment["V"].as_str().unwrap().to_owned())
    }

    async fn until_delivered(&self, value: &str) {
        until("the variable", async || {
            (self.delivered()? == value).then_some(())
        })
        .await;
    }

    /// Everybody's view of pods, on connections that have not seen an earlier server.
    async fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.server.client().await.unwrap())
    }

    /// The mirror pod, once it has this value and a UID other than `before`.
    async fn mirror(&self, value: &str, before: Option<&str>) -> Pod {
        let pods = self.pods().await;
        until("the mirror pod", async || {
            let found = pods.get_opt(WEB).await.unwrap()?;
            let container = &found.spec.as_ref()?.containers[0];
            let has_value = container.env.as_ref()?[0].value.as_deref() == Some(value);
            let is_there = found.metadata.deletion_timestamp.is_none();
            (has_value && is_there && found.uid().as_deref() != before).then_some(found)
        })
        .await
    }
}

/// Calls `look` until it returns a value.
async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let found = timeout(PATIENCE, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            sleep(POLL_INTERVAL).await;
        }
    });
    found
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_pod_is_recreated_follows_edits_and_is_removed_with_the_manifest() {
    // managers 52 to 54
    let node = StaticNode::start().await;
    node.write("1");
    let mut mirror = node.mirror("1", None).await;
    let uid = until("the pod to know its mirror", async || {
        node.pod().filter(|pod| pod.mirror.is_some())
    });
    let uid = uid.await.uid;
    let owners = mirror.owner_references();
    assert_eq!((owners.len(), &*owners[0].kind), (1, "Node"));
    assert_eq!(
        mirror.annotations()["kubernetes.io/config.mirror"],
        uid,
        "the hash is the static pod's UID"
    );

    let pods = node.pods().await;
    for parameters in [
        DeleteParams::default(),
        DeleteParams::default().grace_period(0),
    ] {
        pods.delete(WEB, &parameters).await.unwrap();
        mirror = node.mirror("1", mirror.uid().as_deref()).await;
        // The pod itself has not noticed.
        assert_eq!(node.pod().unwrap().uid, uid);
    }

    node.write("2");
    node.until_delivered("2").await;
    node.mirror("2", mirror.uid().as_deref()).await;

    fs::remove_file(node.manifest()).unwrap();
    until("the mirror pod to go", async || {
        let found = pods.get_opt(WEB).await.unwrap();
        (found.is_none() && node.pod().is_none()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_and_empty_api_server_gets_its_mirror_pods_back() {
    let mut node = StaticNode::start().await;
    node.write("1");
    let before = node.mirror("1", None).await;
    node.until_delivered("1").await;
    // The first time unchanged, the second time with a manifest that was edited meanwhile.
    let mut before = before.uid();
    for value in ["1", "2"] {
        node.server.kill().await;
        node.write(value);
        node.until_delivered(value).await;
        node.server.forget().unwrap();
        node.server.restart().await.unwrap();
        before = node.mirror(value, before.as_deref()).await.uid();
        until("no problem to be left", async || {
            node.agent.status().problems.is_empty().then_some(())
        })
        .await;
        until("the pod to know its mirror", async || {
            node.pod().filter(|pod| pod.mirror == before)
        })
        .await;
    }
    // Mirror pods that were lost with the old server need no deletion. The edited one may be deleted once whenever the
    // server or the Node reappears.
    let requests = node.server.node_requests().unwrap();
    let deletes = requests.iter().filter(|request| request.verb == "delete");
    assert!(deletes.count() <= 3, "{requests:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_starts_before_the_api_server_serves_its_static_pods_and_mirrors_them_later()
{
    let mut server = Server::start().await.unwrap();
    server.kill().await;
    let mut node = StaticNode::at(server).await;
    node.write("1");
    node.until_delivered("1").await;
    node.server.restart().await.unwrap();
    let mirror = node.mirror("1", None).await;
    until("the pod to know its mirror", async || {
        node.pod().filter(|pod| pod.mirror == mirror.uid())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_is_served_during_an_outage_and_mirrored_afterwards() {
    let mut node = StaticNode::start().await;
    node.write("1");
    let before = node.mirror("1", None).await;
    node.until_delivered("1").await;

    node.server.kill().await;
    node.write("2");
    node.until_delivered("2").await;
    let problem = until("the outage to be reported", async || {
        let problems = node.agent.status().problems;
        problems
            .into_iter()
            .find(|text| text.contains("mirror pod"))
    });
    assert!(problem.await.contains(WEB));

    node.server.restart().await.unwrap();
    node.mirror("2", before.uid().as_deref()).await;
    until("no problem to be left", async || {
        node.agent.status().problems.is_empty().then_some(())
    })
    .await;

    // It is deleted for good while no watch can report that.
    node.server.kill().await;
    fs::remove_file(node.manifest()).unwrap();
    until("the pod to go", async || node.pod().is_none().then_some(())).await;
    node.server.restart().await.unwrap();
    let pods = node.pods().await;
    until("the mirror pod to go", async || {
        pods.get_opt(WEB).await.unwrap().is_none().then_some(())
    })
    .await;
}
