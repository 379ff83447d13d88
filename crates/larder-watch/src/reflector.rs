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
//! - A watch that ends is resumed from its last version, unless a request of anybody has failed with the API server since its
//!   state was asked for (connection refused, no answer, 5xx, 401). Then the server that comes back may be another one, restored
//!   from a backup or empty, on which a watch from a later version than its own is silent: the most recent state is asked for.
//! - A state older than what was seen is asked for a second time and then taken: the API server was restored from a
//!   backup.
//! - Who waits for an API server that is away is hurried when it is back, and one asks more often meanwhile; see
//!   [`outages`](super::outages). Otherwise the delays are client-go's, after failures only. That not all ask at once is up to
//!   who drives the reflectors.
//!
//! Invariant: time, randomness and the network are outside; the same inputs give the same requests.

mod asking;
mod failing;
mod turn;

use std::time::Duration;

use larder_objects::ResourceVersion;
use tokio::time::Instant;

pub use self::turn::{Effect, Next, Restart, Turn};
use crate::{
    backoff::Backoff,
    error::RequestError,
    outages::Affected,
    server::{Floor, Server},
};

/// What an open watch brought, as far as a reflector looks at it.
#[derive(Debug)]
pub enum Event {
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
    Waiting { then: Resume, until: Instant },
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
    /// The watch from the last version, if that may be resumed.
    Watch,
}

/// An open streaming list without the end of its initial events after this time: the API server does not know streaming lists (before 1.27 it
/// ignores the parameter and watches).
const STREAMING_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream that ends sooner, without an event, is a "very short watch".
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// How long after its time an open watch is taken for dead.
const WATCH_SLACK: Duration = Duration::from_secs(30);

/// Short streams in a row that still are reopened at once because they brought events.
const SHORT_WATCHES_AT_ONCE: u8 = 3;

/// The reflector of one object or collection.
#[derive(Debug)]
pub struct Reflector {
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
    /// The last request failed with the API server, and none has got through since.
    affected: Option<Affected>,
    /// So many requests of anybody had failed when the state was asked for.
    failures: u32,
    backoff: Backoff,
    random: fastrand::Rng,
}

impl Reflector {
    pub fn new(random: fastrand::Rng) -> Self {
        Self {
            state: State::Resting,
            version: None,
            version_lost: false,
            older_before: false,
            consistent: true,
            short_watches: 0,
            affected: None,
            failures: 0,
            backoff: Backoff::new(),
            random,
        }
    }

    /// Whether nothing is under way.
    pub fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting)
    }

    /// Whether the reflector waits out a delay.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Whether a consistent state was asked for and has not come yet.
    pub fn is_obtaining(&self) -> bool {
        matches!(self.state, State::Streaming { ask } | State::Listing { ask } if ask.is_consistent())
    }

    /// Whether a request is under way whose answer has not come yet, or not all of it.
    pub fn awaits_answer(&self) -> bool {
        matches!(
            self.state,
            State::Streaming { .. } | State::Listing { .. } | State::Opening { .. }
        )
    }

    /// The API server is back: if that is what it waits for, it waits for no longer than a random part of `spread`.
    pub fn hurry(&mut self, spread: Duration, now: Instant) -> Option<Turn> {
        let State::Waiting { until, .. } = &mut self.state else {
            return None;
        };
        self.affected.take()?;
        *until = (*until).min(now + spread.mul_f64(self.random.f64()));
        Some(Turn::next(Next::Sleep(*until - now)))
    }

    /// Asks for a consistent state when it comes to the next one.
    pub fn want_consistent(&mut self) {
        self.consistent = true;
    }

    /// Starts a cycle, whatever is under way.
    pub fn start(&mut self, consistent: bool, now: Instant, server: &Server) -> Turn {
        self.consistent |= consistent;
        self.backoff.reset();
        Turn::next(self.obtain(now, server, None))
    }

    /// The last request anew, if it has not been sent yet, with what was learned meanwhile: `floor` proves all that the
    /// state has to prove.
    pub fn ask_again(
        &mut self,
        now: Instant,
        server: &Server,
        floor: Option<&Floor>,
    ) -> Option<Next> {
        match self.state {
            State::Streaming { .. } | State::Listing { .. } => {
                Some(self.obtain(now, server, floor))
            }
            State::Opening { .. } => Some(self.resume(now, server)),
            State::Resting | State::Watching { .. } | State::Waiting { .. } => None,
        }
    }

    /// Ends everything; the version last seen stays the lower bound of a later start.
    pub fn stop(&mut self) {
        self.state = State::Resting;
        self.affected = None;
    }

    /// Learns from elsewhere (a live GET) that the object is at `version`; at none is not known.
    pub fn saw(&mut self, version: &ResourceVersion) {
        if !version.is_empty() && !self.is_behind(version) {
            self.version = Some(version.clone());
        }
    }

    fn is_behind(&self, version: &ResourceVersion) -> bool {
        let seen = self.version.as_ref();
        seen.is_some_and(|seen| version.is_older_than(seen))
    }

    /// The watch that [`Next::Open`] asked for is open, or not.
    pub fn opened(
        &mut self,
        result: Result<(), RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        if result.is_ok() {
            self.got_through(server);
        }
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
    pub fn listed(
        &mut self,
        result: Result<ResourceVersion, RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        let consistent = matches!(self.state, State::Listing { ask } if ask.is_consistent());
        match result {
            Ok(version) => {
                self.got_through(server);
                let Some(effect) = self.synced(version, consistent) else {
                    return self.wait(Resume::Obtain, now);
                };
                let next = self.open_watch();
                Turn::next(next).with(effect)
            }
            Err(error) => self.failed_state(error, now, server),
        }
    }

    /// An event of the open watch.
    pub fn event(&mut self, event: Event, now: Instant, server: &mut Server) -> Turn {
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
                            return self.wait(Resume::Obtain, now);
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
    pub fn closed(
        &mut self,
        error: Option<RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        let State::Watching { since, quiet } = self.state else {
            return match error {
                Some(error) => self.failed_state(error, now, server),
                None => self.wait(Resume::Obtain, now).because(Restart::Ended),
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
                    let next = self.resume(now, server);
                    Turn::next(next).because(reason)
                } else {
                    self.short_watches = 0;
                    self.wait(Resume::Obtain, now).because(reason)
                }
            }
        }
    }

    /// The time of [`Next::ReadFor`] or [`Next::Sleep`] is over.
    pub fn expired(&mut self, now: Instant, server: &mut Server) -> Turn {
        match self.state {
            State::Waiting {
                then: Resume::Obtain,
                ..
            } => Turn::next(self.obtain(now, server, None)),
            State::Waiting {
                then: Resume::Watch,
                ..
            } => Turn::next(self.resume(now, server)),
            State::Watching { .. } => {
                let next = self.resume(now, server);
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

    /// Takes a complete state over; `None` if it is older than what was seen and should be asked for again.
    fn synced(&mut self, version: ResourceVersion, consistent: bool) -> Option<Effect> {
        let older = self.is_behind(&version);
        if older && !self.older_before {
            self.older_before = true;
            self.consistent = true;
            // It was answered; what failed before is no reason to wait for long.
            self.backoff.reset();
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

    fn got_through(&mut self, server: &Server) {
        if let Some(affected) = self.affected.take() {
            server.outages().got_through(affected);
        }
    }
}
