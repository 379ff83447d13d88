//! What to ask the API server next about one object: a pure state machine.
//!
//! A cycle obtains the complete state (streaming list, or plain list where the API server has no streaming lists), then
//! watches from there on, resuming from the last version seen as long as that works. Kubernetes 1.36,
//! `staging/src/k8s.io/client-go/tools/cache/reflector.go`, with these differences on purpose:
//!
//! - A *consistent* state, asked for without a version, is wanted whenever a pod has registered since the last one, so
//!   that no pod starts with data older than its registration. Otherwise the version last seen is the lower bound.
//! - A list that replaces a refused streaming list is therefore never the possibly stale one of version 0.
//! - Where streaming lists are refused (or never end), plain lists are used for [`STREAMING_RETRY`] instead of paying
//!   a refusal in each cycle.
//! - Where the API server was not reached at all, the same request is repeated after a delay; no other is tried.
//! - A state older than what was seen is asked for a second time and then taken: the API server was restored from a
//!   backup.
//!
//! Invariant: time, randomness and the network are outside; the same inputs give the same requests.

use std::{sync::Arc, time::Duration};

use larder_objects::{Object, ResourceVersion};
use tokio::time::Instant;

use crate::{
    api::{Listed, Watch, WatchEvent},
    backoff::Backoff,
    error::RequestError,
};

/// Where an object's reflector stands.
#[derive(Debug)]
enum State<K> {
    /// Nothing is under way and nothing may be concluded: not started, or stopped.
    Resting,
    /// A streaming list was asked for or sends its initial events; what it sent so far is not yet the whole.
    Streaming {
        consistent: bool,
        collected: Option<Arc<K>>,
    },
    /// A plain list was asked for.
    Listing { consistent: bool },
    /// The state is known as of `version`; a watch from there on, for that long, was asked for.
    Opening { timeout: Duration },
    /// The watch is open: the state is known as of now, give or take the latency of an event.
    Watching { since: Instant, quiet: bool },
    /// The last request failed or ended; the next one has to wait.
    Waiting { then: Resume },
}

/// What follows a delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    /// A complete state.
    Obtain,
    /// The watch from the last version.
    Watch,
}

/// What the worker does next for the object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Open a watch.
    Open(Watch),
    /// List, at this version or the most recent one.
    List(Option<ResourceVersion>),
    /// Read the next event of the open watch.
    Read,
    /// Read the next event, and come to [`Reflector::expired`] when the watch is still open after the time.
    ReadFor(Duration),
    /// Drop the watch, if one is open, and come back after the time.
    Sleep(Duration),
    /// Drop everything.
    Rest,
}

/// What the object's readers should learn.
#[derive(Debug)]
pub(super) enum Effect<K> {
    /// The complete state.
    Synced {
        object: Option<Arc<K>>,
        /// The version of the state.
        version: ResourceVersion,
        /// It was read consistently: as new as the moment of asking.
        consistent: bool,
        /// It may be older than what readers have: the API server was restored.
        reset: bool,
    },
    /// The object was added or modified.
    Changed(Arc<K>),
    /// The object was deleted, at this version.
    Deleted(ResourceVersion),
    /// The watch goes on after an interruption: what readers have is in step again.
    Resumed,
    /// A request failed.
    Failed(Arc<RequestError>),
}

/// Why a watch was opened again, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Restart {
    Ended,
    Expired,
    Refused,
    Broken,
    Stalled,
}

impl Restart {
    /// The reason as a label.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Stalled => "stalled",
        }
    }
}

/// The answer to an input.
#[derive(Debug)]
pub(super) struct Turn<K> {
    pub(super) effect: Option<Effect<K>>,
    pub(super) next: Next,
    pub(super) restart: Option<Restart>,
}

impl<K> Turn<K> {
    fn next(next: Next) -> Self {
        Self {
            effect: None,
            next,
            restart: None,
        }
    }

    fn with(mut self, effect: Effect<K>) -> Self {
        self.effect = Some(effect);
        self
    }

    fn because(mut self, restart: Restart) -> Self {
        self.restart = Some(restart);
        self
    }
}

/// What all reflectors of a manager know about the API server.
#[derive(Debug, Default)]
pub(super) struct Server {
    /// Streaming lists were refused; not before then are they tried again.
    streaming_retry: Option<Instant>,
}

/// API servers are upgraded; their refusal of streaming lists is not for ever.
pub(super) const STREAMING_RETRY: Duration = Duration::from_mins(10);

/// An open streaming list without the end of its initial events after this time: the API server does not know streaming lists (before 1.27 it
/// ignores the parameter and watches).
const STREAMING_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream that ends sooner, without an event, is a "very short watch".
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Watches last 30 to 60 min, at random, so that they do not end together.
const WATCH_TIMEOUT_MIN_SECS: u64 = 1800;

/// How long after its time an open watch is taken for dead.
const WATCH_SLACK: Duration = Duration::from_secs(30);

/// Short streams in a row that still are reopened at once because they brought events.
const SHORT_WATCHES_AT_ONCE: u8 = 3;

/// The reflector of one object.
#[derive(Debug)]
pub(super) struct Reflector<K> {
    state: State<K>,
    /// The last version seen; the lower bound of whatever is asked for.
    version: Option<ResourceVersion>,
    /// The API server cannot serve `version`: the next state is asked for without one.
    version_lost: bool,
    /// The last state was older than `version`; if the next one is as well, that is how things are.
    older_before: bool,
    /// Ask for a consistent state.
    consistent: bool,
    short_watches: u8,
    backoff: Backoff,
    random: fastrand::Rng,
}

impl<K: Object> Reflector<K> {
    pub(super) fn new(random: fastrand::Rng) -> Self {
        Self {
            state: State::Resting,
            version: None,
            version_lost: false,
            older_before: false,
            consistent: true,
            short_watches: 0,
            backoff: Backoff::new(),
            random,
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_resting(&self) -> bool {
        matches!(self.state, State::Resting)
    }

    /// Whether the reflector waits out a delay.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Whether a consistent state was asked for and has not come yet.
    pub(super) fn is_obtaining(&self) -> bool {
        matches!(
            self.state,
            State::Streaming {
                consistent: true,
                ..
            } | State::Listing { consistent: true }
        )
    }

    /// Asks for a consistent state when it comes to the next one.
    pub(super) fn want_consistent(&mut self) {
        self.consistent = true;
    }

    /// Starts a cycle, whatever is under way.
    pub(super) fn start(&mut self, consistent: bool, now: Instant, server: &Server) -> Turn<K> {
        self.consistent |= consistent;
        self.backoff.reset();
        Turn::next(self.obtain(now, server))
    }

    /// Ends everything; the version last seen stays the lower bound of a later start.
    pub(super) fn stop(&mut self) {
        self.state = State::Resting;
    }

    /// Learns from elsewhere (a live GET) that the object is at `version`.
    pub(super) fn saw(&mut self, version: &ResourceVersion) {
        if !self.is_behind(version) {
            self.version = Some(version.clone());
        }
    }

    fn is_behind(&self, version: &ResourceVersion) -> bool {
        let seen = self.version.as_ref();
        seen.is_some_and(|seen| version.is_older_than(seen))
    }

    /// The watch that [`Next::Open`] asked for is open, or not.
    pub(super) fn opened(
        &mut self,
        result: Result<(), RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn<K> {
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

    /// The list that [`Next::List`] asked for.
    pub(super) fn listed(
        &mut self,
        result: Result<Listed<K>, RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn<K> {
        let consistent = matches!(self.state, State::Listing { consistent: true });
        match result {
            Ok(Listed { object, version }) => {
                let Some(effect) = self.synced(object, version, consistent) else {
                    return self.wait(Resume::Obtain, None, now);
                };
                let next = self.open_watch();
                self.unless_final(effect, next)
            }
            Err(error) => self.failed_state(error, now, server),
        }
    }

    /// An event of the open watch.
    pub(super) fn event(
        &mut self,
        event: WatchEvent<K>,
        now: Instant,
        server: &mut Server,
    ) -> Turn<K> {
        match &mut self.state {
            State::Streaming {
                consistent,
                collected,
            } => {
                let consistent = *consistent;
                match event {
                    WatchEvent::Changed(object) => *collected = Some(object),
                    WatchEvent::Deleted(_) => *collected = None,
                    WatchEvent::Bookmark {
                        version,
                        initial_events_end: true,
                    } => {
                        let object = collected.take();
                        let Some(effect) = self.synced(object, version, consistent) else {
                            return self.wait(Resume::Obtain, None, now);
                        };
                        self.state = State::Watching {
                            since: now,
                            quiet: false,
                        };
                        let lasting = self.watch_timeout() + WATCH_SLACK;
                        return self.unless_final(effect, Next::ReadFor(lasting));
                    }
                    WatchEvent::Bookmark { .. } => {}
                    WatchEvent::Error(error) => return self.failed_state(error, now, server),
                }
                Turn::next(Next::Read)
            }
            State::Watching { quiet, .. } => {
                *quiet = false;
                match event {
                    // A live GET was ahead of the watch.
                    WatchEvent::Changed(object)
                        if self.is_behind(&object.metadata().resource_version) =>
                    {
                        Turn::next(Next::Read)
                    }
                    WatchEvent::Deleted(version) if self.is_behind(&version) => {
                        Turn::next(Next::Read)
                    }
                    WatchEvent::Changed(object) => {
                        self.saw(&object.metadata().resource_version);
                        self.unless_final(Effect::Changed(object), Next::Read)
                    }
                    WatchEvent::Deleted(version) => {
                        self.saw(&version);
                        Turn::next(Next::Read).with(Effect::Deleted(version))
                    }
                    WatchEvent::Bookmark { version, .. } => {
                        self.saw(&version);
                        Turn::next(Next::Read)
                    }
                    WatchEvent::Error(error) => self.failed_watch(error, now, server),
                }
            }
            _ => Turn::next(Next::Rest),
        }
    }

    /// The open watch ended, with an error or as planned.
    pub(super) fn closed(
        &mut self,
        error: Option<RequestError>,
        now: Instant,
        server: &mut Server,
    ) -> Turn<K> {
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
    pub(super) fn expired(&mut self, now: Instant, server: &mut Server) -> Turn<K> {
        match self.state {
            State::Waiting {
                then: Resume::Obtain,
            } => Turn::next(self.obtain(now, server)),
            State::Waiting {
                then: Resume::Watch,
            } => Turn::next(self.open_watch()),
            State::Watching { .. } => {
                let next = self.open_watch();
                Turn::next(next).because(Restart::Stalled)
            }
            State::Streaming { consistent, .. } => {
                server.streaming_retry = Some(now + STREAMING_RETRY);
                Turn::next(self.list(consistent)).because(Restart::Stalled)
            }
            State::Listing { .. } | State::Opening { .. } | State::Resting => {
                Turn::next(Next::Rest)
            }
        }
    }

    /// The request for a complete state.
    fn obtain(&mut self, now: Instant, server: &Server) -> Next {
        let consistent = self.consistent || self.version_lost || self.version.is_none();
        if server.streaming_retry.is_some_and(|retry| now < retry) {
            return self.list(consistent);
        }
        self.state = State::Streaming {
            consistent,
            collected: None,
        };
        let watch = Watch {
            initial_events: true,
            version: self.lower_bound(consistent),
            timeout: self.watch_timeout(),
        };
        Next::Open(watch)
    }

    fn list(&mut self, consistent: bool) -> Next {
        self.state = State::Listing { consistent };
        Next::List(self.lower_bound(consistent))
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

    fn lower_bound(&self, consistent: bool) -> Option<ResourceVersion> {
        self.version.clone().filter(|_| !consistent)
    }

    fn watch_timeout(&mut self) -> Duration {
        Duration::from_secs(
            self.random
                .u64(WATCH_TIMEOUT_MIN_SECS..2 * WATCH_TIMEOUT_MIN_SECS),
        )
    }

    /// Takes a complete state over; `None` if it is older than what was seen and should be asked for again.
    fn synced(
        &mut self,
        object: Option<Arc<K>>,
        version: ResourceVersion,
        consistent: bool,
    ) -> Option<Effect<K>> {
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
            object,
            version,
            consistent,
            reset: older,
        })
    }

    /// `next` after `effect`, unless the object is immutable: then nothing more can come.
    fn unless_final(&mut self, effect: Effect<K>, next: Next) -> Turn<K> {
        let last = match &effect {
            Effect::Changed(object)
            | Effect::Synced {
                object: Some(object),
                ..
            } => object.is_immutable(),
            _ => false,
        };
        if last {
            self.state = State::Resting;
            return Turn::next(Next::Rest).with(effect);
        }
        Turn::next(next).with(effect)
    }

    /// A streaming list or a list failed.
    fn failed_state(&mut self, error: RequestError, now: Instant, server: &mut Server) -> Turn<K> {
        let (streaming, consistent) = match self.state {
            State::Streaming { consistent, .. } => (true, consistent),
            State::Listing { consistent } => (false, consistent),
            _ => (false, false),
        };
        if (error.is_expired() || error.is_version_too_large()) && !consistent {
            // The other API server may know better, but the most recent state is never too old.
            self.version_lost = true;
            return Turn::next(self.obtain(now, server)).because(Restart::Expired);
        }
        if streaming && error.is_unsupported() {
            server.streaming_retry = Some(now + STREAMING_RETRY);
            return Turn::next(self.list(consistent));
        }
        self.failed(Resume::Obtain, error, now)
            .because(Restart::Refused)
    }

    /// A watch could not be opened or was ended by the API server.
    fn failed_watch(&mut self, error: RequestError, now: Instant, server: &mut Server) -> Turn<K> {
        if error.is_version_too_large() {
            self.version_lost = true;
            return Turn::next(self.obtain(now, server)).because(Restart::Expired);
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

    fn failed(&mut self, then: Resume, error: RequestError, now: Instant) -> Turn<K> {
        let turn = self.wait(then, Some(&error), now);
        turn.with(Effect::Failed(Arc::new(error)))
    }

    /// Waits as the schedule has it, and not less than the API server asks for.
    fn wait(&mut self, then: Resume, error: Option<&RequestError>, now: Instant) -> Turn<K> {
        self.state = State::Waiting { then };
        let forbidden = error.is_some_and(RequestError::is_forbidden);
        let delay = self.backoff.delay(now, forbidden, self.random.f64());
        let asked = error
            .and_then(RequestError::retry_after)
            .unwrap_or_default();
        Turn::next(Next::Sleep(delay.max(asked)))
    }
}
