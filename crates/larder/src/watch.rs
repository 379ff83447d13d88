//! The watch engine: keeps objects in step with the API server.
//!
//! [`reflector`] decides: a pure state machine that is told what happened and answers with the next request. Two act for it.
//! One [`worker`] task owns the requests, streams and timers of all objects that are watched by name; a watch that waits
//! costs a few hundred bytes there, and no task of its own. A [`follower`] drives the reflector of one collection; one
//! that serves all objects of a [`namespace`] is told by [`scopes`] whom it serves. What one reflector of a worker learns
//! about the API server, all know ([`server`], [`outages`]). The stores tell them what to watch with [`commands`].

mod commands;
mod follower;
mod namespace;
mod outages;
mod reflector;
mod scopes;
mod server;
mod worker;

pub(crate) use self::{
    commands::{Command, Commands},
    follower::{Follower, News},
    outages::Outages,
    scopes::Scopes,
    worker::Worker,
};
