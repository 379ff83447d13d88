//! A server that speaks HTTP/2 frame by frame, as a test dictates.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    net::{TcpListener, TcpStream},
};

use crate::within;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Flag of SETTINGS and PING.
const ACK: u8 = 1;
/// Flag of DATA and HEADERS.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const REFUSED_STREAM: u32 = 7;

pub(crate) struct Listener {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

/// One connection from the client.
pub(crate) struct Peer<S = TcpStream> {
    socket: S,
}

#[derive(Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Listener {
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { listener, address }
    }

    pub(crate) fn config(&self) -> kube::Config {
        kube::Config::new(format!("http://{}", self.address).parse().unwrap())
    }

    /// A connection on which the peer has sent nothing.
    pub(crate) async fn accept_silently(&self) -> Peer {
        let (socket, _) = within(self.listener.accept()).await.unwrap();
        socket.set_nodelay(true).unwrap();
        Peer { socket }
    }

    /// A connection that allows `streams`.
    pub(crate) async fn accept(&self, streams: u32) -> Peer {
        Peer::greet(self.accept_silently().await.socket, streams).await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    /// Takes the client's preface from `socket`, and allows `streams`.
    pub(crate) async fn greet(socket: S, streams: u32) -> Self {
        let mut peer = Self { socket };
        let mut preface = [0; 24];
        within(peer.socket.read_exact(&mut preface)).await.unwrap();
        assert!(preface.starts_with(b"PRI * HTTP/2.0"));
        peer.limit(streams).await;
        peer
    }

    pub(crate) fn into_inner(self) -> S {
        self.socket
    }

    /// Allows `streams` from now on.
    pub(crate) async fn limit(&mut self, streams: u32) {
        let mut payload = vec![0, 3];
        payload.extend(streams.to_be_bytes());
        self.write(SETTINGS, 0, 0, &payload).await;
    }

    /// The number of the next request's stream.
    pub(crate) async fn request(&mut self) -> u32 {
        self.wait_for(HEADERS).await.stream
    }

    /// The number of the next stream that the client cancels.
    pub(crate) async fn reset(&mut self) -> u32 {
        self.wait_for(RST_STREAM).await.stream
    }

    /// The next request's stream and its body, from a single frame.
    pub(crate) async fn request_with_body(&mut self) -> (u32, Vec<u8>) {
        let stream = self.request().await;
        let data = self.wait_for(DATA).await;
        assert_eq!(data.stream, stream);
        (stream, data.payload)
    }

    /// Begins a watch.
    pub(crate) async fn open(&mut self, stream: u32) {
        // 0x88 is `:status: 200` in the static table of HPACK.
        self.write(HEADERS, END_HEADERS, stream, &[0x88]).await;
        self.send(stream, b"open\n").await;
    }

    /// Answers an ordinary request.
    pub(crate) async fn answer(&mut self, stream: u32) {
        self.write(HEADERS, END_HEADERS | END_STREAM, stream, &[0x88])
            .await;
    }

    pub(crate) async fn send(&mut self, stream: u32, data: &[u8]) {
        self.write(DATA, 0, stream, data).await;
    }

    /// Sends a DATA frame that breaks off in the middle.
    pub(crate) async fn send_half(&mut self, stream: u32) {
        let frame = frame(DATA, 0, stream, &[b'x'; 100]);
        self.socket.write_all(&frame[..50]).await.unwrap();
    }

    pub(crate) async fn refuse(&mut self, stream: u32) {
        self.write(RST_STREAM, 0, stream, &REFUSED_STREAM.to_be_bytes())
            .await;
    }

    /// Sends a GOAWAY: streams after `last` are not processed.
    pub(crate) async fn go_away(&mut self, last: u32, code: u32) {
        let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        self.write(GOAWAY, 0, 0, &payload).await;
    }

    /// Sends a GOAWAY that ends every stream, with this debug data.
    pub(crate) async fn go_away_with(&mut self, code: u32, debug: &[u8]) {
        let payload = [&0_u32.to_be_bytes(), &code.to_be_bytes(), debug].concat();
        self.write(GOAWAY, 0, 0, &payload).await;
    }

    /// Begins an answer whose headers have no end.
    pub(crate) async fn endless_headers(&mut self, stream: u32) {
        // A literal header with a name of one byte, and a value of 100 bytes, again and again.
        let header = [&[0_u8, 1, b'x', 100][..], &[b'y'; 100]].concat();
        let block = header.repeat(100);
        self.write(HEADERS, 0, stream, &[&[0x88][..], &block].concat())
            .await;
        for _ in 0..200 {
            self.write(CONTINUATION, 0, stream, &block).await;
        }
    }

    /// Answers with a whole list of headers, whose values have this many bytes in all.
    pub(crate) async fn long_headers(&mut self, stream: u32, bytes: usize) {
        // A literal header with a name of one byte, and a value of 100 bytes, again and again.
        let header = [&[0_u8, 1, b'x', 100][..], &[b'y'; 100]].concat();
        let block = [&[0x88][..], &header.repeat(bytes / 100)].concat();
        let mut parts = block.chunks(16 << 10).peekable();
        let (mut kind, mut flags) = (HEADERS, END_STREAM);
        while let Some(part) = parts.next() {
            flags |= if parts.peek().is_none() {
                END_HEADERS
            } else {
                0
            };
            self.write(kind, flags, stream, part).await;
            (kind, flags) = (CONTINUATION, 0);
        }
    }

    /// Sends the bytes of these frames `times` times, and drops what the client sends meanwhile. Returns whether the
    /// client has read all of it.
    pub(crate) async fn flood(&mut self, frames: &[u8], times: usize) -> bool {
        let (mut reader, mut writer) = split(&mut self.socket);
        let write = async {
            for _ in 0..times {
                writer.write_all(frames).await?;
            }
            std::io::Result::Ok(())
        };
        let read = async {
            let mut rest = [0; 4096];
            while reader.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
        };
        tokio::select! {
            biased;
            written = within(write) => written.is_ok(),
            () = read => false,
        }
    }

    /// Waits until the client has processed all that was sent so far.
    pub(crate) async fn fence(&mut self) {
        self.write(PING, 0, 0, b"fence...").await;
        loop {
            let frame = self.read().await.unwrap();
            if (frame.kind, frame.flags) == (PING, ACK) {
                return;
            }
        }
    }

    /// Waits until the client has closed the connection.
    pub(crate) async fn closed(mut self) {
        while self.read().await.is_some() {}
    }

    /// Ends the peer's side only.
    pub(crate) async fn half_close(&mut self) {
        self.socket.shutdown().await.unwrap();
    }

    async fn wait_for(&mut self, kind: u8) -> Frame {
        loop {
            let frame = self.read().await.expect("the client hung up");
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// The next frame, after the acknowledgment that it requires; `None` at the end.
    async fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        within(self.socket.read_exact(&mut head)).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        within(self.socket.read_exact(&mut payload)).await.ok()?;
        let frame = Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        };
        if matches!(frame.kind, SETTINGS | PING) && frame.flags & ACK == 0 {
            let echo = if frame.kind == PING {
                &*frame.payload
            } else {
                &[]
            };
            self.write(frame.kind, ACK, 0, echo).await;
        }
        Some(frame)
    }

    pub(crate) async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let frame = frame(kind, flags, stream, payload);
        // The client may be gone already, which the client's side of the test judges.
        let _ = within(self.socket.write_all(&frame)).await;
        let _ = within(self.socket.flush()).await;
    }
}

impl Peer {
    /// Ends the connection with a TCP reset.
    pub(crate) fn cut(self) {
        self.socket.set_zero_linger().unwrap();
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
