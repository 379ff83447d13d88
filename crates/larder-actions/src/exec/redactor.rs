//! Withholds lines with values of Secrets from the logged output of a command.
//!
//! A line is withheld if it contains a value, one of the lines of a value, or either of them in Base64, whole or
//! wrapped as by `base64` and PEM. Other bytes may precede the encoded value, as in a basic authorization, so all three
//! alignments are searched for. The line is also searched as it was before it was escaped for JSON or percent-encoded.
//!
//! Invariant: the memory is bounded. With more values than fit, every line is withheld.

use std::{borrow::Cow, fmt};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use percent_encoding::percent_decode;
use zeroize::Zeroizing;

/// Shorter texts are not searched for: they would withhold everything.
const MIN_LENGTH: usize = 4;
/// Most bytes of values. What is searched for takes some twenty times as much.
const MAX_BYTES: usize = 64 << 10;
/// Lengths of the lines in which programs wrap Base64.
const WRAPPED: [usize; 2] = [64, 76];

/// Finds the lines to withhold. `Debug` shows none of the texts that it searches for.
#[derive(Default, PartialEq, Eq)]
pub struct Redactor {
    /// Sorted, and none begins with another. So the only one with which a text can begin is the last that is not
    /// greater.
    needles: Vec<Zeroizing<Vec<u8>>>,
    /// Room for further values; `None` if every line is withheld.
    room: Option<usize>,
    /// The versions of what the values are from.
    versions: Vec<String>,
}

impl Redactor {
    /// Withholds nothing yet.
    pub fn new() -> Self {
        Self {
            needles: Vec::new(),
            room: Some(MAX_BYTES),
            versions: Vec::new(),
        }
    }

    /// Withholds every line.
    pub fn all() -> Self {
        Self::default()
    }

    /// Notes the version of something that values are from. Everything is withheld if it is another one when the command
    /// has ended, even with the same values: others may have been in place meanwhile.
    pub fn add_version(&mut self, version: String) {
        self.versions.push(version);
    }

    /// Withholds lines with this value. Returns whether there is room for others; else every line is withheld.
    pub fn add(&mut self, value: &[u8]) -> bool {
        self.room = self
            .room
            .and_then(|room| room.checked_sub(value.len().max(1)));
        if self.room.is_none() {
            self.needles = Vec::new();
            return false;
        }
        let needles = &mut self.needles;
        let mut add = |needle: &[u8]| {
            if needle.len() >= MIN_LENGTH {
                needles.push(Zeroizing::new(needle.to_vec()));
            }
        };
        for line in value.split(|byte| matches!(byte, b'\n' | b'\r')) {
            add(line);
            encoded(line, &mut add);
        }
        if value.contains(&b'\n') {
            encoded(value, &mut add);
        }
        true
    }

    /// All values were added.
    pub(super) fn finish(mut self) -> Self {
        self.needles
            .sort_unstable_by(|one, other| one.as_slice().cmp(other));
        // Keeps the first of those that begin with it.
        self.needles.dedup_by(|later, kept| later.starts_with(kept));
        self
    }

    /// Whether there is nothing to withhold.
    pub(super) fn is_empty(&self) -> bool {
        self.needles.is_empty() && self.room.is_some()
    }

    /// Whether a line contains one of the values.
    pub(super) fn matches(&self, line: &[u8]) -> bool {
        let decoded = || Cow::from(percent_decode(line));
        let spaced = || -> Vec<u8> {
            let spaced = line
                .iter()
                .map(|&byte| if byte == b'+' { b' ' } else { byte });
            spaced.collect()
        };
        self.room.is_none()
            || self.is_in(line)
            || line.contains(&b'%') && self.is_in(&decoded())
            || line.contains(&b'+') && self.is_in(&Cow::from(percent_decode(&spaced())))
            || line.contains(&b'\\') && self.is_in(&unescaped(line))
    }

    fn is_in(&self, text: &[u8]) -> bool {
        (0..text.len()).any(|start| {
            let rest = &text[start..];
            let following = self
                .needles
                .partition_point(|needle| needle.as_slice() <= rest);
            let last = following.checked_sub(1).map(|index| &self.needles[index]);
            last.is_some_and(|needle| rest.starts_with(needle))
        })
    }
}

/// The text that is escaped for JSON (RFC 8259) in a line.
fn unescaped(line: &[u8]) -> Vec<u8> {
    let unit = |digits: &[u8]| -> Option<u16> {
        let digits = std::str::from_utf8(digits.get(..4)?).ok()?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut text = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        let Some((&escaped, after)) = rest.split_first() else {
            break;
        };
        rest = after;
        match escaped {
            b'n' => text.push(b'\n'),
            b'r' => text.push(b'\r'),
            b't' => text.push(b'\t'),
            b'b' => text.push(8),
            b'f' => text.push(12),
            b'u' => {
                let Some(first) = unit(rest) else { continue };
                rest = &rest[4..];
                let second = rest.strip_prefix(b"\\u").and_then(unit);
                let mut units = [first, second.unwrap_or_default()].into_iter();
                let mut decoded = char::decode_utf16(units.by_ref());
                let char = decoded.next().and_then(Result::ok).unwrap_or_default();
                if char.len_utf16() == 2 {
                    rest = &rest[6..];
                }
                text.extend(char.encode_utf8(&mut [0; 4]).bytes());
            }
            other => text.push(other),
        }
    }
    text
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
        match self.room {
            Some(_) => write!(f, "Redactor({})", self.needles.len()),
            None => f.write_str("Redactor(all)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(values: &[&[u8]]) -> Redactor {
        let mut redactor = Redactor::new();
        for value in values {
            redactor.add(value);
        }
        redactor.finish()
    }

    // on-change 43
    #[test]
    fn values_are_found_plain_encoded_and_within_a_line() {
        let redactor = redactor(&[b"hunter2", b"abc"]);
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
        assert!(Redactor::new().is_empty() && !redactor.is_empty());
        assert!(!format!("{redactor:?}").contains("hunter2"));
    }

    // on-change 43
    #[test]
    fn each_line_of_a_longer_value_is_found() {
        let key: Vec<u8> = (0..200u8).map(|byte| b'!' + byte % 90).collect();
        let pem = format!("-----BEGIN KEY-----\n{}\nshort", "QUJD".repeat(16));
        let redactor = redactor(&[&key, pem.as_bytes()]);
        assert!(redactor.matches(format!("> {}", "QUJD".repeat(16)).as_bytes()));
        let text = STANDARD_NO_PAD.encode(&key);
        for line in text.as_bytes().chunks(76).chain(text.as_bytes().chunks(64)) {
            assert!(redactor.matches(line));
        }
    }

    // on-change 43
    #[test]
    fn secret_does_not_leak_escaped_for_json_or_percent_encoded() {
        let values = ["p\"w\\x/ü\n2", "a b+c&d=é", "snow😀man"];
        let redactor = redactor(&values.map(str::as_bytes));
        let percent = |value: &str| {
            percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC)
                .to_string()
        };
        for value in values {
            let lines = [
                format!("{{\"k\":{}}}", serde_json::to_string(value).unwrap()),
                percent(value),
                percent(value).to_lowercase(),
                percent(value).replace("%20", "+"),
            ];
            for line in lines {
                assert!(redactor.matches(line.as_bytes()), "{line}");
            }
        }
        assert!(redactor.matches(br#""snow\ud83d\uDE00man""#));
        assert!(redactor.matches(br#""p\u0022w\\x\/\u00fc""#));
        for line in ["\\", "\\u", "\\u12", "\\ud83d", "%", "%4", "100 % + 5"] {
            assert!(!redactor.matches(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn large_secrets_take_no_memory_and_withhold_everything() {
        let mut redactor = Redactor::new();
        assert!(redactor.add(&vec![b'x'; MAX_BYTES]));
        let taken: usize = redactor.needles.iter().map(|needle| needle.len()).sum();
        assert!(taken < 32 * MAX_BYTES, "{taken}");
        assert!(!redactor.matches(b"unsuspicious"));
        assert!(!redactor.add(b"y"));
        assert_eq!(redactor.needles.len(), 0);
        assert!(redactor.matches(b"unsuspicious") && !redactor.is_empty());
    }
}
