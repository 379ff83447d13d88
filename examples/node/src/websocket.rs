//! WebSockets (RFC 6455), as far as `exec` needs them: binary frames with the channel in the first byte
//! (`v5.channel.k8s.io`).

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{self, AsyncRead, AsyncReadExt as _};

/// Of the handshake.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Longest frame of a client.
const MAX_FRAME: u64 = 1 << 20;
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;

/// The answer to `Sec-WebSocket-Key`.
pub(crate) fn accept(key: &[u8]) -> String {
    STANDARD.encode(digest(
        &SHA1_FOR_LEGACY_USE_ONLY,
        &[key, GUID.as_bytes()].concat(),
    ))
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

/// The last frame: all went well.
pub(crate) fn close() -> [u8; 4] {
    [CLOSE, 2, 0x03, 0xe8]
}

/// Reads and drops what the client sends until it closes: commands have no standard input here.
pub(crate) async fn drain(mut client: impl AsyncRead + Unpin) -> io::Result<()> {
    loop {
        let [opcode, length] = [client.read_u8().await?, client.read_u8().await?];
        let length = match length & 0x7f {
            126 => client.read_u16().await?.into(),
            127 => client.read_u64().await?,
            short => short.into(),
        };
        if opcode == CLOSE || length > MAX_FRAME {
            return Ok(());
        }
        // With the mask.
        let mut rest = (&mut client).take(length + 4);
        io::copy(&mut rest, &mut io::sink()).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_is_that_of_the_standard() {
        // The example of RFC 6455, section 1.3.
        assert_eq!(
            accept(b"dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn frames_state_their_length_in_the_shortest_form() {
        assert_eq!(frame(1, b"ab"), [0x82, 3, 1, b'a', b'b']);
        assert_eq!(frame(1, &[7; 125])[..5], [0x82, 126, 0, 126, 1]);
        assert_eq!(frame(2, &[7; 300])[..5], [0x82, 126, 1, 45, 2]);
    }

    #[tokio::test]
    async fn a_client_that_closes_ends_the_reading() {
        let text = [0x82, 0x81, 1, 2, 3, 4, 9, 0x88, 0x80, 1, 2, 3, 4];
        drain(&text[..]).await.unwrap();
        drain(&text[..5]).await.unwrap_err();
    }
}
