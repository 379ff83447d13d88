//! Rules for PodCertificateRequests: the requests of nodes, and the answers of signers.
//!
//! Kubernetes 1.36, `pkg/apis/certificates/validation/validation.go`; the texts as kube-apiserver 1.36 answered them.
//! Intentionally different: the signature of the request is not verified, and the older form without a PKCS#10 request
//! is rejected.

use std::str::FromStr as _;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use jiff::{SignedDuration, Timestamp};
use larder_objects::{
    defaults::CERTIFICATE_EXPIRATION_SECS,
    pem,
    validation::{certificate_secs, is_signer_name},
    x509::{Certificate, PublicKey, requested_key},
};
use serde_json::Value;

use crate::{
    json::{items, text},
    status::Cause,
};

/// How far a certificate's beginning may be from the server's time.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// How far its refresh must be from its beginning and its end.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);

const ENDINGS: [&str; 3] = ["Issued", "Denied", "Failed"];

/// Checks the spec of a request; `old` is what it replaces.
pub(super) fn check_spec(old: Option<&Value>, new: &Value, causes: &mut Vec<Cause>) {
    if let Some(old) = old {
        if old["spec"] != new["spec"] {
            causes.push(Cause::invalid("spec", "field is immutable"));
        }
        return;
    }
    let signer = text(new, "/spec/signerName");
    if !is_signer_name(signer) {
        let rule =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        causes.push(invalid("spec.signerName", signer, rule));
    }
    for field in ["podName", "serviceAccountName", "nodeName"] {
        if text(new, &format!("/spec/{field}")).is_empty() {
            causes.push(Cause::required(&format!("spec.{field}"), ""));
        }
    }
    let (shortest, longest) = certificate_secs(signer).into_inner();
    let seconds = max_seconds(new);
    if !(shortest.into()..=longest.into()).contains(&seconds) {
        causes.push(Cause::invalid(
            "spec.maxExpirationSeconds",
            format_args!("{seconds}: must be in the range [{shortest}, {longest}]"),
        ));
    }
    let annotations = new["spec"]["unverifiedUserAnnotations"].as_object();
    for key in annotations.into_iter().flat_map(|all| all.keys()) {
        if !key.contains('/') {
            let rule = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            causes.push(invalid("spec.unverifiedUserAnnotations", key, rule));
        }
    }
    check_key(new, causes);
}

fn check_key(request: &Value, causes: &mut Vec<Cause>) {
    let field = "spec.stubPKCS10Request";
    let Some(der) = stub(request) else {
        let rule =
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set";
        return causes.push(Cause::invalid("spec", rule));
    };
    let (value, rule) = match requested_key(&der).and_then(PublicKey::parse) {
        None => return causes.push(Cause::invalid(field, "must be a valid PKCS#10 CSR")),
        Some(PublicKey::Ed25519 | PublicKey::Elliptic(Some(_)) | PublicKey::Rsa(3072 | 4096)) => {
            return;
        }
        Some(PublicKey::Rsa(bits)) => (
            format!("{bits}-bit modulus"),
            "RSA keys must have modulus size 3072 or 4096",
        ),
        Some(PublicKey::Elliptic(None)) => (
            "curve of another name".to_owned(),
            "elliptic public keys must use curve P256, P384, or P521",
        ),
    };
    causes.push(invalid(field, &value, rule));
}

/// Checks what a signer answers at `now`: one ending, once, and with it a certificate that fits the request.
pub(super) fn check_status(old: &Value, new: &Value, now: Timestamp, causes: &mut Vec<Cause>) {
    if old["status"] == new["status"] {
        return;
    }
    if items(old, "/status/conditions").next().is_some() {
        let rule = "immutable after PodCertificateRequest is issued, denied, or failed";
        return causes.push(Cause::invalid("status", rule));
    }
    let conditions: Vec<_> = items(new, "/status/conditions").collect();
    if conditions.is_empty() {
        let rule =
            "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"";
        return causes.push(Cause::invalid("status", rule));
    }
    for (index, condition) in conditions.iter().enumerate() {
        let word = |field: &str| condition[field].as_str().unwrap_or_default();
        let (type_, field) = (word("type"), format!("status.conditions.[{index}]"));
        let type_field = format!("{field}.type");
        if !ENDINGS.contains(&type_) {
            causes.push(Cause::unsupported(&type_field, type_, &ENDINGS));
        } else if index > 0 {
            let rule = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            causes.push(invalid(&type_field, type_, rule));
        }
        if word("status") != "True" {
            let status = format!("{field}.status");
            causes.push(Cause::unsupported(&status, word("status"), &["True"]));
        }
        if word("reason").is_empty() {
            let reason = format!("status.conditions[{index}].reason");
            causes.push(Cause::required(&reason, ""));
        }
    }
    if !causes.is_empty() {
        return;
    }
    if conditions[0]["type"] == "Issued" {
        check_issued(new, now, causes);
    } else if has_certificate(new) {
        let rule = "non-condition status fields must be empty when denying or failing the PodCertificateRequest";
        causes.push(Cause::invalid("status", rule));
    }
}

fn has_certificate(request: &Value) -> bool {
    [
        "certificateChain",
        "notBefore",
        "notAfter",
        "beginRefreshAt",
    ]
    .iter()
    .any(|field| !request["status"][*field].is_null())
}

fn check_issued(request: &Value, now: Timestamp, causes: &mut Vec<Cause>) {
    let chain = text(request, "/status/certificateChain");
    let field = "status.certificateChain";
    let blocks = pem::blocks(chain);
    let certificates: Option<Vec<_>> = blocks
        .iter()
        .map(|block| match block.label {
            "CERTIFICATE" => Certificate::parse(&block.der),
            _ => None,
        })
        .collect();
    let asked = stub(request);
    let asked = asked.as_deref().and_then(requested_key);
    let leaf = match certificates.as_deref() {
        Some([leaf, ..]) if asked == Some(leaf.public_key) => Ok(leaf),
        Some([_, ..]) => Err("leaf certificate was not issued to the requested public key"),
        Some([]) => Err("issued certificate chain must contain at least one certificate"),
        None => Err("issued certificate chain must consist of PEM-wrapped certificates only"),
    };
    let leaf = match leaf {
        Ok(leaf) => leaf,
        Err(rule) => return causes.push(invalid(field, chain, rule)),
    };
    let time = |field: &str| text(request, &format!("/status/{field}")).to_owned();
    for (name, encoded, shown) in [
        ("notBefore", &leaf.not_before, "NotBefore"),
        ("notAfter", &leaf.not_after, "NotAfter"),
    ] {
        let (field, given) = (format!("status.{name}"), time(name));
        if given.is_empty() {
            let rule = "must be present and consistent with the issued certificate";
            causes.push(Cause::required(&field, rule));
        } else if given != *encoded {
            let rule = format!("must be set to the {shown} time encoded in the leaf certificate");
            causes.push(invalid(&field, &given, &rule));
        }
    }
    let parsed = |text: &str| Timestamp::from_str(text).ok();
    let (Some(begin), Some(end)) = (parsed(&leaf.not_before), parsed(&leaf.not_after)) else {
        return causes.push(invalid(field, chain, "leaf certificate has no valid times"));
    };
    if begin.duration_since(now).abs() > SKEW {
        let rule = "must be set to within 5 minutes of kube-apiserver's current time";
        causes.push(invalid("status.notBefore", &leaf.not_before, rule));
    }
    let life = end.duration_since(begin).as_secs();
    let longest = max_seconds(request);
    if life < 3600 {
        let rule = "leaf certificate lifetime must be >= 1 hour";
        causes.push(Cause::invalid(field, rule));
    } else if life > longest {
        let rule =
            format!("leaf certificate lifetime must be <= spec.maxExpirationSeconds ({longest})");
        causes.push(Cause::invalid(field, &rule));
    }
    let (field, given) = ("status.beginRefreshAt", time("beginRefreshAt"));
    let rule = match parsed(&given) {
        None => {
            let rule = "must be present and in the range [notbefore+10min, notafter-10min]";
            return causes.push(Cause::required(field, rule));
        }
        Some(refresh) if refresh.duration_since(begin) < MARGIN => "after status.notBefore",
        Some(refresh) if end.duration_since(refresh) < MARGIN => "before status.notAfter",
        Some(_) => return,
    };
    let rule = format!("must be at least 10 minutes {rule}");
    causes.push(invalid(field, &given, &rule));
}

/// The PKCS#10 request in DER.
fn stub(request: &Value) -> Option<Vec<u8>> {
    let text = text(request, "/spec/stubPKCS10Request");
    let der = BASE64.decode(text).ok();
    der.filter(|der| !der.is_empty())
}

fn max_seconds(request: &Value) -> i64 {
    request["spec"]["maxExpirationSeconds"]
        .as_i64()
        .unwrap_or(CERTIFICATE_EXPIRATION_SECS.into())
}

fn invalid(field: &str, value: &str, rule: &str) -> Cause {
    Cause::invalid(field, format_args!("{value:?}: {rule}"))
}
