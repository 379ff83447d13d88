//! UIDs for pods that never had one from an API server.
//!
//! They are derived from names only, so that a pod keeps its directory after a restart, after an edit, and in another
//! command. Form, version 1: FNV-1a, 128 bit, over `larder/v1/pod/<namespace>/<name>`, written as a UUID of version 8
//! (RFC 9562: "custom") with the RFC's variant.

use std::fmt;

/// FNV-1a with 128 bits: fast, tiny, the same everywhere. Not for anything that an attacker may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StableHash(u128);

impl StableHash {
    /// The hash of nothing.
    pub const EMPTY: Self = Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

    /// The hash of what went in so far, followed by `bytes`.
    #[must_use]
    pub fn with(self, bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().iter().fold(self.0, |hash, byte| {
            (hash ^ u128::from(*byte)).wrapping_mul(Self::PRIME)
        }))
    }

    /// The digest as a number; its bytes in network order are the usual form.
    pub fn digest(self) -> u128 {
        self.0
    }
}

/// 32 lower-case hexadecimal digits.
impl fmt::Display for StableHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The UID of a pod whose manifest has none: the same for the same namespace and name, always.
pub fn stable_pod_uid(namespace: &str, name: &str) -> String {
    let hash = StableHash::EMPTY
        .with("larder/v1/pod/")
        .with(namespace)
        .with("/")
        .with(name)
        .digest();
    uuid(hash, 8)
}

/// The UUID of `version` (RFC 9562) with the other bits of `bits`.
pub fn uuid(bits: u128, version: u8) -> String {
    hyphenated(bits & !(0xf << 76) & !(0b11 << 62) | u128::from(version) << 76 | 0b10 << 62)
}

/// The usual form of a UUID.
pub(crate) fn hyphenated(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a_of_128_bits() {
        for (text, digest) in [
            ("", "6c62272e07bb014262b821756295c58d"),
            ("a", "d228cb696f1a8caf78912b704e4a8964"),
            ("foobar", "343e1662793c64bf6f0d3597ba446f18"),
            (
                "host:node-afile:/etc/kubernetes/manifests/web.yaml",
                "7508c8b4d78e1691102d2e9e281d01f0",
            ),
        ] {
            assert_eq!(StableHash::EMPTY.with(text).to_string(), digest, "{text}");
        }
    }

    #[test]
    fn a_uid_is_stable_and_has_the_form_of_a_uuid() {
        let uid = stable_pod_uid("prod", "web");
        assert_eq!(uid, stable_pod_uid("prod", "web"));
        assert_ne!(uid, stable_pod_uid("prod", "web2"));
        assert_ne!(stable_pod_uid("a", "b-c"), stable_pod_uid("a-b", "c"));
        let groups: Vec<_> = uid.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12]);
        assert_eq!(&uid[14..15], "8");
        assert!(matches!(&uid[19..20], "8" | "9" | "a" | "b"));
    }

    #[test]
    fn version_1_of_the_form_never_changes() {
        assert_eq!(
            stable_pod_uid("default", "web"),
            "f9c383d8-514f-84fc-966e-12af832e10ba"
        );
    }
}
