//! The identity of one incarnation of a name.

use std::fmt;

use serde::Deserialize;
use smol_str::{SmolStr, ToSmolStr as _};

use crate::stable_uid::hyphenated;

/// `metadata.uid`; empty when the object never was at an API server.
///
/// An API server's UIDs are UUIDs, and a node holds one for each of its objects: such a text is kept as its 16 bytes.
/// Any other stays a text.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "SmolStr")]
pub struct Uid(UidForm);

#[derive(Clone, PartialEq, Eq, Hash)]
enum UidForm {
    Uuid([u8; 16]),
    Text(SmolStr),
}

/// The bytes of a UUID in its usual form: any other would not come out as it went in.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let bits = u128::from_str_radix(&text.replace('-', ""), 16).ok()?;
    (hyphenated(bits) == text).then_some(bits.to_be_bytes())
}

impl Uid {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, UidForm::Text(text) if text.is_empty())
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self(UidForm::Text(SmolStr::default()))
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(uuid(text).map_or_else(|| UidForm::Text(text.into()), UidForm::Uuid))
    }
}

impl From<SmolStr> for Uid {
    fn from(text: SmolStr) -> Self {
        Self(uuid(&text).map_or(UidForm::Text(text), UidForm::Uuid))
    }
}

impl From<Uid> for SmolStr {
    fn from(uid: Uid) -> Self {
        uid.to_smolstr()
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            UidForm::Text(text) => f.write_str(text),
            UidForm::Uuid(bytes) => f.write_str(&hyphenated(u128::from_be_bytes(*bytes))),
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uid({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "0f4e3a91-7c2d-4b58-9d06-a1b2c3d4e5f6";

    #[test]
    fn a_uuid_takes_no_memory_of_its_own() {
        let uid = Uid::from(UUID);
        assert!(matches!(uid.0, UidForm::Uuid(_)));
        assert_eq!(size_of::<Uid>(), size_of::<SmolStr>());
        assert_eq!(uid, serde_json::from_str(&format!("{UUID:?}")).unwrap());
        assert!(!uid.is_empty() && Uid::default().is_empty());
    }

    proptest! {
        #[test]
        fn every_text_comes_out_as_it_went_in(text in prop_oneof![
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-fg]{12}",
            "[0-9a-f-]{36}",
            ".{0,40}",
        ]) {
            let uid = Uid::from(text.as_str());
            prop_assert_eq!(uid.to_string(), text.as_str());
            prop_assert_eq!(&uid, &Uid::from(SmolStr::from(text.as_str())));
            prop_assert_eq!(SmolStr::from(uid), text);
        }
    }
}
