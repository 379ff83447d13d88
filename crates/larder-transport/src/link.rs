//! The connection of a response: when it was last alive, and what becomes of it when it is silent.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

/// The connection over which a response comes. Each response of a [`Transport`](crate::Transport) has it among its
/// [extensions](http::Response::extensions).
#[derive(Clone)]
pub struct Link(Arc<dyn Carrier>);

/// How a connection finds out whether its peer is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// A PING is sent when the peer is silent.
    Ping,
    /// Not at all: only what the peer sends by itself shows that it is alive.
    None,
}

/// What a connection says of itself.
pub trait Carrier: Send + Sync {
    /// When the last byte came from the peer.
    fn last_heard(&self) -> Instant;

    /// How the connection finds out whether its peer is alive.
    fn probing(&self) -> Probing;

    /// The peer was expected to send something, and did not.
    fn distrust(&self);
}

impl Link {
    /// The connection that `carrier` stands for.
    pub fn new(carrier: Arc<dyn Carrier>) -> Self {
        Self(carrier)
    }

    /// When the last byte came from the peer: of an answer, or of a PING's. A server that answers PINGs and is silent
    /// on a watch has nothing to say there.
    pub fn last_heard(&self) -> Instant {
        self.0.last_heard()
    }

    /// How the connection finds out whether its peer is alive.
    pub fn probing(&self) -> Probing {
        self.0.probing()
    }

    /// The peer was expected to send something, and did not. From now on requests use new connections in place of this
    /// one and of each that has not been heard from since.
    pub fn distrust(&self) {
        self.0.distrust();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({:?})", self.probing())
    }
}
