//! The node: what all pods share, and its object at the API server.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use k8s_openapi::api::core::v1 as core;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use larder_agent::{agent::AgentHandle, status::ServedPod};
use serde_json::{Value, from_value, json};

use crate::{image::Image, registry::Registry, status::now};

/// What all pods share.
pub(crate) struct Node {
    pub(crate) client: Client,
    pub(crate) agent: AgentHandle,
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
    /// By the last word of the repository's name.
    pub(crate) images: BTreeMap<String, Image>,
    /// Directory of logs and termination messages.
    pub(crate) containers: PathBuf,
    pub(crate) registry: Arc<Registry>,
}

impl Node {
    /// Creates the Node, or brings its status up to date.
    pub(crate) async fn register(&self, port: u16) -> anyhow::Result<()> {
        let nodes: Api<core::Node> = Api::all(self.client.clone());
        let node: core::Node = from_value(json!({
            "metadata": {"name": self.name, "labels": {
                "kubernetes.io/hostname": self.name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            }},
            "status": self.status(port),
        }))?;
        match nodes.create(&PostParams::default(), &node).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created.context("cannot create the Node")?),
        }
        let patch = Patch::Merge(json!({"status": self.status(port)}));
        let parameters = PatchParams::default();
        let patched = nodes.patch_status(&self.name, &parameters, &patch).await;
        patched.context("cannot write the Node's status")?;
        Ok(())
    }

    fn status(&self, port: u16) -> Value {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let resources = json!({"cpu": cpus.to_string(), "memory": "4Gi", "ephemeral-storage": "10Gi", "pods": "110"});
        let now = now();
        json!({
            "addresses": [
                {"type": "InternalIP", "address": self.ip.to_string()},
                {"type": "Hostname", "address": self.name},
            ],
            "capacity": resources,
            "allocatable": resources,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Running", "message": "",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            // The API server passes WebSockets on to a node that declares this, and translates for others.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
        })
    }

    /// The pod that larder serves under this name, if it has this UID.
    pub(crate) fn served(&self, namespace: &str, name: &str, uid: &str) -> Option<ServedPod> {
        let served = self.agent.served_pod(namespace, name);
        served.filter(|served| served.status.uid == uid)
    }
}
