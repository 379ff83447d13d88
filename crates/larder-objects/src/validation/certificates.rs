//! ClusterTrustBundles, and names of signers.
//!
//! Kubernetes 1.36, `pkg/apis/certificates/validation/validation.go`; the texts as kube-apiserver 1.36 answered them.

use std::collections::BTreeMap;

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;

use super::{
    FieldErrors,
    field::Field,
    names::is_subdomain,
    object::{Scope, check_metadata},
};
use crate::{pem, x509::Certificate};

pub(super) const SIGNER: &str =
    "must be a fully qualified domain and path of the form 'example.com/signer-name'";

/// Whether `text` can be the name of a signer: a domain of two labels or more, `/`, a path.
pub fn is_signer_name(text: &str) -> bool {
    text.split_once('/').is_some_and(|(domain, path)| {
        is_subdomain(domain) && domain.contains('.') && is_subdomain(path)
    })
}

/// Checks name, signer and certificates of a ClusterTrustBundle.
pub fn cluster_trust_bundle(bundle: &ClusterTrustBundle) -> FieldErrors {
    FieldErrors::found(|object| check_bundle(object, bundle))
}

fn check_bundle(object: &Field<'_>, bundle: &ClusterTrustBundle) {
    let signer = bundle.spec.signer_name.as_deref().unwrap_or_default();
    let check_name = |field: &Field<'_>, name: &str| {
        if signer.is_empty() {
            if name.contains(':') {
                let rule = "ClusterTrustBundle without signer name must not have \":\" in its name";
                field.invalid(name, rule);
            } else {
                field.check_subdomain(name);
            }
            return;
        }
        let prefix = signer.replace('/', ":") + ":";
        match name.strip_prefix(&prefix) {
            None => {
                let rule = format!(
                    "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
                );
                field.invalid(name, &rule);
            }
            Some(suffix) => field.check_subdomain_in(suffix, name),
        }
    };
    check_metadata(object, &bundle.metadata, Scope::Cluster, check_name);
    if !signer.is_empty() && !is_signer_name(signer) {
        object.at("spec.signerName").invalid(signer, SIGNER);
    }
    check_anchors(&object.at("spec.trustBundle"), &bundle.spec.trust_bundle);
}

/// Checks what may not change when `old` becomes `new`.
pub fn cluster_trust_bundle_update(
    new: &ClusterTrustBundle,
    old: &ClusterTrustBundle,
) -> FieldErrors {
    let signer = |bundle: &ClusterTrustBundle| bundle.spec.signer_name.clone().unwrap_or_default();
    FieldErrors::found(|object| {
        check_bundle(object, new);
        if signer(new) != signer(old) {
            object
                .at("spec.signerName")
                .invalid(signer(new), "field is immutable");
        }
    })
}

fn check_anchors(field: &Field<'_>, text: &str) {
    let mut problems = Vec::new();
    let mut places: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    let blocks = pem::blocks(text);
    if blocks.is_empty() {
        problems.push("at least one trust anchor must be provided".to_owned());
    }
    for (index, block) in blocks.iter().enumerate() {
        let problem = if block.label != "CERTIFICATE" {
            format!("has bad block type: {}", block.label)
        } else if block.has_headers {
            "has PEM block headers".to_owned()
        } else {
            match Certificate::parse(&block.der) {
                None => "does not parse as X.509".to_owned(),
                Some(certificate) if !certificate.is_ca => {
                    "does not have the CA bit set".to_owned()
                }
                Some(_) => {
                    places.entry(&block.der).or_default().push(index);
                    continue;
                }
            }
        };
        problems.push(format!("entry {index} {problem}"));
    }
    if problems.is_empty() {
        let repeated = places.values().filter(|places| places.len() > 1);
        problems.extend(repeated.map(|places| {
            let places: Vec<_> = places.iter().map(ToString::to_string).collect();
            format!("duplicate trust anchor (indices [{}])", places.join(" "))
        }));
    }
    for problem in problems {
        field.invalid("<value omitted>", &problem);
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    const ROOT: &str = include_str!("../x509/root.pem");
    const LEAF: &str = include_str!("../x509/leaf.pem");

    fn bundle(name: &str, signer: &str, trust_bundle: &str) -> ClusterTrustBundle {
        let mut bundle = ClusterTrustBundle::default();
        bundle.metadata.name = Some(name.to_owned());
        bundle.spec.signer_name = (!signer.is_empty()).then(|| signer.to_owned());
        bundle.spec.trust_bundle = trust_bundle.to_owned();
        bundle
    }

    #[track_caller]
    fn check(name: &str, signer: &str, trust_bundle: &str, expected: Expect) {
        let errors = cluster_trust_bundle(&bundle(name, signer, trust_bundle));
        expected.assert_eq(errors.lines().trim_start());
    }

    #[test]
    fn a_bundle_of_a_signer_bears_its_name() {
        check("plain", "", ROOT, expect![""]);
        check("example.com:s:v1", "example.com/s", ROOT, expect![""]);
        check(
            "a:b",
            "",
            ROOT,
            expect![[r#"
                metadata.name: Invalid value: "a:b": ClusterTrustBundle without signer name must not have ":" in its name
            "#]],
        );
        check(
            "x",
            "example.com/s",
            ROOT,
            expect![[r#"
                metadata.name: Invalid value: "x": ClusterTrustBundle for signerName example.com/s must be named with prefix example.com:s:
            "#]],
        );
        check(
            "example:2",
            "example",
            ROOT,
            expect![[r#"
                spec.signerName: Invalid value: "example": must be a fully qualified domain and path of the form 'example.com/signer-name'
            "#]],
        );
        let errors = cluster_trust_bundle(&bundle("example.com:s:", "example.com/s", ROOT));
        assert!(
            errors[0]
                .to_string()
                .starts_with(r#"metadata.name: Invalid value: "example.com:s:": a lowercase RFC"#),
            "{errors}"
        );
    }

    #[test]
    fn trust_anchors_are_certificates_of_authorities_each_once() {
        check(
            "a",
            "",
            "text",
            expect![[r#"
                spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided
            "#]],
        );
        let other = "-----BEGIN X-----\nAQI=\n-----END X-----\n";
        let garbage = other.replace('X', "CERTIFICATE");
        let headers = ROOT.replacen('\n', "\nA: b\n\n", 1);
        check(
            "a",
            "",
            &[LEAF, ROOT, ROOT, other, &garbage, &headers].concat(),
            expect![[r#"
                spec.trustBundle: Invalid value: "<value omitted>": entry 0 does not have the CA bit set
                spec.trustBundle: Invalid value: "<value omitted>": entry 3 has bad block type: X
                spec.trustBundle: Invalid value: "<value omitted>": entry 4 does not parse as X.509
                spec.trustBundle: Invalid value: "<value omitted>": entry 5 has PEM block headers
            "#]],
        );
        check(
            "a",
            "",
            &[ROOT, ROOT].concat(),
            expect![[r#"
                spec.trustBundle: Invalid value: "<value omitted>": duplicate trust anchor (indices [0 1])
            "#]],
        );
    }

    #[test]
    fn a_bundle_keeps_its_signer() {
        let old = bundle("example.com:s:v1", "example.com/s", ROOT);
        assert!(cluster_trust_bundle_update(&old, &old).is_empty());
        let new = bundle("example.com:s:v1", "", ROOT);
        let errors = cluster_trust_bundle_update(&new, &old);
        assert_eq!(
            errors.last().unwrap().to_string(),
            r#"spec.signerName: Invalid value: "": field is immutable"#
        );
    }
}
