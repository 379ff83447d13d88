//! What a reflector answers to an input.

use std::{sync::Arc, time::Duration};

use larder_objects::ResourceVersion;

use crate::{api::Watch, error::RequestError};

/// The answer to an input.
#[derive(Debug)]
pub struct Turn {
    pub effect: Option<Effect>,
    pub next: Next,
    pub restart: Option<Restart>,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Open a watch.
    Open(Watch),
    /// List, at this version or the most recent one.
    List(Option<ResourceVersion>),
    /// Read the next event of the open watch.
    Read,
    /// Read the next event, and come to [`Reflector::expired`](super::Reflector::expired) when the watch is still open
    /// after the time.
    ReadFor(Duration),
    /// Drop the watch, if one is open, and come back after the time.
    Sleep(Duration),
    /// Drop everything.
    Rest,
}

/// What readers should learn.
#[derive(Debug)]
pub enum Effect {
    /// Nothing yet: the event is part of a state that is not complete. Collect it, for as long as this watch is open.
    Collect,
    /// What was listed, or collected from the open watch, is the complete state.
    Synced {
        /// The version of the state.
        version: ResourceVersion,
        /// It was read consistently: as new as the moment of asking.
        consistent: bool,
        /// It may be older than what readers have: the API server was restored.
        reset: bool,
    },
    /// The event is news, at this version.
    Changed(ResourceVersion),
    /// The watch goes on after an interruption: what readers have is in step again.
    Resumed,
    /// A request failed.
    Failed(Arc<RequestError>),
}

/// Why a watch was opened again, for the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Restart {
    Ended,
    Expired,
    Refused,
    Broken,
    Stalled,
}

impl Restart {
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

impl Turn {
    pub(super) fn next(next: Next) -> Self {
        Self {
            effect: None,
            next,
            restart: None,
        }
    }

    pub(super) fn with(mut self, effect: Effect) -> Self {
        self.effect = Some(effect);
        self
    }

    pub(super) fn because(mut self, restart: Restart) -> Self {
        self.restart = Some(restart);
        self
    }
}
