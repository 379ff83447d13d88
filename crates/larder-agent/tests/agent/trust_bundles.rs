//! Trust anchors: one watch for all pods, as long as some pod wants any.

use std::time::Duration;

use larder_apiserver::{ApiKind, AuditRecord, CertificatesVersions, Fault, Options};
use larder_e2e::NodeAuthorizer;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::{Node, pod};

/// A certificate of an authority, as PEM with `\n` at the end of its lines.
fn anchor() -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().pem().replace('\r', "")
}

fn bundle(name: &str, signer: Option<&str>, labels: Value, anchors: &[&str]) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1beta1",
        "kind": "ClusterTrustBundle",
        "metadata": {"name": name, "labels": labels},
        "spec": {"signerName": signer, "trustBundle": anchors.concat()},
    })
}

fn web(source: Value) -> Value {
    named("web", source)
}

fn named(name: &str, mut source: Value) -> Value {
    source["path"] = "ca.pem".into();
    let volume = json!({"projected": {"sources": [{"clusterTrustBundle": source}]}});
    pod(name).volume("ca", volume).build()
}

fn guarded() -> Node {
    let mut node = Node::prepare_with(Options::default().authorization(NodeAuthorizer));
    node.run();
    node
}

#[tokio::test(start_paused = true)]
async fn anchors_by_name_follow_their_bundle() {
    // projection 73
    let mut node = guarded();
    let (a, b) = (anchor(), anchor());
    node.apply(&web(json!({"name": "plain"})));
    let missing = r#"while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "plain" not found"#;
    node.until_failing("web", "ca", missing).await;
    node.apply(&bundle("plain", None, json!({}), &[&a]));
    node.until("web", "ca", &[("ca.pem", &a)]).await;
    node.apply(&bundle("plain", None, json!({}), &[&b, &a]));
    node.until("web", "ca", &[("ca.pem", &[&*b, &a].concat())])
        .await;
    // A deleted bundle fails, and leaves the files in place.
    node.delete_global(ApiKind::ClusterTrustBundle, "plain");
    node.until_failing("web", "ca", missing).await;
    node.until("web", "ca", &[("ca.pem", &[&*b, &a].concat())])
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn anchors_of_a_signer_come_from_all_matching_bundles() {
    // projection 73
    let mut node = guarded();
    let (a, b, c) = (anchor(), anchor(), anchor());
    let signer = Some("example.com/s");
    let selector = json!({"matchLabels": {"live": "yes"}});
    node.apply(&web(json!({
        "signerName": "example.com/s", "labelSelector": selector, "optional": true,
    })));
    node.until("web", "ca", &[("ca.pem", "")]).await;
    let live = json!({"live": "yes"});
    node.apply(&bundle("example.com:s:2", signer, live.clone(), &[&b, &a]));
    node.apply(&bundle("example.com:s:1", signer, live.clone(), &[&a]));
    node.apply(&bundle("example.com:s:3", signer, json!({}), &[&c]));
    node.until("web", "ca", &[("ca.pem", &[&*a, &b].concat())])
        .await;
    // A label brings a bundle in, and takes it out.
    node.apply(&bundle("example.com:s:3", signer, live, &[&c]));
    node.until("web", "ca", &[("ca.pem", &[&*a, &b, &c].concat())])
        .await;
    node.apply(&bundle("example.com:s:2", signer, json!({}), &[&b, &a]));
    node.until("web", "ca", &[("ca.pem", &[&*a, &c].concat())])
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_watch_serves_all_pods_that_read_bundles() {
    let mut node = guarded();
    node.apply(&pod("plain").build());
    node.settled().await;
    // Whatever else is watched is by now.
    sleep(Duration::from_secs(1)).await;
    // A list that streams is a watch that goes on.
    let asked = |node: &Node| {
        let requests = |verb| node.requests(verb, "/clustertrustbundles");
        requests("list") + requests("watch")
    };
    assert_eq!(asked(&node), 0);
    let open = node.server.open_watches();
    let a = anchor();
    node.apply(&bundle("plain", None, json!({}), &[&a]));
    for name in ["one", "two"] {
        node.apply(&named(name, json!({"name": "plain"})));
        node.until(name, "ca", &[("ca.pem", &a)]).await;
    }
    assert_eq!(asked(&node), 1);
    assert_eq!(node.server.open_watches(), open + 1);
    for name in ["one", "two"] {
        node.delete(ApiKind::Pod, name);
    }
    node.wait("the watch to end", |node| {
        (node.server.open_watches() == open).then_some(())
    })
    .await;
    // And begins again.
    node.apply(&named("three", json!({"name": "plain"})));
    node.until("three", "ca", &[("ca.pem", &a)]).await;
    assert_eq!(asked(&node), 2);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn missing_kind_is_reported_in_the_kubelets_words() {
    let mut node = guarded();
    let a = anchor();
    node.apply(&bundle("plain", None, json!({}), &[&a]));
    let absent = Fault::on_any().resource("clustertrustbundles");
    let absent = node.server.faults().inject(absent.status(404));
    node.apply(&web(json!({"name": "plain"})));
    let words = "ClusterTrustBundle projection is not supported in static kubelet mode";
    node.until_failing("web", "ca", words).await;
    absent.lift();
    sleep(Duration::from_mins(1)).await;
    node.until("web", "ca", &[("ca.pem", &a)]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn bundles_are_watched_in_v1_where_it_is_served() {
    use CertificatesVersions::{Beta, Stable, StableAndBeta};
    for (versions, version) in [(Beta, "v1beta1"), (Stable, "v1"), (StableAndBeta, "v1")] {
        let options = Options::default()
            .authorization(NodeAuthorizer)
            .certificates_versions(versions);
        let mut node = Node::prepare_with(options);
        node.run();
        let anchor = anchor();
        let mut object = bundle("plain", None, json!({}), &[&anchor]);
        object["apiVersion"] = format!("certificates.k8s.io/{version}").into();
        node.apply(&object);
        node.apply(&web(json!({"name": "plain"})));
        node.until("web", "ca", &[("ca.pem", &anchor)]).await;
        let records = node.server.audit().records();
        let path = format!("/apis/certificates.k8s.io/{version}/clustertrustbundles");
        let watched = |record: &AuditRecord| {
            record.verb == "watch" && record.path == path && record.status == 200
        };
        assert!(records.iter().any(watched), "{versions:?}");
        node.stop().await;
    }
}
