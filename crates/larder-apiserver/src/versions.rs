//! The versions of `certificates.k8s.io`: stored as one, served as the versions of [`CertificatesVersions`].
//!
//! Conversion changes `apiVersion` alone: the kinds of this group have the same fields in every version, but for two
//! deprecated ones of `v1beta1`, without which a request is accepted. Source: the types of Kubernetes 1.36 and 1.37.

use bytes::Bytes;
use serde_json::Value;

/// The group of cluster trust bundles and pod certificate requests.
pub(crate) const CERTIFICATES: &str = "certificates.k8s.io";
/// The version in which they are stored.
pub(crate) const STORED: &str = "v1beta1";
const STABLE: &str = "v1";

/// `apiVersion` as it stands in stored JSON.
const STORED_FIELD: &[u8] = br#""apiVersion":"certificates.k8s.io/v1beta1""#;
/// `apiVersion` as it stands in a response in `v1`.
const STABLE_FIELD: &[u8] = br#""apiVersion":"certificates.k8s.io/v1""#;
/// `apiVersion` of an object, a list or a watch event ends before this many bytes.
const HEAD_BYTES: usize = 128;

/// The versions in which a server serves `ClusterTrustBundle` and `PodCertificateRequest`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificatesVersions {
    /// `v1beta1` alone, as Kubernetes 1.36.
    #[default]
    Beta,
    /// `v1` alone.
    Stable,
    /// `v1`, the preferred one, and `v1beta1`: as Kubernetes 1.37.
    StableAndBeta,
}

impl CertificatesVersions {
    /// The versions, the preferred one first.
    pub(crate) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Beta => &[STORED],
            Self::Stable => &[STABLE],
            Self::StableAndBeta => &[STABLE, STORED],
        }
    }

    /// The version of `group` that is stored for a path or object of `version`; `None` if `version` is not served.
    pub(crate) fn stored<'a>(self, group: &str, version: &'a str) -> Option<&'a str> {
        if group != CERTIFICATES {
            return Some(version);
        }
        self.names().contains(&version).then_some(STORED)
    }

    /// Reads `object` as one of the stored version, if it is of a version that is served.
    pub(crate) fn read(self, object: &mut Value) {
        let version = object["apiVersion"]
            .as_str()
            .and_then(|text| text.strip_prefix("certificates.k8s.io/"));
        if version.is_some_and(|version| self.names().contains(&version)) {
            object["apiVersion"] = format!("{CERTIFICATES}/{STORED}").into();
        }
    }
}

/// JSON of the stored version as one of `v1`, in pieces.
pub(crate) fn stable(json: Bytes) -> [Bytes; 3] {
    let head = &json[..json.len().min(HEAD_BYTES)];
    let field = head
        .windows(STORED_FIELD.len())
        .position(|field| field == STORED_FIELD);
    match field {
        Some(start) => [
            json.slice(..start),
            Bytes::from_static(STABLE_FIELD),
            json.slice(start + STORED_FIELD.len()..),
        ],
        None => [json, Bytes::new(), Bytes::new()],
    }
}
