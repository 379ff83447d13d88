//! Base64 as Go reads it (`encoding/base64`, `StdEncoding`), and so kubectl, kube-apiserver and every Kubernetes client.
//!
//! It is padded. Line breaks do not count, wherever they are, and what is left of the last character's bits may be
//! anything: `YWJ=` is `ab`, as `YWI=` is.

use base64::{
    Engine as _, alphabet,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use zeroize::Zeroizing;

const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Text that is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("illegal base64 data at input byte {at}")]
pub struct MalformedBase64 {
    /// The place that Go names.
    pub at: usize,
}

/// Decodes `text`. What a failed attempt leaves behind is zeroized.
///
/// # Errors
///
/// It is not base64.
pub fn decode(text: &str) -> Result<Vec<u8>, MalformedBase64> {
    if text.contains(['\r', '\n']) {
        let mut packed = Zeroizing::new(String::with_capacity(text.len()));
        packed.extend(text.split(['\r', '\n']));
        return decode(&packed).map_err(|_| malformed(text));
    }
    // Exactly sized up front: growing would leave a copy behind in freed memory.
    let mut bytes = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
    let length = ENGINE.decode_slice(text, &mut bytes);
    bytes.truncate(length.map_err(|_| malformed(text))?);
    Ok(std::mem::take(&mut *bytes))
}

/// Where `text`, which is not base64, stops to be it.
fn malformed(text: &str) -> MalformedBase64 {
    let at = stops_at(text.as_bytes());
    debug_assert!(at.is_some(), "it was refused");
    MalformedBase64 {
        at: at.unwrap_or(text.len()),
    }
}

/// Where Go's decoder stops; `None` if it reads all.
fn stops_at(text: &[u8]) -> Option<usize> {
    let mut bytes = text
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, byte)| !matches!(byte, b'\r' | b'\n'));
    // Of each four, how many were read.
    let mut held = 0;
    loop {
        match bytes.next() {
            None if held == 0 => return None,
            None => return Some(text.len() - held),
            Some((_, byte)) if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/') => {
                held = (held + 1) % 4;
            }
            Some((_, b'=')) if held >= 2 => break,
            Some((at, _)) => return Some(at),
        }
    }
    if held == 2 {
        match bytes.next() {
            None => return Some(text.len()),
            Some((_, b'=')) => {}
            Some((at, _)) => return Some(at - 1),
        }
    }
    bytes.next().map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base64_is_taken_as_go_takes_it() {
        // As kube-apiserver 1.36 answered.
        for good in ["YQ==", "YR==", "YQ==\n", "Y\nQ==", "YQ=\r\n=", "\rYQ=="] {
            assert_eq!(decode(good).as_deref(), Ok(&b"a"[..]), "{good:?}");
        }
        for good in ["YWI=", "YWJ=", "YWK=", "YWL=", "YWJ\r\n="] {
            assert_eq!(decode(good).as_deref(), Ok(&b"ab"[..]), "{good:?}");
        }
        for bad in ["YQ", "YQ=", "Y Q==", "_-__", "====", "=", "YQ==YQ=="] {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_place_is_the_one_that_go_names() {
        for (text, at) in [
            ("%%%", 0),
            ("aGk", 0),
            ("aGkxaG", 4),
            ("aGk=x", 4),
            ("aG=k", 2),
            ("aG=", 3),
            ("a===", 1),
        ] {
            assert_eq!(decode(text), Err(MalformedBase64 { at }), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_is_refused_exactly_where_the_decoder_stops(text in "[AQYq+/= _\r\n]{0,12}") {
            prop_assert_eq!(decode(&text).is_err(), stops_at(text.as_bytes()).is_some());
        }
    }
}
