//! ClusterTrustBundles and PodCertificateRequests: validation of bundles, versions. The texts are those of kube-apiserver
//! 1.36.

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use larder_apiserver::{ApiKind, ApiServer, CertificatesVersions, Options};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::{Value, json};

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

#[tokio::test(start_paused = true)]
async fn trust_bundles_are_checked_and_selected_by_their_signer() {
    let server = ApiServer::new(Options::default());
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
    let of_signer = ListParams::default().fields("spec.signerName=example.com/s");
    let found = bundles.list(&of_signer).await.unwrap().items;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].metadata.name.as_deref(), Some("example.com:s:1"));
    let mut changed = bundles.get("plain").await.unwrap();
    changed.spec.trust_bundle = "nothing".to_owned();
    assert_eq!(
        rejected(bundles.replace("plain", &post, &changed).await),
        r#"spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided"#
    );
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
