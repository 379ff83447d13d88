//! The connections of one lane, and the requests that wait for one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{sync::oneshot, task::AbortHandle, time::Instant};

use crate::{
    Error, Lane,
    connection::{Connection, StreamPermit},
};

/// Most attempts to connect that run at the same time for one lane.
const PARALLEL_DIALS: usize = 4;

/// Concurrent ordinary requests for which connections are opened; further requests wait. One HTTP/2 connection takes
/// more than that, so there is only one. Over HTTP/1.1 there are as many connections.
const REQUEST_STREAMS: usize = 8;

/// Connections and waiting requests of one lane.
pub(super) struct LaneState {
    pub(super) lane: Lane,
    pub(super) members: Vec<Member>,
    pub(super) waiting: VecDeque<oneshot::Sender<Result<StreamPermit, Error>>>,
    pub(super) dialing: usize,
    /// Streams that the next connection probably takes.
    pub(super) expected_streams: usize,
}

/// A connection in the pool.
pub(super) struct Member {
    pub(super) connection: Arc<Connection>,
    pub(super) driver: AbortHandle,
    /// When it ran out of streams.
    pub(super) idle_since: Option<Instant>,
    /// The pool has ended it.
    pub(super) retired: bool,
}

impl LaneState {
    /// Gives the next waiting request a stream. Returns whether there was a request and room for it.
    pub(super) fn serve_one(&mut self, probe: Option<Arc<()>>) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let Some(mut permit) = self.fullest().and_then(Connection::reserve) else {
            return false;
        };
        if let Some(reply) = self.waiting.pop_front() {
            permit.probe = probe;
            // A request canceled in the meantime drops its permit.
            let _ = reply.send(Ok(permit));
        }
        true
    }

    /// Whether a request waits and a connection has room for it.
    pub(super) fn can_serve(&self) -> bool {
        !self.waiting.is_empty() && self.fullest().is_some()
    }

    /// The fullest connection that has room.
    fn fullest(&self) -> Option<&Arc<Connection>> {
        self.members
            .iter()
            .map(|member| &member.connection)
            .filter(|connection| !connection.is_closing())
            .filter(|connection| connection.open() < connection.limit())
            .max_by_key(|connection| connection.open())
    }

    /// Number of attempts to connect to start for the waiting requests.
    pub(super) fn missing(&self) -> usize {
        let needed = self.waiting.len().div_ceil(self.expected_streams);
        let allowed = match self.lane {
            Lane::Watch => usize::MAX,
            Lane::Request => {
                let taking = self.members.iter().map(|member| &member.connection);
                let limits = taking.filter(|c| !c.is_closing()).map(|c| c.limit());
                REQUEST_STREAMS
                    .saturating_sub(limits.sum())
                    .div_ceil(self.expected_streams)
            }
        };
        let most = allowed.min(PARALLEL_DIALS);
        needed.min(most).saturating_sub(self.dialing)
    }
}

impl Member {
    /// Ends the connection if it is closing or idle for too long. Returns when to check again.
    pub(super) fn retire(&mut self, now: Instant, idle_timeout: Duration) -> Option<Instant> {
        if self.connection.open() > 0 {
            self.idle_since = None;
            return None;
        }
        let until = *self.idle_since.get_or_insert(now) + idle_timeout;
        if self.connection.is_closing() || until <= now {
            self.retired = true;
            self.connection.close();
            self.driver.abort();
            return None;
        }
        Some(until)
    }
}
