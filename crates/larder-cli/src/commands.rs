//! One module for each command. None of them names another.

#[cfg(feature = "manifests")]
mod apiserver;
mod checkpoint;
mod clean;
mod complete;
mod diff;
mod exec;
mod log_level;
mod man;
mod refs;
mod render;
mod run;
mod sidecar;
mod status;
mod ui;

use std::process::ExitCode;

pub(crate) use self::complete::answer as answer_shell;
pub(crate) use self::sidecar::{run as run_sidecar, run_reload};
pub use self::{
    diff::{diff_report, manifests_of_revision},
    exec::exec_starts,
    render::render_report,
};

use crate::{args::Command, outcome::Failure, runtime::keep_running};

/// Runs a command and returns the exit code of the process.
///
/// # Errors
///
/// The command stopped early.
pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => {
            keep_running()?;
            run::run(args)
        }
        Command::Status(args) => status::run(&args),
        Command::Ui(args) => ui::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Clean(args) => clean::run(&args),
        Command::LogLevel(args) => log_level::run(&args),
        Command::Exec(args) => exec::run(*args).map_err(Failure::of_exec),
        Command::Sidecar(args) => {
            keep_running()?;
            sidecar::run(&args)
        }
        Command::ExecStage { plan } => {
            larder_exec::run_stage(&plan).map_err(|error| Failure::from(error).of_exec())
        }
        Command::ExecAnchor => exec::run_anchor(),
        Command::Render(args) => render::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Refs(args) => refs::run(&args),
        #[cfg(feature = "manifests")]
        Command::Apiserver(args) => apiserver::run(&args),
        Command::Completion(args) => complete::script(&args),
        Command::Man(args) => man::run(&args),
        Command::Describe(args) => Err(Failure::unreadable(args.advice("describe"))),
        Command::Get(args) => Err(Failure::unreadable(args.advice("get"))),
    }
}
