//! Internal, no stability. Get, list and watch of Kubernetes objects: keeps targets in sync with an API server.
//!
//! An [`Engine`] watches *targets* (one name, or a collection) and returns *reports*: the state of a target, a change,
//! a failure, how fresh a state is. It knows neither the stores of the objects nor the readers that wait for them.
//!
//! ```text
//! Collection, stores of the managers
//!        │ targets, needs    ▲ reports: states, changes, confirmed freshness
//!        ▼                   │
//!      Engine ── limits, outages, freshness checks
//!        │                   ▲
//!        ▼                   │
//!      Driver ── Reflector (decides, pure)
//!        │                   ▲
//!        ▼                   │
//!       Api ─────────► API server
//! ```
//!
//! The crate's README has the inner map and the rules of the engine.

mod api;
mod backoff;
mod bounds;
mod buffer;
pub mod collection;
mod context;
mod driver;
mod engine;
mod error;
mod limits;
mod liveness;
mod outages;
mod proof;
mod ready;
mod reflector;
mod report;
mod request;
mod restored;
mod review;
mod sequence;
mod server;
mod target;

#[doc(hidden)]
pub use self::api::fuzzing;
pub use self::{
    api::{Api, Listed},
    backoff::RequestBackoff,
    context::NodeContext,
    engine::{Engine, Need, Presence},
    error::{RequestError, RequestFailure, RequestPhase, StatusFacts},
    liveness::SilentWatch,
    proof::{CollectionFreshness, Proof, ProofRecord},
    reflector::{MinFreshness, Restart},
    report::{Confirmed, ObjectId, Report, Snapshot, TargetId},
    request::{REQUEST_TIMEOUT, is_allowed, merge_patch, request, request_secret},
    restored::{Recency, RestoreDetector},
    review::{Access, AccessReview},
    sequence::{RegistrationSeq, SeqCounter},
    target::{ByName, Head, RequestTiming, Target, check, collection_path},
};
