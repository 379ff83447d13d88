//! WebSockets (RFC 6455), as far as `exec` needs them: binary frames with the channel in the first byte
//! (`v5.channel.k8s.io`).

use axum::http::HeaderMap;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// Of the handshake.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const BINARY: u8 = 0x82;
/// The last frame: all went well.
pub(crate) const CLOSE: [u8; 4] = [0x88, 2, 0x03, 0xe8];

/// The headers of the answer to a request with these; `None` if it is for no WebSocket with a protocol that is known.
pub(crate) fn accept(request: &HeaderMap) -> Option<[(&'static str, String); 4]> {
    let header = |name| request.get(name)?.to_str().ok();
    let mut offered = header("sec-websocket-protocol")?.split(',').map(str::trim);
    let protocol = offered.find(|name| PROTOCOLS.contains(name))?;
    let key = header("sec-websocket-key")?.as_bytes();
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat());
    Some([
        ("connection", "Upgrade".to_owned()),
        ("upgrade", "websocket".to_owned()),
        ("sec-websocket-accept", STANDARD.encode(digest)),
        ("sec-websocket-protocol", protocol.to_owned()),
    ])
}

/// A frame with `data` of `channel`. `data` is shorter than 64 KiB.
pub(crate) fn frame(channel: u8, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len() + 1).expect("callers send less than 64 KiB");
    let mut frame = match u8::try_from(length) {
        Ok(short @ ..126) => vec![BINARY, short],
        _ => [&[BINARY, 126], &length.to_be_bytes()[..]].concat(),
    };
    frame.push(channel);
    frame.extend_from_slice(data);
    frame
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn handshake_is_that_of_the_standard() {
        // The example of RFC 6455, section 1.3.
        let request = [
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "other, v5.channel.k8s.io"),
        ];
        let header = |(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        let answer = accept(&request.into_iter().map(header).collect()).unwrap();
        assert_eq!(answer[2].1, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer[3].1, "v5.channel.k8s.io");
        assert_eq!(accept(&HeaderMap::new()), None);
    }

    #[test]
    fn frames_state_their_length_in_the_shortest_form() {
        assert_eq!(frame(1, b"ab"), [0x82, 3, 1, b'a', b'b']);
        assert_eq!(frame(1, &[7; 125])[..5], [0x82, 126, 0, 126, 1]);
        assert_eq!(frame(2, &[7; 300])[..5], [0x82, 126, 1, 45, 2]);
    }
}
