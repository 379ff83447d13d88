//! Turns what the API server sends into the next phase of the driver and its reports.

use std::sync::Arc;

use tracing::debug;

use super::{Collecting, Driver, DriverPhase, InFlight, Opening, Shared, Watching};
use crate::{
    api::{EventStream, Listed, WatchEvent},
    error::{RequestError, RequestPhase, outcome_label},
    limits::Permit,
    reflector::{
        Decision, Freshness, ListForm, MinFreshness, Next, Phase, STREAMING_SILENCE,
        STREAMING_TIMEOUT, Synced, WatchEnd, WatchYield,
    },
    report::{Report, Snapshot},
    sequence::RegistrationSeq,
    target::Target,
};

impl<T: Target + Clone> Driver<T> {
    /// Takes in the response to a streaming list or a watch, or its failure.
    pub(super) fn opened(
        &mut self,
        opening: Opening<T>,
        response: Result<EventStream<T>, RequestError>,
        shared: &mut Shared<'_, T>,
    ) {
        let now = shared.now;
        let timeout = opening.timeout;
        self.heard(now);
        self.responded(RequestPhase::Watch, &response, shared);
        let (in_flight, freshness) = (opening.in_flight, opening.freshness);
        let stream = match response {
            Ok(stream) => stream,
            Err(error) => {
                let (reflector, server) = (&mut self.reflector, &mut *shared.server);
                let decision = match freshness {
                    Some(freshness) => {
                        reflector.state_failed(error, freshness, ListForm::Streaming, now, server)
                    }
                    None => reflector.watch_failed(error, now, server),
                };
                return self.decide(decision, Some(in_flight.permit), shared);
            }
        };
        self.reflector.opened();
        self.verified(now);
        if let Some(freshness) = freshness {
            self.phase = DriverPhase::Collecting(Box::new(Collecting {
                stream,
                freshness,
                state: T::State::default(),
                incomplete: None,
                timeout,
                deadline: now + STREAMING_SILENCE,
                end: now + STREAMING_TIMEOUT,
                in_flight,
            }));
        } else {
            let link = stream.link().cloned();
            self.phase = DriverPhase::Watching(Watching {
                stream,
                since: now,
                timeout,
                brought: WatchYield::Nothing,
            });
            self.report(Report::Resumed(link), shared);
        }
    }

    /// Takes in an event of a streaming list.
    pub(super) fn collect(
        &mut self,
        mut collecting: Box<Collecting<T>>,
        event: Option<Result<WatchEvent<T>, RequestError>>,
        shared: &mut Shared<'_, T>,
    ) {
        let now = shared.now;
        let freshness = collecting.freshness;
        self.heard(now);
        match event {
            Some(Ok(WatchEvent::Changed(item))) => T::add(&mut collecting.state, item),
            Some(Ok(WatchEvent::Deleted(gone, _))) => T::remove(&mut collecting.state, &gone),
            Some(Ok(WatchEvent::UnreadableItem(error) | WatchEvent::UnreadableFrame(error))) => {
                collecting.incomplete = Some(Arc::new(error));
            }
            Some(Ok(WatchEvent::Bookmark {
                initial_events_end: false,
                ..
            })) => {}
            Some(Ok(WatchEvent::Bookmark { version, .. })) => {
                let server = &mut *shared.server;
                let ended = self
                    .reflector
                    .initial_events_ended(freshness, version, now, server);
                return match ended {
                    Ok(synced) => self.collected(*collecting, synced, shared),
                    Err(decision) => self.decide(decision, None, shared),
                };
            }
            Some(Ok(WatchEvent::Error(error)) | Err(error)) => {
                let server = &mut *shared.server;
                let decision =
                    self.reflector
                        .state_failed(error, freshness, ListForm::Streaming, now, server);
                return self.decide(decision, Some(collecting.in_flight.permit), shared);
            }
            None => {
                let decision = self.reflector.list_ended(now);
                return self.decide(decision, None, shared);
            }
        }
        collecting.deadline = collecting.end.min(now + STREAMING_SILENCE);
        self.phase = DriverPhase::Collecting(collecting);
    }

    /// The initial events are complete; the stream continues as the watch.
    fn collected(&mut self, collecting: Collecting<T>, synced: Synced, shared: &mut Shared<'_, T>) {
        let seq = collecting.in_flight.seq;
        // A plain list may come from the storage, behind which the API server's cache may lag for seconds. A streamed
        // state comes from the cache.
        if synced.confirmed {
            shared.server.confirmed(seq, &synced.version);
        }
        self.phase = DriverPhase::Watching(Watching {
            stream: collecting.stream,
            since: shared.now,
            timeout: collecting.timeout,
            brought: WatchYield::Events,
        });
        self.synced(synced, seq, collecting.state, collecting.incomplete, shared);
    }

    pub(super) fn listed(
        &mut self,
        freshness: Freshness,
        InFlight { seq, permit }: InFlight,
        response: Result<Listed<T>, RequestError>,
        shared: &mut Shared<'_, T>,
    ) {
        let now = shared.now;
        self.heard(now);
        self.responded(RequestPhase::List, &response, shared);
        match response {
            Ok(Listed {
                state,
                version,
                incomplete,
            }) => match self.reflector.listed(freshness, version, now) {
                Ok(synced) => {
                    self.phase = if let Some(pause) = self.target.timing().poll {
                        // Each poll has pauses of its own.
                        self.reflector.start(MinFreshness::Newest);
                        let (next, until) = (Phase::State, now + pause);
                        DriverPhase::BackingOff { next, until }
                    } else {
                        DriverPhase::Queued(Phase::Watch, Some(permit))
                    };
                    self.synced(synced, seq, state, incomplete.map(Arc::new), shared);
                }
                Err(decision) => self.decide(decision, None, shared),
            },
            Err(error) => {
                let server = &mut *shared.server;
                let decision =
                    self.reflector
                        .state_failed(error, freshness, ListForm::Plain, now, server);
                self.decide(decision, Some(permit), shared);
            }
        }
    }

    /// Takes in an event of the open watch.
    pub(super) fn watch_event(
        &mut self,
        mut watching: Watching<T>,
        event: Option<Result<WatchEvent<T>, RequestError>>,
        shared: &mut Shared<'_, T>,
    ) {
        let now = shared.now;
        self.heard(now);
        self.proven = self.proven.max(watching.proven(now));
        let reflector = &mut self.reflector;
        let (since, brought) = (watching.since, watching.brought);
        let decision = match event {
            Some(Ok(WatchEvent::Changed(item))) => {
                if reflector.event(T::version(&item)) {
                    self.report(Report::Changed(item), shared);
                }
                None
            }
            Some(Ok(WatchEvent::Deleted(gone, version))) => {
                if reflector.event(&version) {
                    self.report(Report::Deleted(gone, version), shared);
                }
                None
            }
            Some(Ok(WatchEvent::Bookmark { version, .. })) => {
                reflector.saw(&version);
                None
            }
            // An object without a readable name cannot be attributed to the target.
            Some(Ok(WatchEvent::UnreadableItem(error))) => {
                debug!(target = ?self.target, %error, "unreadable object in a watch event, ignored");
                None
            }
            None => Some(reflector.watch_ended(since, brought, WatchEnd::Closed, now)),
            Some(Err(error)) if error.is_transport() => {
                Some(reflector.watch_ended(since, brought, WatchEnd::Broken, now))
            }
            // A second request would get the same unusable response. The object of an unreadable frame is unknown, and
            // only a new state makes up for it.
            Some(
                Err(error) | Ok(WatchEvent::UnreadableFrame(error) | WatchEvent::Error(error)),
            ) => Some(reflector.watch_failed(error, now, shared.server)),
        };
        if let Some(decision) = decision {
            self.decide(decision, None, shared);
        } else {
            self.verified(now);
            watching.brought = WatchYield::Events;
            self.phase = DriverPhase::Watching(watching);
        }
    }

    fn synced(
        &mut self,
        synced: Synced,
        seq: RegistrationSeq,
        state: T::State,
        incomplete: Option<Arc<RequestError>>,
        shared: &mut Shared<'_, T>,
    ) {
        if synced.reset {
            shared.server.min_version_lost();
        }
        self.proven = shared.now;
        self.target.verified(Some(&synced.version));
        let link = match &self.phase {
            DriverPhase::Watching(watching) => watching.stream.link().cloned(),
            _ => None,
        };
        let snapshot = Snapshot {
            state,
            version: synced.version,
            fresh_as_of: synced.confirmed.then_some(seq),
            link,
            request: self.state_requests,
            reset: synced.reset,
            incomplete,
        };
        self.report(Report::Synced(snapshot), shared);
    }

    /// Carries out the reflector's decision; a request that follows at once keeps the permit.
    pub(super) fn decide(
        &mut self,
        decision: Decision,
        permit: Option<Permit>,
        shared: &mut Shared<'_, T>,
    ) {
        self.phase = match decision.next {
            Next::Send(phase) => DriverPhase::Queued(phase, permit),
            Next::BackOff(next, delay) => DriverPhase::BackingOff {
                next,
                until: shared.now + delay.max(self.target.timing().min_pause),
            },
        };
        if let Some(restart) = decision.restart {
            let proven = self.proven;
            self.report(Report::Interrupted { restart, proven }, shared);
        }
        if let Some(failure) = decision.failure {
            self.report(Report::Failed(failure), shared);
        }
    }

    fn responded<R>(
        &self,
        phase: RequestPhase,
        result: &Result<R, RequestError>,
        shared: &mut Shared<'_, T>,
    ) {
        let (verb, outcome) = (phase.as_str(), outcome_label(result));
        self.report(Report::Responded { verb, outcome }, shared);
    }
}
