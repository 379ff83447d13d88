//! Actions: the steps of a hook, and their outcomes.
//!
//! `larder-on-change` decides when a round begins. Its owner then runs the steps one by one, each with the
//! same [`StepContext`], until one fails (rule T6):
//!
//! | action | where |
//! | --- | --- |
//! | `exec` | [`exec::run`], with a launcher: on this machine ([`exec::Machine`]), or anywhere else that can start a process |
//! | `http` | [`http::run`] |
//! | `signal`, `restart` | [`signal::run`] and [`restart::run`], for processes that are found by what they mount |
//!
//! Invariants:
//! 1. A step ends at its timeout, and what it has started with it (rule T7).
//! 2. No reason and no output contains a value of [`StepContext::redactor`], a credential, or the user or query of a
//!    URL (rules S6, S7).

pub mod exec;
pub mod http;
pub mod processes;
mod redactor;
pub mod restart;
pub mod signal;
pub mod targets;

use std::time::Duration;

use larder_on_change::{Changes, PodIdentity, RoundId};

pub use self::redactor::Redactor;

/// The facts of a round that its steps use.
#[derive(Clone, Debug)]
pub struct StepContext {
    /// Name of the hook.
    pub hook: String,
    /// The round.
    pub round: RoundId,
    /// 1 for the first attempt of the round.
    pub attempt: u32,
    /// The pod.
    pub pod: PodIdentity,
    /// The changes since the hook's last success.
    pub changes: Changes,
    /// Withholds the values of Secrets that must not be logged.
    pub redactor: Redactor,
    /// The longest time for the step.
    pub timeout: Duration,
}

/// The outcome of a step, with the reason as text unless it succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// It succeeded.
    Succeeded,
    /// The application has the new content already.
    Skipped(String),
    /// It failed; a retry may succeed.
    Failed(String),
    /// It did not end in time.
    TimedOut(String),
}

impl StepOutcome {
    /// The name in metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Skipped(_) => "skipped",
            Self::Failed(_) => "failed",
            Self::TimedOut(_) => "timed_out",
        }
    }

    /// Whether the next step may begin.
    pub const fn is_success(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Skipped(_))
    }

    /// The reason, empty after a success.
    pub fn reason(&self) -> &str {
        match self {
            Self::Succeeded => "",
            Self::Skipped(reason) | Self::Failed(reason) | Self::TimedOut(reason) => reason,
        }
    }

    /// The outcome of a step that did not end within `timeout`.
    pub fn timed_out(timeout: Duration) -> Self {
        Self::TimedOut(format!("timed out after {timeout:?}"))
    }
}
