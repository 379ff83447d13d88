//! Errors in the definition of a hook, and the texts that several readers share.

use std::fmt;

use larder_objects::FieldPath;

/// A hook cannot be read: the field and the problem. The caller adds the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct HookError {
    /// The field within the text, as in `[0].http.port`; the root for the text as a whole.
    pub field: FieldPath,
    /// Its line, from 1, if the text has lines.
    pub line: Option<usize>,
    /// The problem. Quotes at most a name or a word of the short form: values may be credentials.
    pub problem: String,
}

/// The field and the problem, or the line where no field is known.
impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.field.segments(), self.line) {
            ([], None) => f.write_str(&self.problem),
            ([], Some(line)) => write!(f, "line {line}: {}", self.problem),
            _ => write!(f, "{}: {}", self.field, self.problem),
        }
    }
}

impl HookError {
    pub(super) fn whole(problem: impl Into<String>) -> Self {
        at(FieldPath::root(), problem)
    }

    /// The error with the file and the line that it is in.
    pub fn in_file(&self, file: &str) -> String {
        match self.line.filter(|_| !self.field.segments().is_empty()) {
            Some(line) => format!("{file}:{line}: {self}"),
            None => format!("{file}: {self}"),
        }
    }
}

pub(super) fn at(field: FieldPath, problem: impl Into<String>) -> HookError {
    HookError {
        field,
        line: None,
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
