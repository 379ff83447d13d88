//! Internal to larder, no stability. Hooks of pods: they notify an application once changed content of its volumes or variables is in place.
//!
//! ```text
//!  annotations, configuration ─► hooks of the pod ─┐  in its plan
//!                                                  ▼
//!  worker: pass over the pod ─► observer: tags of what hooks select ─► schedule: an engine for each hook, a queue ─► round
//!                                                                          ▲                                               │
//!                                        record of the pod ◄── notified, uncertain ◄────────── success, failure ◄──────────┘
//! ```
//!
//! `OnChange` is shared by all workers. A worker whose pod has hooks passes an `Observer` to each pass. The observer
//! tags each part after its swap, on the thread that has written it, and hands the tags over at the end of the pass
//! (rule F1). One task, `OnChange::run`, starts rounds when they are due.
//!
//! Beside a kubelet, content is handed over after a look has verified it on the kubelet's disk (`handover`), and the
//! processes of a container are found by its ID. Everything else is the same.
//!
//! The contract is `docs/spec/on-change.md`; rules are cited by letter and number.
//!
//! Invariants:
//! 1. A pod without hooks costs one comparison for each pass, and no memory.
//! 2. Content is held as keyed tags of its bytes, never as bytes.
//! 3. No worker waits for a round: a pass hands its tags over under a lock that is held for computations only.
//! 4. Before the first step of an attempt, the record says that its outcome is uncertain. So the application is
//!    notified of each change at least once, across any crash (rule P4).

mod handover;
mod hooked_pod;
mod key;
mod observer;
mod round;
mod settings;
mod status;
mod task;

pub use larder_actions::http::Network;

pub use self::{
    handover::{FoundContent, HandOver, HookedParts},
    observer::{Observer, since_boot},
    round::{Handler, ProgramHook},
    settings::OnChangeConfig,
    status::HookStatus,
    task::{HookNode, OnChange},
};
pub use larder_on_change::PodChange;

/// The file with the record of a pod's hooks, in the directory of the pod.
pub const RECORD: &str = "on-change.json";

#[cfg(test)]
mod tests;
