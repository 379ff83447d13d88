//! PEM text, as far as certificates need it.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};

/// The contents of all blocks of `text`, in order. Text between blocks, headers in them and malformed blocks are dropped.
pub(crate) fn decode(text: &str) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, String)> = None;
    for line in text.lines().map(str::trim_end) {
        if let Some(label) = boundary(line, "-----BEGIN ") {
            open = Some((label, String::new()));
        } else if let Some(label) = boundary(line, "-----END ") {
            if let Some((opened, body)) = open.take()
                && opened == label
                && let Ok(bytes) = BASE64.decode(&body)
            {
                blocks.push(bytes);
            }
        } else if let Some((_, body)) = &mut open
            && !line.contains(':')
        {
            body.extend(line.chars().filter(|char| !char.is_ascii_whitespace()));
        }
    }
    blocks
}

fn boundary<'t>(line: &'t str, start: &str) -> Option<&'t str> {
    line.strip_prefix(start)?.strip_suffix("-----")
}

/// A `CERTIFICATE` block that holds `der`.
pub(crate) fn encode_certificate(der: &[u8]) -> String {
    let body = BASE64.encode(der);
    let mut text = String::with_capacity(body.len() + body.len() / 64 + 64);
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = tail;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for length in [0, 1, 47, 48, 49, 96, 500] {
            let der = vec![7; length];
            let text = encode_certificate(&der);
            assert!(text.lines().all(|line| line.len() <= 64), "{text}");
            assert_eq!(decode(&text), [der]);
        }
    }

    #[test]
    fn only_well_formed_blocks_count() {
        let text = "note\n-----BEGIN CERTIFICATE-----\nProc-Type: 4\n\nAQ\n I=\r\n-----END CERTIFICATE-----\nbetween\n\
            -----BEGIN X-----\nAw==\n-----END Y-----\n-----BEGIN X-----\n*\n-----END X-----\n\
            -----BEGIN TRUSTED CERTIFICATE-----\nBA==\n-----END TRUSTED CERTIFICATE-----\n-----BEGIN X-----\nBQ==";
        assert_eq!(decode(text), [vec![1, 2], vec![4]]);
    }
}
