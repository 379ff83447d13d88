//! The Node and its lease, which show that the kubelet is alive.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use larder_apiserver::ApiKind;
use serde_json::json;

use super::KubeletContext;

/// A quarter of the lease's duration (kubelet 1.36, `nodeLeaseRenewIntervalFraction`).
const RENEW_PERIOD: Duration = Duration::from_secs(10);
/// Duration of the lease, in seconds.
const LEASE_SECS: i32 = 40;

/// Creates the Node if there is none, and reports it as ready.
pub(super) async fn register(kubelet: &KubeletContext) -> anyhow::Result<()> {
    let name = &kubelet.options.node;
    if kubelet.server.get(ApiKind::Node, "", name).is_none() {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        kubelet.server.apply(&node)?;
    }
    renew(kubelet);
    set_ready(kubelet, "True").await
}

/// Sets the condition `Ready`.
pub(super) async fn set_ready(kubelet: &KubeletContext, status: &str) -> anyhow::Result<()> {
    let now = kubelet.now();
    let reason = match status {
        "True" => "KubeletReady",
        _ => "NodeStatusUnknown",
    };
    let patch = json!({"status": {
        "conditions": [{
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }],
        "nodeInfo": {"kubeletVersion": "v1.36.2"},
    }});
    let nodes: Api<Node> = Api::all(kubelet.client.clone());
    let params = PatchParams::default();
    nodes
        .patch_status(&kubelet.options.node, &params, &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Renews the lease again and again.
pub(super) async fn renew_lease(kubelet: Arc<KubeletContext>) {
    loop {
        kubelet.sleep(RENEW_PERIOD).await;
        renew(&kubelet);
    }
}

fn renew(kubelet: &KubeletContext) {
    let name = &kubelet.options.node;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": "kube-node-lease", "name": name},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECS,
            "renewTime": format!("{:.6}", kubelet.now()),
        },
    });
    let renewed = kubelet.server.apply(&lease);
    renewed.expect("the lease of a node is valid");
}
