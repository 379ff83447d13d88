//! The worker that owns all connections of a transport and decides which one takes a stream.
//!
//! Requests ask for a [`StreamPermit`] and wait; the worker serves them in order of arrival. Streams go to the fullest
//! connection with room, so that connections which are no longer needed run empty and are closed.
//!
//! Invariants:
//! 1. Until an attempt to connect has succeeded, and again after one has failed, at most one runs at a time, and only
//!    after its back-off. Requests that wait at its end share its outcome. Otherwise as many run as the waiting streams
//!    need, up to a limit per lane.
//! 2. Watches and ordinary requests never share a connection.
//! 3. While it is in doubt whether the server accepts the client's credentials, one request is sent as a probe: see
//!    [`access`](super::access).
//! 4. Every task (dial, driver, check of the credentials) is in a `JoinSet` of the worker and ends with it.

mod checks;
mod lane;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    task::{JoinError, JoinSet},
    time::Instant,
};

use self::{
    checks::CredentialChecks,
    lane::{LaneState, Member},
};
use super::{
    Backoff, Carrier as _, Config, ConnectError, Error, Lane, Metrics,
    access::{Access, Pass},
    connect_backoff::ConnectBackoff,
    connection::{Connection, ConnectionEvents, StreamPermit},
    credentials::{Check, Credentials, StartedCredentials},
    dial::{NewConnection, dial},
    endpoint::Endpoint,
    metrics::{DialOutcome, Reload},
};

/// A request for a stream.
pub(super) struct Reservation {
    pub(super) lane: Lane,
    pub(super) reply: oneshot::Sender<Result<StreamPermit, Error>>,
}

/// The connections that exist, for status reports.
pub(super) type Live = Arc<Mutex<Vec<Arc<Connection>>>>;

/// What wakes the pool.
enum PoolEvent {
    /// A connection has room, has less of it, or has heard something.
    ConnectionChanged,
    Dialed(DialEnd),
    DriverEnded(tokio::task::Id),
    Checked(Check),
    /// A request for a stream; `None` if the last handle is gone.
    Requested(Option<Reservation>),
    /// Something is due at this time.
    Due,
}

/// The end of an attempt to connect for a lane.
struct DialEnd {
    lane: Lane,
    result: Result<NewConnection, ConnectError>,
}

pub(super) struct Pool {
    server: Arc<Endpoint>,
    config: Arc<Config>,
    credentials: Arc<Credentials>,
    metrics: Metrics,
    reservations: mpsc::UnboundedReceiver<Reservation>,
    live: Live,
    /// Ordinary requests first: they are few, and a caller waits for each.
    lanes: [LaneState; 2],
    backoff: ConnectBackoff,
    access: Access,
    /// An attempt to connect has succeeded before.
    reached: bool,
    /// Notified when a connection changes in any way that matters to the pool.
    changed: Arc<Notify>,
    next_id: u64,
    dials: JoinSet<DialEnd>,
    drivers: JoinSet<()>,
    checks: CredentialChecks,
}

impl Pool {
    pub(super) fn new(
        server: Endpoint,
        config: Arc<Config>,
        StartedCredentials {
            credentials,
            first_load,
        }: StartedCredentials,
        metrics: Metrics,
        reservations: mpsc::UnboundedReceiver<Reservation>,
        live: Live,
    ) -> Self {
        let mut random = config
            .seed
            .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let interval = config.credentials_check_interval;
        let checks = CredentialChecks::new(Arc::clone(&credentials), interval, first_load);
        let lane = |lane| LaneState {
            lane,
            members: Vec::new(),
            waiting: std::collections::VecDeque::new(),
            dialing: 0,
            expected_streams: config.max_streams_per_connection as usize,
        };
        Self {
            server: Arc::new(server),
            lanes: [Lane::Request, Lane::Watch].map(lane),
            backoff: ConnectBackoff::new(
                Backoff::new(config.backoff_base, config.backoff_cap),
                random.fork(),
            ),
            access: Access::new(random),
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
            checks,
        }
    }

    /// Works until the last handle is gone.
    pub(super) async fn run(mut self) {
        loop {
            let deadline = self.settle(Instant::now());
            match self.event(deadline).await {
                PoolEvent::ConnectionChanged | PoolEvent::Due => {}
                PoolEvent::Dialed(ended) => self.dialed(ended),
                PoolEvent::DriverEnded(task) => self.ended(task),
                PoolEvent::Checked(check) => self.checked(check),
                PoolEvent::Requested(Some(Reservation { lane, reply })) => {
                    self.lane(lane).waiting.push_back(reply);
                    self.checks.requested();
                }
                PoolEvent::Requested(None) => return,
            }
        }
    }

    /// Every arm is cancel-safe: channels, `Notify` and `JoinSet` lose nothing. Biased, so that what is ready at the same
    /// time is handled in the same order for the same seed. The order starves nothing: `settle` does all that is due
    /// after each event.
    async fn event(&mut self, deadline: Option<Instant>) -> PoolEvent {
        tokio::select! {
            biased;
            () = self.changed.notified() => PoolEvent::ConnectionChanged,
            Some(dialed) = self.dials.join_next() => PoolEvent::Dialed(dialed.unwrap_or_else(bug)),
            Some(ended) = self.drivers.join_next_with_id() => PoolEvent::DriverEnded(match ended {
                Err(error) if error.is_cancelled() => error.id(),
                ended => ended.unwrap_or_else(bug).0,
            }),
            Some(checked) = self.checks.ended() => PoolEvent::Checked(checked.unwrap_or_else(bug)),
            reservation = self.reservations.recv() => PoolEvent::Requested(reservation),
            () = tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => PoolEvent::Due,
        }
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[usize::from(lane == Lane::Watch)]
    }

    /// Does all that can be done now. Returns when there is more to do even without an event.
    fn settle(&mut self, now: Instant) -> Option<Instant> {
        let idle_timeout = self.config.idle_timeout;
        let mut seen = ConnectionEvents::default();
        // Until when the peer was heard from on a connection that is no longer trusted.
        let mut silent = None;
        let mut deadline = None;
        for lane in &mut self.lanes {
            for member in &mut lane.members {
                let events = member.connection.take_events();
                if events.distrusted {
                    silent = silent.max(Some(member.connection.last_heard()));
                }
                seen |= events;
                deadline = earliest(deadline, member.retire(now, idle_timeout));
            }
            lane.waiting.retain(|reply| !reply.is_closed());
        }
        let members = self.lanes.iter().flat_map(|lane| &lane.members);
        for member in members.filter(|member| Some(member.connection.last_heard()) <= silent) {
            member.connection.close();
        }
        if seen.answered {
            self.backoff.succeeded();
        }
        if seen.granted {
            self.access.granted();
        }
        if let Some(sent_with) = seen.unauthorized
            && self.access.refused(sent_with, now)
        {
            self.checks.unauthorized();
        }
        self.checks.start_if_due(now);
        let more = match (self.checks.wait(now), self.credentials.loading()) {
            (None, None) => self.serve(now),
            (until @ Some(_), _) => until,
            (None, Some(loading)) => {
                let server = Arc::clone(&self.server.name);
                let problem = self.credentials.problem();
                self.refuse_waiting(|| Error::NoCredentials {
                    server: Arc::clone(&server),
                    credentials: Arc::clone(&loading.description),
                    source: problem.clone(),
                });
                None
            }
        };
        earliest(deadline, more)
    }

    /// Serves waiting requests as far as room and access permit. Returns when there is more to do.
    fn serve(&mut self, now: Instant) -> Option<Instant> {
        match self.access.pass(now) {
            Pass::All => {
                for lane in &mut self.lanes {
                    while lane.serve_one(None) {}
                }
            }
            Pass::One => {
                let ready = self.lanes.iter().find(|lane| lane.can_serve());
                if let Some(lane) = ready.map(|lane| lane.lane) {
                    let probe = self.access.probe(now);
                    self.lane(lane).serve_one(Some(probe));
                    // For the deadline of the probe, or because it was canceled.
                    return self.serve(now);
                }
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

    /// Answers all waiting requests with an error.
    fn refuse_waiting(&mut self, error: impl Fn() -> Error) {
        for lane in &mut self.lanes {
            for reply in lane.waiting.drain(..) {
                // Fails if the request was canceled.
                let _ = reply.send(Err(error()));
            }
        }
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
            let (tls, handshake) = self.credentials.tls()?;
            if let Some(pause) = self.backoff.pause(now) {
                return Some(pause);
            }
            for _ in 0..missing {
                self.lane(lane).dialing += 1;
                let (server, config) = (Arc::clone(&self.server), Arc::clone(&self.config));
                let tls = Arc::clone(&tls);
                self.dials.spawn(async move {
                    let result = dial(server, tls, config, lane)
                        .await
                        .map(|dialed| NewConnection { dialed, handshake });
                    DialEnd { lane, result }
                });
            }
        }
        None
    }

    fn dialed(&mut self, ended: DialEnd) {
        let lane = ended.lane;
        self.lane(lane).dialing -= 1;
        self.metrics.dialed(DialOutcome::of(&ended.result));
        match ended.result {
            Ok(new) => {
                self.reached = true;
                self.add(lane, new);
            }
            Err(error) => {
                // The files may hold another authority.
                if matches!(error, ConnectError::Tls(_)) {
                    self.checks.hurry();
                }
                let retry_in = self.backoff.failed(Instant::now());
                let server = Arc::clone(&self.server.name);
                tracing::warn!(
                    %server,
                    ?retry_in,
                    error = &error as &dyn std::error::Error,
                    "failed to connect to the API server, will retry"
                );
                let source = Arc::new(error);
                self.refuse_waiting(|| {
                    let (server, source) = (Arc::clone(&server), Arc::clone(&source));
                    Error::Connect { server, source }
                });
            }
        }
    }

    fn add(&mut self, lane: Lane, new: NewConnection) {
        self.next_id += 1;
        let (connection, driver) = Connection::start(
            self.next_id,
            lane,
            Arc::clone(&self.server.name),
            new,
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
            idle_since: None,
            retired: false,
        });
    }

    fn ended(&mut self, task: tokio::task::Id) {
        let mut ended = None;
        for lane in &mut self.lanes {
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
        if !retired && !connection.has_answered() {
            // A server that accepts connections and drops them is no better than one that refuses them.
            self.backoff.failed(Instant::now());
        }
        let takes = |lane: &LaneState| {
            let mut members = lane.members.iter();
            members.any(|member| !member.connection.is_closing())
        };
        if !retired && !self.lanes.iter().any(takes) {
            self.access.lost(Instant::now());
        }
    }

    fn checked(&mut self, check: Check) {
        let now = Instant::now();
        match check {
            Check::Unchanged => {}
            Check::Failed => self.metrics.credentials_reloaded(Reload::Failed),
            Check::RenewedToken(generation) => {
                self.metrics.credentials_reloaded(Reload::Renewed);
                self.access.renewed(generation, now);
            }
            Check::Renewed(generation) => {
                self.metrics.credentials_reloaded(Reload::Renewed);
                self.access.renewed(generation, now);
                for member in self.lanes.iter().flat_map(|lane| &lane.members) {
                    member.connection.close();
                }
            }
        }
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}

/// A task of the worker has panicked; nothing cancels them while the worker runs.
fn bug<T>(error: JoinError) -> T {
    std::panic::resume_unwind(error.into_panic())
}
