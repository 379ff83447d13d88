//! How much a pod needs a look: lists and pages show the most urgent first.

use larder_agent::status::{HookStatus, Phase, PodStatus};

/// How much a pod needs a look, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::commands) enum Urgency {
    Failing,
    FailingHook,
    Stale,
    Waiting,
    Held,
    Removing,
    Delivered,
    Excluded,
    Ended,
}

impl Urgency {
    pub(in crate::commands) fn of(pod: &PodStatus) -> Self {
        match pod.delivery.phase {
            Phase::Failing => Self::Failing,
            Phase::Delivered if pod.on_change.iter().any(is_failing) => Self::FailingHook,
            Phase::Stale => Self::Stale,
            Phase::Waiting => Self::Waiting,
            Phase::Held => Self::Held,
            Phase::Removing => Self::Removing,
            Phase::Delivered => Self::Delivered,
            Phase::Excluded => Self::Excluded,
            Phase::Ended => Self::Ended,
        }
    }

    /// Whether the pod needs a look.
    pub(in crate::commands) fn needs_look(self) -> bool {
        self < Self::Delivered
    }

    /// What such pods are counted as.
    pub(in crate::commands) fn name(self) -> &'static str {
        match self {
            Self::Failing => "failing",
            Self::FailingHook => "with a failing hook",
            Self::Stale => "stale",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Removing => "removing",
            Self::Delivered => "delivered",
            Self::Excluded => "excluded",
            Self::Ended => "ended",
        }
    }
}

/// Whether the last attempt of the hook failed, or its annotation has an error.
pub(super) fn is_failing(hook: &HookStatus) -> bool {
    matches!(hook.state.as_str(), "Retrying" | "Failing" | "Invalid")
}

/// The pods, the most urgent first. Pods of one urgency keep their order.
pub(in crate::commands) fn most_urgent_first(pods: &[PodStatus]) -> Vec<&PodStatus> {
    let mut pods: Vec<_> = pods.iter().collect();
    pods.sort_by_key(|pod| Urgency::of(pod));
    pods
}
