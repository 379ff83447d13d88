//! The watch engine: keeps objects in step with the API server.
//!
//! [`Reflector`](larder_watch::Reflector) decides: a pure state machine that is told what happened and answers with the next request. Two act for it.
//! One [`worker`] task owns the requests, streams and timers of all objects that are watched by name; a watch that waits
//! costs a few hundred bytes there, and no task of its own. A [`Follower`](larder_watch::Follower) drives the reflector of one collection; one
//! that serves all objects of a [`namespace`] is told by [`scopes`] whom it serves. What one reflector of a worker learns
//! about the API server, all know. The stores tell them what to watch with [`commands`].

mod commands;
mod namespace;
mod scopes;
mod worker;

pub(crate) use self::{
    commands::{Command, Commands},
    scopes::Scopes,
    worker::Worker,
};
