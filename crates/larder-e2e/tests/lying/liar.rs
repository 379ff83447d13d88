//! The lying server: an embedded API server behind a service that invents answers, on connections that break the rules.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderName, HeaderValue, Request, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use larder_apiserver::{ApiServer, Options};
use larder_transport::Connector;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    task::JoinSet,
};
use tower::{BoxError, ServiceExt as _};

use crate::inventions;

/// Requests with this name in their query get no lie.
pub(crate) const HONEST_NAME: &str = "true-0";

type Body = UnsyncBoxBody<Bytes, BoxError>;

/// The server.
#[derive(Clone)]
pub(crate) struct Liar {
    /// The true state.
    pub(crate) api: ApiServer,
    inner: Arc<Inner>,
}

struct Inner {
    random: Mutex<fastrand::Rng>,
    honest: AtomicBool,
    answers: AtomicUsize,
    connections: Mutex<JoinSet<()>>,
}

impl Liar {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            api: ApiServer::new(Options::default().first_version(1_000_000)),
            inner: Arc::new(Inner {
                random: Mutex::new(fastrand::Rng::with_seed(seed)),
                honest: AtomicBool::new(false),
                answers: AtomicUsize::new(0),
                connections: Mutex::default(),
            }),
        }
    }

    /// Lies no more.
    pub(crate) fn be_honest(&self) {
        self.inner.honest.store(true, Ordering::SeqCst);
        // Streams that are open would go on lying.
        self.cut();
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        self.inner.connections.lock().abort_all();
    }

    /// Answers so far, broken connections included.
    pub(crate) fn answers(&self) -> usize {
        self.inner.answers.load(Ordering::SeqCst)
    }

    pub(crate) fn connector(&self) -> Connector {
        let liar = self.clone();
        Connector::new(move |_, _| {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let mut connections = liar.inner.connections.lock();
            while connections.try_join_next().is_some() {}
            connections.spawn(liar.clone().connection(theirs));
            async { Ok(ours) }
        })
    }

    fn is_honest(&self) -> bool {
        self.inner.honest.load(Ordering::SeqCst)
    }

    /// A random source of its own, so that the order of polls changes nothing else.
    fn fork(&self) -> fastrand::Rng {
        self.inner.random.lock().fork()
    }

    async fn connection(self, io: DuplexStream) {
        let mut random = self.fork();
        if !self.is_honest() && random.u32(0..4) == 0 {
            self.inner.answers.fetch_add(1, Ordering::SeqCst);
            return break_rules(io, random).await;
        }
        let service = service_fn(|request| self.clone().answer(request));
        let builder = auto::Builder::new(TokioExecutor::new());
        // Fails when the client hangs up, or when a lie violates the protocol.
        let _ = builder.serve_connection(TokioIo::new(io), service).await;
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, BoxError> {
        let mut random = self.fork();
        let uri = request.uri().clone();
        let truth = self.api.service().oneshot(request).await?;
        let truth = truth.map(|body| body.map_err(BoxError::from).boxed_unsync());
        if self.is_honest() || uri.query().is_some_and(|query| query.contains(HONEST_NAME)) {
            return Ok(truth);
        }
        self.inner.answers.fetch_add(1, Ordering::SeqCst);
        let resource = uri
            .path()
            .split('/')
            .find(|part| matches!(*part, "pods" | "secrets" | "configmaps"));
        let resource = resource.unwrap_or_default().to_owned();
        let is_watch = uri
            .query()
            .is_some_and(|query| query.contains("watch=true"));
        match random.u32(0..12) {
            0..4 => Ok(truth),
            4 => Err("cut".into()),
            5 => std::future::pending().await,
            6 => Ok(refusal(&mut random)),
            7 => Ok(odd_head(&mut random, truth)),
            _ if is_watch => Ok(watch(random, &resource)),
            8 => Ok(endless(&mut random)),
            9 => {
                let mut bytes = truth.collect().await?.to_bytes().to_vec();
                inventions::mutate(&mut random, &mut bytes);
                Ok(whole(bytes))
            }
            10 => Ok(whole(inventions::junk(&mut random, 4).to_string())),
            _ => {
                let is_list = !uri.path().ends_with(|c: char| c.is_ascii_digit());
                let invented = if is_list {
                    inventions::list(&mut random, &resource)
                } else {
                    inventions::object(&mut random, &resource)
                };
                Ok(whole(invented.to_string()))
            }
        }
    }
}

fn whole(bytes: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(bytes.into());
    Response::new(body.map_err(BoxError::from).boxed_unsync())
}

fn streamed(
    chunks: impl futures::Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
) -> Response<Body> {
    Response::new(StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync())
}

fn refusal(random: &mut fastrand::Rng) -> Response<Body> {
    const WAITS: [&str; 6] = [
        "1",
        "0",
        "-1",
        "18446744073709551615",
        "18446744073709551616",
        "soon",
    ];
    const CODES: [u16; 12] = [204, 301, 400, 401, 403, 404, 409, 410, 429, 500, 503, 999];
    let code = CODES[random.usize(..CODES.len())];
    let mut response = whole(inventions::status(random, code).to_string());
    *response.status_mut() = code.try_into().unwrap();
    if random.bool() {
        let wait = HeaderValue::from_static(WAITS[random.usize(..WAITS.len())]);
        response.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    response
}

/// The truth under a head that is wrong or large.
fn odd_head(random: &mut fastrand::Rng, mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    match random.u32(0..4) {
        0 => {
            let length = random.u64(0..10_000);
            headers.insert(header::CONTENT_LENGTH, length.into());
            // As a stream of unknown length, or hyper refuses to lie.
            let (head, body) = response.into_parts();
            let body = StreamBody::new(body.into_data_stream().map(|data| data.map(Frame::data)));
            return Response::from_parts(head, body.boxed_unsync());
        }
        1 => {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        2 => {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
        }
        _ => {
            for number in 0..random.usize(1..2000) {
                let name = HeaderName::try_from(format!("x-{number}")).unwrap();
                headers.insert(name, HeaderValue::try_from("v".repeat(100)).unwrap());
            }
        }
    }
    response
}

/// More than any object may have.
fn endless(random: &mut fastrand::Rng) -> Response<Body> {
    let starts: [&[u8]; 4] = [
        b"{\"items\":[{\"metadata\":{\"name\":\"",
        b"{\"metadata\":{\"name\":\"a\"},\"data\":{\"a\":\"",
        b"[",
        b"",
    ];
    let start = Bytes::from_static(starts[random.usize(..starts.len())]);
    let chunk = Bytes::from(vec![[b'a', b'[', b' ', b'{'][random.usize(..4)]; 64 << 10]);
    // It has an end, so that a client without a limit shows in its memory and not in a test that hangs.
    let chunks = std::iter::once(start).chain(std::iter::repeat_n(chunk, 120));
    streamed(stream::iter(chunks.map(Ok)))
}

/// Some events, and then an end, a cut or silence.
fn watch(mut random: fastrand::Rng, resource: &str) -> Response<Body> {
    let mut lines: Vec<Result<Bytes, BoxError>> = (0..random.usize(0..20))
        .map(|_| Ok(inventions::event(&mut random, resource).into()))
        .collect();
    if random.u32(0..10) == 0 {
        let endless = Bytes::from(vec![b'a'; 64 << 10]);
        lines.extend((0..80).map(|_| Ok(endless.clone())));
    }
    let lines = stream::iter(lines);
    match random.u32(0..3) {
        0 => streamed(lines),
        1 => streamed(lines.chain(stream::iter([Err(io::Error::other("cut").into())]))),
        _ => streamed(lines.chain(stream::pending())),
    }
}

/// Speaks something that is not HTTP, or HTTP/2 that breaks its rules.
async fn break_rules(mut io: DuplexStream, mut random: fastrand::Rng) {
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    // Reads the preface, or a request, and goes on reading so that the client never waits for room.
    let mut first = [0; 24];
    if io.read_exact(&mut first).await.is_err() {
        return;
    }
    let mut bytes = Vec::new();
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    };
    match random.u32(0..8) {
        0 => bytes.extend((0..random.usize(0..5000)).map(|_| random.u8(..))),
        1 => bytes.extend(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}"),
        2 => {
            bytes.extend(b"HTTP/1.1 200 OK\r\n");
            bytes.extend("X: y\r\n".repeat(100_000).bytes());
        }
        // No streams at all.
        3 => bytes.extend(frame(4, 0, 0, &[0, 3, 0, 0, 0, 0])),
        4 => {
            bytes.extend(SETTINGS);
            for _ in 0..1000 {
                bytes.extend(frame(7, 0, 0, &random.u64(..).to_be_bytes()));
            }
        }
        // Headers without end.
        5 => {
            bytes.extend(SETTINGS);
            bytes.extend(frame(1, 0, 1, &[0x88]));
            for _ in 0..200 {
                bytes.extend(frame(9, 0, 1, &[0x40; 16 << 10]));
            }
        }
        // Windows beyond their limit.
        6 => {
            bytes.extend(SETTINGS);
            for stream in [0, 1, 3] {
                bytes.extend(frame(8, 0, stream, &0x7fff_ffff_u32.to_be_bytes()));
                bytes.extend(frame(8, 0, stream, &0x7fff_ffff_u32.to_be_bytes()));
            }
        }
        _ => {
            bytes.extend(SETTINGS);
            for _ in 0..100 {
                let payload: Vec<_> = (0..random.usize(0..100)).map(|_| random.u8(..)).collect();
                bytes.extend(frame(
                    random.u8(0..10),
                    random.u8(..),
                    random.u32(0..9),
                    &payload,
                ));
            }
        }
    }
    let (mut reader, mut writer) = tokio::io::split(io);
    let read = async {
        let mut rest = [0; 4096];
        while reader.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {}
    };
    let write = async {
        if writer.write_all(&bytes).await.is_ok() && random.bool() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
