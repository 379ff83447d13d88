//! Digests, kept in place of the content that a hook selects.
//!
//! HMAC-SHA-256 over the sorted items (rule F2). The key is in memory only, so a digest on disk reveals nothing about a
//! short Secret (rule P2). Every field is preceded by its length, so that different sets of items have different
//! encodings.

use ring::{hmac, rand};

/// The digest key of a machine. `Debug` does not show it: ring's names the algorithm only.
#[derive(Clone, Debug)]
pub struct DigestKey {
    key: hmac::Key,
    ends_with_agent: bool,
}

impl DigestKey {
    /// Length of a stored key.
    pub const BYTES: usize = 32;

    /// The key that was stored as these bytes.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, bytes),
            ends_with_agent: false,
        }
    }

    /// A random key that is stored nowhere.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub fn temporary() -> Result<Self, NoRandomness> {
        let key = Self::from_bytes(&Self::generate()?);
        Ok(Self {
            ends_with_agent: true,
            ..key
        })
    }

    /// Whether the next agent has another key.
    pub fn ends_with_agent(&self) -> bool {
        self.ends_with_agent
    }

    /// Stands for the bytes of one file or variable.
    pub fn tag(&self, bytes: &[u8]) -> ContentTag {
        let mut tagger = self.tagger();
        tagger.update(bytes);
        tagger.finish()
    }

    /// Tags the bytes of one file or variable that come piece by piece.
    pub fn tagger(&self) -> Tagger {
        Tagger(hmac::Context::with_key(&self.key))
    }

    /// Identifies the key among others: a digest under another key says nothing. Shown as hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let tag = self.tag(b"larder/on-change/key");
        format!("{:016x}", u128::from_be_bytes(tag.0) >> 64)
    }

    /// Random bytes for a new key.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub fn generate() -> Result<[u8; Self::BYTES], NoRandomness> {
        let random = rand::generate(&rand::SystemRandom::new()).map_err(|_| NoRandomness)?;
        Ok(random.expose())
    }
}

/// Computes the tag of bytes that come piece by piece.
#[derive(Clone, Debug)]
pub struct Tagger(hmac::Context);

impl Tagger {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The tag of all bytes.
    pub fn finish(self) -> ContentTag {
        let mut short = [0; 16];
        short.copy_from_slice(&self.0.sign().as_ref()[..16]);
        ContentTag(short)
    }
}

/// The system has no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random numbers from the system")]
pub struct NoRandomness;

/// Stands for the bytes of one file or variable, under one key. Half an HMAC, since a pod has one for each of its
/// files. Without the key, no collision can be constructed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentTag([u8; 16]);

impl ContentTag {
    /// The tag as lower-case hexadecimal digits, for storage.
    pub(crate) fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// The tag that [`to_hex`](Self::to_hex) has written; `None` if the text is something else.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let is_whole = text.len() == 32 && text.bytes().all(is_hex_digit);
        let number = is_whole.then(|| u128::from_str_radix(text, 16).ok())??;
        Some(Self(number.to_be_bytes()))
    }
}

/// The digest of the content that a hook selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ContentDigest([u8; 32]);

impl ContentDigest {
    /// The digest as lower-case hexadecimal digits, for storage.
    pub(crate) fn to_hex(self) -> String {
        let (halves, _) = self.0.as_chunks();
        let [high, low] = [0, 1].map(|half| u128::from_be_bytes(halves[half]));
        format!("{high:032x}{low:032x}")
    }

    /// The digest that [`to_hex`](Self::to_hex) has written; `None` if the text is something else.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(is_hex_digit) {
            return None;
        }
        let mut bytes = [0; 32];
        let halves = [&text[..32], &text[32..]];
        for (bytes, digits) in bytes.chunks_exact_mut(16).zip(halves) {
            let half = u128::from_str_radix(digits, 16).ok()?;
            bytes.copy_from_slice(&half.to_be_bytes());
        }
        Some(Self(bytes))
    }
}

fn is_hex_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// One file or variable of the content of a hook.
pub(crate) struct DigestItem<'a> {
    pub(crate) is_variable: bool,
    /// The volume, or the container.
    pub(crate) owner: &'a str,
    /// The path in the volume, or the name.
    pub(crate) name: &'a str,
    pub(crate) tag: ContentTag,
}

impl DigestKey {
    /// The digest of items, which are in the order of their fields. Modes, owners, times and versions are not part of
    /// it (rule F2).
    pub(crate) fn digest<'a>(&self, items: impl Iterator<Item = DigestItem<'a>>) -> ContentDigest {
        let mut context = hmac::Context::with_key(&self.key);
        for item in items {
            context.update(&[u8::from(item.is_variable)]);
            for text in [item.owner, item.name] {
                context.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
                context.update(text.as_bytes());
            }
            context.update(&item.tag.0);
        }
        let tag = context.sign();
        ContentDigest(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(key: u8, items: &[(bool, &str, &str, &str)]) -> ContentDigest {
        let key = DigestKey::from_bytes(&[key; 32]);
        let items = items
            .iter()
            .map(|(is_variable, owner, name, text)| DigestItem {
                is_variable: *is_variable,
                owner,
                name,
                tag: key.tag(text.as_bytes()),
            });
        key.digest(items)
    }

    // on-change 15
    #[test]
    fn names_bytes_and_kinds_of_items_count() {
        let one = digest(1, &[(false, "v", "a", "1"), (false, "v", "b", "2")]);
        assert_eq!(
            one,
            digest(1, &[(false, "v", "a", "1"), (false, "v", "b", "2")])
        );
        assert_ne!(
            one,
            digest(1, &[(false, "v", "a", "2"), (false, "v", "b", "1")])
        );
        assert_ne!(one, digest(1, &[(false, "v", "a", "1")]));
        assert_ne!(
            digest(1, &[(true, "v", "a", "1")]),
            digest(1, &[(false, "v", "a", "1")])
        );
    }

    #[test]
    fn boundaries_between_fields_count() {
        let file = |owner, name, text| digest(1, &[(false, owner, name, text)]);
        assert_ne!(file("v", "ab", "c"), file("va", "b", "c"));
        assert_ne!(file("v", "a", "bc"), file("v", "ab", "c"));
    }

    // on-change 65
    #[test]
    fn digest_of_a_secret_depends_on_the_key() {
        let secret = [(false, "v", "a", "1")];
        assert_ne!(digest(1, &secret), digest(2, &secret));
    }

    #[test]
    fn stored_digests_are_read_back() {
        let one = digest(1, &[(false, "v", "a", "1")]);
        assert_eq!(ContentDigest::from_hex(&one.to_hex()), Some(one));
        for garbage in ["", "zz", &"g".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
            assert_eq!(ContentDigest::from_hex(garbage), None);
        }
    }

    #[test]
    fn debug_output_has_neither_key_nor_content() {
        let key = DigestKey::from_bytes(b"canary-canary-canary-canary-0000");
        let tag = key.tag(b"canary");
        assert!(!format!("{tag:?} {key:?}").contains("canary"));
    }
}
