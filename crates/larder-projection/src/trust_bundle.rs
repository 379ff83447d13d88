//! Trust anchors for `clusterTrustBundle` sources.
//!
//! Kubelet 1.36, `pkg/kubelet/clustertrustbundle`: all PEM blocks of all matching bundles, each certificate once. The
//! kubelet shuffles them. larder keeps the order of the bundles' names and of the blocks in them, so that the same set
//! yields the same file.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use k8s_openapi::{
    api::{certificates::v1beta1::ClusterTrustBundle, core::v1::ClusterTrustBundleProjection},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use larder_objects::{pem, selects};

use crate::{Existence, downward::quote};

/// The known state of ClusterTrustBundles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrustBundles {
    /// Unknown: the feature is off, the API server lacks the kind, or there is no API server.
    #[default]
    Unsupported,
    /// They were not listed yet.
    NotSynced,
    /// All of them, in any order.
    Synced(Arc<[TrustBundle]>),
    /// Some of them, and whether others supply what these lack.
    Partial(Arc<[TrustBundle]>, Existence),
}

/// One ClusterTrustBundle, as much of it as is projected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustBundle {
    /// Name of the bundle.
    pub name: String,
    /// `spec.signerName`; empty for a bundle that belongs to no signer.
    pub signer_name: String,
    /// Labels of the bundle.
    pub labels: BTreeMap<String, String>,
    /// `spec.trustBundle`: PEM text.
    pub trust_bundle: String,
}

impl From<ClusterTrustBundle> for TrustBundle {
    fn from(bundle: ClusterTrustBundle) -> Self {
        Self {
            name: bundle.metadata.name.unwrap_or_default(),
            signer_name: bundle.spec.signer_name.unwrap_or_default(),
            labels: bundle.metadata.labels.unwrap_or_default(),
            trust_bundle: bundle.spec.trust_bundle,
        }
    }
}

/// Why there are no trust anchors. The texts are the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustBundleError {
    /// See [`TrustBundles::Unsupported`].
    #[error("ClusterTrustBundle projection is not supported in static kubelet mode")]
    Unsupported,
    /// See [`TrustBundles::NotSynced`].
    #[error("ClusterTrustBundle informer has not yet synced")]
    NotSynced,
    /// See [`TrustBundles::Partial`].
    #[error("not all ClusterTrustBundles are known")]
    Partial(Existence),
    /// The source names neither a bundle nor a signer.
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    NoSelection,
    /// No bundle has the name.
    #[error(
        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"{0}\" not found"
    )]
    NotFound(String),
    /// No bundle of the signer has the labels.
    #[error("combination of signerName and labelSelector matched zero ClusterTrustBundles")]
    NoMatch,
    /// The selector has more than 100 KiB.
    #[error("label selector length ({0}) is larger than {MAX_SELECTOR}")]
    SelectorTooLong(usize),
    /// The selector has an unknown operator.
    #[error("while parsing label selector: {} is not a valid label selector operator", quote(.0))]
    Operator(String),
    /// `In` or `NotIn` has no values.
    #[error(
        "while parsing label selector: values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
    )]
    NoValues,
    /// `Exists` or `DoesNotExist` has values. The kubelet quotes them as well.
    #[error(
        "while parsing label selector: values: Invalid value: values set must be empty for exists and does not exist"
    )]
    Values,
}

/// Longest selector, in bytes of its text form.
const MAX_SELECTOR: usize = 100 * 1024;

/// The trust anchors that `source` asks for, as PEM text. Bundles with a name or signer of `missing` do not exist, also if
/// others may.
pub(crate) fn trust_anchors(
    bundles: &TrustBundles,
    missing: &BTreeSet<String>,
    source: &ClusterTrustBundleProjection,
) -> Result<String, TrustBundleError> {
    let (bundles, others) = match bundles {
        TrustBundles::Unsupported => return Err(TrustBundleError::Unsupported),
        TrustBundles::NotSynced => return Err(TrustBundleError::NotSynced),
        TrustBundles::Synced(bundles) => (bundles, None),
        TrustBundles::Partial(bundles, others) => (bundles, Some(*others)),
    };
    let optional = source.optional == Some(true);
    let (mut matches, none) = if let Some(name) = &source.name {
        let named = bundles.iter().filter(|bundle| bundle.name == *name);
        (
            named.collect::<Vec<_>>(),
            TrustBundleError::NotFound(name.clone()),
        )
    } else if let Some(signer) = &source.signer_name {
        let mut matches = Vec::new();
        if let Some(selector) = &source.label_selector {
            check_selector(selector)?;
            let of_signer = bundles
                .iter()
                .filter(|bundle| bundle.signer_name == *signer);
            matches.extend(of_signer.filter(|bundle| selects(selector, &bundle.labels)));
        }
        (matches, TrustBundleError::NoMatch)
    } else {
        return Err(TrustBundleError::NoSelection);
    };
    // No two bundles have one name, and a missing selector selects none.
    let may_have_more = match source.name {
        Some(_) => matches.is_empty(),
        None => source.label_selector.is_some(),
    };
    let is_missing = source
        .name
        .as_ref()
        .or(source.signer_name.as_ref())
        .is_some_and(|name| missing.contains(name));
    if let Some(others) = others.filter(|_| may_have_more && !is_missing) {
        return Err(TrustBundleError::Partial(others));
    }
    if matches.is_empty() && !optional {
        return Err(none);
    }
    matches.sort_by(|a, b| a.name.cmp(&b.name));
    let mut seen = HashSet::new();
    let mut text = String::new();
    for certificate in matches
        .iter()
        .flat_map(|bundle| pem::blocks(&bundle.trust_bundle))
    {
        if !seen.contains(&certificate.der) {
            text.push_str(&pem::encode_certificate(&certificate.der));
            seen.insert(certificate.der);
        }
    }
    Ok(text)
}

/// Refuses selectors that are too long or malformed, whatever they would select.
fn check_selector(selector: &LabelSelector) -> Result<(), TrustBundleError> {
    // In text form: `a=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`, joined by commas.
    let labels = selector.match_labels.iter().flatten();
    let mut length: usize = labels.map(|(key, value)| key.len() + value.len() + 2).sum();
    for requirement in selector.match_expressions.iter().flatten() {
        let values = requirement.values.as_deref().unwrap_or_default();
        let (has_values, operator) = match requirement.operator.as_str() {
            "In" => (true, " in ()".len()),
            "NotIn" => (true, " notin ()".len()),
            "Exists" => (false, 0),
            "DoesNotExist" => (false, "!".len()),
            _ => return Err(TrustBundleError::Operator(requirement.operator.clone())),
        };
        match (has_values, values.is_empty()) {
            (true, true) => return Err(TrustBundleError::NoValues),
            (false, false) => return Err(TrustBundleError::Values),
            _ => {}
        }
        let values: usize = values.iter().map(|value| value.len() + 1).sum();
        length += requirement.key.len() + operator + values.saturating_sub(1) + 1;
    }
    let length = length.saturating_sub(1);
    if length > MAX_SELECTOR {
        return Err(TrustBundleError::SelectorTooLong(length));
    }
    Ok(())
}
