//! Decides on the next request to the API server: the rules for one target, pure.
//!
//! A reflector sees versions only. Its [driver](crate::driver) makes the requests, holds the objects that they bring,
//! and passes findings on. A cycle obtains the complete state (a streaming list, or a plain list where the API server
//! has no streaming lists), then watches from there, resuming from the last version seen as long as that works.
//! Kubernetes 1.36, `staging/src/k8s.io/client-go/tools/cache/reflector.go`, with these differences on purpose:
//!
//! 1. A state that is as fresh as the newest registration is requested without a version. So a pod never starts with
//!    data older than its registration. Other states are requested as "not older than the last seen one".
//! 2. A list that replaces a rejected streaming list is therefore never the possibly stale one of version 0.
//! 3. Where streaming lists are rejected, or fail several times in a row, plain lists are used for a while; see
//!    [`ServerState`].
//! 4. A watch that ends is resumed from its last version, unless a request of any reflector has failed with the API
//!    server since its state was requested. The server that comes back may be another one, restored from a backup or
//!    empty. A watch from a later version than its own would be silent there, so the most recent state is requested.
//! 5. A state older than the last seen one is requested a second time and then accepted: the API server was restored.
//! 6. Delays are client-go's, after failures only. The end of an outage brings them forward; see
//!    [`outages`](crate::outages). Limiting the rate of all requests together is the engine's task.
//!
//! Invariant: time, randomness and the network are outside; the same inputs give the same requests.

mod failures;

use std::time::Duration;

use larder_objects::ResourceVersion;
use tokio::time::Instant;

use crate::{
    api::Watch,
    error::RequestFailure,
    outages::{Outages, Retry},
    server::{MinVersion, ServerState},
};

/// The freshness of a requested state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Not older than the last seen state.
    AtLeastSeen,
    /// Not older than a [`MinVersion`] either, so as fresh as its sequence number.
    AtLeastMin,
    /// The most recent: as fresh as the moment of the request.
    MostRecent,
}

impl Freshness {
    /// Whether the answer is as fresh as a registration.
    pub(crate) fn is_confirmed(self) -> bool {
        self != Self::AtLeastSeen
    }
}

/// A request of a reflector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A complete state as a stream that goes on as the watch.
    StreamingList { freshness: Freshness, watch: Watch },
    /// A complete state; not older than the version, if there is one.
    List {
        freshness: Freshness,
        version: Option<ResourceVersion>,
    },
    /// The watch from the last version on.
    Watch(Watch),
}

impl Request {
    /// The freshness of the state that it obtains, if any.
    pub(crate) fn freshness(&self) -> Option<Freshness> {
        match self {
            Self::StreamingList { freshness, .. } | Self::List { freshness, .. } => {
                Some(*freshness)
            }
            Self::Watch(_) => None,
        }
    }

    /// The phase that it belongs to.
    pub(crate) fn phase(&self) -> Resume {
        match self {
            Self::StreamingList { .. } | Self::List { .. } => Resume::State,
            Self::Watch(_) => Resume::Watch,
        }
    }
}

/// The phase of a cycle, in which it goes on after a back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// A complete state.
    State,
    /// The watch from the last version, if that may be resumed.
    Watch,
}

/// The next action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Request(Request),
    /// Back off, then call [`Reflector::resume`].
    BackOff(Resume, Duration),
}

/// A complete state may be taken over.
#[derive(Debug)]
pub(crate) struct Synced {
    /// The version of the state.
    pub(crate) version: ResourceVersion,
    /// The state is as fresh as the request for it.
    pub(crate) confirmed: bool,
    /// The state may be older than the known one: the API server was restored.
    pub(crate) reset: bool,
}

/// Why a watch must be opened again, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Restart {
    /// The API server ended it, as it does after its time.
    Ended,
    /// Its version is too old.
    Expired,
    /// The API server answered with an error.
    Refused,
    /// The connection broke.
    Broken,
    /// No bytes arrived in time.
    Stalled,
}

impl Restart {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::Ended,
        Self::Expired,
        Self::Refused,
        Self::Broken,
        Self::Stalled,
    ];

    /// The reason as a label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Stalled => "stalled",
        }
    }
}

/// The answer to the end of a request.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) next: Next,
    pub(crate) restart: Option<Restart>,
    /// The failure to report to readers.
    pub(crate) failure: Option<RequestFailure>,
}

impl Decision {
    fn of(next: Next, restart: Option<Restart>) -> Self {
        Self {
            next,
            restart,
            failure: None,
        }
    }

    fn request(request: Request, restart: impl Into<Option<Restart>>) -> Self {
        Self::of(Next::Request(request), restart.into())
    }
}

/// An open streaming list without the end of its initial events after this time: the API server does not know streaming
/// lists. (Before 1.27 it ignores the parameter and watches.)
pub(crate) const STREAMING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after its timeout an open watch counts as dead.
pub(crate) const WATCH_SLACK: Duration = Duration::from_secs(30);

/// A stream that ends sooner, without an event, is a "very short watch".
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Short streams in a row that still are reopened at once because they brought events.
const SHORT_WATCHES_AT_ONCE: u8 = 3;

/// Watches last 30 to 60 min, at random, so that they do not end together.
const WATCH_TIMEOUT_MIN_SECS: u64 = 1800;

/// The rules for one target.
#[derive(Debug)]
pub(crate) struct Reflector {
    /// The last version seen; the lower bound of each request.
    version: Option<ResourceVersion>,
    /// The API server cannot serve `version`: the next state is requested without one.
    version_lost: bool,
    /// The last state was older than `version`. If the next one is as well, the API server was restored.
    older_before: bool,
    /// The next state must be as fresh as the newest registration.
    confirm: bool,
    short_watches: u8,
    retry: Retry,
    /// [`Retry::failures`] when the state was requested.
    failures: u32,
    random: fastrand::Rng,
}

impl Reflector {
    pub(crate) fn new(random: fastrand::Rng, outages: Outages, now: Instant) -> Self {
        Self {
            version: None,
            version_lost: false,
            older_before: false,
            confirm: true,
            short_watches: 0,
            retry: Retry::new(outages, now),
            failures: 0,
            random,
        }
    }

    /// The next state must be as fresh as the newest registration.
    pub(crate) fn confirm(&mut self) {
        self.confirm = true;
    }

    /// Sets the version of the target, if it is known.
    pub(crate) fn saw(&mut self, version: &ResourceVersion) {
        if !version.is_empty() && !self.is_behind(version) {
            self.version = Some(version.clone());
        }
    }

    fn is_behind(&self, version: &ResourceVersion) -> bool {
        let seen = self.version.as_ref();
        seen.is_some_and(|seen| version.is_older_than(seen))
    }

    /// Nothing is requested from now on; the version last seen stays the lower bound.
    pub(crate) fn stop(&mut self) {
        self.retry.leave_outage();
    }

    /// Starts a cycle.
    pub(crate) fn start(&mut self, confirm: bool, now: Instant, server: &ServerState) -> Request {
        self.confirm |= confirm;
        self.retry.backoff.reset();
        self.state_request(now, server, None)
    }

    /// The request of a phase: at the end of a back-off, and once more with the facts that became known while it waited
    /// to be sent. `min` is a version that is fresh enough.
    pub(crate) fn resume(
        &mut self,
        resume: Resume,
        now: Instant,
        server: &ServerState,
        min: Option<&MinVersion>,
    ) -> Request {
        match resume {
            Resume::State => self.state_request(now, server, min),
            Resume::Watch => self.watch_or_state(now, server),
        }
    }

    /// See [`Retry::retry_early`].
    pub(crate) fn retry_early(&mut self, until: Instant, now: Instant) -> Option<Instant> {
        self.retry.retry_early(until, now)
    }

    /// The API server has begun to answer a watch or a streaming list.
    pub(crate) fn opened(&mut self) {
        self.retry.recovered();
    }

    /// A plain list has come. Returns the watch that goes on from there.
    ///
    /// # Errors
    ///
    /// The state is older than the last seen one, and must not be used.
    pub(crate) fn listed(
        &mut self,
        freshness: Freshness,
        version: ResourceVersion,
        now: Instant,
    ) -> Result<(Synced, Request), Decision> {
        self.retry.recovered();
        let synced = self.synced(version, freshness, now)?;
        Ok((synced, self.watch_request()))
    }

    /// The initial events of a streaming list have ended.
    ///
    /// # Errors
    ///
    /// The state is older than the last seen one, and must not be used.
    pub(crate) fn initial_events_ended(
        &mut self,
        freshness: Freshness,
        version: ResourceVersion,
        now: Instant,
        server: &mut ServerState,
    ) -> Result<Synced, Decision> {
        if freshness == Freshness::MostRecent {
            server.streaming_succeeded();
        }
        self.synced(version, freshness, now)
    }

    /// Takes in an event of the open watch. Returns whether it is new; a freshness check may have returned a later
    /// state.
    pub(crate) fn event(&mut self, version: &ResourceVersion) -> bool {
        let news = !self.is_behind(version);
        self.saw(version);
        news
    }

    /// The API server ended a streaming list before its initial events were complete.
    pub(crate) fn list_ended(&mut self, now: Instant) -> Decision {
        self.back_off(Resume::State, Some(Restart::Ended), now)
    }

    /// A streaming list was not complete in time.
    pub(crate) fn list_stalled(
        &mut self,
        freshness: Freshness,
        now: Instant,
        server: &mut ServerState,
    ) -> Decision {
        server.streaming_failed(now);
        Decision::request(self.list_request(freshness), Restart::Stalled)
    }

    /// The open watch has outlived its time.
    pub(crate) fn watch_stalled(&mut self, now: Instant, server: &ServerState) -> Decision {
        Decision::request(self.watch_or_state(now, server), Restart::Stalled)
    }

    /// The watch that has been open since `since` ended, as planned or with its connection. `quiet`: it brought no
    /// event.
    pub(crate) fn watch_ended(
        &mut self,
        since: Instant,
        quiet: bool,
        broken: bool,
        now: Instant,
        server: &ServerState,
    ) -> Decision {
        let restart = if broken {
            Restart::Broken
        } else {
            Restart::Ended
        };
        let short = now - since < SHORT_WATCH;
        self.short_watches = if short { self.short_watches + 1 } else { 0 };
        let at_once = !short || (!quiet && self.short_watches <= SHORT_WATCHES_AT_ONCE);
        if at_once {
            Decision::request(self.watch_or_state(now, server), restart)
        } else {
            self.short_watches = 0;
            self.back_off(Resume::State, Some(restart), now)
        }
    }

    /// The request for a complete state.
    fn state_request(
        &mut self,
        now: Instant,
        server: &ServerState,
        min: Option<&MinVersion>,
    ) -> Request {
        let failures = self.retry.failures();
        self.confirm |= self.failures != failures;
        self.failures = failures;
        let confirm = self.confirm || self.version_lost || self.version.is_none();
        let freshness = match min {
            _ if !confirm => Freshness::AtLeastSeen,
            // A minimum older than the last seen one is that of another server.
            Some(min) if !self.version_lost && !self.is_behind(&min.version) => {
                self.saw(&min.version);
                Freshness::AtLeastMin
            }
            _ => Freshness::MostRecent,
        };
        if !server.streams_lists(now) {
            return self.list_request(freshness);
        }
        let watch = Watch {
            initial_events: true,
            version: self.lower_bound(freshness),
            timeout: self.watch_timeout(),
        };
        Request::StreamingList { freshness, watch }
    }

    fn list_request(&self, freshness: Freshness) -> Request {
        let version = self.lower_bound(freshness);
        Request::List { freshness, version }
    }

    /// The watch from the last version, or, after an outage, the state.
    fn watch_or_state(&mut self, now: Instant, server: &ServerState) -> Request {
        if self.failures == self.retry.failures() {
            self.watch_request()
        } else {
            self.state_request(now, server, None)
        }
    }

    fn watch_request(&mut self) -> Request {
        Request::Watch(Watch {
            initial_events: false,
            version: self.version.clone(),
            timeout: self.watch_timeout(),
        })
    }

    fn lower_bound(&self, freshness: Freshness) -> Option<ResourceVersion> {
        let version = self.version.clone();
        version.filter(|_| freshness != Freshness::MostRecent)
    }

    fn watch_timeout(&mut self) -> Duration {
        let secs = WATCH_TIMEOUT_MIN_SECS..2 * WATCH_TIMEOUT_MIN_SECS;
        Duration::from_secs(self.random.u64(secs))
    }

    /// Takes a complete state over.
    ///
    /// # Errors
    ///
    /// It is older than the last seen one, and is requested again.
    fn synced(
        &mut self,
        version: ResourceVersion,
        freshness: Freshness,
        now: Instant,
    ) -> Result<Synced, Decision> {
        let reset = self.is_behind(&version);
        if reset && !self.older_before {
            self.older_before = true;
            self.confirm = true;
            // There was an answer: earlier failures are no reason for a long delay.
            self.retry.backoff.reset();
            return Err(self.back_off(Resume::State, None, now));
        }
        self.older_before = false;
        self.version_lost = false;
        let confirmed = freshness.is_confirmed();
        self.confirm &= !confirmed;
        self.version = Some(version.clone());
        Ok(Synced {
            version,
            confirmed,
            reset,
        })
    }
}

#[cfg(test)]
mod tests;
