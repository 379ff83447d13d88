//! Get, list and watch of Kubernetes objects: keeps targets in sync with an API server.
//!
//! An [`Engine`] watches *targets* (one name, or a collection) and reports *findings*: an object is present at a
//! version, an object is absent, or a request failed. It also reports how fresh a state is. It knows nothing of who
//! stores the objects, or of the readers that wait for them.
//!
//! ```text
//! Collection, stores of the managers
//!        │ targets, needs    ▲ reports: findings, confirmed freshness
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
//! Modules, from the bottom up, none of which names a later one: `error`, `sequence`, `buffer`, `request`, `target`,
//! `api` (`list` and `stream` read the responses), `backoff`, `limits`, `liveness`, `outages`, `context`, `server`,
//! `reflector`, `report`, `driver`, `ready`, `engine`, `review`, [`collection`].

mod api;
mod backoff;
mod buffer;
pub mod collection;
mod context;
mod driver;
mod engine;
mod error;
mod limits;
mod liveness;
mod outages;
mod ready;
mod reflector;
mod report;
mod request;
mod review;
mod sequence;
mod server;
mod target;

#[doc(hidden)]
pub use self::api::fuzzing;
pub use self::{
    api::Api,
    backoff::RequestBackoff,
    context::NodeContext,
    engine::{Engine, Known, Limits, Need, OlderAnswer, Start},
    error::{RequestError, RequestFailure, RequestPhase},
    liveness::SilentWatch,
    reflector::Restart,
    report::{Confirmed, Event, Finding, Report, Snapshot},
    request::{REQUEST_TIMEOUT, merge_patch, request, request_secret},
    review::{Access, AccessReview},
    sequence::{RegistrationSeq, SeqCounter, SharedSeq},
    target::{ByName, Head, Target, collection_path},
};
