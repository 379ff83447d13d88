//! Internal to larder, no stability. Hooks: actions on an application after the volumes or variables that larder delivers to it have changed.
//!
//! ```text
//!  content of a pass ─► filter ─► digest ─► quiet period ─► splay ─► round ─► steps ─► success: record
//!                                              ▲                       │
//!                                              └──── newer change ◄────┴── failure: retry
//! ```
//!
//! A [`Hook`] is a filter, one or several [`Action`]s, and timing. [`parse`] reads hooks from the command line, from
//! pod annotations and from the agent's configuration, and checks which actions each source may request. [`Schedule`]
//! decides when they fire: those of all pods of a node, or of one application. It is pure: time and random numbers are
//! passed in. The crate `larder-actions` runs the steps of a round.
//!
//! The contract is `docs/spec/on-change.md`; tests cite its scenarios as `// on-change 12`.
//!
//! Invariants:
//! 1. A round notifies the application of the content that was current when its first step began. Success records that
//!    content, not a later one.
//! 2. A hook whose content equals that of its last success never fires, unless an attempt has failed since: the effect
//!    of a failed attempt is unknown.
//! 3. Every change reaches the application at least once. Across restarts this holds if the caller stores what
//!    [`Schedule::record`] returns, and adopts the hooks with it at the next start.

mod changes;
mod content;
mod digest;
mod engine;
mod hook;
mod left_out;
mod outline;
pub mod parse;
mod part;
mod pod_hooks;
mod queue;
mod record;
mod round_id;
mod schedule;
mod signal;
mod tracked;

pub use changes::{Changes, PodChange, VolumeChange};
pub use content::{Content, PartContent, PartTags};
pub use digest::{ContentTag, DigestKey, Tagger};
pub use engine::{AttemptEnd, HookState};
pub use hook::http::{HttpAuth, HttpCall, HttpTarget, HttpTls, Port};
pub use hook::paths::Paths;
pub use hook::timing::{Debounce, Retry, StopDefaults, Timing, grace_period};
pub use hook::{Action, Command, Definition, Hook, OnFailure, Restart, SignalTarget};
pub use larder_net::http_url::HttpUrl;
pub use left_out::{ItemObjects, LeftOut, ObjectTag};
pub use outline::{ContainerOutline, ContainerRole, MountedPath, PodOutline, VolumeOutline};
pub use part::PartKey;
pub use pod_hooks::{HookSources, InvalidAnnotation, Place, PodHook, PodHooks, has_same_hooks};
pub use queue::HookId;
pub use record::{Past, Record};
pub use round_id::RoundId;
pub use schedule::{Attempt, Ended, PodSchedule, Schedule};
pub use signal::Signal;
pub use tracked::{Now, RoundControl, TrackedHook};
