//! What to ask the API server next: a pure state machine for one object, or for one collection of objects.
//!
//! It sees versions only. Who drives it makes the requests, holds the objects that they bring, and does with them what
//! the [`Effect`] says. A cycle obtains the complete state (streaming list, or plain list where the API server has no streaming lists), then
//! watches from there on, resuming from the last version seen as long as that works. Kubernetes 1.36,
//! `staging/src/k8s.io/client-go/tools/cache/reflector.go`, with these differences on purpose:
//!
//! - A *consistent* state, asked for without a version, is wanted whenever a pod has registered since the last one, so
//!   that no pod starts with data older than its registration. Otherwise the version last seen is the lower bound.
//! - A list that replaces a refused streaming list is therefore never the possibly stale one of version 0.
//! - Where streaming lists are refused, or fail or never end several times in a row, plain lists are used for a while
//!   instead of paying a refusal in each cycle; see [`Server`].
//! - Where the API server was not reached at all, the same request is repeated after a delay; no other is tried.
//! - A state older than what was seen is asked for a second time and then taken: the API server was restored from a
//!   backup.
//!
//! Invariant: time, randomness and the network are outside; the same inputs give the same requests.

mod turn;

use std::{sync::Arc, time::Duration};

use larder_objects::ResourceVersion;
use tokio::time::Instant;

pub(crate) use self::turn::{Effect, Next, Restart, Turn};
use super::server::{Floor, Server};
use crate::{api::Watch, backoff::Backoff, error::RequestError};

/// What an open watch brought, as far as a reflector looks at it.
#[derive(Debug)]
pub(crate) enum Event {
    /// An object was added, modified or deleted, at this version.
    Change(ResourceVersion),
    /// Nothing happened up to this version.
    Bookmark {
        version: ResourceVersion,
        /// The bookmark ends the initial events of a streaming list.
        initial_events_end: bool,
    },
    /// The API server ends the watch for this reason.
    Error(RequestError),
}

/// Where a reflector stands.
#[derive(Debug)]
enum State {
    /// Nothing is under way and nothing may be concluded: not started, or stopped.
    Resting,
    /// A streaming list was asked for or sends its initial events; what it sent so far is not yet the whole.
    Streaming { ask: Ask },
    /// A plain list was asked for.
    Listing { ask: Ask },
    /// The state is known as of `version`; a watch from there on, for that long, was asked for.
    Opening { timeout: Duration },
    /// The watch is open: the state is known as of now, give or take the latency of an event.
    Watching { since: Instant, quiet: bool },
    /// The last request failed or ended; the next one has to wait.
    Waiting { then: Resume },
}

/// How new a state was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Not older than what was seen.
    Seen,
    /// Not older than a [`Floor`] either: as new as its moment.
    Floor,
    /// The most recent: as new as the moment of asking.
    Latest,
}

impl Ask {
    fn is_consistent(self) -> bool {
        self != Self::Seen
    }
}

/// What follows a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    /// A complete state.
    Obtain,
    /// The watch from the last version.
    Watch,
}

/// An open streaming list without the end of its initial events after this time: the API server does not know streaming lists (before 1.27 it
/// ignores the parameter and watches).
const STREAMING_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream that ends sooner, without an event, is a "very short watch".
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Watches last 30 to 60 min, at random, so that they do not end together.
const WATCH_TIMEOUT_MIN_SECS: u64 = 1800;

/// How long after its time an open watch is taken for dead.
const WATCH_SLACK: Duration = Duration::from_secs(30);

/// An API server that does not answer is not spared by asking it seldom, only by few who ask: a handful of reflectors of each node
/// may ask more often than [`Backoff`] has it. The connections of all wait for each other anyway.
const UNREACHED: Duration = Duration::from_secs(5);

/// Short streams in a row that still are reopened at once because they brought events.
const SHORT_WATCHES_AT_ONCE: u8 = 3;

/// The reflector of one object or collection.
#[derive(Debug)]
pub(crate) struct Reflector {
    state: State,
    /// The last version seen; the lower bound of whatever is asked for.
    version: Option<ResourceVersion>,
    /// The API server cannot serve `version`: the next state is asked for without one.
    version_lost: bool,
    /// The last state was older than `version`; if the next one is as well, that is how things are.
    older_before: bool,
    /// Ask for a consistent state.
    consistent: bool,
    short_watches: u8,
    /// The longest delay, before jitter, while the API server is not reached, if that is another than usual.
    unreached: Option<Duration>,
    backoff: Backoff,
    random: fastrand::Rng,
}

impl Reflector {
    pub(crate) fn new(random: fastrand::Rng) -> Self {
        Self {
            state: State::Resting,
            version: None,
            version_lost: false,
            older_before: false,
            consistent: true,
            short_watches: 0,
            unreached: None,
            backoff: Backoff::new(),
            random,
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting)
    }

    /// Whether the reflector waits out a delay.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Whether a consistent state was asked for and has not come yet.
    pub(crate) fn is_obtaining(&self) -> bool {
        matches!(self.state, State::Streaming { ask } | State::Listing { ask } if ask.is_consistent())
    }

    /// Whether a request is under way whose answer has not come yet, or not all of it.
    pub(crate) fn awaits_answer(&self) -> bool {
        matches!(
            self.state,
            State::Streaming { .. } | State::Listing { .. } | State::Opening { .. }
        )
    }

    /// Never waits longer than [`UNREACHED`], times a random 1.0 to 2.0, for an API server that was not reached.
    pub(crate) fn hasten(&mut self) {
        self.unreached = Some(UNREACHED);
    }

    /// Asks for a consistent state when it comes to the next one.
    pub(crate) fn want_consistent(&mut self) {
        self.consistent = true;
    }

    /// Starts a cycle, whatever is under way.
    pub(crate) fn start(&mut self, consistent: bool, now: Instant, server: &Server) -> Turn {
        self.consistent |= consistent;
        self.backoff.reset();
        Turn::next(self.obtain(now, server, None))
    }

    /// The last request anew, if it has not been sent yet, with what was learned meanwhile: `floor` proves all that the
    /// state has to prove.
    pub(crate) fn ask_again(
        &mut self,
        now: Instant,
        server: &Server,
        floor: Option<&Floor>,
    ) -> Option<Next> {
        match self.state {
            State::Streaming { .. } | State::Listing { .. } => {
                Some(self.obtain(now, server, floor))
            }
            State::Opening { .. } => Some(self.open_watch()),
            State::Resting | State::Watching { .. } | State::Waiting { .. } => None,
        }
    }

    /// Ends everything; the version last seen stays the lower bound of a later start.
    pub(crate) fn stop(&mut self) {
        self.state = State::Resting;
    }

    /// Learns from elsewhere (a live GET) that the object is at `version`.
    pub(crate) fn saw(&mut self, version: &ResourceVersion) {
        if !self.is_behind(version) {
            self.version = Some(version.clone());
        }
    }

    fn is_behind(&self, version: &ResourceVersion) -> bool {
        let seen = self.version.as_ref();
        seen.is_some_and(|seen| version.is_older_than(seen))
    }

    /// The watch that [`Next::Open`] asked for is open, or not.
    pub(crate) fn opened(
        &mut self,
        result: Result<(), RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        match (result, &self.state) {
            (Ok(()), State::Opening { timeout }) => {
                let lasting = *timeout + WATCH_SLACK;
                self.state = State::Watching {
                    since: now,
                    quiet: true,
                };
                Turn::next(Next::ReadFor(lasting)).with(Effect::Resumed)
            }
            (Ok(()), _) => Turn::next(Next::ReadFor(STREAMING_TIMEOUT)),
            (Err(error), State::Opening { .. }) => self.failed_watch(error, now, server),
            (Err(error), _) => self.failed_state(error, now, server),
        }
    }

    /// The list that [`Next::List`] asked for, by its version.
    pub(crate) fn listed(
        &mut self,
        result: Result<ResourceVersion, RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        let consistent = matches!(self.state, State::Listing { ask } if ask.is_consistent());
        match result {
            Ok(version) => {
                let Some(effect) = self.synced(version, consistent) else {
                    return self.wait(Resume::Obtain, None, now);
                };
                let next = self.open_watch();
                Turn::next(next).with(effect)
            }
            Err(error) => self.failed_state(error, now, server),
        }
    }

    /// An event of the open watch.
    pub(crate) fn event(&mut self, event: Event, now: Instant, server: &mut Server) -> Turn {
        match &mut self.state {
            State::Streaming { ask } => {
                let ask = *ask;
                match event {
                    Event::Change(_) => Turn::next(Next::Read).with(Effect::Collect),
                    Event::Bookmark {
                        version,
                        initial_events_end: true,
                    } => {
                        if ask == Ask::Latest {
                            server.streaming_succeeded();
                        }
                        let Some(effect) = self.synced(version, ask.is_consistent()) else {
                            return self.wait(Resume::Obtain, None, now);
                        };
                        self.state = State::Watching {
                            since: now,
                            quiet: false,
                        };
                        let lasting = self.watch_timeout() + WATCH_SLACK;
                        Turn::next(Next::ReadFor(lasting)).with(effect)
                    }
                    Event::Bookmark { .. } => Turn::next(Next::Read),
                    Event::Error(error) => self.failed_state(error, now, server),
                }
            }
            State::Watching { quiet, .. } => {
                *quiet = false;
                match event {
                    // A live GET was ahead of the watch.
                    Event::Change(version) if self.is_behind(&version) => Turn::next(Next::Read),
                    Event::Change(version) => {
                        self.saw(&version);
                        Turn::next(Next::Read).with(Effect::Changed(version))
                    }
                    Event::Bookmark { version, .. } => {
                        self.saw(&version);
                        Turn::next(Next::Read)
                    }
                    Event::Error(error) => self.failed_watch(error, now, server),
                }
            }
            _ => Turn::next(Next::Rest),
        }
    }

    /// The open watch ended, with an error or as planned.
    pub(crate) fn closed(
        &mut self,
        error: Option<RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        let State::Watching { since, quiet } = self.state else {
            return match error {
                Some(error) => self.failed_state(error, now, server),
                None => self.wait(Resume::Obtain, None, now).because(Restart::Ended),
            };
        };
        match error {
            // An answer that cannot be used would be the same again.
            Some(error) if !error.is_transport() => self.failed_watch(error, now, server),
            error => {
                let reason = match error {
                    Some(_) => Restart::Broken,
                    None => Restart::Ended,
                };
                let short = now - since < SHORT_WATCH;
                self.short_watches = if short { self.short_watches + 1 } else { 0 };
                let at_once = !short || (!quiet && self.short_watches <= SHORT_WATCHES_AT_ONCE);
                if at_once {
                    let next = self.open_watch();
                    Turn::next(next).because(reason)
                } else {
                    self.short_watches = 0;
                    self.wait(Resume::Obtain, None, now).because(reason)
                }
            }
        }
    }

    /// The time of [`Next::ReadFor`] or [`Next::Sleep`] is over.
    pub(crate) fn expired(&mut self, now: Instant, server: &mut Server) -> Turn {
        match self.state {
            State::Waiting {
                then: Resume::Obtain,
            } => Turn::next(self.obtain(now, server, None)),
            State::Waiting {
                then: Resume::Watch,
            } => Turn::next(self.open_watch()),
            State::Watching { .. } => {
                let next = self.open_watch();
                Turn::next(next).because(Restart::Stalled)
            }
            State::Streaming { ask } => {
                server.streaming_failed(now);
                Turn::next(self.list(ask)).because(Restart::Stalled)
            }
            State::Listing { .. } | State::Opening { .. } | State::Resting => {
                Turn::next(Next::Rest)
            }
        }
    }

    /// The request for a complete state.
    fn obtain(&mut self, now: Instant, server: &Server, floor: Option<&Floor>) -> Next {
        let consistent = self.consistent || self.version_lost || self.version.is_none();
        let ask = match floor {
            _ if !consistent => Ask::Seen,
            Some(floor) if !self.version_lost => {
                self.saw(&floor.version);
                Ask::Floor
            }
            _ => Ask::Latest,
        };
        if !server.streams_lists(now) {
            return self.list(ask);
        }
        self.state = State::Streaming { ask };
        let watch = Watch {
            initial_events: true,
            version: self.lower_bound(ask),
            timeout: self.watch_timeout(),
        };
        Next::Open(watch)
    }

    fn list(&mut self, ask: Ask) -> Next {
        self.state = State::Listing { ask };
        Next::List(self.lower_bound(ask))
    }

    fn open_watch(&mut self) -> Next {
        let timeout = self.watch_timeout();
        self.state = State::Opening { timeout };
        let watch = Watch {
            initial_events: false,
            version: self.version.clone(),
            timeout,
        };
        Next::Open(watch)
    }

    fn lower_bound(&self, ask: Ask) -> Option<ResourceVersion> {
        self.version.clone().filter(|_| ask != Ask::Latest)
    }

    fn watch_timeout(&mut self) -> Duration {
        Duration::from_secs(
            self.random
                .u64(WATCH_TIMEOUT_MIN_SECS..2 * WATCH_TIMEOUT_MIN_SECS),
        )
    }

    /// Takes a complete state over; `None` if it is older than what was seen and should be asked for again.
    fn synced(&mut self, version: ResourceVersion, consistent: bool) -> Option<Effect> {
        let older = self.is_behind(&version);
        if older && !self.older_before {
            self.older_before = true;
            self.consistent = true;
            return None;
        }
        self.older_before = false;
        self.version_lost = false;
        if consistent {
            self.consistent = false;
        }
        self.version = Some(version.clone());
        Some(Effect::Synced {
            version,
            consistent,
            reset: older,
        })
    }

    /// A streaming list or a list failed.
    fn failed_state(&mut self, error: RequestError, now: Instant, server: &mut Server) -> Turn {
        let (streaming, ask) = match self.state {
            State::Streaming { ask } => (true, ask),
            State::Listing { ask } => (false, ask),
            _ => (false, Ask::Seen),
        };
        if (error.is_expired() || error.is_version_too_large()) && ask != Ask::Latest {
            // The other API server may know better, but the most recent state is never too old.
            if ask == Ask::Floor {
                server.floor_lost();
            }
            self.version_lost = true;
            return Turn::next(self.obtain(now, server, None)).because(Restart::Expired);
        }
        if streaming && (error.is_unsupported() || error.is_internal()) {
            if error.is_unsupported() {
                server.streaming_refused(now);
            } else {
                server.streaming_failed(now);
            }
            return Turn::next(self.list(ask));
        }
        self.failed(Resume::Obtain, error, now)
            .because(Restart::Refused)
    }

    /// A watch could not be opened or was ended by the API server.
    fn failed_watch(&mut self, error: RequestError, now: Instant, server: &mut Server) -> Turn {
        if error.is_version_too_large() {
            self.version_lost = true;
            return Turn::next(self.obtain(now, server, None)).because(Restart::Expired);
        }
        if error.is_expired() {
            // Not a failure: the state is asked for again, from the last version on, and after a moment, because all
            // watches of an API server that compacts expire together.
            return self
                .wait(Resume::Obtain, None, now)
                .because(Restart::Expired);
        }
        let resume = if error.is_transport() || error.is_too_many_requests() {
            Resume::Watch
        } else {
            Resume::Obtain
        };
        self.failed(resume, error, now).because(Restart::Refused)
    }

    fn failed(&mut self, then: Resume, error: RequestError, now: Instant) -> Turn {
        let turn = self.wait(then, Some(&error), now);
        turn.with(Effect::Failed(Arc::new(error)))
    }

    /// Waits as the schedule has it, and not less than the API server asks for.
    fn wait(&mut self, then: Resume, error: Option<&RequestError>, now: Instant) -> Turn {
        self.state = State::Waiting { then };
        let random = self.random.f64();
        let mut delay = match error {
            Some(error) => self.backoff.delay_after(error, now, random),
            None => self.backoff.delay(now, false, random),
        };
        if let Some(unreached) = self.unreached
            && error.is_some_and(RequestError::is_transport)
        {
            delay = delay.min(unreached.mul_f64(1.0 + self.random.f64()));
        }
        Turn::next(Next::Sleep(delay))
    }
}
