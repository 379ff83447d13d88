//! A reflector and its request under way.
//!
//! The driver of one target, be it a single object, a namespace or a collection. Its state is one [`DriverPhase`]. The
//! request or stream under way is part of the phase, so dropping or replacing the phase ends it.
//!
//! Invariants:
//! 1. At most one request or stream is under way.
//! 2. A request holds its permit until the answer is complete, and follow-up requests of the same cycle keep it.
//! 3. An item that cannot be decoded is reported if its target can name it, and left out. The state without it is
//!    marked incomplete, so an absence there means nothing.

mod answers;

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use larder_objects::ResourceVersion;
use tokio::time::Instant;
use tracing::trace;

use crate::{
    api::{Api, EventStream, Listed},
    error::RequestError,
    limits::Permit,
    liveness::ANSWER_TIMEOUT,
    outages::Outages,
    reflector::{Freshness, Reflector, Request, Resume, WATCH_SLACK},
    report::Report,
    sequence::RegistrationSeq,
    server::{MinVersion, ServerState},
    target::Target,
};

/// A request that waits for its answer.
pub(crate) struct InFlight {
    /// The answer is as fresh as this registration, if the request asks for that.
    pub(crate) seq: RegistrationSeq,
    /// Released once the answer is complete.
    pub(crate) permit: Permit,
}

type PendingAnswer<A> = BoxFuture<'static, Result<A, RequestError>>;

/// The request under way.
enum DriverPhase<T: Target> {
    /// Nothing: not started, or stopped.
    Resting,
    /// A request waits to be sent; with a permit if the cycle has one already.
    Queued(Request, Option<Permit>),
    /// A stream was requested: a streaming list or a watch.
    Opening(Opening<T>),
    /// A streaming list sends its initial events.
    Collecting(Box<Collecting<T>>),
    /// A plain list was requested.
    Listing(Freshness, PendingAnswer<Listed<T>>, InFlight),
    /// The watch is open: the state is known up to the latency of an event.
    Watching(Watching<T>),
    /// The last request failed or ended; the next one must wait.
    BackingOff { resume: Resume, until: Instant },
}

struct Opening<T> {
    answer: PendingAnswer<EventStream<T>>,
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
    deadline: Instant,
    in_flight: InFlight,
}

struct Watching<T> {
    stream: EventStream<T>,
    since: Instant,
    timeout: Duration,
    /// Whether it has brought no event yet.
    quiet: bool,
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
    /// It backs off.
    BackingOff,
}

pub(crate) struct Driver<T: Target> {
    /// The number of the target.
    id: u64,
    target: T,
    reflector: Reflector,
    phase: DriverPhase<T>,
    /// Requests for a complete state that were sent so far.
    state_requests: u64,
    /// When the last request was sent.
    sent: Instant,
    /// When the last answer, event or bookmark came, or the target was started.
    last_heard: Instant,
    /// Whether the watch has outlived its timeout without a sign of life since.
    overdue: bool,
}

impl<T: Target + Clone> Driver<T> {
    pub(crate) fn new(id: u64, target: T, random: fastrand::Rng, outages: Outages) -> Self {
        let now = Instant::now();
        Self {
            id,
            target,
            reflector: Reflector::new(random, outages, now),
            phase: DriverPhase::Resting,
            state_requests: 0,
            sent: now,
            last_heard: now,
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
            DriverPhase::Queued(request, _) => request.freshness(),
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
            DriverPhase::Watching(watching) => {
                Some(watching.since + watching.timeout + WATCH_SLACK)
            }
            DriverPhase::BackingOff { until, .. } => Some(*until),
            _ => None,
        }
    }

    /// Time of the target's last sign of life, if another one is overdue. `last_sent` is when the engine last sent a
    /// request of any target: a moving queue is a sign of life.
    pub(crate) fn silent_since(&self, now: Instant, last_sent: Instant) -> Option<Instant> {
        let due = match &self.phase {
            DriverPhase::Resting => return None,
            DriverPhase::Watching(watching) => self.last_heard + watching.timeout + WATCH_SLACK,
            DriverPhase::BackingOff { until, .. } => *until + ANSWER_TIMEOUT,
            _ if self.overdue => self.last_heard,
            DriverPhase::Queued(..) => self.last_heard.max(last_sent) + ANSWER_TIMEOUT,
            _ => self.sent + ANSWER_TIMEOUT,
        };
        (now >= due).then_some(self.last_heard)
    }

    /// Whether the watch has outlived its timeout without a sign of life since.
    pub(crate) fn is_overdue(&self) -> bool {
        self.overdue
    }

    /// Notes a sign of life, or a failure that is reported as such. Returns the current time.
    fn heard(&mut self) -> Instant {
        self.last_heard = Instant::now();
        self.overdue = false;
        self.last_heard
    }

    /// Ends the request under way and requests a complete state: one as fresh as the newest registration if `confirm`.
    pub(crate) fn start(&mut self, confirm: bool, server: &ServerState) {
        let now = self.heard();
        let request = self.reflector.start(confirm, now, server);
        self.phase = DriverPhase::Queued(request, None);
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

    /// Rebuilds the queued request with the present facts. `min` is a version that is fresh enough.
    pub(crate) fn rebuild_request(&mut self, server: &ServerState, min: Option<&MinVersion>) {
        if let DriverPhase::Queued(request, _) = &mut self.phase {
            let now = Instant::now();
            *request = self.reflector.resume(request.phase(), now, server, min);
        }
    }

    /// Sends the queued request.
    pub(crate) fn send(&mut self, api: &Api, in_flight: InFlight) {
        let request = match mem::replace(&mut self.phase, DriverPhase::Resting) {
            DriverPhase::Queued(request, _) => request,
            phase => {
                self.phase = phase;
                return;
            }
        };
        trace!(target = ?self.target, ?request, "send request");
        let freshness = request.freshness();
        self.state_requests += u64::from(freshness.is_some());
        self.sent = Instant::now();
        let (api, target) = (api.clone(), self.target.clone());
        self.phase = match request {
            Request::StreamingList { watch, .. } | Request::Watch(watch) => {
                DriverPhase::Opening(Opening {
                    freshness,
                    timeout: watch.timeout,
                    answer: async move { api.watch(target, &watch).await }.boxed(),
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
    pub(crate) fn expired(&mut self, server: &mut ServerState) -> Report<T> {
        let now = Instant::now();
        match mem::replace(&mut self.phase, DriverPhase::Resting) {
            DriverPhase::BackingOff { resume, .. } => {
                self.heard();
                let request = self.reflector.resume(resume, now, server, None);
                self.phase = DriverPhase::Queued(request, None);
                Report::new(self.id, None)
            }
            DriverPhase::Watching(_) => {
                self.overdue = true;
                let decision = self.reflector.watch_stalled(now, server);
                self.decide(decision, None)
            }
            DriverPhase::Collecting(collecting) => {
                let (freshness, in_flight) = (collecting.freshness, collecting.in_flight);
                let decision = self.reflector.list_stalled(freshness, now, server);
                self.decide(decision, Some(in_flight.permit))
            }
            phase => {
                self.phase = phase;
                Report::new(self.id, None)
            }
        }
    }

    /// The next event of the request or stream under way.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        server: &mut ServerState,
    ) -> Poll<Report<T>> {
        loop {
            let report = match mem::replace(&mut self.phase, DriverPhase::Resting) {
                DriverPhase::Opening(mut opening) => match opening.answer.poll_unpin(context) {
                    Poll::Pending => return self.pause(DriverPhase::Opening(opening)),
                    Poll::Ready(answer) => Some(self.opened(opening, answer, server)),
                },
                DriverPhase::Collecting(mut collecting) => {
                    match collecting.stream.poll_next(context) {
                        Poll::Pending => return self.pause(DriverPhase::Collecting(collecting)),
                        Poll::Ready(event) => self.collect(collecting, event, server),
                    }
                }
                DriverPhase::Listing(freshness, mut answer, in_flight) => {
                    match answer.poll_unpin(context) {
                        Poll::Pending => {
                            return self.pause(DriverPhase::Listing(freshness, answer, in_flight));
                        }
                        Poll::Ready(answer) => {
                            Some(self.listed(freshness, in_flight, answer, server))
                        }
                    }
                }
                DriverPhase::Watching(mut watching) => match watching.stream.poll_next(context) {
                    Poll::Pending => return self.pause(DriverPhase::Watching(watching)),
                    Poll::Ready(event) => self.watch_event(watching, event, server),
                },
                phase @ (DriverPhase::Resting
                | DriverPhase::Queued(..)
                | DriverPhase::BackingOff { .. }) => {
                    return self.pause(phase);
                }
            };
            if let Some(report) = report {
                return Poll::Ready(report);
            }
        }
    }

    fn pause(&mut self, phase: DriverPhase<T>) -> Poll<Report<T>> {
        self.phase = phase;
        Poll::Pending
    }
}
