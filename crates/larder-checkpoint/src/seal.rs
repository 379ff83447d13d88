//! Sealing: encrypts a file, and detects that it was changed or moved.
//!
//! ```text
//! magic (8 bytes) │ format version (2) │ key ID (8) │ salt (32) │ ciphertext: length (4), content, zeros │ tag (16)
//! ```
//!
//! Invariants:
//! 1. Key and nonce of a file come from HKDF-SHA256 over the key of the checkpoint and 32 random bytes. So no pair of
//!    key and nonce is used twice, and no counter must survive a crash.
//! 2. The header, the cluster, the node and the place of the file are authenticated (ChaCha20-Poly1305). A file opens
//!    in its own place only.
//! 3. A file is a multiple of [`BLOCK`] bytes long, so its length reveals no more than that.
//! 4. Content is wiped where it was sealed and where it was opened. The key of the checkpoint is in one place of the
//!    heap, and wiped with it. Derived keys are wiped where this module holds them; `ring` leaves parts of them on the
//!    stack.

use std::fmt;

use ring::{
    aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    digest, hkdf, hmac,
    rand::{SecureRandom as _, SystemRandom},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// First bytes of each file.
const MAGIC: [u8; 8] = *b"larder\x00c";
/// Version of the format of all files in a directory, which this crate writes and opens. Version 1 had an index in pages.
const VERSION: u16 = 3;
/// Sizes of files are multiples of this.
const BLOCK: usize = 512;
const SALT_BYTES: usize = 32;
const HEADER_BYTES: usize = MAGIC.len() + 2 + 8 + SALT_BYTES;
const TAG_BYTES: usize = 16;
const LENGTH_BYTES: usize = 4;
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;

/// The bytes of a key. On the heap, because a move would leave copies behind.
pub(crate) type KeyBytes = Box<Zeroizing<[u8; KEY_BYTES]>>;

/// SHA-256.
pub type Digest = [u8; 32];

/// SHA-256 of `bytes`.
pub fn digest(bytes: &[u8]) -> Digest {
    let mut found = [0; 32];
    found.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    found
}

/// Length of the file for `content` bytes.
pub(crate) fn sealed_len(content: usize) -> usize {
    (HEADER_BYTES + LENGTH_BYTES + content + TAG_BYTES).next_multiple_of(BLOCK)
}

/// Names a key without showing any of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId([u8; 8]);

/// A key of the checkpoint: 32 random bytes.
pub(crate) struct SealingKey {
    bytes: KeyBytes,
    id: KeyId,
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SealingKey").field(&self.id).finish()
    }
}

/// The cluster and the node that a checkpoint belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Identifies the cluster.
    pub cluster: Digest,
    /// The name of the node.
    pub node: String,
}

/// The place that a file is bound to: each part with its length before it, so that no two places have the same bytes.
#[derive(Debug)]
pub(crate) struct SealContext(Vec<u8>);

impl SealContext {
    /// The place of the index.
    pub(crate) fn index(owner: &Owner) -> Self {
        Self::new(owner, ["Index", "", "root"])
    }

    /// The place of a copy of this kind, namespace and name. The kind is not empty.
    pub(crate) fn new(owner: &Owner, names: [&str; 3]) -> Self {
        let mut bytes = Vec::new();
        let owner = [&owner.cluster[..], owner.node.as_bytes()];
        for part in owner.into_iter().chain(names.map(str::as_bytes)) {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        Self(bytes)
    }
}

/// A file that does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// It has another form.
    #[error("not a file of a checkpoint")]
    Foreign,
    /// It is of an older or newer version of this crate.
    #[error("format version {0} is not supported")]
    Version(u16),
    /// Its key is not among those that are configured.
    #[error("sealed with a key that is not configured")]
    UnknownKey,
    /// It was changed, moved or copied.
    #[error("damaged, or sealed for another path, node or cluster")]
    Damaged,
}

/// A sealed file and its name.
pub(crate) struct Sealed {
    pub(crate) bytes: Vec<u8>,
    pub(crate) name: FileName,
}

/// The content of a file.
pub(crate) struct Opened {
    pub(crate) content: Zeroizing<Vec<u8>>,
    pub(crate) key: KeyId,
}

impl SealingKey {
    pub(crate) fn new(bytes: KeyBytes) -> Self {
        let mut id = [0; 8];
        derive(&bytes, &[], b"larder checkpoint 1: key id", &mut id);
        Self {
            bytes,
            id: KeyId(id),
        }
    }

    /// A new random key.
    #[expect(
        clippy::unnecessary_box_returns,
        reason = "moved by value, it would leave a copy"
    )]
    pub(crate) fn random() -> KeyBytes {
        let mut bytes = KeyBytes::default();
        fill_random(&mut **bytes);
        bytes
    }

    pub(crate) fn id(&self) -> KeyId {
        self.id
    }

    fn cipher(&self, salt: &[u8]) -> (LessSafeKey, Nonce) {
        let mut derived = Zeroizing::new([0; KEY_BYTES + NONCE_BYTES]);
        derive(
            &self.bytes,
            salt,
            b"larder checkpoint 1: file",
            &mut *derived,
        );
        let (key, nonce) = derived.split_at(KEY_BYTES);
        let key =
            UnboundKey::new(&CHACHA20_POLY1305, key).expect("the key has the cipher's length");
        let nonce = Nonce::try_assume_unique_for_key(nonce).expect("the nonce has its length");
        (LessSafeKey::new(key), nonce)
    }

    /// Seals `content` for `place`.
    pub(crate) fn seal(&self, place: &SealContext, content: &[u8]) -> Sealed {
        let mut salt = [0; SALT_BYTES];
        fill_random(&mut salt);
        let size = sealed_len(content.len());
        // Allocated once: growing would leave a copy in freed memory.
        let mut bytes = Vec::with_capacity(size);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.id.0);
        bytes.extend(salt);
        let length = u32::try_from(content.len()).expect("objects are limited to megabytes");
        bytes.extend(length.to_le_bytes());
        bytes.extend(content);
        bytes.resize(size - TAG_BYTES, 0);

        let (key, nonce) = self.cipher(&salt);
        let aad = [&bytes[..HEADER_BYTES], &place.0].concat();
        let plain = &mut bytes[HEADER_BYTES..];
        let tag = key
            .seal_in_place_separate_tag(nonce, Aad::from(aad), plain)
            .expect("the content is shorter than the cipher's limit");
        bytes.extend(tag.as_ref());
        let name = self.name(place, &salt);
        Sealed { bytes, name }
    }

    fn name(&self, place: &SealContext, salt: &[u8]) -> FileName {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        derive(
            &self.bytes,
            &[],
            b"larder checkpoint 1: file name",
            &mut *key,
        );
        let key = hmac::Key::new(hmac::HMAC_SHA256, &*key);
        let named = [&place.0, salt].concat();
        let mut hash = [0; NAME_BYTES];
        hash.copy_from_slice(&hmac::sign(&key, &named).as_ref()[..NAME_BYTES]);
        FileName(hash)
    }
}

/// Bytes of the hash that names a file.
const NAME_BYTES: usize = 16;

/// The name of a sealed file: a hash in hexadecimal digits. It reveals nothing about the place, and no other file has
/// had it.
///
/// Kept as the hash, since the index names each file: a text takes three times as much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct FileName(pub(crate) [u8; NAME_BYTES]);

impl FileName {
    /// The name `text`, if [`SealingKey::seal`] can have given it to a file.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 2 * NAME_BYTES || !text.bytes().all(is_digit) {
            return None;
        }
        let hash = u128::from_str_radix(text, 16).ok()?;
        Some(Self(hash.to_be_bytes()))
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Opens a file of `place` with whichever of `keys` has sealed it.
pub(crate) fn open(
    keys: &[SealingKey],
    place: &SealContext,
    mut bytes: Zeroizing<Vec<u8>>,
) -> Result<Opened, SealError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(SealError::Foreign)?;
    let (version, rest) = rest.split_first_chunk().ok_or(SealError::Foreign)?;
    match u16::from_le_bytes(*version) {
        VERSION => {}
        version => return Err(SealError::Version(version)),
    }
    let (id, rest) = rest.split_first_chunk().ok_or(SealError::Damaged)?;
    let id = KeyId(*id);
    let key = keys
        .iter()
        .find(|key| key.id == id)
        .ok_or(SealError::UnknownKey)?;
    let salt = rest.get(..SALT_BYTES).ok_or(SealError::Damaged)?;
    let (key, nonce) = key.cipher(salt);
    let aad = [&bytes[..HEADER_BYTES], &place.0].concat();
    let opened = key
        .open_in_place(nonce, Aad::from(aad), &mut bytes[HEADER_BYTES..])
        .map_err(|_| SealError::Damaged)?;
    let (length, content) = opened.split_first_chunk().ok_or(SealError::Damaged)?;
    let length = u32::from_le_bytes(*length) as usize;
    let content = content.get(..length).ok_or(SealError::Damaged)?;
    Ok(Opened {
        content: Zeroizing::new(content.to_vec()),
        key: id,
    })
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-SHA256.
fn derive(key: &[u8; KEY_BYTES], salt: &[u8], info: &[u8], derived: &mut [u8]) {
    let pseudorandom = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(key);
    let info = [info];
    pseudorandom
        .expand(&info, Length(derived.len()))
        .and_then(|found| found.fill(derived))
        .expect("a few dozen bytes are derived");
}

fn fill_random(bytes: &mut [u8]) {
    SystemRandom::new()
        .fill(bytes)
        .expect("the kernel has random bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn key(byte: u8) -> SealingKey {
        SealingKey::new(Box::new([byte; KEY_BYTES].into()))
    }

    fn owner(cluster: u8, node: &str) -> Owner {
        Owner {
            cluster: [cluster; 32],
            node: node.to_owned(),
        }
    }

    #[test]
    fn a_file_opens_in_its_own_place_only() {
        // offline 15, 17, 18
        let home = owner(1, "node-1");
        let here = SealContext::new(&home, ["Secret", "prod", "tls"]);
        let sealed = key(1).seal(&here, b"hunter2");
        let opens = |place: &SealContext| open(&[key(1)], place, sealed.bytes.clone().into());
        assert_eq!(*opens(&here).ok().unwrap().content, b"hunter2");
        let (other_cluster, other_node) = (owner(2, "node-1"), owner(1, "node-2"));
        for elsewhere in [
            SealContext::new(&other_cluster, ["Secret", "prod", "tls"]),
            SealContext::new(&other_node, ["Secret", "prod", "tls"]),
            SealContext::new(&home, ["ConfigMap", "prod", "tls"]),
            SealContext::new(&home, ["Secret", "pro", "dtls"]),
            SealContext::new(&home, ["Secret", "prod", "tls2"]),
        ] {
            assert_eq!(
                opens(&elsewhere).err(),
                Some(SealError::Damaged),
                "{elsewhere:?}"
            );
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let home = owner(1, "node-1");
        let here = SealContext::new(&home, ["Secret", "prod", "tls"]);
        let sealed = key(1).seal(&here, b"hunter2").bytes;
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(open(&[key(1)], &here, changed.into()).is_err(), "byte {at}");
        }
        for length in 0..sealed.len() {
            let cut = sealed[..length].to_vec();
            assert!(
                open(&[key(1)], &here, cut.into()).is_err(),
                "{length} bytes"
            );
        }
    }

    #[test]
    fn sizes_are_multiples_of_a_block_and_names_never_repeat() {
        let home = owner(1, "node-1");
        let here = SealContext::new(&home, ["Secret", "prod", "tls"]);
        for (length, size) in [(0, 512), (400, 512), (442, 512), (443, 1024), (5000, 5120)] {
            let sealed = key(1).seal(&here, &vec![7; length]);
            assert_eq!(sealed.bytes.len(), size, "{length}");
        }
        let (first, second) = (key(1).seal(&here, b"same"), key(1).seal(&here, b"same"));
        assert_ne!(first.bytes, second.bytes);
        assert_ne!(first.name, second.name);
        let text = first.name.to_string();
        assert_eq!(FileName::parse(&text), Some(first.name), "{text}");
        for name in ["index", "", "..", "0123456789abcdef0123456789abcdeF"] {
            assert_eq!(FileName::parse(name), None, "{name}");
            assert_eq!(
                FileName::parse(&format!("{text}{name}")).is_some(),
                name.is_empty()
            );
        }
    }

    #[test]
    fn another_format_version_is_named() {
        // offline 30
        let home = owner(1, "node-1");
        let here = SealContext::new(&home, ["Secret", "prod", "tls"]);
        let mut sealed = key(1).seal(&here, b"hunter2").bytes;
        sealed[MAGIC.len()] = 1;
        let error = open(&[key(1)], &here, sealed.into()).err().unwrap();
        assert_eq!(error.to_string(), "format version 1 is not supported");
    }

    #[test]
    fn any_configured_key_opens_and_an_unknown_one_is_named() {
        // offline 13
        let home = owner(1, "node-1");
        let here = SealContext::new(&home, ["Secret", "prod", "tls"]);
        let sealed = key(1).seal(&here, b"hunter2").bytes;
        let opened = open(&[key(2), key(1)], &here, sealed.clone().into());
        assert_eq!(opened.ok().unwrap().key, key(1).id());
        let error = open(&[key(2)], &here, sealed.into()).err();
        assert_eq!(error, Some(SealError::UnknownKey));
        assert!(!format!("{:?}", key(0x61)).contains("aaaa"));
    }
}
