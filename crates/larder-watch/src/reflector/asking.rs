//! What a reflector asks for: how new a state, from which version on.

use std::time::Duration;

use larder_objects::ResourceVersion;
use tokio::time::Instant;

use super::{Ask, Next, Reflector, State};
use crate::{
    api::Watch,
    server::{Floor, Server},
};

/// Watches last 30 to 60 min, at random, so that they do not end together.
const WATCH_TIMEOUT_MIN_SECS: u64 = 1800;

impl Reflector {
    /// The request for a complete state.
    pub(super) fn obtain(&mut self, now: Instant, server: &Server, floor: Option<&Floor>) -> Next {
        self.consistent |= self.failures != server.outages().failures();
        self.failures = server.outages().failures();
        let consistent = self.consistent || self.version_lost || self.version.is_none();
        let ask = match floor {
            _ if !consistent => Ask::Seen,
            // An older floor than what was seen is that of another server.
            Some(floor) if !self.version_lost && !self.is_behind(&floor.version) => {
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

    pub(super) fn list(&mut self, ask: Ask) -> Next {
        self.state = State::Listing { ask };
        Next::List(self.lower_bound(ask))
    }

    /// The watch from the last version, or, after an outage, the state.
    pub(super) fn resume(&mut self, now: Instant, server: &Server) -> Next {
        if self.failures == server.outages().failures() {
            self.open_watch()
        } else {
            self.obtain(now, server, None)
        }
    }

    pub(super) fn open_watch(&mut self) -> Next {
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

    pub(super) fn watch_timeout(&mut self) -> Duration {
        Duration::from_secs(
            self.random
                .u64(WATCH_TIMEOUT_MIN_SECS..2 * WATCH_TIMEOUT_MIN_SECS),
        )
    }
}
