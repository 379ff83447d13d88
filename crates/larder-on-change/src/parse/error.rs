//! Errors in the definition of a hook.

use std::fmt;

use crate::{hook::HttpUrlError, signal::SignalError};

/// A hook cannot be read: the field and the problem. The caller adds the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookError {
    /// Path of the field within the text, as in `[0].http.port`; empty for the text as a whole.
    pub field: String,
    /// The problem.
    pub problem: Problem,
}

impl HookError {
    pub(super) fn whole(problem: Problem) -> Self {
        at(String::new(), problem)
    }
}

pub(super) fn at(field: impl Into<String>, problem: Problem) -> HookError {
    HookError {
        field: field.into(),
        problem,
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        self.problem.fmt(f)
    }
}

impl std::error::Error for HookError {}

/// The problem of a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Neither of the short forms nor a list.
    #[error(
        "{text:?}: expected none, restart, restart:environment, signal:NAME, http:PORT/PATH{} or a list",
        if *commands { ", exec:PATH" } else { "" }
    )]
    UnknownForm {
        /// The text, shortened.
        text: String,
        /// Whether commands are allowed here.
        commands: bool,
    },
    /// Not YAML.
    #[error("line {line} is not valid YAML")]
    Malformed {
        /// The line, from 1.
        line: u64,
    },
    /// The aliases repeat more values than 1024 plus the number of bytes of the text.
    #[error("line {line}: aliases repeat too much of the text")]
    TooManyAliases {
        /// The line, from 1.
        line: u64,
    },
    /// Longer than [`MAX_TEXT`](super::MAX_TEXT).
    #[error("longer than 16 KiB")]
    TooLong,
    /// More than [`MAX_HOOKS`](super::MAX_HOOKS).
    #[error("more than 16 hooks")]
    TooMany,
    /// The signal.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// Two actions in one hook.
    #[error("{one} and {other}: one action expected; steps takes several")]
    TwoActions {
        /// The first.
        one: &'static str,
        /// The second.
        other: &'static str,
    },
    /// No action.
    #[error("expected one of signal, http, restart, exec, steps")]
    NoAction,
    /// A field that hooks do not have.
    #[error("unknown field {name:?}")]
    UnknownField {
        /// Its name.
        name: String,
    },
    /// A value of another type or form.
    #[error("expected {0}")]
    Expected(&'static str),
    /// A command in an annotation.
    #[error("a pod may not run commands on its node: use onChange of the agent's configuration")]
    CommandOfPod,
    /// A URL in an annotation.
    #[error("a hook in an annotation may call only its own pod; use port and path")]
    UrlOfPod,
    /// Not a URL that a hook may have.
    #[error(transparent)]
    Url(#[from] HttpUrlError),
    /// An action that the node does not allow to annotations.
    #[error("this node does not allow it (onChangeFromPods)")]
    NotAllowed,
    /// A port that no container names.
    #[error("no container has a port named {name:?}")]
    UnknownPort {
        /// The name.
        name: String,
    },
    /// A volume that the pod does not have.
    #[error("no volume {name:?}; there are {}", known.join(", "))]
    UnknownVolume {
        /// The name.
        name: String,
        /// The volumes that larder delivers to the pod.
        known: Vec<String>,
    },
    /// A volume of a type that larder does not deliver.
    #[error(
        "volume {name:?} is {}, which larder does not deliver",
        with_article(kind)
    )]
    OtherVolume {
        /// The name.
        name: String,
        /// The type.
        kind: String,
    },
    /// A container that the pod does not have.
    #[error("no container {name:?}")]
    UnknownContainer {
        /// The name.
        name: String,
    },
    /// A container that does not keep running.
    #[error("container {name:?} is an init container")]
    InitContainer {
        /// The name.
        name: String,
    },
    /// A restart of a container that does not come back.
    #[error("restartPolicy is {policy}: the container might not come back")]
    NotRestarted {
        /// The pod's policy.
        policy: String,
    },
    /// The minimum exceeds the maximum.
    #[error("min is more than max")]
    MinAboveMax,
    /// One hook signals and another one restarts for the same volumes.
    #[error("[{other}] sends a signal for the same volumes: give volumes, or restart:environment")]
    SignalToo {
        /// Position of the hook that signals.
        other: usize,
    },
    /// Two hooks of one name.
    #[error("[{earlier}] is named {name:?} as well")]
    DuplicateName {
        /// The name.
        name: String,
        /// Position of the earlier hook.
        earlier: usize,
    },
    /// A field that has no effect in this source of hooks.
    #[error("only for {0}")]
    OnlyFor(&'static str),
    /// A header that the request sets by itself.
    #[error("header {name} cannot be set")]
    ReservedHeader {
        /// The name.
        name: String,
    },
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {kind}")
}
