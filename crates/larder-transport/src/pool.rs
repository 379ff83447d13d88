//! The worker that owns all connections of a transport and decides which one a stream goes to.
//!
//! Requests ask for a [`StreamPermit`] and wait; the worker serves them in the order in which they came. Streams go to the fullest
//! connection that has room, so that connections which are no longer needed run empty and are closed.
//!
//! Invariants:
//! 1. Until an attempt to connect has succeeded, and again after one has failed, at most one runs at a time, and only after
//!    its back-off. Whoever waits at its end shares its outcome. While all is well, as many run as the waiting streams
//!    need, at most [`PARALLEL_DIALS`].
//! 2. Watches and ordinary requests never share a connection.
//! 3. While it is in doubt whether the server takes our credentials, one request goes first: see [`access`](super::access).
//! 4. Every task (dial, driver, look at the credentials) is in a `JoinSet` of the worker and ends with it.

use std::{collections::VecDeque, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::{AbortHandle, JoinError, JoinSet},
    time::Instant,
};

use super::{
    Config, ConnectError, Error, Lane, Metrics,
    access::{Access, Pass},
    backoff::ConnectBackoff,
    connection::{Connection, StreamPermit},
    credentials::{Check, Credentials},
    dial::{Dialed, dial},
    endpoint::Endpoint,
};

/// Most attempts to connect that run at the same time on behalf of one lane.
const PARALLEL_DIALS: usize = 4;

/// Ordinary requests at once for which connections are opened; further ones wait. One HTTP/2 connection takes more than
/// that, so that there is just one. Over HTTP/1.1 there are as many connections.
const REQUEST_STREAMS: usize = 8;

/// Shortest time between two looks at the credentials because of answers 401, or of handshakes that fail.
const REFUSED_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

/// Asks for a stream.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) lane: Lane,
    pub(super) reply: oneshot::Sender<Result<StreamPermit, Error>>,
}

/// The connections that exist, for whoever wants to look.
pub(super) type Live = Arc<Mutex<Vec<Arc<Connection>>>>;

#[derive(Debug)]
pub(super) struct Pool {
    server: Arc<Endpoint>,
    config: Arc<Config>,
    credentials: Arc<Credentials>,
    metrics: Metrics,
    reservations: mpsc::UnboundedReceiver<Reservation>,
    live: Live,
    watches: LaneState,
    requests: LaneState,
    backoff: ConnectBackoff,
    access: Access,
    /// An attempt to connect has succeeded before.
    reached: bool,
    /// Tells that a connection has changed in any way that matters here.
    changed: Arc<Notify>,
    next_id: u64,
    dials: JoinSet<(Lane, Result<Dialed, ConnectError>)>,
    drivers: JoinSet<()>,
    /// At most one: the look at the credentials that is under way.
    looks: JoinSet<Check>,
    looked_at: Instant,
    /// When to look again, if somebody comes then.
    next_look: Instant,
    /// Somebody has asked for a stream since the last look was considered.
    arrived: bool,
    /// The server has answered 401 since the last look.
    unauthorized: bool,
}

#[derive(Debug)]
struct LaneState {
    lane: Lane,
    members: Vec<Member>,
    waiting: VecDeque<oneshot::Sender<Result<StreamPermit, Error>>>,
    dialing: usize,
    /// Streams that the next connection will probably take.
    expected_streams: usize,
}

#[derive(Debug)]
struct Member {
    connection: Arc<Connection>,
    driver: AbortHandle,
    /// A response on it has been taken for the end of the back-off.
    proven: bool,
    /// Since when it has no stream.
    idle_since: Option<Instant>,
    /// We ended it.
    retired: bool,
}

/// Everything that wakes the worker.
enum PoolEvent {
    Reserve(Reservation),
    Changed,
    Dialed(Lane, Result<Dialed, ConnectError>),
    Ended(tokio::task::Id),
    Looked(Check),
    Deadline,
    /// The last handle is gone.
    Abandoned,
}

impl Pool {
    pub(super) fn new(
        server: Endpoint,
        config: Arc<Config>,
        credentials: Arc<Credentials>,
        metrics: Metrics,
        reservations: mpsc::UnboundedReceiver<Reservation>,
        live: Live,
    ) -> Self {
        let looked_at = Instant::now();
        let next_look = looked_at + config.credentials_check_interval;
        let lane = |lane| LaneState {
            lane,
            members: Vec::new(),
            waiting: VecDeque::new(),
            dialing: 0,
            expected_streams: config.max_streams_per_connection.max(1) as usize,
        };
        Self {
            server: Arc::new(server),
            watches: lane(Lane::Watch),
            requests: lane(Lane::Request),
            backoff: ConnectBackoff::new(
                config.backoff_base,
                config.backoff_cap,
                fastrand::Rng::new(),
            ),
            access: Access::new(fastrand::Rng::new()),
            config,
            credentials,
            metrics,
            reservations,
            live,
            reached: false,
            changed: Arc::new(Notify::new()),
            next_id: 0,
            dials: JoinSet::new(),
            drivers: JoinSet::new(),
            looks: JoinSet::new(),
            looked_at,
            next_look,
            arrived: false,
            unauthorized: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let deadline = self.settle(Instant::now());
            match self.next_event(deadline).await {
                PoolEvent::Reserve(Reservation { lane, reply }) => {
                    self.lane(lane).waiting.push_back(reply);
                    self.arrived = true;
                }
                PoolEvent::Changed | PoolEvent::Deadline => {}
                PoolEvent::Dialed(lane, result) => self.dialed(lane, result),
                PoolEvent::Ended(task) => self.ended(task),
                PoolEvent::Looked(look) => self.looked(look),
                PoolEvent::Abandoned => return,
            }
        }
    }

    /// Waits for whatever comes first. Every arm is cancel-safe: channels, `Notify` and `JoinSet` lose nothing.
    async fn next_event(&mut self, deadline: Option<Instant>) -> PoolEvent {
        tokio::select! {
            reservation = self.reservations.recv() => {
                reservation.map_or(PoolEvent::Abandoned, PoolEvent::Reserve)
            }
            () = self.changed.notified() => PoolEvent::Changed,
            Some(dialed) = self.dials.join_next() => match dialed {
                Ok((lane, result)) => PoolEvent::Dialed(lane, result),
                Err(error) => bug(error),
            },
            Some(ended) = self.drivers.join_next_with_id() => match ended {
                Ok((task, ())) => PoolEvent::Ended(task),
                Err(error) if error.is_cancelled() => PoolEvent::Ended(error.id()),
                Err(error) => bug(error),
            },
            Some(looked) = self.looks.join_next() => match looked {
                Ok(look) => PoolEvent::Looked(look),
                Err(error) => bug(error),
            },
            () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                PoolEvent::Deadline
            }
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        match lane {
            Lane::Watch => &mut self.watches,
            Lane::Request => &mut self.requests,
        }
    }

    fn lanes(&mut self) -> [&mut LaneState; 2] {
        // Ordinary requests first: they are few, and somebody waits for them.
        [&mut self.requests, &mut self.watches]
    }

    /// Does all that can be done now. Returns when there will be more to do even if nothing happens.
    fn settle(&mut self, now: Instant) -> Option<Instant> {
        let idle_timeout = self.config.idle_timeout;
        let (mut proven, mut unauthorized, mut granted) = (false, false, false);
        let mut deadline = None;
        for lane in self.lanes() {
            for member in &mut lane.members {
                proven |= member.newly_proven();
                unauthorized |= member.connection.take_unauthorized();
                granted |= member.connection.take_granted();
                deadline = earliest(deadline, member.retire(now, idle_timeout));
            }
            lane.waiting.retain(|reply| !reply.is_closed());
        }
        if proven {
            self.backoff.succeeded();
        }
        if granted {
            self.access.granted();
        }
        if unauthorized {
            self.unauthorized = true;
            self.look_soon();
            self.access.refused(now);
        }
        if self.looks.is_empty() {
            self.look_if_due(now);
        }
        if self.looks.is_empty() {
            deadline = earliest(deadline, self.serve(now));
        }
        deadline
    }

    /// Gives those who wait what there is and what they may have. Returns when there will be more to do.
    fn serve(&mut self, now: Instant) -> Option<Instant> {
        match self.access.pass(now) {
            Pass::All => {
                for lane in self.lanes() {
                    while lane.serve_one(None) {}
                }
            }
            Pass::One => {
                let ready = |lane: &&LaneState| lane.can_serve();
                let Some(lane) = [&self.requests, &self.watches]
                    .into_iter()
                    .find(ready)
                    .map(|lane| lane.lane)
                else {
                    return self.dial_if_needed(now);
                };
                let probe = self.access.probe(now);
                self.lane(lane).serve_one(Some(probe));
                // To learn that the request was given up, or until when it is waited for.
                return self.serve(now);
            }
            Pass::Wait(until) => return Some(until),
            Pass::Refuse => {
                let server = Arc::clone(&self.server.name);
                let (credentials, problem) = self.credentials.description();
                self.refuse_waiting(|| Error::Unauthorized {
                    server: Arc::clone(&server),
                    credentials: Arc::clone(&credentials),
                    source: problem.clone(),
                });
            }
        }
        self.dial_if_needed(now)
    }

    /// Ends the waiting of all with an error.
    fn refuse_waiting(&mut self, error: impl Fn() -> Error) {
        for lane in self.lanes() {
            for reply in lane.waiting.drain(..) {
                // Nobody listens any more: the request was given up.
                let _ = reply.send(Err(error()));
            }
        }
    }

    /// Looks at the credential files, if somebody has come and the last look is old.
    fn look_if_due(&mut self, now: Instant) {
        if !std::mem::take(&mut self.arrived) || now < self.next_look {
            return;
        }
        self.looked_at = now;
        self.next_look = now + self.config.credentials_check_interval;
        let unauthorized = std::mem::take(&mut self.unauthorized);
        if self.credentials.can_change() {
            let credentials = Arc::clone(&self.credentials);
            self.looks
                .spawn(async move { credentials.check(unauthorized).await });
        }
    }

    /// The server and we do not accept each other: there may be something new in the files.
    fn look_soon(&mut self) {
        self.next_look = self.next_look.min(self.looked_at + REFUSED_PAUSE);
    }

    /// Starts as many attempts to connect as the waiting streams need and invariant 1 allows.
    fn dial_if_needed(&mut self, now: Instant) -> Option<Instant> {
        for lane in [Lane::Request, Lane::Watch] {
            let mut missing = self.lane(lane).missing();
            if !self.reached || self.backoff.has_failed() {
                missing = missing.min(1_usize.saturating_sub(self.dials.len()));
            }
            if missing == 0 {
                continue;
            }
            if let Some(pause) = self.backoff.pause(now) {
                return Some(pause);
            }
            for _ in 0..missing {
                self.lane(lane).dialing += 1;
                let (server, config) = (Arc::clone(&self.server), Arc::clone(&self.config));
                let tls = self.credentials.tls();
                self.dials
                    .spawn(async move { (lane, dial(server, tls, config, lane).await) });
            }
        }
        None
    }

    fn dialed(&mut self, lane: Lane, result: Result<Dialed, ConnectError>) {
        self.lane(lane).dialing -= 1;
        match result {
            Ok(dialed) => {
                self.metrics.dialed("connected");
                self.reached = true;
                self.add(lane, dialed);
            }
            Err(error) => {
                self.metrics.dialed(if error.is_timeout() {
                    "timeout"
                } else {
                    "failed"
                });
                // There may be another authority.
                if matches!(error, ConnectError::Tls(_)) {
                    self.look_soon();
                }
                let retry_in = self.backoff.failed(Instant::now());
                let server = Arc::clone(&self.server.name);
                tracing::warn!(
                    %server,
                    ?retry_in,
                    error = &error as &dyn std::error::Error,
                    "failed to connect to the API server"
                );
                let source = Arc::new(error);
                self.refuse_waiting(|| {
                    let (server, source) = (Arc::clone(&server), Arc::clone(&source));
                    Error::Connect { server, source }
                });
            }
        }
    }

    fn add(&mut self, lane: Lane, dialed: Dialed) {
        self.next_id += 1;
        let (connection, driver) = Connection::start(
            self.next_id,
            lane,
            Arc::clone(&self.server.name),
            dialed,
            &self.config,
            Arc::clone(&self.changed),
            self.metrics.clone(),
        );
        tracing::debug!(
            id = connection.id,
            lane = lane.as_str(),
            protocol = ?connection.protocol(),
            limit = connection.limit(),
            "connected to the API server"
        );
        self.live.lock().push(Arc::clone(&connection));
        self.metrics.connections(lane).inc();
        let driver = self.drivers.spawn(driver);
        let state = self.lane(lane);
        state.expected_streams = connection.limit().max(1);
        state.members.push(Member {
            connection,
            driver,
            proven: false,
            idle_since: None,
            retired: false,
        });
    }

    fn ended(&mut self, task: tokio::task::Id) {
        let mut ended = None;
        for lane in self.lanes() {
            if let Some(index) = lane.members.iter().position(|m| m.driver.id() == task) {
                ended = Some(lane.members.swap_remove(index));
            }
        }
        let Member {
            connection,
            retired,
            ..
        } = ended.expect("a driver's member stays until its driver has ended");
        connection.close();
        self.live.lock().retain(|live| live.id != connection.id);
        self.metrics.connections(connection.lane).dec();
        tracing::debug!(id = connection.id, "connection to the API server closed");
        if !retired && !connection.is_proven() {
            // It accepts connections and drops them: that is no better than refusing them.
            self.backoff.failed(Instant::now());
        }
        let takes = |lane: &&mut LaneState| {
            let mut members = lane.members.iter();
            members.any(|member| !member.connection.is_closing())
        };
        if !retired && !self.lanes().iter().any(takes) {
            self.access.lost(Instant::now());
        }
    }

    fn looked(&mut self, look: Check) {
        match look {
            Check::Unchanged => return,
            Check::Failed => return self.metrics.credentials_reloaded("failed"),
            Check::Renewed | Check::RenewedToken => self.metrics.credentials_reloaded("renewed"),
        }
        self.access.renewed(Instant::now());
        if look == Check::RenewedToken {
            return;
        }
        for lane in self.lanes() {
            for member in &lane.members {
                member.connection.close();
            }
        }
    }
}

impl LaneState {
    /// Gives the next one who waits a stream, if there is one to give.
    fn serve_one(&mut self, probe: Option<Arc<()>>) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let Some(mut slot) = self.fullest().and_then(Connection::reserve) else {
            return false;
        };
        if let Some(reply) = self.waiting.pop_front() {
            slot.probe = probe;
            // A request given up meanwhile drops its slot.
            let _ = reply.send(Ok(slot));
        }
        true
    }

    /// Whether somebody waits and there is room.
    fn can_serve(&self) -> bool {
        !self.waiting.is_empty() && self.fullest().is_some()
    }

    /// The fullest connection that has room.
    fn fullest(&self) -> Option<&Arc<Connection>> {
        self.members
            .iter()
            .map(|member| &member.connection)
            .filter(|connection| !connection.is_closing())
            .filter(|connection| connection.open() < connection.limit())
            .max_by_key(|connection| connection.open())
    }

    /// Attempts to connect that should be started for those who wait.
    fn missing(&self) -> usize {
        let needed = self
            .waiting
            .len()
            .div_ceil(self.expected_streams)
            .min(PARALLEL_DIALS);
        let allowed = match self.lane {
            Lane::Watch => usize::MAX,
            Lane::Request => {
                let taking = self.members.iter().map(|member| &member.connection);
                let limits = taking.filter(|c| !c.is_closing()).map(|c| c.limit());
                REQUEST_STREAMS
                    .saturating_sub(limits.sum())
                    .div_ceil(self.expected_streams)
            }
        };
        needed.min(allowed).saturating_sub(self.dialing)
    }
}

impl Member {
    fn newly_proven(&mut self) -> bool {
        let before = std::mem::replace(&mut self.proven, self.connection.is_proven());
        self.proven && !before
    }

    /// Ends the connection if nobody needs it any more. Returns when it should be asked again.
    fn retire(&mut self, now: Instant, idle_timeout: std::time::Duration) -> Option<Instant> {
        if self.connection.open() > 0 {
            self.idle_since = None;
            return None;
        }
        let until = *self.idle_since.get_or_insert(now) + idle_timeout;
        if self.connection.is_closing() || until <= now {
            self.retired = true;
            self.connection.close();
            self.driver.abort();
            return None;
        }
        Some(until)
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A task of the worker has panicked; nothing cancels them while the worker runs.
fn bug(error: JoinError) -> ! {
    std::panic::resume_unwind(error.into_panic())
}
