//! Turns an answer of the API server into the next phase of the driver and its report.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::debug;

use super::{Collecting, Driver, DriverPhase, InFlight, Opening, Watching};
use crate::{
    api::{EventStream, Listed, WatchEvent},
    error::{RequestError, outcome_label},
    limits::Permit,
    reflector::{Decision, Freshness, Next, STREAMING_TIMEOUT, Synced},
    report::{Event, Finding, Report, Snapshot},
    sequence::RegistrationSeq,
    server::ServerState,
    target::Target,
};

impl<T: Target + Clone> Driver<T> {
    /// Takes in the answer to a streaming list or a watch, or its failure.
    pub(super) fn opened(
        &mut self,
        opening: Opening<T>,
        answer: Result<EventStream<T>, RequestError>,
        server: &mut ServerState,
    ) -> Report<T> {
        let now = self.heard();
        let label = outcome_label(&answer);
        let Opening {
            freshness,
            timeout,
            in_flight,
            ..
        } = opening;
        let reflector = &mut self.reflector;
        let report = match (answer, freshness) {
            (Ok(stream), Some(freshness)) => {
                reflector.opened();
                self.phase = DriverPhase::Collecting(Box::new(Collecting {
                    stream,
                    freshness,
                    state: T::State::default(),
                    incomplete: None,
                    timeout,
                    deadline: now + STREAMING_TIMEOUT,
                    in_flight,
                }));
                Report::new(self.id, None)
            }
            (Ok(stream), None) => {
                reflector.opened();
                self.phase = DriverPhase::Watching(Watching {
                    stream,
                    since: now,
                    timeout,
                    quiet: true,
                });
                Report::found(self.id, Finding::Resumed)
            }
            (Err(error), Some(freshness)) => {
                let decision = reflector.state_failed(error, freshness, true, now, server);
                self.decide(decision, Some(in_flight.permit))
            }
            (Err(error), None) => {
                let decision = reflector.watch_failed(error, now, server);
                self.decide(decision, Some(in_flight.permit))
            }
        };
        report.answered("watch", label)
    }

    /// Takes in an event of a streaming list.
    pub(super) fn collect(
        &mut self,
        mut collecting: Box<Collecting<T>>,
        event: Option<Result<WatchEvent<T>, RequestError>>,
        server: &mut ServerState,
    ) -> Option<Report<T>> {
        let now = self.heard();
        let freshness = collecting.freshness;
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
                let reflector = &mut self.reflector;
                let ended = reflector.initial_events_ended(freshness, version, now, server);
                return Some(match ended {
                    Ok(synced) => self.collected(*collecting, synced, now, server),
                    Err(decision) => self.decide(decision, None),
                });
            }
            Some(Ok(WatchEvent::Error(error)) | Err(error)) => {
                let reflector = &mut self.reflector;
                let decision = reflector.state_failed(error, freshness, true, now, server);
                return Some(self.decide(decision, Some(collecting.in_flight.permit)));
            }
            None => {
                let decision = self.reflector.list_ended(now);
                return Some(self.decide(decision, None));
            }
        }
        self.phase = DriverPhase::Collecting(collecting);
        None
    }

    /// The initial events are complete; the stream continues as the watch.
    fn collected(
        &mut self,
        collecting: Collecting<T>,
        synced: Synced,
        now: Instant,
        server: &mut ServerState,
    ) -> Report<T> {
        let seq = collecting.in_flight.seq;
        // A plain list may come from the storage, behind which the API server's cache may lag for seconds. A streamed
        // state comes from the cache.
        if synced.confirmed {
            server.confirmed(seq, &synced.version);
        }
        self.phase = DriverPhase::Watching(Watching {
            stream: collecting.stream,
            since: now,
            timeout: collecting.timeout,
            quiet: false,
        });
        self.synced(synced, seq, collecting.state, collecting.incomplete, server)
    }

    pub(super) fn listed(
        &mut self,
        freshness: Freshness,
        in_flight: InFlight,
        answer: Result<Listed<T>, RequestError>,
        server: &mut ServerState,
    ) -> Report<T> {
        let now = self.heard();
        let label = outcome_label(&answer);
        let InFlight { seq, permit } = in_flight;
        let reflector = &mut self.reflector;
        let report = match answer {
            Ok(Listed {
                state,
                version,
                incomplete,
            }) => match reflector.listed(freshness, version, now) {
                Ok((synced, request)) => {
                    self.phase = DriverPhase::Queued(request, Some(permit));
                    self.synced(synced, seq, state, incomplete.map(Arc::new), server)
                }
                Err(decision) => self.decide(decision, None),
            },
            Err(error) => {
                let decision = reflector.state_failed(error, freshness, false, now, server);
                self.decide(decision, Some(permit))
            }
        };
        report.answered("list", label)
    }

    /// Takes in an event of the open watch.
    pub(super) fn watch_event(
        &mut self,
        mut watching: Watching<T>,
        event: Option<Result<WatchEvent<T>, RequestError>>,
        server: &mut ServerState,
    ) -> Option<Report<T>> {
        let now = self.heard();
        let reflector = &mut self.reflector;
        let (since, quiet) = (watching.since, watching.quiet);
        let result = match event {
            Some(Ok(WatchEvent::Changed(item))) => {
                let news = reflector.event(T::version(&item));
                Ok(news.then_some(Finding::Changed(item)))
            }
            Some(Ok(WatchEvent::Deleted(gone, version))) => {
                let news = reflector.event(&version);
                Ok(news.then_some(Finding::Deleted(gone, version)))
            }
            Some(Ok(WatchEvent::Bookmark { version, .. })) => {
                reflector.saw(&version);
                Ok(None)
            }
            // An object without a readable name cannot be attributed to the target.
            Some(Ok(WatchEvent::UnreadableItem(error))) => {
                debug!(target = ?self.target, %error, "unreadable object in a watch event, ignored");
                Ok(None)
            }
            None => Err(reflector.watch_ended(since, quiet, false, now, server)),
            Some(Err(error)) if error.is_transport() => {
                Err(reflector.watch_ended(since, quiet, true, now, server))
            }
            // A second request would get the same unusable answer. The object of an unreadable frame is unknown, and
            // only a new state makes up for it.
            Some(
                Err(error) | Ok(WatchEvent::UnreadableFrame(error) | WatchEvent::Error(error)),
            ) => Err(reflector.watch_failed(error, now, server)),
        };
        match result {
            Ok(finding) => {
                watching.quiet = false;
                self.phase = DriverPhase::Watching(watching);
                finding.map(|finding| Report::found(self.id, finding))
            }
            Err(decision) => Some(self.decide(decision, None)),
        }
    }

    fn synced(
        &self,
        synced: Synced,
        seq: RegistrationSeq,
        state: T::State,
        incomplete: Option<Arc<RequestError>>,
        server: &mut ServerState,
    ) -> Report<T> {
        if synced.reset {
            server.min_version_lost();
        }
        Report::found(
            self.id,
            Finding::Synced(Snapshot {
                state,
                version: synced.version,
                fresh_as_of: synced.confirmed.then_some(seq),
                request: self.state_requests,
                reset: synced.reset,
                incomplete,
            }),
        )
    }

    /// Carries out the reflector's decision; a request that follows at once keeps the permit.
    pub(super) fn decide(&mut self, decision: Decision, permit: Option<Permit>) -> Report<T> {
        let Decision {
            next,
            restart,
            failure,
        } = decision;
        self.phase = match next {
            Next::Request(request) => DriverPhase::Queued(request, permit),
            Next::BackOff(resume, delay) => DriverPhase::BackingOff {
                resume,
                until: Instant::now() + delay,
            },
        };
        let failed = failure.map(|failure| Event::Found(Finding::Failed(failure)));
        Report {
            restart,
            ..Report::new(self.id, failed)
        }
    }
}
