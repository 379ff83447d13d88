//! Digests, kept in place of the content that a hook selects.
//!
//! HMAC-SHA-256 over the sorted items (rule F2). The key is in memory only, so a digest on disk reveals nothing about a
//! short Secret (rule P2). Every field is preceded by its length, so that different sets of items have different
//! encodings.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use ring::{hmac, rand};

use crate::changes::{Changes, VolumeChange};

/// The digest key of a machine. `Debug` does not show it.
#[derive(Clone)]
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
        let tag = hmac::sign(&self.key, bytes);
        let mut short = [0; 16];
        short.copy_from_slice(&tag.as_ref()[..16]);
        ContentTag(short)
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

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey")
    }
}

/// The system has no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random numbers from the system")]
pub struct NoRandomness;

/// Stands for the bytes of one file or variable, under one key. Half an HMAC, since a pod has one for each of its
/// files. Without the key, no collision can be constructed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentTag([u8; 16]);

impl fmt::Debug for ContentTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContentTag")
    }
}

/// The digest of the content that a hook selects.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentDigest([u8; 32]);

impl ContentDigest {
    /// The digest as lower-case hexadecimal digits, for storage.
    pub fn to_hex(&self) -> String {
        let (halves, _) = self.0.as_chunks();
        let [high, low] = [0, 1].map(|half| u128::from_be_bytes(halves[half]));
        format!("{high:032x}{low:032x}")
    }

    /// The digest that [`to_hex`](Self::to_hex) has written; `None` if the text is something else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 64 || !text.bytes().all(is_digit) {
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

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentDigest({}…)", &self.to_hex()[..8])
    }
}

/// Adds up the content of one hook, in any order.
///
/// Modes, owners, times and versions are not part of it (rule F2).
#[derive(Debug)]
pub struct Digester {
    key: DigestKey,
    items: Tags,
}

/// The tag of each item, by its kind, its volume or container, and its path or name.
type Tags = BTreeMap<(u8, Box<str>, Box<str>), ContentTag>;

/// The content that a hook selects, without the bytes. It serves only to compute what has changed. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Items {
    items: Arc<Tags>,
}

impl Items {
    /// The differences from `earlier`, in the order of names, without variables that have none. The directories of
    /// volumes are the caller's to add.
    pub fn changes_since(&self, earlier: &Self) -> Changes {
        let mut volumes = BTreeMap::<&str, VolumeChange>::new();
        let mut variables = BTreeSet::new();
        let keys: BTreeSet<_> = self.items.keys().chain(earlier.items.keys()).collect();
        for key @ (what, owner, name) in keys {
            let (now, before) = (self.items.get(key), earlier.items.get(key));
            if now == before {
                continue;
            }
            if *what == VARIABLE {
                variables.extend((!name.is_empty()).then(|| name.to_string()));
                continue;
            }
            let volume = volumes.entry(owner).or_default();
            let paths = match (before, now) {
                (None, _) => &mut volume.added,
                (_, None) => &mut volume.removed,
                _ => &mut volume.changed,
            };
            paths.push(name.to_string());
        }
        let named = volumes.into_iter().map(|(name, change)| VolumeChange {
            name: name.into(),
            ..change
        });
        Changes {
            volumes: named.collect(),
            variables: variables.into_iter().collect(),
        }
    }
}

const FILE: u8 = 0;
const VARIABLE: u8 = 1;

impl Digester {
    /// A digester without content.
    pub fn new(key: &DigestKey) -> Self {
        Self {
            key: key.clone(),
            items: BTreeMap::new(),
        }
    }

    /// Adds a file: its volume, its path in the volume, its bytes. A second file of the same path replaces the first.
    pub fn file(&mut self, volume: &str, path: &str, bytes: &[u8]) {
        self.file_tag(volume, path, self.key.tag(bytes));
    }

    /// Adds a variable of a container.
    pub fn variable(&mut self, container: &str, name: &str, value: &[u8]) {
        self.variable_tag(container, name, self.key.tag(value));
    }

    /// Adds a file whose bytes `tag` stands for.
    pub fn file_tag(&mut self, volume: &str, path: &str, tag: ContentTag) {
        self.items.insert((FILE, volume.into(), path.into()), tag);
    }

    /// Adds a variable of a container whose value `tag` stands for.
    pub fn variable_tag(&mut self, container: &str, name: &str, tag: ContentTag) {
        let name = (VARIABLE, container.into(), name.into());
        self.items.insert(name, tag);
    }

    /// The digest of everything that was added.
    pub fn finish(self) -> ContentDigest {
        self.finish_with_items().0
    }

    /// The digest, and the items from which [`Items::changes_since`] computes the changes.
    pub fn finish_with_items(self) -> (ContentDigest, Items) {
        let digest = self.digest();
        let items = Items {
            items: Arc::new(self.items),
        };
        (digest, items)
    }

    fn digest(&self) -> ContentDigest {
        let mut context = hmac::Context::with_key(&self.key.key);
        for ((what, owner, name), tag) in &self.items {
            context.update(&[*what]);
            for text in [owner, name] {
                context.update(&u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes());
                context.update(text.as_bytes());
            }
            context.update(&tag.0);
        }
        let tag = context.sign();
        ContentDigest(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(key: u8, files: &[(&str, &str, &str)]) -> ContentDigest {
        let mut digester = Digester::new(&DigestKey::from_bytes(&[key; 32]));
        for (volume, path, bytes) in files {
            digester.file(volume, path, bytes.as_bytes());
        }
        digester.finish()
    }

    // on-change 15
    #[test]
    fn same_bytes_have_one_digest_in_any_order() {
        let forward = digest(1, &[("v", "a", "1"), ("v", "b", "2")]);
        assert_eq!(forward, digest(1, &[("v", "b", "2"), ("v", "a", "1")]));
        assert_ne!(forward, digest(1, &[("v", "a", "2"), ("v", "b", "1")]));
        assert_ne!(forward, digest(1, &[("v", "a", "1")]));
    }

    #[test]
    fn boundaries_between_fields_count() {
        assert_ne!(
            digest(1, &[("v", "ab", "c")]),
            digest(1, &[("va", "b", "c")])
        );
        assert_ne!(
            digest(1, &[("v", "a", "bc")]),
            digest(1, &[("v", "ab", "c")])
        );
        let mut variable = Digester::new(&DigestKey::from_bytes(&[1; 32]));
        variable.variable("v", "a", b"1");
        assert_ne!(variable.finish(), digest(1, &[("v", "a", "1")]));
    }

    // on-change 42
    #[test]
    fn changes_are_added_changed_and_removed_names() {
        let items = |files: &[(&str, &str, &str)], level: &str| {
            let mut digester = Digester::new(&DigestKey::from_bytes(&[1; 32]));
            for (volume, path, bytes) in files {
                digester.file(volume, path, bytes.as_bytes());
            }
            digester.variable("web", "LEVEL", level.as_bytes());
            digester.variable("web", "SAME", b"x");
            digester.finish_with_items().1
        };
        let before = items(&[("v", "a", "1"), ("v", "b", "1"), ("w", "x", "1")], "1");
        let now = items(&[("v", "b", "2"), ("v", "c", "1"), ("w", "x", "1")], "2");
        let changes = now.changes_since(&before);
        assert_eq!(changes.variables, ["LEVEL"]);
        let [volume] = changes.volumes.as_slice() else {
            panic!("one volume has changed: {changes:?}");
        };
        assert_eq!(volume.name, "v");
        assert_eq!(volume.added, ["c"]);
        assert_eq!(volume.changed, ["b"]);
        assert_eq!(volume.removed, ["a"]);
        assert_eq!(now.changes_since(&now), Changes::default());
    }

    // on-change 65
    #[test]
    fn digest_of_a_secret_depends_on_the_key() {
        assert_ne!(digest(1, &[("v", "a", "1")]), digest(2, &[("v", "a", "1")]));
    }

    #[test]
    fn stored_digests_are_read_back() {
        let one = digest(1, &[("v", "a", "1")]);
        assert_eq!(ContentDigest::from_hex(&one.to_hex()), Some(one));
        for garbage in ["", "zz", &"g".repeat(64), &"A".repeat(64), &"é".repeat(32)] {
            assert_eq!(ContentDigest::from_hex(garbage), None);
        }
    }

    #[test]
    fn debug_output_has_neither_key_nor_content() {
        let key = DigestKey::from_bytes(b"canary-canary-canary-canary-0000");
        let mut digester = Digester::new(&key);
        digester.file("v", "a", b"canary");
        assert!(!format!("{digester:?} {key:?}").contains("canary"));
    }
}
