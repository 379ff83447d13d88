//! One module for each command.

mod apiserver;
mod exec;
mod refs;
mod render;
mod run;
mod shell;
mod status;

use std::{fmt, process::ExitCode};

use crate::args::Command;

/// Runs a command.
///
/// # Errors
///
/// Nothing, or not everything, was done; the error says why and how the process shall end.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    let outcome = match command {
        Command::Run(args) => run::run(args),
        Command::Status(args) => status::run(&args),
        Command::Exec(args) => return exec::run(&args),
        Command::ExecStage(args) => return crate::exec::run_stage(&args.plan),
        Command::ExecAnchor => return crate::exec::run_anchor(),
        Command::Render(args) => render::run(&args),
        Command::Refs(args) => refs::run(&args),
        Command::Apiserver(args) => apiserver::run(&args),
        Command::Completion(args) => shell::completion(&args),
        Command::Man(args) => shell::man(&args),
    };
    outcome.map(ExitCode::from)
}

/// How a command that went through ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything was done.
    Done,
    /// Something asked for failed and has been reported; the rest was done.
    Partial,
}

impl Outcome {
    /// [`Outcome::Partial`] if `failed`.
    pub(crate) fn partial_if(failed: bool) -> Self {
        if failed { Self::Partial } else { Self::Done }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Partial => Self::from(1),
        }
    }
}

/// Why a command broke off.
#[derive(Debug)]
pub(crate) struct Failure {
    error: anyhow::Error,
    exit_code: u8,
}

impl Failure {
    /// Nothing was done: bad usage, or input that could not be read.
    pub(crate) fn unreadable(message: impl Into<String>) -> Self {
        Self {
            error: anyhow::Error::msg(message.into()),
            exit_code: 2,
        }
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit_code)
    }
}

/// Any other error: something asked for failed.
impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            error,
            exit_code: 1,
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        anyhow::Error::from(error)
            .context("cannot write the results")
            .into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
