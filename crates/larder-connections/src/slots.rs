//! The slots of a server: one for each connection, which is served and replaced through it.

use std::{future::Future, pin::pin, sync::Arc};

use http_body::Body;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    BoxError, ConnectionLimits, DRAIN, HttpService,
    activity::{Activity, ActivityState, SlotsInner},
    limits::{IDLE_TIMEOUT, MAX_CONCURRENT_STREAMS, WRITE_TIMEOUT},
    responses::Counted,
    timed_writes::TimedWrites,
};

/// The slots of a server, one for each connection. Cloning gives another handle to the same ones.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    inner: Arc<SlotsInner>,
}

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
                    table.replace_one(self.inner.spared());
                }
            }
            changed.await;
        }
    }

    /// Closes the connection that has been idle longest, if there is one.
    pub(crate) fn replace_one(&self) {
        self.inner.table.lock().replace_one(self.inner.spared());
    }
}

/// What wakes the server of a connection.
enum ConnectionEvent {
    /// Either side has closed it.
    Ended(Result<(), BoxError>),
    /// It may end once requests in flight are finished.
    Leave,
    /// It ends at once: its slot is another's, or its server does.
    Cut,
    TimeIsUp,
    /// Whether the client takes what it is sent is looked at now and then, as bodies change with every frame.
    LookDue,
    StateChanged,
}

/// The right of one connection to be open. Dropping it frees the slot.
#[derive(Debug)]
#[must_use = "dropping a slot frees it while its connection is open"]
pub struct ConnectionSlot {
    activity: Arc<Activity>,
}

impl ConnectionSlot {
    fn new(slots: Arc<SlotsInner>) -> Self {
        let state = ActivityState {
            in_flight: 0,
            is_authenticated: false,
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
    pub(crate) fn restart(&mut self) {
        self.activity.update(|state| state.since = Instant::now());
    }

    /// Waits for `handshake` as long as the first request may take; `None` when it takes longer, or the slot is given
    /// to another connection.
    pub async fn handshake<T>(&self, handshake: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = handshake => Some(done),
            () = self.activity.replaced.cancelled() => None,
            () = sleep(self.activity.slots.limits.head_timeout) => None,
        }
    }

    /// Speaks HTTP/1.1 or HTTP/2 with the client of `stream` until either side closes or a limit is reached. When
    /// `leave` is ready, it lets requests in flight finish; when `cut` is, it ends at once.
    pub async fn serve<I, S, B>(
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
        let builder = builder(&self.activity.slots.limits);
        let stream = TimedWrites::new(stream);
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
        let mut stalled = pin!(sleep(WRITE_TIMEOUT));
        loop {
            let now_state = *state.borrow_and_update();
            let limit = self.limit(now_state);
            let timed = limit.is_some();
            if let Some(limit) = limit.filter(|limit| *limit != deadline.deadline()) {
                deadline.as_mut().reset(limit);
            }
            let event = tokio::select! {
                biased;
                ended = connection.as_mut() => ConnectionEvent::Ended(ended),
                () = leave.as_mut(), if !leaving => ConnectionEvent::Leave,
                () = cut.as_mut() => ConnectionEvent::Cut,
                () = self.activity.replaced.cancelled() => ConnectionEvent::Cut,
                () = deadline.as_mut(), if timed => ConnectionEvent::TimeIsUp,
                () = stalled.as_mut() => ConnectionEvent::LookDue,
                _ = state.changed() => ConnectionEvent::StateChanged,
            };
            match event {
                ConnectionEvent::Ended(ended) => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection ended");
                    }
                    return;
                }
                ConnectionEvent::Leave => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                ConnectionEvent::Cut => return,
                ConnectionEvent::TimeIsUp => break,
                ConnectionEvent::LookDue => {
                    let Some(next) = self.next_look() else {
                        tracing::debug!(
                            "client does not take its response, closing the connection"
                        );
                        return;
                    };
                    stalled.as_mut().reset(next);
                }
                ConnectionEvent::StateChanged => {}
            }
        }
        tracing::debug!("connection took too long, closing it");
        if self.activity.state.borrow().in_flight == 0 {
            // A client that is about to send a request learns that it must use another connection.
            connection.as_mut().graceful_shutdown();
            let _ = timeout(DRAIN, connection).await;
        }
    }

    /// When a response may be stalled for too long; `None` if one is.
    fn next_look(&self) -> Option<Instant> {
        let now = Instant::now();
        let since = self.activity.oldest_stalled().unwrap_or(now);
        Some(since + WRITE_TIMEOUT).filter(|next| *next > now)
    }

    /// When the connection must have changed its state.
    fn limit(&self, state: ActivityState) -> Option<Instant> {
        let limits = &self.activity.slots.limits;
        Some(match (state.in_flight, state.is_authenticated) {
            (0, true) => state.since + IDLE_TIMEOUT,
            (0, false) => state.since + limits.head_timeout,
            _ => state.since + limits.response_timeout?,
        })
    }
}

/// Of HTTP, without timeouts: those of this module also cover HTTP/2 and the time before the protocol is known.
fn builder(limits: &ConnectionLimits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if !limits.http2 {
        builder = builder.http1_only();
    }
    let head_bytes = usize::try_from(limits.max_head_bytes).unwrap_or(usize::MAX);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(head_bytes.max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
        .max_header_list_size(limits.max_head_bytes);
    builder
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
