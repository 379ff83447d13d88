//! How a command ends, and the exit code for it.
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | everything succeeded |
//! | 1 | something requested failed, and the rest was done |
//! | 2 | bad usage, or unreadable input |
//!
//! `larder diff` is like `kubectl diff`: 0 is no difference, 1 is differences, 2 is an error.

use std::{io, process::ExitCode};

/// The end of a command that ran to completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// Everything was done.
    Done,
    /// Something requested failed and was reported; the rest was done.
    Partial,
    /// The two sides of a comparison differ.
    Different,
    /// A comparison left something out, which was reported.
    Incomplete,
}

impl CommandOutcome {
    /// [`CommandOutcome::Partial`] if `failed`.
    pub(crate) fn partial_if(failed: bool) -> Self {
        if failed { Self::Partial } else { Self::Done }
    }
}

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> Self {
        match outcome {
            CommandOutcome::Done => Self::SUCCESS,
            CommandOutcome::Partial | CommandOutcome::Different => Self::from(1),
            CommandOutcome::Incomplete => Self::from(2),
        }
    }
}

/// The reason why a command stopped early.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: anyhow::Error,
    exit_code: u8,
}

impl Failure {
    /// Bad usage, or unreadable input: exit code 2.
    pub(crate) fn unreadable(message: impl Into<String>) -> Self {
        Self {
            error: anyhow::Error::msg(message.into()),
            exit_code: 2,
        }
    }

    /// The same with exit code 2, for commands whose exit code 1 is a result.
    pub(crate) fn fatal(self) -> Self {
        Self {
            exit_code: 2,
            ..self
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }
}

/// Any other error has exit code 1.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            error,
            exit_code: 1,
        }
    }
}

/// An I/O error without context comes from printing.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let error = anyhow::Error::from(error);
        error.context("cannot write the results").into()
    }
}
