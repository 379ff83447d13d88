//! The phase of a pod.

/// Whether a pod of this phase has ended: its containers run no more, and never again.
pub fn is_terminal_phase(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}
