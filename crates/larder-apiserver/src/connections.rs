//! Accepts connections within limits, so that clients that send nothing cannot stop a server.
//!
//! Reusable for any HTTP server over TCP or a Unix socket, not only for [`ApiServer`](crate::ApiServer):
//!
//! ```no_run
//! # use larder_apiserver::connections::{Acceptor, ConnectionLimits};
//! # async fn run<S, B>(listener: tokio::net::TcpListener, service: S, shutdown: tokio_util::sync::CancellationToken)
//! # where
//! #     S: larder_apiserver::connections::HttpService<B>,
//! #     B: http_body::Body<Error: Into<Box<dyn std::error::Error + Send + Sync>>, Data: Send> + Send + 'static,
//! # {
//! let limits = ConnectionLimits::default().max_connections(64).response_timeout(std::time::Duration::from_secs(30));
//! Acceptor::new(listener, limits).serve(service, shutdown).await; // `service`: an axum::Router, for example
//! # }
//! ```
//!
//! A server with its own handshake (TLS) or its own listener calls [`Acceptor::accept`] or [`ConnectionSlots::acquire`]
//! and then [`ConnectionSlot::serve`] in a task per connection.
//!
//! Invariants:
//! 1. No more than [`ConnectionLimits::max_connections`] connections are open; each holds a [`ConnectionSlot`].
//! 2. At that limit a new connection replaces the one that has been idle longest. Connections that have never completed
//!    a request go first, then connections between two requests. A connection with a request in flight is never
//!    replaced.
//! 3. A request answered with 401 counts as none: an unauthenticated client stays in the group that is replaced first.
//! 4. Every wait for the client ends: for the first request, for the next request, and for the client to read. A stream
//!    of HTTP/2 whose window stays closed ends its connection.
//! 5. A failed accept or a panic of one connection never ends the server, and no failure makes it spin.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use rustix::{net::sockopt, process};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a server allows its clients.
///
/// Defaults are kube-apiserver's where it has one: kube-apiserver 1.36,
/// `staging/src/k8s.io/apiserver/pkg/server/secure_serving.go`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// Most connections at a time, at least 2. `None`, the default: the soft limit of file descriptors less a quarter
    /// (at least 32), which stay for the rest of the process.
    pub max_connections: Option<usize>,
    /// Time from accepting a connection to its first complete request head, TLS handshake included. Defaults to 32 s.
    pub head_timeout: Duration,
    /// Time between the end of a request and the next complete head. Defaults to 90 s.
    pub idle_timeout: Duration,
    /// Time for which a write may wait for the client to read, or to open its window of HTTP/2. Defaults to 60 s, the
    /// request timeout of kube-apiserver.
    pub write_timeout: Duration,
    /// Time for which a connection may have requests in flight without a pause. `None`, the default, is for servers
    /// with watches. A server of short answers needs it against clients that request and never read.
    pub response_timeout: Option<Duration>,
    /// Requests in flight on an HTTP/2 connection. Defaults to 100.
    pub max_concurrent_streams: u32,
    /// Bytes of a request head. Defaults to 128 KiB; kube-apiserver takes 1 MiB, before authentication too.
    pub max_head_bytes: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: None,
            head_timeout: Duration::from_secs(32),
            idle_timeout: Duration::from_secs(90),
            write_timeout: Duration::from_mins(1),
            response_timeout: None,
            max_concurrent_streams: 100,
            max_head_bytes: 128 << 10,
        }
    }
}

impl ConnectionLimits {
    /// Sets [`Self::max_connections`].
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Sets [`Self::head_timeout`].
    #[must_use]
    pub fn head_timeout(mut self, timeout: Duration) -> Self {
        self.head_timeout = timeout;
        self
    }

    /// Sets [`Self::idle_timeout`].
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets [`Self::write_timeout`].
    #[must_use]
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Sets [`Self::response_timeout`].
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = Some(timeout);
        self
    }

    /// Sets [`Self::max_concurrent_streams`].
    #[must_use]
    pub fn max_concurrent_streams(mut self, streams: u32) -> Self {
        self.max_concurrent_streams = streams;
        self
    }

    /// Sets [`Self::max_head_bytes`].
    #[must_use]
    pub fn max_head_bytes(mut self, bytes: u32) -> Self {
        self.max_head_bytes = bytes;
        self
    }

    /// The number of connections that the limits come to in this process.
    fn connections(&self) -> usize {
        let connections = self.max_connections.unwrap_or_else(|| {
            let soft = process::getrlimit(process::Resource::Nofile).current;
            let soft = soft.map_or(MOST_CONNECTIONS, |soft| {
                usize::try_from(soft).unwrap_or(MOST_CONNECTIONS)
            });
            soft.saturating_sub((soft / 4).max(MIN_RESERVE))
                .min(MOST_CONNECTIONS)
        });
        // One is always held for the next client.
        connections.max(2)
    }
}

/// Descriptors that stay for the rest of the process, whatever its limit.
const MIN_RESERVE: usize = 32;
/// Most connections by default: a bound on memory where descriptors are not scarce.
const MOST_CONNECTIONS: usize = 16_384;
/// How long requests may take to end at shutdown, and after an idle connection was asked to close.
const DRAIN: Duration = Duration::from_secs(5);
/// First and longest pause after a failed accept, as Go's `net/http.Server`.
const ACCEPT_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Time after which the kernel probes a silent client: kube-apiserver's `defaultKeepAlivePeriod`.
const KEEP_ALIVE: Duration = Duration::from_mins(3);

/// Raises the soft limit of open files of this process to its hard limit and returns it, as Go's runtime does at
/// startup. A limit that cannot be raised stays.
pub fn raise_descriptor_limit() -> Option<u64> {
    let mut limit = process::getrlimit(process::Resource::Nofile);
    let soft = limit.current;
    limit.current = limit.maximum;
    match process::setrlimit(process::Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(error) => {
            tracing::warn!(%error, "failed to raise the limit of open files, keeping it");
            soft
        }
    }
}

/// A service that [`Acceptor`] can serve: any tower service of HTTP, such as an axum router.
pub trait HttpService<B>:
    Service<
        Request<Incoming>,
        Response = Response<B>,
        Error: Into<BoxError>,
        Future: Send + 'static,
    > + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S, B> HttpService<B> for S where
    S: Service<
            Request<Incoming>,
            Response = Response<B>,
            Error: Into<BoxError>,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// A listener with limits.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    slots: ConnectionSlots,
    /// For the next connection. Taken before there is one, so that no accepted stream waits for a slot.
    reserved: Option<ConnectionSlot>,
    /// How long to wait after the next failure.
    pause: Duration,
    /// No accept before this time.
    paused_until: Option<Instant>,
}

impl Acceptor {
    /// Accepts connections of `listener` within `limits`.
    pub fn new(listener: TcpListener, limits: ConnectionLimits) -> Self {
        Self {
            listener,
            slots: ConnectionSlots::new(limits),
            reserved: None,
            pause: ACCEPT_PAUSE.0,
            paused_until: None,
        }
    }

    /// The next connection, with TCP_NODELAY and keep-alive set. Failures to accept are logged and retried.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no connection is lost.
    pub async fn accept(&mut self) -> (TcpStream, ConnectionSlot) {
        loop {
            if let Some(until) = self.paused_until {
                sleep_until(until).await;
                self.paused_until = None;
            }
            if self.reserved.is_none() {
                self.reserved = Some(self.slots.acquire().await);
            }
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    self.pause = ACCEPT_PAUSE.0;
                    set_options(&stream);
                    let mut slot = self.reserved.take().expect("reserved above");
                    slot.restart();
                    return (stream, slot);
                }
                // The client's failure, not this process's: the next connection may be fine.
                Err(error) if is_of_client(&error) => {
                    tracing::debug!(%error, "client left before it was accepted");
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection, will retry");
                    // Most often descriptors are exhausted.
                    self.slots.replace_one();
                    self.paused_until = Some(Instant::now() + self.pause);
                    self.pause = (self.pause * 2).min(ACCEPT_PAUSE.1);
                }
            }
        }
    }

    /// Serves `service` in the clear until `shutdown`, then lets requests finish for up to 5 s.
    pub async fn serve<S, B>(mut self, service: S, shutdown: CancellationToken)
    where
        S: HttpService<B>,
        B: Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            // Both `accept` and `join_next` are cancel safe.
            tokio::select! {
                () = shutdown.cancelled() => break,
                (stream, slot) = self.accept() => {
                    connections.spawn(slot.serve(stream, service.clone(), shutdown.clone()));
                }
                Some(ended) = connections.join_next() => log_panic(ended),
            }
        }
        drop(self);
        drain(connections).await;
    }
}

/// Waits up to 5 s for `connections` to end, then cuts them.
pub(crate) async fn drain(mut connections: JoinSet<()>) {
    let drained = timeout(DRAIN, async {
        while let Some(ended) = connections.join_next().await {
            log_panic(ended);
        }
    });
    if drained.await.is_err() {
        tracing::warn!(
            left = connections.len(),
            "connections still open at the shutdown deadline, cutting them"
        );
    }
}

/// A panic while one request is answered ends its connection, not the server: no input of a client may do that.
pub(crate) fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        // The hook has printed message and place.
        tracing::error!("panic while a connection was served, closed it");
    }
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    )
}

fn set_options(stream: &TcpStream) {
    // Small frames must not wait for each other: a change is one of them.
    let options = stream.set_nodelay(true).and_then(|()| {
        sockopt::set_socket_keepalive(stream, true)?;
        Ok(sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?)
    });
    if let Err(error) = options {
        tracing::debug!(%error, "failed to set options of a connection");
    }
}

/// The slots of a server, one for each connection. Cloning gives another handle to the same ones.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    inner: Arc<SlotsInner>,
}

#[derive(Debug)]
struct SlotsInner {
    limits: ConnectionLimits,
    max: usize,
    table: Mutex<SlotTable>,
    /// Signals that a slot is free or that a connection became idle.
    changed: Notify,
}

#[derive(Debug, Default)]
struct SlotTable {
    open: usize,
    /// Of the open ones, those that were asked to close.
    closing: usize,
    next: u64,
    /// Connections without a request in flight that may be replaced, in the order of replacement.
    idle: BTreeMap<IdleKey, CancellationToken>,
}

/// Whether the connection has completed a request, and the order in which it became idle.
type IdleKey = (bool, u64);

impl ConnectionSlots {
    /// Slots within `limits`.
    pub fn new(limits: ConnectionLimits) -> Self {
        let max = limits.connections();
        Self {
            inner: Arc::new(SlotsInner {
                limits,
                max,
                table: Mutex::default(),
                changed: Notify::new(),
            }),
        }
    }

    /// A slot; if all are taken, that of the connection that has been idle longest. Waits while none is idle.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a repeated call replaces no further connection.
    pub async fn acquire(&self) -> ConnectionSlot {
        loop {
            let mut changed = pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            {
                let mut table = self.inner.table.lock();
                if table.open < self.inner.max {
                    table.open += 1;
                    drop(table);
                    return ConnectionSlot::new(self.inner.clone());
                }
                if table.open - table.closing >= self.inner.max {
                    table.replace_one();
                }
            }
            changed.await;
        }
    }

    /// Closes the connection that has been idle longest, if there is one.
    fn replace_one(&self) {
        self.inner.table.lock().replace_one();
    }
}

impl SlotTable {
    fn replace_one(&mut self) {
        if let Some((_, replaced)) = self.idle.pop_first() {
            self.closing += 1;
            replaced.cancel();
        }
    }
}

/// The right of one connection to be open. Dropping it frees the slot.
#[derive(Debug)]
#[must_use = "dropping a slot frees it while its connection is open"]
pub struct ConnectionSlot {
    activity: Arc<Activity>,
}

/// What a connection does; its slot, its requests and their responses share it.
#[derive(Debug)]
struct Activity {
    slots: Arc<SlotsInner>,
    replaced: CancellationToken,
    state: watch::Sender<ActivityState>,
    bodies: Mutex<Bodies>,
}

/// The responses that wait for the client: their body has more, and the connection does not take it.
#[derive(Debug, Default)]
struct Bodies {
    next: u64,
    /// Since when, by number of the body.
    stalled: BTreeMap<u64, Instant>,
}

#[derive(Clone, Copy, Debug)]
struct ActivityState {
    in_flight: usize,
    /// Whether a request was answered with anything but 401.
    proven: bool,
    /// When the connection became idle, or stopped being so.
    since: Instant,
    /// Its place in [`SlotTable::idle`]; `None` with a request in flight.
    idle: Option<IdleKey>,
}

impl ConnectionSlot {
    fn new(slots: Arc<SlotsInner>) -> Self {
        let state = ActivityState {
            in_flight: 0,
            proven: false,
            since: Instant::now(),
            idle: None,
        };
        let activity = Activity {
            slots,
            replaced: CancellationToken::new(),
            state: watch::Sender::new(state),
            bodies: Mutex::default(),
        };
        Self {
            activity: Arc::new(activity),
        }
    }

    /// Begins to count the time: the connection is there. Until then the slot is not replaced.
    fn restart(&mut self) {
        self.activity.update(|state| state.since = Instant::now());
    }

    /// Waits for `handshake` as long as the first request may take; `None` when it takes longer, or the slot is given
    /// to another connection.
    pub async fn handshake<T>(&self, handshake: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = handshake => Some(done),
            () = self.activity.replaced.cancelled() => None,
            () = sleep(self.activity.slots.limits.head_timeout) => None,
        }
    }

    /// Speaks HTTP/1.1 or HTTP/2 with the client of `stream` until either side closes, a limit is reached or
    /// `shutdown`, which lets requests in flight finish.
    pub async fn serve<I, S, B>(self, stream: I, service: S, shutdown: CancellationToken)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: HttpService<B>,
        B: Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
    {
        self.serve_until(
            stream,
            service,
            shutdown.cancelled(),
            std::future::pending(),
        )
        .await;
    }

    /// As [`Self::serve`]: closes in order when `leave` is ready, at once when `cut` is.
    pub(crate) async fn serve_until<I, S, B>(
        mut self,
        stream: I,
        service: S,
        leave: impl Future<Output = ()>,
        cut: impl Future<Output = ()>,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: HttpService<B>,
        B: Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
    {
        if self.activity.state.borrow().idle.is_none() {
            self.restart();
        }
        let limits = &self.activity.slots.limits;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        let head_bytes = usize::try_from(limits.max_head_bytes).unwrap_or(usize::MAX);
        // The timeouts of this module also cover HTTP/2 and the time before the protocol is known.
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(head_bytes.max(8192));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.max_concurrent_streams)
            .max_header_list_size(limits.max_head_bytes);
        let stream = TimedWrites::new(stream, limits.write_timeout);
        let service = Counted {
            service,
            activity: self.activity.clone(),
        };
        let mut connection =
            pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
        let mut state = self.activity.state.subscribe();
        let (mut leave, mut cut) = (pin!(leave), pin!(cut));
        let mut leaving = false;
        let mut deadline = pin!(sleep_until(Instant::now()));
        let write_timeout = limits.write_timeout;
        let mut stalled = pin!(sleep(write_timeout));
        loop {
            let now_state = *state.borrow_and_update();
            let limit = self.limit(now_state);
            let timed = limit.is_some();
            if let Some(limit) = limit.filter(|limit| *limit != deadline.deadline()) {
                deadline.as_mut().reset(limit);
            }
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                () = leave.as_mut(), if !leaving => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                () = cut.as_mut() => return,
                () = self.activity.replaced.cancelled() => return,
                () = deadline.as_mut(), if timed => break,
                () = stalled.as_mut() => {
                    // Looked at now and then, as bodies change with every frame.
                    let now = Instant::now();
                    let since = self.activity.oldest_stalled().unwrap_or(now);
                    if since + write_timeout <= now {
                        tracing::debug!("client does not take its response, closing the connection");
                        return;
                    }
                    stalled.as_mut().reset(since + write_timeout);
                }
                _ = state.changed() => {}
            }
        }
        tracing::debug!("connection took too long, closing it");
        if self.activity.state.borrow().in_flight == 0 {
            // A client that is about to send a request learns that it must use another connection.
            connection.as_mut().graceful_shutdown();
            let _ = timeout(DRAIN, connection).await;
        }
    }

    /// When the connection must have changed its state.
    fn limit(&self, state: ActivityState) -> Option<Instant> {
        let limits = &self.activity.slots.limits;
        Some(match (state.in_flight, state.proven) {
            (0, true) => state.since + limits.idle_timeout,
            (0, false) => state.since + limits.head_timeout,
            _ => state.since + limits.response_timeout?,
        })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let slots = &self.activity.slots;
        {
            let mut table = slots.table.lock();
            table.open -= 1;
            if self.activity.replaced.is_cancelled() {
                table.closing -= 1;
            }
            let key = self.activity.state.borrow().idle;
            if let Some(key) = key {
                table.idle.remove(&key);
            }
            // A response that outlives its connection must not enter it again.
            self.activity.replaced.cancel();
        }
        slots.changed.notify_one();
    }
}

impl Activity {
    /// Since when a response has waited for the client.
    fn oldest_stalled(&self) -> Option<Instant> {
        self.bodies.lock().stalled.values().min().copied()
    }

    /// Changes the state, and with it the connection's place among the idle ones.
    fn update(&self, change: impl FnOnce(&mut ActivityState)) {
        let mut table = self.slots.table.lock();
        self.state.send_modify(|state| {
            let before = (state.in_flight > 0, state.proven);
            change(state);
            let is_busy = state.in_flight > 0;
            // A client that stays unauthenticated gains no time by asking.
            if state.proven && before != (is_busy, true) {
                state.since = Instant::now();
            }
            if let Some(key) = state.idle.take() {
                table.idle.remove(&key);
            }
            if !is_busy && !self.replaced.is_cancelled() {
                let key = (state.proven, table.next);
                table.next += 1;
                table.idle.insert(key, self.replaced.clone());
                state.idle = Some(key);
            }
        });
        drop(table);
        self.slots.changed.notify_one();
    }
}

/// Counts the requests in flight of a connection.
#[derive(Clone, Debug)]
struct Counted<S> {
    service: S,
    activity: Arc<Activity>,
}

/// One request in flight.
#[derive(Debug)]
struct InFlight(Arc<Activity>);

impl InFlight {
    fn begin(activity: Arc<Activity>) -> Self {
        activity.update(|state| state.in_flight += 1);
        Self(activity)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.update(|state| state.in_flight -= 1);
    }
}

impl<S, B> Service<Request<Incoming>> for Counted<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<CountedBody<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let in_flight = InFlight::begin(self.activity.clone());
        let answer = self.service.call(request);
        Box::pin(async move {
            let response = answer.await?;
            let known = response.status() != StatusCode::UNAUTHORIZED;
            if known {
                in_flight.0.update(|state| state.proven = true);
            }
            let activity = Arc::clone(&in_flight.0);
            // Only a known client keeps its connection by not reading.
            let in_flight = known.then_some(in_flight);
            Ok(response.map(|body| CountedBody {
                body: Box::pin(body),
                stall: Stall::begin(activity),
                _in_flight: in_flight,
            }))
        })
    }
}

/// The body of a response. Its request is in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedBody<B> {
    body: Pin<Box<B>>,
    stall: Stall,
    _in_flight: Option<InFlight>,
}

/// One response among [`Bodies`].
#[derive(Debug)]
struct Stall {
    activity: Arc<Activity>,
    number: u64,
}

impl Stall {
    /// A response of which nothing is taken yet.
    fn begin(activity: Arc<Activity>) -> Self {
        let mut bodies = activity.bodies.lock();
        let number = bodies.next;
        bodies.next += 1;
        bodies.stalled.insert(number, Instant::now());
        drop(bodies);
        Self { activity, number }
    }

    /// Notes whether the response waits for the client from now on.
    fn set(&self, is_stalled: bool) {
        let mut bodies = self.activity.bodies.lock();
        if is_stalled {
            bodies.stalled.insert(self.number, Instant::now());
        } else {
            bodies.stalled.remove(&self.number);
        }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = self.body.as_mut().poll_frame(context);
        // It is asked for the next frame once the connection has room for it; without one it waits for the server.
        self.stall.set(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream of which a write fails that waits too long for the client.
#[derive(Debug)]
struct TimedWrites<I> {
    stream: I,
    timeout: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<I> TimedWrites<I> {
    fn new(stream: I, timeout: Duration) -> Self {
        Self {
            stream,
            timeout,
            deadline: None,
        }
    }

    /// `write` if it is ready, and the error if it has waited too long.
    fn timed<T>(
        &mut self,
        write: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if write.is_ready() {
            self.deadline = None;
            return write;
        }
        let limit = self.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for TimedWrites<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for TimedWrites<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(write, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flush = Pin::new(&mut self.stream).poll_flush(context);
        self.timed(flush, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shutdown = Pin::new(&mut self.stream).poll_shutdown(context);
        self.timed(shutdown, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.timed(write, context)
    }
}
