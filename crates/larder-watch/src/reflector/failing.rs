//! What a reflector makes of an error: ask in another way at once, or wait, and for how long.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Ask, Effect, Next, Reflector, Restart, Resume, State, Turn};
use crate::{error::RequestError, server::Server};

impl Reflector {
    /// A streaming list or a list failed.
    pub(super) fn failed_state(
        &mut self,
        error: RequestError,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        self.heard(&error, server);
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
        self.failed(Resume::Obtain, error, now, server)
            .because(Restart::Refused)
    }

    /// A watch could not be opened or was ended by the API server.
    pub(super) fn failed_watch(
        &mut self,
        error: RequestError,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        self.heard(&error, server);
        if error.is_version_too_large() {
            self.version_lost = true;
            return Turn::next(self.obtain(now, server, None)).because(Restart::Expired);
        }
        if error.is_expired() {
            // Not a failure: the state is asked for again, from the last version on, and after a moment, because all
            // watches of an API server that compacts expire together.
            return self.wait(Resume::Obtain, now).because(Restart::Expired);
        }
        let resume = if error.is_transport() || error.is_too_many_requests() {
            Resume::Watch
        } else {
            Resume::Obtain
        };
        self.failed(resume, error, now, server)
            .because(Restart::Refused)
    }

    fn failed(
        &mut self,
        then: Resume,
        error: RequestError,
        now: Instant,
        server: &mut Server,
    ) -> Turn {
        let random = self.random.f64();
        let mut delay = self.backoff.delay_after(&error, now, random);
        if error.is_outage() {
            let (affected, sooner) = server.failed(delay, now, self.random.f64());
            self.affected = Some(affected);
            delay = sooner;
        }
        self.wait_for(then, delay, now)
            .with(Effect::Failed(Arc::new(error)))
    }

    /// Waits as the schedule has it, although nothing has failed.
    pub(super) fn wait(&mut self, then: Resume, now: Instant) -> Turn {
        let random = self.random.f64();
        let delay = self.backoff.delay(now, false, random);
        self.wait_for(then, delay, now)
    }

    fn wait_for(&mut self, then: Resume, delay: Duration, now: Instant) -> Turn {
        let until = now + delay;
        self.state = State::Waiting { then, until };
        Turn::next(Next::Sleep(delay))
    }

    /// What the error says of the API server: whoever is answered has got through, unless the answer asks for patience.
    fn heard(&mut self, error: &RequestError, server: &Server) {
        if error.asks_for_patience() {
            self.affected = None;
        } else if !error.is_outage() {
            self.got_through(server);
        }
    }
}
