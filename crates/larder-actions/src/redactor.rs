//! Withholds lines with values of Secrets from the logged output of a command.
//!
//! A line is withheld if it contains a value, one of the lines of a value, or either of them in Base64, whole or
//! wrapped as by `base64` and PEM. Other bytes may precede the encoded value, as in a basic authorization, so all three
//! alignments are searched for.

use std::{fmt, sync::Arc};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use zeroize::Zeroizing;

/// Shorter texts are not searched for: they would withhold everything.
const MIN_LENGTH: usize = 4;
/// Lengths of the lines in which programs wrap Base64.
const WRAPPED: [usize; 2] = [64, 76];
/// Replacement for a withheld line.
pub(super) const WITHHELD: &str = "(withheld)";

/// Finds the lines to withhold. Cheap to clone; `Debug` shows none of the texts that it searches for.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Sorted, and none begins with another. So the only one with which a text can begin is the last that is not
    /// greater.
    needles: Arc<[Zeroizing<Vec<u8>>]>,
}

impl Redactor {
    /// Withholds lines with these values.
    pub fn new<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut needles = Vec::new();
        let mut add = |needle: &[u8]| {
            if needle.len() >= MIN_LENGTH {
                needles.push(Zeroizing::new(needle.to_vec()));
            }
        };
        for value in values {
            for line in value.split(|byte| matches!(byte, b'\n' | b'\r')) {
                add(line);
                encoded(line, &mut add);
            }
            if value.contains(&b'\n') {
                encoded(value, &mut add);
            }
        }
        needles.sort_unstable_by(|one: &Zeroizing<Vec<u8>>, other| one.iter().cmp(other.iter()));
        // Keeps the first of those that begin with it.
        needles.dedup_by(|later, kept| later.starts_with(kept));
        Self {
            needles: needles.into(),
        }
    }

    /// Whether there is nothing to withhold.
    pub fn is_empty(&self) -> bool {
        self.needles.is_empty()
    }

    /// Whether a line contains one of the values.
    pub fn matches(&self, line: &[u8]) -> bool {
        (0..line.len()).any(|start| {
            let rest = &line[start..];
            let following = self
                .needles
                .partition_point(|needle| needle.as_slice() <= rest);
            let last = following.checked_sub(1).map(|index| &self.needles[index]);
            last.is_some_and(|needle| rest.starts_with(needle))
        })
    }
}

/// The texts in which `bytes` may appear in Base64. The first and last character are left out where they depend on
/// other bytes as well.
fn encoded(bytes: &[u8], add: &mut impl FnMut(&[u8])) {
    if bytes.len() < MIN_LENGTH {
        return;
    }
    for before in 0..3 {
        let mut aligned = Zeroizing::new(vec![0; before]);
        aligned.extend_from_slice(bytes);
        let own = (before * 8).div_ceil(6)..aligned.len() * 8 / 6;
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let text = Zeroizing::new(engine.encode(&*aligned));
            let whole = text.as_bytes();
            add(&whole[own.clone()]);
            // Wrapped lines begin at the start of the encoded text.
            for length in WRAPPED {
                if before == 0 && whole.len() > length {
                    whole.chunks(length).for_each(&mut *add);
                }
            }
        }
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({})", self.needles.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // on-change 43
    #[test]
    fn values_are_found_plain_encoded_and_within_a_line() {
        let redactor = Redactor::new([&b"hunter2"[..], b"abc"]);
        for line in [
            "hunter2",
            "password=hunter2;",
            "aHVudGVyMg==",
            // printf 'user:hunter2', 'me:hunter2' and 'x:hunter2\n'
            "Authorization: Basic dXNlcjpodW50ZXIy",
            "bWU6aHVudGVyMg==",
            "eDpodW50ZXIyCg==",
        ] {
            assert!(redactor.matches(line.as_bytes()), "{line}");
        }
        for line in ["", "abc", "hunter", "password=", "aHVudGVy"] {
            assert!(!redactor.matches(line.as_bytes()), "{line}");
        }
        assert!(Redactor::default().is_empty() && !redactor.is_empty());
        assert!(!format!("{redactor:?}").contains("hunter2"));
    }

    // on-change 43
    #[test]
    fn each_line_of_a_longer_value_is_found() {
        let key: Vec<u8> = (0..200u8).map(|byte| b'!' + byte % 90).collect();
        let pem = format!("-----BEGIN KEY-----\n{}\nshort", "QUJD".repeat(16));
        let redactor = Redactor::new([&key[..], pem.as_bytes()]);
        assert!(redactor.matches(format!("> {}", "QUJD".repeat(16)).as_bytes()));
        let text = STANDARD_NO_PAD.encode(&key);
        for line in text.as_bytes().chunks(76).chain(text.as_bytes().chunks(64)) {
            assert!(redactor.matches(line));
        }
    }
}
