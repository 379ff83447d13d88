//! The watch engine: keeps objects in step with the API server, one watch per object.
//!
//! [`reflector`] decides, [`worker`] acts: the reflector of an object is a pure state machine that is told what happened
//! and answers with the next request; one worker task owns the requests, streams and timers of all objects. What one
//! reflector learns about the API server, all know ([`server`]). A watch that waits costs a few hundred bytes here, and
//! no task of its own.

mod reflector;
mod server;
mod worker;

pub(crate) use self::worker::{Command, Worker};
