//! A reflector's reaction to an error: change the request at once, or back off, and for how long.

use tokio::time::Instant;

use super::{Decision, Freshness, ListForm, Next, Phase, Reflector, Restart};
use crate::{
    error::{RequestError, RequestFailure, RequestPhase},
    server::ServerState,
};

impl Reflector {
    /// A request for a complete state failed, or its stream did before it was complete.
    pub(crate) fn state_failed(
        &mut self,
        error: RequestError,
        freshness: Freshness,
        form: ListForm,
        now: Instant,
        server: &mut ServerState,
    ) -> Decision {
        self.note_response(&error);
        // A version that is no number came from a server that is broken.
        let is_invalid = error.code() == Some(400) && form == ListForm::Plain;
        if (error.is_expired() || error.is_version_too_large() || is_invalid)
            && freshness != Freshness::MostRecent
        {
            // Another API server may know more, but the most recent state is never too old.
            if freshness == Freshness::AtLeastMin {
                server.min_version_lost();
            }
            self.lose_version();
            return Decision::send(Phase::State, Restart::Expired);
        }
        let phase = match form {
            ListForm::Plain => RequestPhase::List,
            ListForm::Streaming => {
                if error.is_unsupported() {
                    server.streaming_rejected(now);
                    return Decision::send(Phase::PlainList, None);
                }
                if error.is_internal() {
                    server.streaming_failed(now);
                    return Decision::send(Phase::PlainList, None);
                }
                RequestPhase::StreamingList
            }
        };
        self.failed(phase, Phase::State, error, now, server)
    }

    /// A watch could not be opened, was ended by the API server, or sent something that is no event.
    pub(crate) fn watch_failed(
        &mut self,
        error: RequestError,
        now: Instant,
        server: &mut ServerState,
    ) -> Decision {
        self.note_response(&error);
        if error.is_version_too_large() {
            self.lose_version();
            return Decision::send(Phase::State, Restart::Expired);
        }
        if error.is_expired() {
            // Not a failure: the state is requested again, from the last version on. It backs off all the same, because
            // all watches of an API server that compacts expire together.
            return self.back_off(Phase::State, Some(Restart::Expired), now);
        }
        let next = if error.is_transport() || error.is_too_many_requests() {
            Phase::Watch
        } else {
            Phase::State
        };
        self.failed(RequestPhase::Watch, next, error, now, server)
    }

    fn failed(
        &mut self,
        phase: RequestPhase,
        next: Phase,
        error: RequestError,
        now: Instant,
        server: &mut ServerState,
    ) -> Decision {
        if error.is_outage() {
            // The API server that comes back may be another one.
            server.min_version_lost();
        }
        let delay = self.retry.failed(&error, now, &mut self.random);
        Decision {
            failure: Some(RequestFailure::new(phase, error)),
            ..Decision::of(Next::BackOff(next, delay), Some(Restart::Refused))
        }
    }

    /// Backs off as the schedule has it, although nothing has failed.
    pub(super) fn back_off(
        &mut self,
        next: Phase,
        restart: Option<Restart>,
        now: Instant,
    ) -> Decision {
        let delay = self.retry.backoff.delay(now, false, self.random.f64());
        Decision::of(Next::BackOff(next, delay), restart)
    }

    /// What the error says of the API server: a response ends an outage, unless it throttles.
    fn note_response(&mut self, error: &RequestError) {
        if error.is_throttled() {
            self.retry.leave_outage();
        } else if !error.is_outage() {
            self.retry.recovered();
        }
    }
}
