//! The node: what all pods share, and its object at the API server.

use std::{collections::HashMap, net::IpAddr, path::PathBuf};

use anyhow::Context as _;
use k8s_openapi::api::core::v1 as core;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use larder_agent::{agent::AgentHandle, node::of_this_host, status::ServedPod};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::TaskTracker;

use crate::{image::Images, stage::Identity, status::now};

/// Namespace, pod and container.
pub(crate) type ContainerKey = (String, String, String);

/// A container that logs can be read of and commands be run in.
#[derive(Clone, Debug)]
pub(crate) struct ContainerEntry {
    /// The log of its last run.
    pub(crate) log: PathBuf,
    /// Its first process, and as what it runs; `None` while it does not run.
    pub(crate) process: Option<(u32, Identity)>,
}

/// What all pods share.
pub(crate) struct Node {
    pub(crate) client: Client,
    pub(crate) agent: AgentHandle,
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
    pub(crate) images: Images,
    /// Holds logs and termination messages.
    pub(crate) directory: PathBuf,
    pub(crate) entries: Mutex<HashMap<ContainerKey, ContainerEntry>>,
    /// Commands that run in containers.
    pub(crate) commands: TaskTracker,
}

impl Node {
    /// Creates the Node, or brings its status up to date. Logs and `exec` are served at `port`.
    pub(crate) async fn register(&self, port: u16) -> anyhow::Result<()> {
        let mut node = serde_json::to_value(of_this_host(&self.name))?;
        let (status, now) = (&mut node["status"], now());
        status["addresses"][0]["address"] = json!(self.ip);
        status["conditions"] = json!([{
            "type": "Ready", "status": "True", "reason": "Running", "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }]);
        status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": port}});
        // The API server passes WebSockets on to a node that declares this, and translates for others.
        status["declaredFeatures"] = json!(["ExtendWebSocketsToKubelet"]);
        let patch = Patch::Merge(json!({"status": status}));
        let nodes: Api<core::Node> = Api::all(self.client.clone());
        let node: core::Node = serde_json::from_value(node)?;
        match nodes.create(&PostParams::default(), &node).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created.context("cannot create the Node")?),
        }
        let parameters = PatchParams::default();
        let patched = nodes.patch_status(&self.name, &parameters, &patch).await;
        patched.context("cannot write the Node's status")?;
        Ok(())
    }

    /// The pod that larder serves under this name, if it has this UID.
    pub(crate) fn served(&self, namespace: &str, name: &str, uid: &str) -> Option<ServedPod> {
        let served = self.agent.served_pod(namespace, name);
        served.filter(|served| served.status.uid == uid)
    }
}
