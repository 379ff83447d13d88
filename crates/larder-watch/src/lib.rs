//! Get, list and watch of Kubernetes objects.

#![expect(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::new_without_default,
    reason = "the stores of the managers still drive reflectors themselves"
)]

mod api;
mod backoff;
pub mod collection;
mod error;
mod follower;
mod outages;
mod reflector;
mod server;

#[doc(hidden)]
pub use self::{
    api::{
        Api, ByName, EventStream, Listed, Named, REQUEST_TIMEOUT, Target, Watch, WatchEvent,
        collection_path, metadata,
    },
    backoff::Backoff,
    error::outcome_label,
    follower::{Asked, Follower, Happening, News},
    outages::{APART, Affected, Outages},
    reflector::{Effect, Event, Next, Reflector, Restart, Turn},
    server::{Floor, Server},
};
pub use self::{
    api::{escaped, request, segment},
    error::RequestError,
};
