//! How a command ends, and the exit code for it.
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | everything succeeded |
//! | 1 | something requested failed, and the rest was done |
//! | 2 | bad usage, or unreadable input |
//!
//! `larder diff` is like `kubectl diff`: 0 is no difference, 1 is differences, 2 is an error. `larder exec` is like
//! docker and env: 125 is its own failure, 126 and 127 are a command that cannot be run or found, others the command's.

use std::{error::Error, io, process::ExitCode};

use larder_objects::chain;

/// The exit code of a command of which something may have failed, which was reported; the rest was done.
pub(crate) fn partial_if(failed: bool) -> ExitCode {
    ExitCode::from(u8::from(failed))
}

/// Exit code of `larder exec` for its own failures, bad usage included.
pub(crate) const EXEC_FAILED: u8 = 125;

/// The reason why a command stopped early.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: anyhow::Error,
    pub(crate) exit_code: ExitCode,
}

impl Failure {
    /// Bad usage, or unreadable input: exit code 2.
    pub(crate) fn unreadable(message: impl Into<String>) -> Self {
        Self {
            error: anyhow::Error::msg(message.into()),
            exit_code: ExitCode::from(2),
        }
    }

    /// This failure with the exit code of `larder exec`.
    pub(crate) fn of_exec(self) -> Self {
        Self {
            exit_code: ExitCode::from(EXEC_FAILED),
            ..self
        }
    }

    /// Unreadable input, with the causes of the error: exit code 2.
    pub(crate) fn of_input(error: impl Error) -> Self {
        Self::unreadable(chain(&error))
    }
}

/// Any other error has exit code 1.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            error,
            exit_code: ExitCode::FAILURE,
        }
    }
}

/// An I/O error without context comes from printing.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        anyhow::Error::from(error)
            .context("cannot write the results")
            .into()
    }
}
