//! The changes of pods, above all mirror pods, that an API server permits a node: the same on either server.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use larder_e2e::{Identity, NODE, Server};
use serde_json::{Value, json};

async fn node_client(server: &Server) -> Client {
    let kubeconfig = Kubeconfig::read_from(server.kubeconfig(Identity::Node).unwrap()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let mut config = config.unwrap();
    // Without this machine's proxy: the server is local.
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

#[track_caller]
fn refused<T: Debug>(outcome: kube::Result<T>, code: u16, why: &str) {
    match outcome {
        Err(kube::Error::Api(status)) => {
            assert_eq!(status.code, code, "{}", status.message);
            assert!(
                status.message.contains(why),
                "{:?} lacks {why:?}",
                status.message
            );
        }
        other => panic!("expected {code} with {why:?}, got {other:?}"),
    }
}

/// A mirror pod that a node may create, modified by `change`.
fn mirror(node: &Node, change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": "mirror",
            "annotations": {"kubernetes.io/config.mirror": "hash"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node.uid(), "controller": true}],
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]},
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

/// A modification of a mirror pod, and the reason of its rejection.
type Case<'a> = (Box<dyn FnOnce(&mut Value)>, &'a str);

fn volume(source: Value) -> impl FnOnce(&mut Value) {
    move |pod| {
        pod["spec"]["volumes"] = json!([source]);
        pod["spec"]["volumes"][0]["name"] = json!("v");
    }
}

fn projected(source: Value) -> impl FnOnce(&mut Value) {
    volume(json!({"projected": {"sources": [source]}}))
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "most of it is a table")]
async fn a_node_creates_mirror_pods_that_it_owns_and_that_reference_nothing() {
    // managers 81
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let create = PostParams::default();
    let as_node = node_client(&server).await;
    let pods: Api<Pod> = Api::default_namespaced(as_node.clone());

    // The Node must be there, for its UID is part of the rule.
    let nobody: Node =
        serde_json::from_value(json!({"metadata": {"name": NODE, "uid": "u"}})).unwrap();
    refused(
        pods.create(&create, &mirror(&nobody, |_| {})).await,
        404,
        NODE,
    );
    let nodes: Api<Node> = Api::all(admin.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
    let node = nodes.create(&create, &node).await.unwrap();

    let owner = |field: &'static str, value: Value| -> Box<dyn FnOnce(&mut Value)> {
        Box::new(move |pod| pod["metadata"]["ownerReferences"][0][field] = value)
    };
    let cases: Vec<Case<'_>> = vec![
        (
            Box::new(|pod| pod["metadata"]["annotations"] = json!({})),
            "can only create mirror pods",
        ),
        (
            Box::new(|pod| pod["spec"]["nodeName"] = json!("n1")),
            "with spec.nodeName set to itself",
        ),
        (
            Box::new(|pod| pod["metadata"]["ownerReferences"] = json!([])),
            "with an owner reference set to itself",
        ),
        (
            Box::new(|pod| {
                // Of two that are equal a real server keeps one.
                let owner = pod["metadata"]["ownerReferences"][0].clone();
                let mut other = owner.clone();
                other["uid"] = json!("other");
                other["controller"] = json!(false);
                pod["metadata"]["ownerReferences"] = json!([owner, other]);
            }),
            "single owner reference",
        ),
        (owner("name", json!("n1")), "owner reference set to itself"),
        (owner("kind", json!("Pod")), "owner reference set to itself"),
        (
            owner("apiVersion", json!("v2")),
            "owner reference set to itself",
        ),
        (owner("uid", json!("other")), "UID mismatch"),
        (
            owner("controller", json!(null)),
            "controller owner reference set to itself",
        ),
        (
            owner("controller", json!(false)),
            "controller owner reference set to itself",
        ),
        (
            owner("blockOwnerDeletion", json!(true)),
            "must not set blockOwnerDeletion",
        ),
    ];
    for (change, why) in cases {
        refused(pods.create(&create, &mirror(&node, change)).await, 403, why);
    }

    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}}});
    let variable = |source: Value| -> Box<dyn FnOnce(&mut Value)> {
        Box::new(move |pod| {
            pod["spec"]["containers"][0]["env"] = json!([{"name": "V", "valueFrom": source}]);
        })
    };
    let references: Vec<Case<'_>> = vec![
        (
            Box::new(|pod| pod["spec"]["serviceAccountName"] = json!("sa")),
            "serviceaccounts",
        ),
        (
            Box::new(|pod| pod["spec"]["imagePullSecrets"] = json!([{"name": "s"}])),
            "secrets",
        ),
        (
            variable(json!({"secretKeyRef": {"name": "s", "key": "k"}})),
            "secrets",
        ),
        (
            variable(json!({"configMapKeyRef": {"name": "c", "key": "k"}})),
            "configmaps",
        ),
        (
            Box::new(volume(json!({"secret": {"secretName": "s"}}))),
            "secrets",
        ),
        (
            Box::new(volume(json!({"configMap": {"name": "c"}}))),
            "configmaps",
        ),
        (
            Box::new(volume(json!({"csi": {"driver": "d.example"}}))),
            "csidrivers (via CSI volumes)",
        ),
        (
            Box::new(volume(json!({"persistentVolumeClaim": {"claimName": "c"}}))),
            "persistentvolumeclaims",
        ),
        (
            Box::new(volume(
                json!({"ephemeral": {"volumeClaimTemplate": template}}),
            )),
            "persistentvolumeclaims",
        ),
        (
            Box::new(volume(
                json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
            )),
            "endpoints (via glusterFS volumes)",
        ),
        (
            Box::new(projected(json!({"secret": {"name": "s"}}))),
            "secrets",
        ),
        (
            Box::new(projected(json!({"configMap": {"name": "c"}}))),
            "configmaps",
        ),
        (
            Box::new(projected(json!({"serviceAccountToken": {"path": "t"}}))),
            "serviceaccounts (via projected volumes)",
        ),
        (
            Box::new(projected(
                json!({"clusterTrustBundle": {"name": "b", "path": "p"}}),
            )),
            "clustertrustbundles",
        ),
    ];
    for (change, resource) in references {
        let why = format!("can not create pods that reference {resource}");
        refused(
            pods.create(&create, &mirror(&node, change)).await,
            403,
            &why,
        );
    }

    // A node may not read a Secret that only a mirror pod names, no matter which identity created the mirror pod.
    let secrets: Api<Secret> = Api::default_namespaced(admin.clone());
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "s"}})).unwrap();
    secrets.create(&create, &secret).await.unwrap();
    let mut named = mirror(&node, volume(json!({"secret": {"secretName": "s"}})));
    named.metadata.name = Some("named".to_owned());
    let all_pods: Api<Pod> = Api::default_namespaced(admin.clone());
    all_pods.create(&create, &named).await.unwrap();
    let secrets: Api<Secret> = Api::default_namespaced(as_node);
    refused(secrets.get("s").await, 403, "no relationship found");

    // A pod with any value of the annotation is a mirror pod.
    let empty = mirror(&node, |pod| {
        pod["metadata"]["name"] = json!("empty");
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("");
    });
    pods.create(&create, &empty).await.unwrap();
    pods.create(&create, &mirror(&node, |_| {})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_delete_its_pods_and_change_only_their_status() {
    // managers 81
    let server = Server::start().await.unwrap();
    let admin = server.client().await.unwrap();
    let create = PostParams::default();
    let nodes: Api<Node> = Api::all(admin.clone());
    let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
    let node = nodes.create(&create, &node).await.unwrap();
    let all_pods: Api<Pod> = Api::default_namespaced(admin);
    let pods: Api<Pod> = Api::default_namespaced(node_client(&server).await);
    pods.create(&create, &mirror(&node, |_| {})).await.unwrap();
    for (name, node) in [("own", NODE), ("other", "n1")] {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]},
        }))
        .unwrap();
        all_pods.create(&create, &pod).await.unwrap();
    }

    let label = Patch::Merge(json!({"metadata": {"labels": {"l": "1"}}}));
    let patch = PatchParams::default();
    for name in ["mirror", "own", "other"] {
        refused(pods.patch(name, &patch, &label).await, 403, "");
    }
    let status = Patch::Merge(json!({"status": {"message": "m"}}));
    pods.patch_status("mirror", &patch, &status).await.unwrap();
    pods.patch_status("own", &patch, &status).await.unwrap();
    refused(
        pods.patch_status("other", &patch, &status).await,
        403,
        "spec.nodeName set to itself",
    );
    let labelled =
        Patch::Merge(json!({"metadata": {"labels": {"l": "1"}}, "status": {"message": "n"}}));
    refused(
        pods.patch_status("own", &patch, &labelled).await,
        403,
        "labels",
    );

    let now = DeleteParams::default().grace_period(0);
    refused(
        pods.delete("other", &now).await,
        403,
        "spec.nodeName set to itself",
    );
    refused(pods.delete("unknown", &now).await, 404, "unknown");
    pods.delete("mirror", &now).await.unwrap();
    pods.delete("own", &now).await.unwrap();

    // No update turns another pod into a mirror pod, or vice versa.
    let pod = all_pods.get("other").await.unwrap();
    let annotated =
        Patch::Merge(json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"}}}));
    assert!(pod.metadata.annotations.is_none());
    refused(
        all_pods.patch("other", &patch, &annotated).await,
        422,
        "kubernetes.io/config.mirror",
    );
    let unbound = mirror(&node, |pod| pod["spec"]["nodeName"] = json!(null));
    refused(
        all_pods.create(&create, &unbound).await,
        422,
        "spec.nodeName",
    );
}
