//! Compares a file with its computed content, by a rule for each origin of the content (beside-kubelet R24).

use std::{borrow::Cow, collections::HashSet, os::fd::OwnedFd};

use larder_files::sys;
use larder_objects::pem;
use larder_projection::Origin;
use rustix::{
    fs::Stat,
    io::{Errno, Result},
};
use zeroize::Zeroizing;

/// Bytes that are compared at a time.
const CHUNK: usize = 16 << 10;

/// Longest text that is read as a whole, unless the computed one is longer. Annotations have at most 256 KiB, which
/// quoting expands to at most four times that.
const MAX_TEXT: usize = 2 << 20;

/// Annotations whose values only the kubelet knows, and that of the touch.
const UNKNOWN_ANNOTATIONS: [&str; 2] = ["kubernetes.io/config.", "larder.dev/"];

/// How a file is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Byte by byte.
    Bytes,
    /// It must exist. Its content is unknown, because a token or certificate is issued to the kubelet.
    Existence,
    /// The same certificates in any order: the kubelet shuffles them.
    TrustAnchors,
    /// Line by line, without the annotations of [`UNKNOWN_ANNOTATIONS`].
    Annotations,
}

impl Rule {
    pub(super) fn of(origin: &Origin<'_>) -> Self {
        match origin {
            Origin::Token { .. } | Origin::PodCertificate { .. } => Self::Existence,
            Origin::TrustBundle => Self::TrustAnchors,
            Origin::Field("metadata.annotations") => Self::Annotations,
            Origin::Field(path) => {
                let key = path.strip_prefix("metadata.annotations['");
                if key.is_some_and(is_unknown) {
                    Self::Existence
                } else {
                    Self::Bytes
                }
            }
            Origin::Value { .. }
            | Origin::Key { .. }
            | Origin::Missing { .. }
            | Origin::Resource { .. }
            | Origin::EnvFile { .. }
            | Origin::Service { .. } => Self::Bytes,
        }
    }

    /// Whether `file` has the content `expected` by this rule. `buffer` is for its bytes.
    pub(super) fn is_met(
        self,
        file: &OwnedFd,
        stat: &Stat,
        expected: &[u8],
        buffer: &mut Buffer,
    ) -> Result<bool> {
        match self {
            Self::Existence => Ok(true),
            Self::Bytes => same_bytes(file, stat, expected, buffer),
            Self::TrustAnchors => compare_text(file, stat, expected, |found, expected| {
                anchors(found) == anchors(expected)
            }),
            Self::Annotations => compare_text(file, stat, expected, |found, expected| {
                known_lines(found).eq(known_lines(expected))
            }),
        }
    }
}

/// What `bytes` of a file of this origin say to a hook: nothing where only the existence of the file is compared, and of
/// others what is compared. So a token that is renewed, the order of trust anchors and a touch are no change.
pub fn comparable<'b>(origin: Option<&Origin<'_>>, bytes: &'b [u8]) -> Cow<'b, [u8]> {
    let rule = origin.map_or(Rule::Bytes, Rule::of);
    match (rule, str::from_utf8(bytes)) {
        (Rule::Existence, _) => Cow::Borrowed(&[]),
        (Rule::Annotations, Ok(text)) => {
            let lines: Vec<_> = known_lines(text).collect();
            Cow::Owned(lines.join("\n").into_bytes())
        }
        (Rule::TrustAnchors, Ok(text)) => {
            let mut anchors: Vec<_> = anchors(text).into_iter().collect();
            anchors.sort_unstable();
            Cow::Owned(anchors.concat())
        }
        (Rule::Bytes | Rule::Annotations | Rule::TrustAnchors, _) => Cow::Borrowed(bytes),
    }
}

/// Room for bytes from the disk, wiped when it is dropped.
pub(super) struct Buffer(Zeroizing<Vec<u8>>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Zeroizing::new(vec![0; CHUNK]))
    }
}

fn same_bytes(file: &OwnedFd, stat: &Stat, expected: &[u8], buffer: &mut Buffer) -> Result<bool> {
    if u64::try_from(stat.st_size) != Ok(expected.len() as u64) {
        return Ok(false);
    }
    let buffer = &mut *buffer.0;
    for chunk in expected.chunks(buffer.len()) {
        let found = &mut buffer[..chunk.len()];
        let count = sys::read(file, found)?;
        if found[..count] != *chunk {
            return Ok(false);
        }
    }
    // It may have grown since its size was taken.
    Ok(sys::read(file, &mut buffer[..1])? == 0)
}

fn compare_text(
    file: &OwnedFd,
    stat: &Stat,
    expected: &[u8],
    is_same: impl FnOnce(&str, &str) -> bool,
) -> Result<bool> {
    let size = usize::try_from(stat.st_size).map_err(|_| Errno::FBIG)?;
    if size > MAX_TEXT.max(2 * expected.len()) {
        return Ok(false);
    }
    let mut found = Zeroizing::new(vec![0; size + 1]);
    let count = sys::read(file, &mut found)?;
    if count > size {
        return Ok(false);
    }
    match (str::from_utf8(&found[..count]), str::from_utf8(expected)) {
        (Ok(found), Ok(expected)) => Ok(is_same(found, expected)),
        _ => Ok(false),
    }
}

fn anchors(text: &str) -> HashSet<Vec<u8>> {
    pem::blocks(text)
        .into_iter()
        .map(|block| block.der)
        .collect()
}

/// The lines of a file of annotations, `KEY="VALUE"`, whose values larder knows.
fn known_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !is_unknown(line))
}

fn is_unknown(annotation: &str) -> bool {
    UNKNOWN_ANNOTATIONS
        .iter()
        .any(|prefix| annotation.starts_with(prefix))
}
