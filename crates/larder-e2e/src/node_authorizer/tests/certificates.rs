//! ClusterTrustBundles and PodCertificateRequests of nodes.

use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use larder_apiserver::{ApiServer, Options};
use serde_json::{Value, json};

use super::{NodeAuthorizer, node};

fn server() -> ApiServer {
    let server = ApiServer::new(Options::default().authorization(NodeAuthorizer));
    for object in [
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "uid": "node"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa", "uid": "account"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "pod"},
            "spec": {"nodeName": "n0", "serviceAccountName": "sa", "containers": [{"name": "c", "image": "i"}],
                "volumes": [{"name": "v", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "t", "audience": "example.com/token"}},
                    {"podCertificate": {"signerName": "example.com/s", "keyType": "ED25519", "keyPath": "s"}},
                    {"podCertificate": {"signerName": "kubernetes.io/s", "keyType": "ED25519", "keyPath": "k"}}]}}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lonely", "uid": "lonely"},
            "spec": {"nodeName": "n0", "serviceAccountName": "gone", "containers": [{"name": "c", "image": "i"}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "uid": "other"},
            "spec": {"nodeName": "n1", "serviceAccountName": "sa", "containers": [{"name": "c", "image": "i"}]}}),
    ] {
        server.apply(&object).unwrap();
    }
    server
}

fn client(server: &ApiServer, name: &str) -> Client {
    Client::new(server.service_as(node(name)), "default")
}

/// The message of a rejection, without what it is about.
#[track_caller]
fn rejected<T: std::fmt::Debug>(result: kube::Result<T>) -> String {
    let kube::Error::Api(status) = result.unwrap_err() else {
        panic!("no answer of the server")
    };
    let parts = [" is invalid: ", " is forbidden: "];
    let found = parts
        .iter()
        .find_map(|part| status.message.split_once(part));
    found.map_or(status.message.clone(), |(_, rule)| rule.to_owned())
}

/// A request for a certificate, with `change` put over its spec.
fn request(change: Value) -> PodCertificateRequest {
    let mut spec = json!({
        "signerName": "example.com/s",
        "podName": "p", "podUID": "pod",
        "serviceAccountName": "sa", "serviceAccountUID": "account",
        "nodeName": "n0", "nodeUID": "node",
        "stubPKCS10Request": "AA==",
    });
    for (field, value) in change.as_object().unwrap() {
        spec[field] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"generateName": "req-"}, "spec": spec})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn nodes_read_trust_bundles_and_do_not_write_them() {
    let server = server();
    let bundles: Api<ClusterTrustBundle> = Api::all(client(&server, "n0"));
    let found = bundles.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(found.len(), 0);
    let bundle: ClusterTrustBundle =
        serde_json::from_value(json!({"metadata": {"name": "mine"}, "spec": {"trustBundle": ""}}))
            .unwrap();
    assert_eq!(
        rejected(bundles.create(&PostParams::default(), &bundle).await),
        r#"User "system:node:n0" cannot create resource "clustertrustbundles" in API group "certificates.k8s.io" at the cluster scope"#
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_asks_for_certificates_of_its_own_pods_only() {
    let server = server();
    let requests: Api<PodCertificateRequest> = Api::default_namespaced(client(&server, "n0"));
    let post = PostParams::default();
    let made = requests.create(&post, &request(json!({}))).await;
    let made = made.unwrap();
    assert_eq!(made.spec.max_expiration_seconds, Some(86_400));
    let name = made.metadata.name.unwrap();
    assert!(name.starts_with("req-"), "{name}");

    for (change, rule) in [
        (
            json!({"podName": "other", "podUID": "other"}),
            r#"pod "default/other" is not running on node "n0" named in the PodCertificateRequest"#,
        ),
        (
            json!({"podUID": "x"}),
            r#"PodCertificateRequest for pod "default/p" contains pod UID ("x") which differs from running pod "pod""#,
        ),
        (
            json!({"podName": "gone"}),
            r#"while retrieving pod "default/gone" named in the PodCertificateRequest: pod "gone" not found"#,
        ),
        (
            json!({"serviceAccountName": "default"}),
            r#"PodCertificateRequest for pod "default/p" contains serviceAccountName ("default") that differs from running pod ("sa")"#,
        ),
        (
            json!({"serviceAccountUID": "x"}),
            r#"PodCertificateRequest for pod "default/p" names service account UID "x", which differs from the running service account ("account")"#,
        ),
        (
            json!({"nodeName": "n1"}),
            r#"PodCertificateRequest.Spec.NodeName="n1", which is not the requesting node "n0""#,
        ),
        (
            json!({"nodeUID": "x"}),
            r#"PodCertificateRequest for pod "default/p" names node UID "x", inconsistent with the running node ("node")"#,
        ),
        (
            json!({"podName": "lonely", "podUID": "lonely", "serviceAccountName": "gone"}),
            r#"while retrieving service account "default/gone" named in the PodCertificateRequest: serviceaccount "gone" not found"#,
        ),
        // The node is judged before the pod, and the pod's UID before its node.
        (
            json!({"nodeUID": "x", "podUID": "x"}),
            r#"PodCertificateRequest for pod "default/p" names node UID "x", inconsistent with the running node ("node")"#,
        ),
        (
            json!({"podName": "other", "podUID": "x"}),
            r#"PodCertificateRequest for pod "default/other" contains pod UID ("x") which differs from running pod "other""#,
        ),
        (
            // projection 78
            json!({"signerName": "example.com/token"}),
            r#"signer "example.com/token" not found in pod spec volume, system:node:n0 is not authorized to request certificates of this signer"#,
        ),
    ] {
        let answer = requests.create(&post, &request(change)).await;
        assert_eq!(rejected(answer), rule);
    }

    let unknown = request(json!({"nodeName": "n9"}));
    let of_n9: Api<PodCertificateRequest> = Api::default_namespaced(client(&server, "n9"));
    assert_eq!(
        rejected(of_n9.create(&post, &unknown).await),
        r#"while retrieving node "n9" named in the PodCertificateRequest: node "n9" not found"#
    );

    let all: Api<PodCertificateRequest> = Api::all(client(&server, "n0"));
    let own = ListParams::default().fields("spec.nodeName=n0");
    assert_eq!(all.list(&own).await.unwrap().items.len(), 1);
    let only = "can only list/watch podcertificaterequests with nodeName field selector";
    assert!(rejected(all.list(&ListParams::default()).await).ends_with(only));
    requests.get(&name).await.unwrap();
    let stranger: Api<PodCertificateRequest> = Api::default_namespaced(client(&server, "n1"));
    assert!(rejected(stranger.get(&name).await).contains("no relationship found"));
    let status = json!({"status": {}});
    let patched = requests
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
        .await;
    let rule = "nodes may not access the status subresource of PodCertificateRequests";
    assert!(rejected(patched).ends_with(rule));
    let gone = requests.delete(&name, &DeleteParams::default()).await;
    let rule = "nodes may not delete podcertificaterequests";
    assert!(rejected(gone.map(|_| ())).ends_with(rule));
}
