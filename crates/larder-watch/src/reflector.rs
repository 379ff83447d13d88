//! Decides on the next request to the API server: the rules for one target, pure.
//!
//! A reflector sees only versions. Its [driver](crate::driver) makes the requests, holds the objects from their
//! responses, and passes findings on. A cycle obtains the complete state (a streaming list, or a plain list where the
//! API server has no streaming lists), then watches from there, resuming from the last version seen as long as that
//! works. Kubernetes 1.36, `staging/src/k8s.io/client-go/tools/cache/reflector.go`, with these intentional differences:
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
//! Invariants:
//! 1. Time, randomness and the network are outside; the same inputs give the same requests.
//! 2. A decision names the next [`Phase`]. Its request is built once, by [`Reflector::request`], when it is sent, so it
//!    includes everything learned while it waited.

mod failures;

use std::time::Duration;

use larder_objects::ResourceVersion;
use tokio::time::Instant;

use crate::{
    api::Watch,
    error::RequestFailure,
    outages::{Outages, Retry},
    restored::{Recency, RestoreDetector},
    server::{MinVersion, ServerState},
};

/// How fresh a state must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MinFreshness {
    /// Not older than the last seen state.
    Seen,
    /// As fresh as the newest registration.
    Newest,
}

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
    /// Whether the response is as fresh as a registration.
    pub(crate) fn is_confirmed(self) -> bool {
        self != Self::AtLeastSeen
    }
}

/// How a complete state is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListForm {
    /// As a watch that begins with the state.
    Streaming,
    Plain,
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
}

/// The next step of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// A complete state.
    State,
    /// A complete state, in place of a streaming list that has failed.
    PlainList,
    /// The watch from the last version, if that may be resumed.
    Watch,
}

/// The next action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send the request of this phase.
    Send(Phase),
    /// Send it after this time.
    BackOff(Phase, Duration),
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

/// What follows from the end of a request, or of a stream.
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

    pub(crate) fn send(phase: Phase, restart: impl Into<Option<Restart>>) -> Self {
        Self::of(Next::Send(phase), restart.into())
    }
}

/// An open streaming list without an event for so long, and without the end of its initial events: the API server does
/// not know streaming lists. (Before 1.27 it ignores the parameter and watches.)
pub(crate) const STREAMING_SILENCE: Duration = Duration::from_secs(10);

/// An open streaming list without the end of its initial events for so long, whatever comes: the API server does not
/// know streaming lists. A watch of busy objects is never silent.
pub(crate) const STREAMING_TIMEOUT: Duration = Duration::from_mins(5);

/// How long after its timeout an open watch counts as dead.
pub(crate) const WATCH_SLACK: Duration = Duration::from_secs(30);

/// A watch without an event or bookmark for so long is opened again, on a new connection, if nothing else shows whether
/// the server is alive: over HTTP/1.1, which has no PING. kube-apiserver sends a bookmark about once a minute (1.36,
/// `defaultBookmarkFrequency`), so one has not come.
pub(crate) const BOOKMARK_SILENCE: Duration = Duration::from_secs(90);

/// A stream that ends sooner, without an event, is a "very short watch".
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Short streams in a row that still are reopened at once because they brought events.
const SHORT_WATCHES_AT_ONCE: u8 = 3;

/// Watches last 30 to 60 min, at random, so that they do not end together.
const WATCH_TIMEOUT_MIN_SECS: u64 = 1800;

/// The last version seen, which is the lower bound of each state.
#[derive(Debug)]
enum KnownVersion {
    /// No state was seen.
    None,
    /// The API server has served it.
    Served(ResourceVersion),
    /// The API server cannot serve it: the next state is requested without one.
    Lost(ResourceVersion),
}

impl KnownVersion {
    fn get(&self) -> Option<&ResourceVersion> {
        match self {
            Self::None => None,
            Self::Served(version) | Self::Lost(version) => Some(version),
        }
    }
}

/// How a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchEnd {
    /// The API server ended it.
    Closed,
    /// Its connection broke.
    Broken,
}

/// What a watch has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchYield {
    Nothing,
    Events,
}

/// The rules for one target.
#[derive(Debug)]
pub(crate) struct Reflector {
    known: KnownVersion,
    restored: RestoreDetector,
    /// The next state must be as fresh as the newest registration.
    confirm: bool,
    short_watches: u8,
    retry: Retry,
    /// [`Retry::failures`] when the state was requested.
    failures: u32,
    random: fastrand::Rng,
    /// How long a watch stays open, if the target says so.
    watch_timeout: Option<Duration>,
}

impl Reflector {
    /// Watches stay open for `watch_timeout`, or for the default.
    pub(crate) fn new(
        random: fastrand::Rng,
        outages: Outages,
        watch_timeout: Option<Duration>,
        now: Instant,
    ) -> Self {
        Self {
            known: KnownVersion::None,
            restored: RestoreDetector::default(),
            confirm: true,
            short_watches: 0,
            retry: Retry::new(outages, now),
            failures: 0,
            random,
            watch_timeout,
        }
    }

    /// The last version seen.
    pub(crate) fn version(&self) -> Option<&ResourceVersion> {
        self.known.get()
    }

    /// The next state must be as fresh as the newest registration.
    pub(crate) fn confirm(&mut self) {
        self.confirm = true;
    }

    /// Sets the version of the target, if it is known.
    pub(crate) fn saw(&mut self, version: &ResourceVersion) {
        if version.is_empty() || self.is_behind(version) {
            return;
        }
        let version = version.clone();
        self.known = match self.known {
            KnownVersion::Lost(_) => KnownVersion::Lost(version),
            KnownVersion::None | KnownVersion::Served(_) => KnownVersion::Served(version),
        };
    }

    /// The API server cannot serve the last version.
    fn lose_version(&mut self) {
        if let Some(version) = self.version().cloned() {
            self.known = KnownVersion::Lost(version);
        }
    }

    fn has_lost_version(&self) -> bool {
        matches!(self.known, KnownVersion::Lost(_))
    }

    fn is_behind(&self, version: &ResourceVersion) -> bool {
        self.version()
            .is_some_and(|seen| version.is_older_than(seen))
    }

    /// Nothing is requested from now on; the version last seen stays the lower bound.
    pub(crate) fn stop(&mut self) {
        self.retry.leave_outage();
    }

    /// Begins a cycle, with [`Phase::State`].
    pub(crate) fn start(&mut self, min: MinFreshness) {
        self.confirm |= min == MinFreshness::Newest;
        self.retry.backoff.reset();
    }

    /// Whether the request of this phase will obtain a state, and if so, whether one as fresh as the newest
    /// registration.
    pub(crate) fn obtains(&self, phase: Phase) -> Option<bool> {
        let failed = self.failures != self.retry.failures();
        let is_served = matches!(self.known, KnownVersion::Served(_));
        let confirms = self.confirm || failed || !is_served;
        (phase != Phase::Watch || failed).then_some(confirms)
    }

    /// The request of a phase, to be sent now. `min` is a version that is fresh enough.
    pub(crate) fn request(
        &mut self,
        phase: Phase,
        now: Instant,
        server: &ServerState,
        min: Option<&MinVersion>,
    ) -> Request {
        let Some(confirms) = self.obtains(phase) else {
            return Request::Watch(Watch {
                initial_events: false,
                version: self.version().cloned(),
                timeout: self.watch_timeout(),
            });
        };
        self.confirm |= self.failures != self.retry.failures();
        self.failures = self.retry.failures();
        let freshness = match min {
            _ if !confirms => Freshness::AtLeastSeen,
            // A minimum older than the last seen one is that of another server.
            Some(min) if !self.has_lost_version() && !self.is_behind(&min.version) => {
                self.saw(&min.version);
                Freshness::AtLeastMin
            }
            _ => Freshness::MostRecent,
        };
        let version = self
            .version()
            .cloned()
            .filter(|_| freshness != Freshness::MostRecent);
        if phase == Phase::PlainList || !server.streams_lists(now) {
            return Request::List { freshness, version };
        }
        let watch = Watch {
            initial_events: true,
            version,
            timeout: self.watch_timeout(),
        };
        Request::StreamingList { freshness, watch }
    }

    /// See [`Retry::retry_early`].
    pub(crate) fn retry_early(&mut self, until: Instant, now: Instant) -> Option<Instant> {
        self.retry.retry_early(until, now)
    }

    /// The API server has begun to answer a watch or a streaming list.
    pub(crate) fn opened(&mut self) {
        self.retry.recovered();
    }

    /// A plain list has come. The watch goes on from there.
    ///
    /// # Errors
    ///
    /// The state is older than the last seen one, and must not be used.
    pub(crate) fn listed(
        &mut self,
        freshness: Freshness,
        version: ResourceVersion,
        now: Instant,
    ) -> Result<Synced, Decision> {
        self.retry.recovered();
        self.synced(version, freshness, now)
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
        self.back_off(Phase::State, Some(Restart::Ended), now)
    }

    /// The watch that has been open since `since` ended.
    pub(crate) fn watch_ended(
        &mut self,
        since: Instant,
        brought: WatchYield,
        end: WatchEnd,
        now: Instant,
    ) -> Decision {
        let restart = match end {
            WatchEnd::Closed => Restart::Ended,
            WatchEnd::Broken => Restart::Broken,
        };
        let short = now - since < SHORT_WATCH;
        self.short_watches = if short { self.short_watches + 1 } else { 0 };
        let has_events = brought == WatchYield::Events;
        let at_once = !short || (has_events && self.short_watches <= SHORT_WATCHES_AT_ONCE);
        if at_once {
            Decision::send(Phase::Watch, restart)
        } else {
            self.short_watches = 0;
            self.back_off(Phase::State, Some(restart), now)
        }
    }

    fn watch_timeout(&mut self) -> Duration {
        let secs = WATCH_TIMEOUT_MIN_SECS..2 * WATCH_TIMEOUT_MIN_SECS;
        let random = Duration::from_secs(self.random.u64(secs));
        self.watch_timeout.unwrap_or(random)
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
        let recency = match self.known.get() {
            None => Recency::Current,
            Some(seen) => self.restored.judge(&version, seen),
        };
        let reset = match recency {
            Recency::Current => false,
            Recency::Restored => true,
            Recency::InDoubt | Recency::Overtaken => {
                self.confirm = true;
                // There was a response: earlier failures are no reason for a long delay.
                self.retry.backoff.reset();
                return Err(self.back_off(Phase::State, None, now));
            }
        };
        let confirmed = freshness.is_confirmed();
        self.confirm &= !confirmed;
        self.known = KnownVersion::Served(version.clone());
        Ok(Synced {
            version,
            confirmed,
            reset,
        })
    }
}

#[cfg(test)]
mod tests;
