//! The permissions of larder's identities on a real API server.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, config::Kubeconfig};
use larder_e2e::Identity;
use serde_json::{Value, json};

use super::deploy::{account, apply, client_of, labels, larder_pod, until_policy};
use crate::bed::{Bed, code, config_map_volume, patch_status, pod};

async fn node(bed: &Bed) -> Client {
    client_of(Kubeconfig::read_from(bed.server.kubeconfig(Identity::Node).unwrap()).unwrap()).await
}

/// A pod of a node that has no kubelet.
async fn foreign_pod(bed: &Bed, namespace: &str) -> Pod {
    let nodes: Api<Node> = Api::all(bed.admin.clone());
    if nodes.get_opt("elsewhere").await.unwrap().is_none() {
        bed.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "elsewhere"}}))
            .await;
    }
    let mut foreign = pod("foreign", json!([]));
    foreign["spec"]["nodeName"] = "elsewhere".into();
    bed.create_pod(namespace, &foreign).await
}

// beside-kubelet 20
pub(crate) async fn node_may_touch_its_own_pods_and_no_more(bed: &mut Bed) {
    let ns = bed.namespace().await;
    bed.create_config_map(&ns, "app", "1").await;
    let web = bed
        .create_pod(&ns, &pod("web", json!([config_map_volume("app")])))
        .await;
    let foreign = foreign_pod(bed, &ns).await;
    let node = node(bed).await;
    assert_eq!(code(bed.touch(&node, &web).await), 200);
    assert_eq!(
        code(bed.touch(&node, &foreign).await),
        403,
        "a pod of another node"
    );
    assert_eq!(
        code(patch_status(&node, &web, &labels()).await),
        403,
        "labels"
    );
    let another_uid =
        json!({"metadata": {"uid": "another", "annotations": {"larder.dev/refresh": "x"}}});
    assert_eq!(
        code(patch_status(&node, &web, &another_uid).await),
        422,
        "another pod of this name"
    );
}

// beside-kubelet 21
pub(crate) async fn account_under_the_policy_may_touch_and_nothing_else(bed: &mut Bed) {
    let ns = bed.namespace().await;
    apply(bed).await;
    let mut web = pod("web", json!([]));
    web["metadata"]["labels"] = json!({"app": "web"});
    web["metadata"]["annotations"] = json!({"kept": "1"});
    let web = bed.run_pod(&ns, &web).await;
    let foreign = foreign_pod(bed, &ns).await;
    let larder = larder_pod(bed).await;
    let account = account(bed, Some(&larder)).await;
    until_policy(&account, &web).await;
    assert_eq!(
        code(bed.touch(&account, &web).await),
        200,
        "the first touch"
    );
    assert_eq!(code(bed.touch(&account, &web).await), 200, "a later one");
    let with = |metadata: Value| json!({"metadata": metadata});
    for (what, patch) in [
        ("a label", with(json!({"labels": {"x": "y"}}))),
        ("no label", with(json!({"labels": {"app": null}}))),
        (
            "another annotation",
            with(json!({"annotations": {"x": "y"}})),
        ),
        (
            "an annotation changed",
            with(json!({"annotations": {"kept": "2"}})),
        ),
        (
            "an annotation removed",
            with(json!({"annotations": {"kept": null}})),
        ),
        (
            "a finalizer",
            with(json!({"finalizers": ["example.com/x"]})),
        ),
        ("the status", json!({"status": {"phase": "Failed"}})),
    ] {
        assert_eq!(
            code(patch_status(&account, &web, &patch).await),
            422,
            "{what}"
        );
    }
    assert_eq!(
        code(bed.touch(&account, &foreign).await),
        422,
        "a pod of another node"
    );
}

// beside-kubelet 21
pub(crate) async fn account_without_a_bound_token_may_not_touch(bed: &mut Bed) {
    let ns = bed.namespace().await;
    apply(bed).await;
    let web = bed.create_pod(&ns, &pod("web", json!([]))).await;
    let account = account(bed, None).await;
    until_policy(&account, &web).await;
    assert_eq!(code(bed.touch(&account, &web).await), 422);
}
