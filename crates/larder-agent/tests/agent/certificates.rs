//! Certificates of pods: requested as the node, issued by a signer, refreshed in time, rejected for good.

use std::{fs, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    },
};
use larder_agent::{clock::Clock, status::Phase};
use larder_apiserver::{AuditRecord, CertificatesVersions, Fault, Options, Verb};
use larder_e2e::NodeAuthorizer;
use larder_objects::{pem, x509};
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519, PublicKeyData,
    SignatureAlgorithm,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::harness::{NODE, Node, pod};

/// The Ed25519 key of a request.
struct Requested<'a>(&'a [u8]);

impl PublicKeyData for Requested<'_> {
    fn der_bytes(&self) -> &[u8] {
        // The end of the SubjectPublicKeyInfo.
        &self.0[self.0.len() - 32..]
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// A signer, which answers requests.
pub(crate) struct Signer {
    requests: Api<DynamicObject>,
    authority: Issuer<'static, KeyPair>,
    clock: Clock,
}

impl Signer {
    pub(crate) fn new(node: &Node) -> Self {
        Self::in_version(node, "v1beta1")
    }

    fn in_version(node: &Node, version: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let client = Client::new(node.server.service(), "default");
        let kind = GroupVersionKind::gvk("certificates.k8s.io", version, "PodCertificateRequest");
        Self {
            requests: Api::default_namespaced_with(client, &ApiResource::from_gvk(&kind)),
            authority: Issuer::new(params, KeyPair::generate().unwrap()),
            clock: node.clock.clone(),
        }
    }

    async fn all(&self) -> Vec<PodCertificateRequest> {
        let all = self.requests.list(&ListParams::default()).await.unwrap();
        let objects = all.items.into_iter().map(|object| {
            let mut object = serde_json::to_value(object).unwrap();
            // `k8s-openapi` has the type of this version only.
            object["apiVersion"] = "certificates.k8s.io/v1beta1".into();
            serde_json::from_value(object).unwrap()
        });
        objects.collect()
    }

    /// Waits for an unanswered request.
    pub(crate) async fn pending(&self) -> PodCertificateRequest {
        for _ in 0..10_000 {
            let waiting = self
                .all()
                .await
                .into_iter()
                .find(|request: &PodCertificateRequest| {
                    let status = request.status.as_ref();
                    status.is_none_or(|status| status.conditions.is_none())
                });
            if let Some(found) = waiting {
                return found;
            }
            sleep(Duration::from_millis(2)).await;
        }
        panic!("no request for a certificate");
    }

    async fn answer(&self, request: &PodCertificateRequest, status: Value) {
        let name = request.metadata.name.as_deref().unwrap();
        let status = json!({"status": status});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&status));
        self.requests
            .patch_status(name, &params, &patch)
            .await
            .unwrap();
    }

    /// Issues a certificate for two hours that is due for refresh after one; returns the chain.
    pub(crate) async fn issue(&self, request: &PodCertificateRequest) -> String {
        let now = Timestamp::from_second(self.clock.now().as_second()).unwrap();
        let at = |minutes| now + SignedDuration::from_mins(minutes);
        let time = |at: Timestamp| std::time::SystemTime::from(at).into();
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (time(at(0)), time(at(120)));
        let key = x509::requested_key(&request.spec.stub_pkc_s10_request.0).unwrap();
        let leaf = params.signed_by(&Requested(key), &self.authority).unwrap();
        let chain = leaf.pem().replace('\r', "");
        let status = json!({
            "conditions": ending("Issued"),
            // Text between the blocks is dropped.
            "certificateChain": format!("{chain}a note\n"),
            "notBefore": at(0).to_string(),
            "notAfter": at(120).to_string(),
            "beginRefreshAt": at(60).to_string(),
        });
        self.answer(request, status).await;
        chain
    }
}

fn ending(type_: &str) -> Value {
    json!([{"type": type_, "status": "True", "reason": "R", "message": "M", "lastTransitionTime": "2026-01-01T00:00:00Z"}])
}

/// Number of the node's requests for certificates that the API server has accepted.
fn made(node: &Node) -> usize {
    accepted(node, "create", "/podcertificaterequests")
}

/// Number of accepted requests with this verb and end of their path.
fn accepted(node: &Node, verb: &str, path_end: &str) -> usize {
    let records = node.server.audit().records();
    let fits = |record: &&AuditRecord| {
        let is_accepted = matches!(record.status, 200 | 201);
        is_accepted && record.verb == verb && record.path.ends_with(path_end)
    };
    records.iter().filter(fits).count()
}

/// A node whose API server authorizes requests. Its agent does not run yet.
pub(crate) fn prepare_guarded() -> Node {
    Node::prepare_with(
        Options::default()
            .authorization(NodeAuthorizer)
            .fill_namespaces(true),
    )
}

fn guarded_node() -> Node {
    let mut node = prepare_guarded();
    node.run();
    node
}

/// A pod with a source of a certificate.
pub(crate) fn web() -> Value {
    let source = json!({"podCertificate": {
        "signerName": "example.com/s", "keyType": "ED25519",
        "credentialBundlePath": "bundle.pem", "keyPath": "key.pem", "certificateChainPath": "chain.pem",
        "userAnnotations": {"example.com/a": "b"},
    }});
    let volume = json!({"projected": {"sources": [source]}});
    pod("web").volume("id", volume).build()
}

fn node_with_source() -> Node {
    let node = guarded_node();
    node.apply(&web());
    node
}

const WAITING: &str = "credential bundle is not issued yet";

/// Key, chain and bundle that a reader sees at one time.
fn files(node: &Node) -> Option<[String; 3]> {
    let data = fs::canonicalize(node.volume_path("web", "id")?.join("..data")).ok()?;
    let read = |name: &str| fs::read_to_string(data.join(name)).ok();
    Some([read("key.pem")?, read("chain.pem")?, read("bundle.pem")?])
}

pub(crate) async fn until_chain(node: &Node, chain: &str) -> [String; 3] {
    node.wait("the certificate", |node| {
        files(node).filter(|files| files[1] == chain)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_requested_delivered_and_refreshed_in_time() {
    // projection 74
    let mut node = node_with_source();
    let signer = Signer::new(&node);
    node.until_failing("web", "id", WAITING).await;
    let request = signer.pending().await;
    assert!(
        request
            .metadata
            .name
            .as_deref()
            .unwrap()
            .starts_with("req-")
    );
    let owner = &request.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((&*owner.kind, &*owner.name), ("Pod", "web"));
    let spec = &request.spec;
    assert_eq!(
        (&*spec.signer_name, &*spec.pod_name, &*spec.node_name),
        ("example.com/s", "web", NODE)
    );
    let annotations = spec.unverified_user_annotations.as_ref().unwrap();
    assert_eq!(annotations["example.com/a"], "b");

    let chain = signer.issue(&request).await;
    let first = until_chain(&node, &chain).await;
    let [key, chain, bundle] = &first;
    assert_eq!(*bundle, [key.as_str(), chain].concat());
    assert_eq!(pem::blocks(key)[0].label, "PRIVATE KEY");

    // After an hour and up to five minutes, another key and another request are created; the first certificate stays
    // until then.
    sleep(Duration::from_mins(59)).await;
    assert_eq!(made(&node), 1);
    sleep(Duration::from_mins(7)).await;
    assert_eq!(made(&node), 2);
    assert_eq!(files(&node).as_ref(), Some(&first));
    let status = node.volume("web", "id").unwrap().delivery;
    assert_eq!(status.phase, Phase::Delivered);
    let request = signer.pending().await;
    let chain = signer.issue(&request).await;
    let second = until_chain(&node, &chain).await;
    assert_ne!(second[0], first[0], "a key is used for one certificate");

    // A rejection is final, and leaves the files in place.
    sleep(Duration::from_mins(66)).await;
    let request = signer.pending().await;
    let status = json!({"conditions": ending("Denied")});
    signer.answer(&request, status).await;
    let refused = r#"PodCertificateRequest was permanently denied: reason="R" message="M""#;
    node.until_failing("web", "id", refused).await;
    assert_eq!(files(&node), Some(second));
    sleep(Duration::from_hours(3)).await;
    assert_eq!(made(&node), 3);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_neither_delays_a_certificate_nor_floods_the_signer() {
    let mut node = node_with_source();
    let mut signer = Signer::new(&node);
    // The signer's clock stays right.
    let (start, begin) = (node.clock.now(), tokio::time::Instant::now());
    signer.clock = Clock::new(move || start + SignedDuration::try_from(begin.elapsed()).unwrap());
    let chain = signer.issue(&signer.pending().await).await;
    until_chain(&node, &chain).await;

    // The machine has slept for two hours, or its clock was set.
    node.set_clock_ahead(7200);
    let chain = signer.issue(&signer.pending().await).await;
    until_chain(&node, &chain).await;
    // By that clock the new one is due already. It is still used for its time.
    sleep(Duration::from_mins(59)).await;
    assert_eq!(made(&node), 2);
    sleep(Duration::from_mins(7)).await;
    assert_eq!(made(&node), 3);
    let chain = signer.issue(&signer.pending().await).await;
    until_chain(&node, &chain).await;

    // Set back, the clock would show the certificate as expired.
    node.set_clock_ahead(-7200);
    sleep(Duration::from_mins(59)).await;
    assert_eq!(made(&node), 3);
    sleep(Duration::from_mins(7)).await;
    assert_eq!(made(&node), 4);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_vanished_request_is_replaced() {
    // projection 74
    let mut node = node_with_source();
    let signer = Signer::new(&node);
    let request = signer.pending().await;
    // The watch must have shown it, or its end would go unnoticed.
    node.wait("the watch", |node| {
        (accepted(node, "watch", "/podcertificaterequests") > 0).then_some(())
    })
    .await;
    sleep(Duration::from_secs(1)).await;
    let name = request.metadata.name.as_deref().unwrap();
    let params = DeleteParams::default();
    signer.requests.delete(name, &params).await.unwrap();
    let again = signer.pending().await;
    assert_ne!(again.metadata.name, request.metadata.name);
    // The key is the same: an RSA key takes seconds of a processor.
    let key = |request: &PodCertificateRequest| {
        let stub = &request.spec.stub_pkc_s10_request.0;
        x509::requested_key(stub).unwrap().to_vec()
    };
    assert_eq!(key(&again), key(&request));
    let chain = signer.issue(&again).await;
    until_chain(&node, &chain).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn certificates_are_requested_with_keys_of_every_type() {
    // projection 74
    let mut node = guarded_node();
    let keys = [
        ("ECDSAP256", x509::PublicKey::Elliptic(Some("P-256"))),
        ("ECDSAP384", x509::PublicKey::Elliptic(Some("P-384"))),
        ("ECDSAP521", x509::PublicKey::Elliptic(Some("P-521"))),
        ("ED25519", x509::PublicKey::Ed25519),
        ("RSA3072", x509::PublicKey::Rsa(3072)),
        ("RSA4096", x509::PublicKey::Rsa(4096)),
    ];
    let sources = keys.map(|(key_type, _)| {
        json!({"podCertificate": {"signerName": "example.com/s", "keyType": key_type, "keyPath": key_type}})
    });
    let volume = json!({"projected": {"sources": sources}});
    node.apply(&pod("web").volume("id", volume).build());
    node.wait("all requests", |node| {
        (made(node) == keys.len()).then_some(())
    })
    .await;
    let all = Signer::new(&node).all().await;
    for (key_type, expected) in keys {
        let is_asked_for = all.iter().any(|request| {
            let key = x509::requested_key(&request.spec.stub_pkc_s10_request.0);
            key.and_then(x509::PublicKey::parse) == Some(expected)
        });
        assert!(is_asked_for, "{key_type}");
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_requests_again_and_the_files_stay_meanwhile() {
    let mut node = node_with_source();
    let signer = Signer::new(&node);
    let chain = signer.issue(&signer.pending().await).await;
    let first = until_chain(&node, &chain).await;
    node.stop().await;
    node.run();
    node.until_failing("web", "id", WAITING).await;
    assert_eq!(files(&node), Some(first));
    let chain = signer.issue(&signer.pending().await).await;
    until_chain(&node, &chain).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failure_to_request_a_certificate_is_reported() {
    let mut node = guarded_node();
    let refuse = |code| {
        let requests = Fault::on(Verb::Create).resource("podcertificaterequests");
        node.server.faults().inject(requests.status(code))
    };
    let fault = refuse(500);
    node.apply(&web());
    node.wait("the reason", |node| {
        let reason = node.volume("web", "id")?.delivery.reason;
        let told = "credential bundle is not issued yet: cannot create a PodCertificateRequest: ";
        reason.starts_with(told).then_some(())
    })
    .await;
    fault.lift();
    // An API server without the kind: the kubelet's text for a disabled feature.
    let fault = refuse(404);
    sleep(Duration::from_mins(3)).await;
    node.until_failing("web", "id", "unimplemented").await;
    fault.lift();
    sleep(Duration::from_mins(3)).await;
    let signer = Signer::new(&node);
    let chain = signer.issue(&signer.pending().await).await;
    until_chain(&node, &chain).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn requests_use_v1_where_it_is_served() {
    use CertificatesVersions::{Beta, Stable, StableAndBeta};
    for (versions, version) in [(Beta, "v1beta1"), (Stable, "v1"), (StableAndBeta, "v1")] {
        let options = Options::default()
            .authorization(NodeAuthorizer)
            .fill_namespaces(true)
            .certificates_versions(versions);
        let mut node = Node::prepare_with(options);
        node.run();
        node.apply(&web());
        let signer = Signer::in_version(&node, version);
        let chain = signer.issue(&signer.pending().await).await;
        until_chain(&node, &chain).await;
        let path = format!(
            "/apis/certificates.k8s.io/{version}/namespaces/default/podcertificaterequests"
        );
        assert_eq!(accepted(&node, "create", &path), 1, "{versions:?}");
        let path = format!("/apis/certificates.k8s.io/{version}/podcertificaterequests");
        assert!(accepted(&node, "watch", &path) > 0, "{versions:?}");
        node.stop().await;
    }
}
