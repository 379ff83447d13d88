//! Serves HTTP/1.1 within limits, so that no client can take what delivery needs: descriptors, memory, tasks.
//!
//! Invariants:
//! 1. At most [`Limits::connections`] connections are open. A new one beyond that replaces the oldest one that no handler
//!    works for, so half-sent requests and slow readers never lock other clients out.
//! 2. Every connection ends: a request head takes at most [`Limits::header_timeout`], and a connection lives at most
//!    [`Limits::max_age`], however slowly its client reads.
//! 3. Failing to accept never ends the server; it pauses, since descriptors may be short.

use std::{
    collections::VecDeque,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::Router;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::{error, warn};

/// Longest request head; hyper rejects longer ones with 431.
const HEAD_LIMIT: usize = 16 << 10;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time that a request under way gets to end, at shutdown and at the end of a connection's life.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// What the clients of one listener may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections open at the same time; at least 1. Defaults to 64.
    pub connections: usize,
    /// Time for a request head to arrive, also between two requests. Defaults to 10 s.
    pub header_timeout: Duration,
    /// Life of a connection. Defaults to 2 min.
    pub max_age: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            header_timeout: Duration::from_secs(10),
            max_age: Duration::from_mins(2),
        }
    }
}

impl Limits {
    /// The defaults for a process that may open `descriptors`: one listener takes at most an eighth of them.
    pub fn for_descriptors(descriptors: u64) -> Self {
        let share = usize::try_from(descriptors / 8).unwrap_or(usize::MAX);
        let defaults = Self::default();
        Self {
            connections: share.clamp(1, defaults.connections),
            ..defaults
        }
    }
}

/// Something that connections come from.
pub(super) trait Accept: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next connection. Cancel-safe.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<Self::Stream> {
        Ok(self.accept().await?.0)
    }
}

impl Accept for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<Self::Stream> {
        Ok(self.accept().await?.0)
    }
}

/// An open connection.
struct Connection {
    task: AbortHandle,
    /// Requests that a handler works for.
    handling: Arc<AtomicUsize>,
}

/// Serves `router` on `listener` until `shutdown`, then lets requests under way end.
pub(super) async fn serve(
    listener: impl Accept,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let mut tasks = JoinSet::new();
    // Oldest first.
    let mut open: VecDeque<Connection> = VecDeque::new();
    loop {
        // Every arm is cancel-safe. Ended connections go first: they make room.
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = tasks.join_next() => {
                log_panic(ended);
                open.retain(|connection| !connection.task.is_finished());
            }
            accepted = listener.next() => match accepted {
                Ok(stream) => {
                    if open.len() >= limits.connections.max(1) && !make_room(&mut open) {
                        continue;
                    }
                    let handling = Arc::default();
                    let served = connection(stream, router.clone(), Arc::clone(&handling), limits, shutdown.clone());
                    let task = tasks.spawn(served);
                    open.push_back(Connection { task, handling });
                }
                Err(error) => {
                    warn!(%error, "failed to accept a connection, will retry");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let drain = async {
        while let Some(ended) = tasks.join_next().await {
            log_panic(ended);
        }
    };
    // What is left is cut when `tasks` is dropped.
    let _ = timeout(DRAIN_TIMEOUT, drain).await;
}

/// Closes the oldest connection that no handler works for; returns whether there was one.
fn make_room(open: &mut VecDeque<Connection>) -> bool {
    let is_idle = |connection: &Connection| connection.handling.load(Ordering::Relaxed) == 0;
    let Some(oldest) = open.iter().position(is_idle) else {
        return false;
    };
    if let Some(connection) = open.remove(oldest) {
        connection.task.abort();
    }
    true
}

/// A panic in a handler costs its connection only: no request may end the agent.
fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        error!("request handler panicked, closed its connection");
    }
}

/// Counts a handler at work, also if it is dropped or panics.
struct Handling(Arc<AtomicUsize>);

impl Handling {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Handling {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    router: Router,
    handling: Arc<AtomicUsize>,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let service = service_fn(move |request| {
        let (router, handling) = (router.clone(), Handling::new(&handling));
        async move {
            let answer = router.oneshot(request).await;
            drop(handling);
            answer
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_buf_size(HEAD_LIMIT)
            .serve_connection(TokioIo::new(stream), service)
    );
    // An error is the client's: it has left, or sent what is no request.
    tokio::select! {
        biased;
        _ = &mut connection => return,
        () = shutdown.cancelled() => {}
        () = sleep(limits.max_age) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(DRAIN_TIMEOUT, connection).await;
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    const LIMITS: Limits = Limits {
        connections: 4,
        header_timeout: Duration::from_mins(1),
        max_age: Duration::from_mins(1),
    };

    /// A server with a handler that answers, one that answers at length, one that never does, and one that panics.
    async fn start(limits: Limits) -> (SocketAddr, AbortOnDropHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/ok", get(async || "ok"))
            .route("/long", get(async || vec![b'x'; 64 << 20]))
            .route("/never", get(std::future::pending::<()>))
            .route("/panic", get(panicking));
        #[expect(clippy::disallowed_methods, reason = "owned by the handle")]
        let task = tokio::spawn(serve(listener, router, limits, CancellationToken::new()));
        (address, AbortOnDropHandle::new(task))
    }

    async fn panicking() {
        panic!("a handler");
    }

    async fn send(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// What comes back until the server closes.
    async fn answer(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get_close(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    }

    async fn check_served(address: SocketAddr) {
        let text = answer(send(address, &get_close("/ok")).await).await;
        assert!(text.ends_with("\r\n\r\nok"), "{text:?}");
    }

    #[tokio::test]
    async fn half_sent_requests_do_not_lock_others_out() {
        let (address, _server) = start(LIMITS).await;
        let mut idle = Vec::new();
        for _ in 0..200 {
            idle.push(send(address, "GET /ok HTTP/1.1\r\nHost:").await);
        }
        check_served(address).await;
        // All but the limit were closed.
        for stream in idle.drain(..200 - LIMITS.connections) {
            assert_eq!(answer(stream).await, "");
        }
    }

    #[tokio::test]
    async fn slow_readers_do_not_lock_others_out() {
        let (address, _server) = start(LIMITS).await;
        let mut slow = Vec::new();
        for _ in 0..20 {
            let mut stream = send(address, "GET /long HTTP/1.1\r\nHost: h\r\n\r\n").await;
            stream.read_exact(&mut [0; 100]).await.unwrap();
            slow.push(stream);
        }
        check_served(address).await;
    }

    #[tokio::test]
    async fn connection_whose_handler_works_is_not_replaced() {
        let (address, _server) = start(LIMITS).await;
        let mut working = Vec::new();
        for _ in 0..LIMITS.connections {
            let stream = send(address, "GET /never HTTP/1.1\r\nHost: h\r\n\r\n").await;
            working.push(stream);
        }
        // Each handler has begun once a further client is turned away.
        while !answer(send(address, &get_close("/ok")).await)
            .await
            .is_empty()
        {}
        for stream in &working {
            let error = stream.try_read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
    }

    #[tokio::test]
    async fn request_head_has_a_deadline() {
        let limits = Limits {
            header_timeout: Duration::from_millis(10),
            ..LIMITS
        };
        let (address, _server) = start(limits).await;
        let text = answer(send(address, "GET /ok HTTP/1.1\r\nHost:").await).await;
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 408"),
            "{text:?}"
        );
    }

    #[tokio::test]
    async fn connection_has_a_longest_life() {
        let limits = Limits {
            max_age: Duration::from_millis(10),
            ..LIMITS
        };
        let (address, _server) = start(limits).await;
        let kept_alive = send(address, "GET /ok HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let text = answer(kept_alive).await;
        assert!(text.ends_with("\r\n\r\nok"), "{text:?}");
    }

    #[tokio::test]
    async fn hostile_requests_cost_their_own_connection_only() {
        let (address, _server) = start(LIMITS).await;
        for request in [
            format!(
                "GET /ok HTTP/1.1\r\nHost: h\r\nx: {}\r\n\r\n",
                "y".repeat(1 << 20)
            ),
            format!("GET /ok HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(10_000)),
            format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "y".repeat(1 << 20)),
            "\0".repeat(1 << 16),
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
            get_close("/panic"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let (mut read, mut write) = stream.split();
            let mut text = Vec::new();
            // The server may close while the request is still being written.
            let (_, _) = tokio::join!(
                write.write_all(request.as_bytes()),
                read.read_to_end(&mut text)
            );
            assert!(
                !text.starts_with(b"HTTP/1.1 200"),
                "{:?}",
                String::from_utf8_lossy(&text)
            );
            check_served(address).await;
        }
    }

    #[tokio::test]
    async fn pipelined_requests_are_answered_in_order() {
        let (address, _server) = start(LIMITS).await;
        let one = "GET /ok HTTP/1.1\r\nHost: h\r\n\r\n";
        let stream = send(address, &(one.repeat(999) + &get_close("/ok"))).await;
        assert_eq!(answer(stream).await.matches("HTTP/1.1 200").count(), 1000);
    }
}
