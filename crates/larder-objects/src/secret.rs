//! Secrets: decoded here, because the types of k8s-openapi derive `Debug` and leave their bytes in freed memory.

use std::{fmt, ops::Deref};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Deserializer, de};
use smol_str::SmolStr;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::{
    Data, KeyChanges, Kind, Object, ObjectMeta, ObjectType, encoding::null_as_default, go_base64,
    references,
};

/// A `v1` Secret, without the metadata that no consumer on a node reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Secret {
    /// Name, identity and version.
    pub metadata: ObjectMeta,
    /// Values by key, sorted, already decoded from base64.
    #[serde(deserialize_with = "null_as_default")]
    pub data: Data<SecretBytes>,
    /// `type`, for instance `kubernetes.io/tls`.
    #[serde(rename = "type", deserialize_with = "null_as_default")]
    pub type_: SmolStr,
    /// Whether `data` is final.
    #[serde(deserialize_with = "null_as_default")]
    pub immutable: bool,
}

impl Object for Secret {
    const TYPE: ObjectType = Kind::Secret.object_type();
    const IS_SECRET: bool = true;

    fn visit_references<'a>(pod: &'a Pod, found: &mut impl FnMut(&'a str)) {
        references::visit_secrets(pod, found);
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_immutable(&self) -> bool {
        self.immutable
    }

    fn key_changes(&self, before: &Self) -> KeyChanges {
        KeyChanges::between(before.data.iter(), self.data.iter())
    }
}

/// Bytes that must not leak: zeroized on drop, and `Debug` shows the length only.
#[derive(Clone, Default, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Takes `bytes` over; the caller keeps no copy.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// Whatever a `Vec<u8>` is made from: text, bytes, arrays. What is borrowed is copied, and stays with its owner.
///
/// ```
/// use larder_objects::{Data, SecretBytes};
///
/// let data: Data<SecretBytes> = [("user", "admin".into()), ("token", b"\0\x01".into())].into();
/// assert_eq!(&*data["user"], b"admin");
/// ```
impl<T: Into<Vec<u8>>> From<T> for SecretBytes {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl Deref for SecretBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

/// Reads standard base64, as the API has it.
impl<'de> Deserialize<'de> for SecretBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;

        impl de::Visitor<'_> for BytesVisitor {
            type Value = SecretBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("base64 text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SecretBytes, E> {
                go_base64::decode(text)
                    .map(SecretBytes)
                    .map_err(|_| E::custom("value is not base64; text belongs in stringData"))
            }

            fn visit_unit<E: de::Error>(self) -> Result<SecretBytes, E> {
                Ok(SecretBytes::default())
            }
        }

        deserializer.deserialize_any(BytesVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_base64_and_keeps_the_type() {
        let secret = Secret::from_json(
            br#"{"metadata":{"name":"s"},"type":"Opaque","data":{"p":"aHVudGVyMg==","e":""}}"#,
        )
        .unwrap();
        assert_eq!(&*secret.data["p"], b"hunter2");
        assert_eq!(&*secret.data["e"], b"");
        assert_eq!(secret.type_, "Opaque");
    }

    #[test]
    fn base64_may_have_line_breaks() {
        let secret = Secret::from_json(br#"{"data":{"p":"aHVu\ndGVy\r\nMg==\n"}}"#).unwrap();
        assert_eq!(&*secret.data["p"], b"hunter2");
    }

    #[test]
    fn debug_shows_lengths_and_no_bytes() {
        let secret = Secret::from_json(br#"{"data":{"p":"aHVudGVyMg=="}}"#).unwrap();
        let shown = format!("{secret:?}");
        assert!(shown.contains("<7 bytes>"), "{shown}");
        assert!(
            !shown.contains("hunter2") && !shown.contains("aHVudGVy"),
            "{shown}"
        );
    }

    #[test]
    fn errors_do_not_quote_the_value() {
        for json in [
            r#"{"data":{"p":"not base64: hunter2!"}}"#,
            r#"{"data":"hunter2"}"#,
            r#"{"data":{"p":"aHVudGVyMg=="#,
        ] {
            let error = Secret::from_json(json.as_bytes()).unwrap_err().to_string();
            assert!(
                !error.contains("hunter2") && !error.contains("aHVud"),
                "{error}"
            );
        }
    }
}
