//! ClusterTrustBundles and PodCertificateRequests: permissions, validation of bundles, versions. The texts are those of
//! kube-apiserver 1.36.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, PodCertificateRequest};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use larder_apiserver::{ApiKind, ApiServer, Authorization, CertificatesVersions, Options, User};
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, KeyPair};
use serde_json::{Value, json};

fn server() -> ApiServer {
    let server = ApiServer::new(Options::default().authorization(Authorization::Node));
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

fn client(server: &ApiServer, node: &str) -> Client {
    let user = User {
        name: format!("system:node:{node}"),
        groups: vec!["system:nodes".to_owned()],
    };
    Client::new(server.service_as(user), "default")
}

fn admin(server: &ApiServer) -> Client {
    Client::new(server.service(), "default")
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

/// The certificate of an authority.
fn authority() -> String {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(&key).unwrap().pem()
}

/// A request for a key, and the request's JSON with `change` put over its spec.
fn request(key: &KeyPair, change: Value) -> PodCertificateRequest {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let stub = params.serialize_request(key).unwrap();
    let mut spec = json!({
        "signerName": "example.com/s",
        "podName": "p", "podUID": "pod",
        "serviceAccountName": "sa", "serviceAccountUID": "account",
        "nodeName": "n0", "nodeUID": "node",
        "stubPKCS10Request": BASE64.encode(stub.der()),
    });
    for (field, value) in change.as_object().unwrap() {
        spec[field] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"generateName": "req-"}, "spec": spec})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn nodes_read_trust_bundles_and_do_not_write_them() {
    let server = server();
    let pem = authority();
    let bundle = |name: &str, signer: Option<&str>| -> ClusterTrustBundle {
        let spec = json!({"trustBundle": pem, "signerName": signer});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    };
    let post = PostParams::default();
    let bundles: Api<ClusterTrustBundle> = Api::all(admin(&server));
    bundles.create(&post, &bundle("plain", None)).await.unwrap();
    bundles
        .create(&post, &bundle("example.com:s:1", Some("example.com/s")))
        .await
        .unwrap();
    assert_eq!(
        rejected(bundles.create(&post, &bundle("a:b", None)).await),
        r#"metadata.name: Invalid value: "a:b": ClusterTrustBundle without signer name must not have ":" in its name"#
    );
    let read: Api<ClusterTrustBundle> = Api::all(client(&server, "n0"));
    assert_eq!(
        read.list(&ListParams::default()).await.unwrap().items.len(),
        2
    );
    let of_signer = ListParams::default().fields("spec.signerName=example.com/s");
    let found = read.list(&of_signer).await.unwrap().items;
    assert_eq!(found[0].metadata.name.as_deref(), Some("example.com:s:1"));
    assert_eq!(
        rejected(read.create(&post, &bundle("mine", None)).await),
        r#"User "system:node:n0" cannot create resource "clustertrustbundles" in API group "certificates.k8s.io" at the cluster scope"#
    );
    let mut changed = bundles.get("plain").await.unwrap();
    changed.spec.trust_bundle = "nothing".to_owned();
    assert_eq!(
        rejected(bundles.replace("plain", &post, &changed).await),
        r#"spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided"#
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_asks_for_certificates_of_its_own_pods_only() {
    let server = server();
    let key = KeyPair::generate().unwrap();
    let requests: Api<PodCertificateRequest> = Api::default_namespaced(client(&server, "n0"));
    let post = PostParams::default();
    let made = requests.create(&post, &request(&key, json!({}))).await;
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
        let answer = requests.create(&post, &request(&key, change)).await;
        assert_eq!(rejected(answer), rule);
    }

    let unknown = request(&key, json!({"nodeName": "n9"}));
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

/// The preferred and all versions of the group, the versions of a bundle as read, listed and watched in `version`.
async fn served(versions: CertificatesVersions, version: &str) -> kube::Result<Vec<String>> {
    let server = ApiServer::new(Options::default().certificates_versions(versions));
    let (client, path) = (
        admin(&server),
        format!("/apis/certificates.k8s.io/{version}/clustertrustbundles"),
    );
    let body = json!({"apiVersion": format!("certificates.k8s.io/{version}"), "kind": "ClusterTrustBundle",
        "metadata": {"name": "b"}, "spec": {"trustBundle": authority()}});
    let create = http::Request::post(&path)
        .body(body.to_string().into_bytes())
        .unwrap();
    let get = |path: &str| http::Request::get(path).body(Vec::new()).unwrap();
    let mut seen = Vec::new();
    let groups: Value = client.request(get("/apis/certificates.k8s.io")).await?;
    seen.push(groups["preferredVersion"]["version"].to_string());
    seen.push(groups["versions"].as_array().unwrap().len().to_string());
    let created: Value = client.request(create).await?;
    seen.push(created["apiVersion"].to_string());
    let bundle: Value = client.request(get(&format!("{path}/b"))).await?;
    seen.push(bundle["apiVersion"].to_string());
    let list: Value = client.request(get(&path)).await?;
    seen.push(list["apiVersion"].to_string());
    let watch = get(&format!(
        "{path}?watch=true&timeoutSeconds=5&allowWatchBookmarks=true"
    ));
    let events = client.request_text(watch).await?;
    for event in events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
    {
        seen.push(format!(
            "{} {}",
            event["type"], event["object"]["apiVersion"]
        ));
    }
    let label = http::Request::patch(format!("{path}/b"))
        .header("content-type", "application/merge-patch+json")
        .body(br#"{"metadata": {"labels": {"a": "b"}}}"#.to_vec())
        .unwrap();
    let patched: Value = client.request(label).await?;
    seen.push(patched["apiVersion"].to_string());
    assert!(server.get(ApiKind::ClusterTrustBundle, "", "b").is_some());
    Ok(seen)
}

#[tokio::test(start_paused = true)]
async fn certificates_are_served_in_the_versions_of_the_options() {
    use CertificatesVersions::{Beta, Stable, StableAndBeta};
    for (versions, version, preferred, number) in [
        (Beta, "v1beta1", "v1beta1", "1"),
        (Stable, "v1", "v1", "1"),
        (StableAndBeta, "v1", "v1", "2"),
        (StableAndBeta, "v1beta1", "v1", "2"),
    ] {
        let named = format!("\"certificates.k8s.io/{version}\"");
        let mut expected = vec![format!("\"{preferred}\""), number.to_owned()];
        expected.extend([named.clone(), named.clone(), named.clone()]);
        expected.push(format!("\"ADDED\" {named}"));
        expected.push(format!("\"BOOKMARK\" {named}"));
        expected.push(named);
        assert_eq!(
            served(versions, version).await.unwrap(),
            expected,
            "{versions:?}"
        );
    }
    for (versions, version) in [(Beta, "v1"), (Stable, "v1beta1")] {
        let kube::Error::Api(status) = served(versions, version).await.unwrap_err() else {
            panic!("no answer of the server")
        };
        assert_eq!(status.code, 404, "{versions:?}");
    }
}
