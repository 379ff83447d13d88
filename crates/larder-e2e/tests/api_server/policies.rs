//! The admission policies of `deploy/` on a real API server: what they deny to larder's service account, and what not.

#![expect(clippy::print_stdout, reason = "says that nothing was tried")]

use std::{fs, time::Duration};

use http::{Method, Request};
use kube::Client;
use larder_e2e::{Identity, Server, deploy::documents};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{connect::connect, deploy::create};

const TOKENS: &str = "/api/v1/namespaces/default/serviceaccounts/app/token";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// The node of `deploy/static-pods`.
const OWN: &str = "virtual-0";

/// The message of the rejection; `None` if the request succeeds.
async fn denied(client: &Client, method: Method, path: &str, body: &Value) -> Option<String> {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(body.to_string().into_bytes()).unwrap();
    let error = client.request::<Value>(request).await.err()?;
    Some(error.to_string())
}

fn token(bound_to: Option<&str>) -> Value {
    let reference = bound_to.map(|kind| json!({"apiVersion": "v1", "kind": kind, "name": "web"}));
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"boundObjectRef": reference, "audiences": []},
    })
}

fn pod(name: &str, node: &str, is_mirror: bool) -> Value {
    let annotations = is_mirror.then(|| json!({"kubernetes.io/config.mirror": "1"}));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name, "annotations": annotations},
        "spec": {"nodeName": node, "serviceAccountName": "app", "containers": [{"name": "c", "image": "i"}]},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn service_account_gets_no_free_tokens_and_only_mirror_pods_of_its_node() {
    let server = Server::start().await.unwrap();
    let Server::Real(_) = server else {
        return println!("skipped: only a real API server has admission policies");
    };
    let admin = server.client().await.unwrap();
    for file in [
        "node/rbac",
        "node/policy",
        "static-pods/rbac",
        "static-pods/policy",
    ] {
        for object in documents(format!("{file}.yaml")) {
            create(&admin, &object).await;
        }
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "default", "name": "app"},
    });
    create(&admin, &account).await;
    for pod in [pod("web", OWN, false), pod("other", "another", true)] {
        create(&admin, &pod).await;
    }
    let request = Request::post("/api/v1/namespaces/larder/serviceaccounts/larder/token");
    let request = request.body(token(None).to_string().into_bytes()).unwrap();
    let issued = admin.request::<Value>(request).await.unwrap();
    let kubeconfig = fs::read(server.kubeconfig(Identity::Admin).unwrap()).unwrap();
    let mut kubeconfig: Value = serde_json::from_slice(&kubeconfig).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": issued["status"]["token"]});
    let folder = TempDir::with_prefix("larder-e2e-").unwrap();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, kubeconfig.to_string()).unwrap();
    let larder = connect(path).await;

    // A policy takes effect a moment after it was created.
    let dry_run = format!("{PODS}?dryRun=All");
    let deadline = Instant::now() + Duration::from_mins(1);
    let foreign = pod("x", "another", true);
    while denied(&larder, Method::POST, TOKENS, &token(None))
        .await
        .is_none()
        || denied(&larder, Method::POST, &dry_run, &foreign)
            .await
            .is_none()
    {
        assert!(Instant::now() < deadline, "the policies have no effect");
        sleep(Duration::from_millis(100)).await;
    }

    let unbound = "larder creates only tokens that are bound to a pod";
    let elsewhere = "larder creates and deletes only pods of its own node";
    let ordinary = "larder creates and deletes only mirror pods";
    let (post, delete, none) = (Method::POST, Method::DELETE, json!({}));
    for (method, path, body, reason) in [
        (&post, TOKENS, token(None), Some(unbound)),
        (&post, TOKENS, token(Some("Secret")), Some(unbound)),
        (&post, TOKENS, token(Some("Node")), Some(unbound)),
        (&post, TOKENS, token(Some("Pod")), None),
        (&post, PODS, pod("a", "another", true), Some(elsewhere)),
        (&post, PODS, pod("a", OWN, false), Some(ordinary)),
        (&post, PODS, pod("a", OWN, true), None),
        (
            &delete,
            &format!("{PODS}/web"),
            none.clone(),
            Some(ordinary),
        ),
        (
            &delete,
            &format!("{PODS}/other"),
            none.clone(),
            Some(elsewhere),
        ),
        (&delete, PODS, none.clone(), Some("cannot deletecollection")),
        (&delete, &format!("{PODS}/a"), none.clone(), None),
    ] {
        let found = denied(&larder, method.clone(), path, &body).await;
        match (&found, reason) {
            (None, None) => {}
            (Some(found), Some(reason)) if found.contains(reason) => {}
            _ => panic!("{method} {path} {body}: {found:?}, expected {reason:?}"),
        }
    }
    // The policy limits no other user.
    for name in ["web", "other"] {
        let path = format!("{PODS}/{name}");
        assert_eq!(denied(&admin, Method::DELETE, &path, &none).await, None);
    }
}
