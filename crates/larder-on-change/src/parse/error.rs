//! Errors in the definition of a hook, and the texts that several readers share.

/// A hook cannot be read: the field and the problem. The caller adds the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}{}{problem}", if field.is_empty() { "" } else { ": " })]
pub struct HookError {
    /// Path of the field within the text, as in `[0].http.port`; empty for the text as a whole.
    pub field: String,
    /// The problem. Quotes at most a name or a short form, shortened: values may be credentials.
    pub problem: String,
}

impl HookError {
    pub(super) fn whole(problem: impl Into<String>) -> Self {
        at("", problem)
    }
}

pub(super) fn at(field: impl Into<String>, problem: impl Into<String>) -> HookError {
    HookError {
        field: field.into(),
        problem: problem.into(),
    }
}

/// The text is longer than [`MAX_TEXT`](super::MAX_TEXT).
pub(super) const TOO_LONG: &str = "longer than 16 KiB";
/// There are more hooks than [`MAX_HOOKS`](super::MAX_HOOKS).
pub(super) const TOO_MANY: &str = "more than 16 hooks";
/// A hook or step without an action.
pub(super) const NO_ACTION: &str = "expected one of signal, http, restart, exec, steps";
/// A command in an annotation.
pub(super) const COMMAND_OF_POD: &str =
    "a pod may not run commands on its node: use onChange of the agent's configuration";
/// The least time exceeds the greatest.
pub(super) const MIN_ABOVE_MAX: &str = "min is more than max";

/// A hook or step with two actions.
pub(super) fn two_actions(one: &str, other: &str) -> String {
    format!("{one} and {other}: one action expected; steps takes several")
}
