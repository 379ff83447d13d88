//! PEM text, limited to certificates and their keys.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

use crate::{SecretBytes, go_base64};

/// One well-formed block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block<'t> {
    /// `CERTIFICATE`, …
    pub label: &'t str,
    /// Whether lines `Key: value` stand before the content.
    pub has_headers: bool,
    /// The content.
    pub der: Vec<u8>,
}

/// All blocks of `text`, in order. Text between them and malformed blocks are dropped.
pub fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, bool, String)> = None;
    for line in text.lines().map(str::trim_end) {
        if let Some(label) = boundary(line, "-----BEGIN ") {
            open = Some((label, false, String::new()));
        } else if let Some(end) = boundary(line, "-----END ") {
            if let Some((label, has_headers, body)) = open.take()
                && label == end
                && let Ok(der) = go_base64::decode(&body)
            {
                blocks.push(Block {
                    label,
                    has_headers,
                    der,
                });
            }
        } else if let Some((_, has_headers, body)) = &mut open {
            if line.contains(':') {
                *has_headers = true;
            } else {
                body.extend(line.chars().filter(|char| !char.is_ascii_whitespace()));
            }
        }
    }
    blocks
}

fn boundary<'t>(line: &'t str, start: &str) -> Option<&'t str> {
    line.strip_prefix(start)?.strip_suffix("-----")
}

/// A `CERTIFICATE` block that holds `der`, with a final newline.
pub fn encode_certificate(der: &[u8]) -> String {
    encode("CERTIFICATE", &BASE64.encode(der))
}

/// A `PRIVATE KEY` block that holds the key `pkcs8`, with a final newline. No copy of the key stays behind in freed
/// memory.
pub fn encode_private_key(pkcs8: &SecretBytes) -> SecretBytes {
    let mut body = vec![0; pkcs8.len().div_ceil(3) * 4];
    let written = BASE64.encode_slice(&**pkcs8, &mut body);
    debug_assert_eq!(written, Ok(body.len()), "four characters for three bytes");
    let body = SecretBytes::new(body);
    let body = std::str::from_utf8(&body).expect("base64 is ASCII");
    SecretBytes::new(encode("PRIVATE KEY", body).into_bytes())
}

fn encode(label: &str, body: &str) -> String {
    // Of the final size from the start, so that nothing is moved.
    let mut text = String::with_capacity(body.len() + body.len() / 64 + 2 * label.len() + 40);
    let boundary = |text: &mut String, word: &str| {
        for part in ["-----", word, " ", label, "-----\n"] {
            text.push_str(part);
        }
    };
    boundary(&mut text, "BEGIN");
    for line in body.as_bytes().chunks(64) {
        text.push_str(str::from_utf8(line).expect("base64 is ASCII"));
        text.push('\n');
    }
    boundary(&mut text, "END");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_blocks_are_decoded() {
        for length in [0, 1, 47, 48, 49, 96, 500] {
            let der = vec![7; length];
            let text = encode_certificate(&der);
            assert!(text.lines().all(|line| line.len() <= 64), "{text}");
            let block = Block {
                label: "CERTIFICATE",
                has_headers: false,
                der: der.clone(),
            };
            assert_eq!(blocks(&text), [block]);
            let key = encode_private_key(&SecretBytes::new(der.clone()));
            let key = std::str::from_utf8(&key).unwrap();
            assert_eq!(key, text.replace("CERTIFICATE", "PRIVATE KEY"));
        }
    }

    #[test]
    fn only_well_formed_blocks_count() {
        let text = "note\n-----BEGIN CERTIFICATE-----\nProc-Type: 4\n\nAQ\n I=\r\n-----END CERTIFICATE-----\nbetween\n\
            -----BEGIN X-----\nAw==\n-----END Y-----\n-----BEGIN X-----\n*\n-----END X-----\n\
            -----BEGIN TRUSTED CERTIFICATE-----\nBA==\n-----END TRUSTED CERTIFICATE-----\n-----BEGIN X-----\nBQ==";
        let found: Vec<_> = blocks(text)
            .into_iter()
            .map(|block| (block.label, block.has_headers, block.der))
            .collect();
        let expected = [
            ("CERTIFICATE", true, vec![1, 2]),
            ("TRUSTED CERTIFICATE", false, vec![4]),
        ];
        assert_eq!(found, expected);
    }
}
