//! A reflector and its request in flight.
//!
//! The driver of one target, be it a single object, a namespace or a collection. Its state is one [`DriverPhase`]. The
//! request or stream in flight is part of the phase, so dropping or replacing the phase ends it.
//!
//! Invariants:
//! 1. At most one request or stream is in flight.
//! 2. A request holds its permit until the response is complete, and follow-up requests of the same cycle keep it.
//! 3. An item that cannot be decoded is reported if its target can name it, and left out. The state without it is
//!    marked incomplete, so an absence there means nothing.
//! 4. The time is passed in.

mod responses;

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use larder_objects::ResourceVersion;
use larder_transport::{Link, Probing};
use tokio::time::Instant;
use tracing::trace;

use crate::{
    api::{Api, EventStream, Listed},
    error::RequestError,
    limits::Permit,
    liveness::RESPONSE_TIMEOUT,
    outages::Outages,
    reflector::{
        BOOKMARK_SILENCE, Decision, Freshness, MinFreshness, Phase, Reflector, Request, Restart,
        WATCH_SLACK, WatchYield,
    },
    report::{Report, Reports, TargetId},
    sequence::RegistrationSeq,
    server::{MinVersion, ServerState},
    target::Target,
};

/// What a request under way holds.
struct InFlight {
    /// The response is as fresh as this registration, if the request asks for that.
    seq: RegistrationSeq,
    /// Released once the response is complete.
    permit: Permit,
}

/// What drivers share: what is known of the API server, and where reports go.
pub(crate) struct Shared<'a, T: Target> {
    pub(crate) now: Instant,
    pub(crate) server: &'a mut ServerState,
    pub(crate) reports: &'a mut Reports<T>,
}

type Pending<R> = BoxFuture<'static, Result<R, RequestError>>;

/// The request under way.
enum DriverPhase<T: Target> {
    /// Nothing: not started, or stopped.
    Resting,
    /// The request of a phase waits to be sent; with a permit if the cycle has one already.
    Queued(Phase, Option<Permit>),
    /// A stream was requested: a streaming list or a watch.
    Opening(Opening<T>),
    /// A streaming list sends its initial events.
    Collecting(Box<Collecting<T>>),
    /// A plain list was requested.
    Listing(Freshness, Pending<Listed<T>>, InFlight),
    /// The watch is open: the state is known up to the latency of an event.
    Watching(Watching<T>),
    /// The last request failed or ended, or the target is polled; the next request must wait.
    BackingOff { next: Phase, until: Instant },
}

struct Opening<T> {
    response: Pending<EventStream<T>>,
    /// The freshness of the state that a streaming list begins with; `None` for a watch.
    freshness: Option<Freshness>,
    /// How long the API server keeps the stream open.
    timeout: Duration,
    in_flight: InFlight,
}

/// The part of a streaming list that has arrived.
struct Collecting<T: Target> {
    stream: EventStream<T>,
    freshness: Freshness,
    state: T::State,
    incomplete: Option<Arc<RequestError>>,
    timeout: Duration,
    /// When the next event must be there.
    deadline: Instant,
    /// When the state must be complete.
    end: Instant,
    in_flight: InFlight,
}

struct Watching<T: Target> {
    stream: EventStream<T>,
    since: Instant,
    timeout: Duration,
    brought: WatchYield,
}

impl<T: Target> Watching<T> {
    /// When the state was last proven to be current by the open watch. A server that is alive on the connection has
    /// nothing to say on the watch. Where the connection is unknown, there is nothing but the open stream.
    fn proven(&self, now: Instant) -> Instant {
        self.stream.link().map_or(now, Link::last_heard)
    }
}

/// The activity of a driver, as far as others need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Nothing is under way.
    Resting,
    /// A complete state is requested, as fresh as the newest registration or not.
    Obtaining { confirmed: bool },
    /// The watch is open or requested.
    Watching,
    /// It backs off, or waits for its next poll.
    BackingOff,
}

pub(crate) struct Driver<T: Target> {
    id: TargetId,
    target: T,
    reflector: Reflector,
    phase: DriverPhase<T>,
    /// Requests for a complete state that were sent so far.
    state_requests: u64,
    /// When the last request was sent.
    sent: Instant,
    /// When the last response, event or bookmark came, or the target was started.
    last_heard: Instant,
    /// When the known state was last proven to be current, except by the open watch: see [`Watching::proven`].
    proven: Instant,
    /// Whether the watch has outlived its timeout without a sign of life since.
    overdue: bool,
}

impl<T: Target + Clone> Driver<T> {
    pub(crate) fn new(
        id: TargetId,
        target: T,
        random: fastrand::Rng,
        outages: Outages,
        now: Instant,
    ) -> Self {
        let reflector = Reflector::new(random, outages, target.timing().watch_timeout, now);
        Self {
            id,
            target,
            reflector,
            phase: DriverPhase::Resting,
            state_requests: 0,
            sent: now,
            last_heard: now,
            proven: now,
            overdue: false,
        }
    }

    pub(crate) fn target(&self) -> &T {
        &self.target
    }

    pub(crate) fn state_requests(&self) -> u64 {
        self.state_requests
    }

    pub(crate) fn activity(&self) -> Activity {
        let freshness = match &self.phase {
            DriverPhase::Resting => return Activity::Resting,
            DriverPhase::BackingOff { .. } => return Activity::BackingOff,
            DriverPhase::Queued(phase, _) => {
                return match self.reflector.obtains(*phase) {
                    Some(confirmed) => Activity::Obtaining { confirmed },
                    None => Activity::Watching,
                };
            }
            DriverPhase::Opening(opening) => opening.freshness,
            DriverPhase::Collecting(collecting) => Some(collecting.freshness),
            DriverPhase::Listing(freshness, ..) => Some(*freshness),
            DriverPhase::Watching(_) => None,
        };
        freshness.map_or(Activity::Watching, |freshness| Activity::Obtaining {
            confirmed: freshness.is_confirmed(),
        })
    }

    /// Whether a request waits to be sent.
    pub(crate) fn is_queued(&self) -> bool {
        matches!(self.phase, DriverPhase::Queued(..))
    }

    /// The permit with which the waiting request can be sent at once.
    pub(crate) fn take_permit(&mut self) -> Option<Permit> {
        match &mut self.phase {
            DriverPhase::Queued(_, permit) => permit.take(),
            _ => None,
        }
    }

    /// When [`expired`](Self::expired) is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            DriverPhase::Collecting(collecting) => Some(collecting.deadline),
            DriverPhase::Watching(watching) => Some(self.watch_deadline(watching)),
            DriverPhase::BackingOff { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// When an open watch counts as dead.
    fn watch_deadline(&self, watching: &Watching<T>) -> Instant {
        let end = watching.since + watching.timeout + WATCH_SLACK;
        let silence = self.max_silence(watching);
        silence.map_or(end, |silence| end.min(self.last_heard + silence))
    }

    /// How long the watch may be silent.
    fn max_silence(&self, watching: &Watching<T>) -> Option<Duration> {
        let unprobed = |link: &Link| link.probing() == Probing::None;
        let by_bookmarks = watching.stream.link().filter(|link| unprobed(link));
        let stated = self.target.timing().max_silence;
        stated.or(by_bookmarks.map(|_| BOOKMARK_SILENCE))
    }

    /// Time of the target's last sign of life, if another one is overdue. `last_sent` is when the engine last sent a
    /// request of any target: a moving queue is a sign of life.
    pub(crate) fn silent_since(&self, now: Instant, last_sent: Instant) -> Option<Instant> {
        let due = match &self.phase {
            DriverPhase::Resting => return None,
            DriverPhase::Watching(watching) => self.last_heard + watching.timeout + WATCH_SLACK,
            DriverPhase::BackingOff { until, .. } => *until + RESPONSE_TIMEOUT,
            _ if self.overdue => self.last_heard,
            DriverPhase::Queued(..) => self.last_heard.max(last_sent) + RESPONSE_TIMEOUT,
            _ => self.sent + RESPONSE_TIMEOUT,
        };
        (now >= due).then_some(self.last_heard)
    }

    /// Whether the watch has outlived its timeout without a sign of life since.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue
    }

    /// Notes a sign of life, or a failure that is reported as such.
    fn heard(&mut self, now: Instant) {
        self.last_heard = now;
        self.overdue = false;
    }

    /// Notes a response with success, an event or a bookmark.
    fn verified(&mut self, now: Instant) {
        self.heard(now);
        self.proven = now;
        self.target.verified(self.reflector.version());
    }

    /// Ends the request under way and requests a complete state: one at least as fresh as `min`.
    pub(crate) fn start(&mut self, min: MinFreshness, now: Instant) {
        self.heard(now);
        self.reflector.start(min);
        self.phase = DriverPhase::Queued(Phase::State, None);
    }

    /// Ends the request under way; the version last seen stays the lower bound of a later start.
    pub(crate) fn stop(&mut self) {
        self.reflector.stop();
        self.phase = DriverPhase::Resting;
    }

    /// The next state must be as fresh as the newest registration.
    pub(crate) fn confirm(&mut self) {
        self.reflector.confirm();
    }

    /// Sets the version of the target, if it is known.
    pub(crate) fn saw(&mut self, version: &ResourceVersion) {
        self.reflector.saw(version);
    }

    /// An outage is over.
    pub(crate) fn retry_early(&mut self, now: Instant) {
        if let DriverPhase::BackingOff { until, .. } = &mut self.phase
            && let Some(early) = self.reflector.retry_early(*until, now)
        {
            *until = early;
        }
    }

    /// Builds the request of the queued phase and sends it. Its response is as fresh as the registration `seq`; `min` is
    /// a version that is fresh enough.
    pub(crate) fn send(
        &mut self,
        api: &Api,
        server: &ServerState,
        seq: RegistrationSeq,
        min: Option<&MinVersion>,
        permit: Permit,
        now: Instant,
    ) {
        let DriverPhase::Queued(phase, _) = &self.phase else {
            return;
        };
        let is_polled = self.target.timing().poll.is_some();
        let phase = if is_polled { Phase::PlainList } else { *phase };
        let request = self.reflector.request(phase, now, server, min);
        trace!(target = ?self.target, ?request, "send request");
        let freshness = request.freshness();
        self.state_requests += u64::from(freshness.is_some());
        self.sent = now;
        let seq = match (freshness, min) {
            (Some(Freshness::AtLeastMin), Some(min)) => min.seq,
            _ => seq,
        };
        let in_flight = InFlight { seq, permit };
        let api = api.clone();
        let target = self.target.clone();
        self.phase = match request {
            Request::StreamingList { watch, .. } | Request::Watch(watch) => {
                DriverPhase::Opening(Opening {
                    freshness,
                    timeout: watch.timeout,
                    response: async move { api.watch(target, &watch).await }.boxed(),
                    in_flight,
                })
            }
            Request::List { freshness, version } => {
                let list = async move { api.list(&target, version.as_ref()).await };
                DriverPhase::Listing(freshness, list.boxed(), in_flight)
            }
        };
    }

    /// The [`deadline`](Self::deadline) has passed.
    pub(crate) fn expired(&mut self, shared: &mut Shared<'_, T>) {
        match mem::replace(&mut self.phase, DriverPhase::Resting) {
            DriverPhase::BackingOff { next, .. } => {
                self.heard(shared.now);
                self.phase = DriverPhase::Queued(next, None);
            }
            // It was heard from since the timer was set.
            DriverPhase::Watching(watching) if shared.now < self.watch_deadline(&watching) => {
                self.phase = DriverPhase::Watching(watching);
            }
            DriverPhase::Watching(watching) => {
                self.overdue = true;
                if let Some(link) = watching.stream.link() {
                    self.proven = self.proven.max(link.last_heard());
                    let silence = self.max_silence(&watching);
                    if silence.is_some_and(|silence| link.last_heard() + silence <= shared.now) {
                        // The next watch would be as silent on it.
                        link.distrust();
                    }
                }
                self.decide(Decision::send(Phase::Watch, Restart::Stalled), None, shared);
            }
            DriverPhase::Collecting(collecting) if shared.now < collecting.deadline => {
                self.phase = DriverPhase::Collecting(collecting);
            }
            DriverPhase::Collecting(collecting) => {
                shared.server.streaming_failed(shared.now);
                let decision = Decision::send(Phase::PlainList, Restart::Stalled);
                self.decide(decision, Some(collecting.in_flight.permit), shared);
            }
            phase => self.phase = phase,
        }
    }

    /// Takes in the next event of the request or stream under way. Ready when there is something to report, or to do.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        shared: &mut Shared<'_, T>,
    ) -> Poll<()> {
        let before = shared.reports.len();
        loop {
            let pending = match mem::replace(&mut self.phase, DriverPhase::Resting) {
                DriverPhase::Opening(mut opening) => match opening.response.poll_unpin(context) {
                    Poll::Pending => DriverPhase::Opening(opening),
                    Poll::Ready(response) => {
                        self.opened(opening, response, shared);
                        return Poll::Ready(());
                    }
                },
                DriverPhase::Collecting(mut collecting) => {
                    match collecting.stream.poll_next(context) {
                        Poll::Pending => DriverPhase::Collecting(collecting),
                        Poll::Ready(event) => {
                            self.collect(collecting, event, shared);
                            if let DriverPhase::Collecting(_) = self.phase {
                                continue;
                            }
                            return Poll::Ready(());
                        }
                    }
                }
                DriverPhase::Listing(freshness, mut response, in_flight) => {
                    match response.poll_unpin(context) {
                        Poll::Pending => DriverPhase::Listing(freshness, response, in_flight),
                        Poll::Ready(response) => {
                            self.listed(freshness, in_flight, response, shared);
                            return Poll::Ready(());
                        }
                    }
                }
                DriverPhase::Watching(mut watching) => match watching.stream.poll_next(context) {
                    Poll::Pending => DriverPhase::Watching(watching),
                    Poll::Ready(event) => {
                        self.watch_event(watching, event, shared);
                        if let DriverPhase::Watching(_) = self.phase
                            && shared.reports.len() == before
                        {
                            continue;
                        }
                        return Poll::Ready(());
                    }
                },
                phase => phase,
            };
            self.phase = pending;
            return Poll::Pending;
        }
    }

    fn report(&self, report: Report<T>, shared: &mut Shared<'_, T>) {
        shared.reports.push_back((self.id, report));
    }
}
