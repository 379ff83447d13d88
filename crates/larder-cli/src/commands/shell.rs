//! Completion scripts, for packages.

use std::process::ExitCode;

use clap::CommandFactory as _;
use larder_exec::{ANCHOR, STAGE};

use crate::{
    args::{Args, CompletionArgs},
    outcome::Failure,
    output,
};

pub(super) fn completion(args: &CompletionArgs) -> Result<ExitCode, Failure> {
    let mut command = offered();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "larder", &mut script);
    output::results(|out| out.write_all(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// The command without the subcommands that only larder itself runs: completion scripts list hidden ones, too.
fn offered() -> clap::Command {
    let whole = Args::command();
    let all = whole.get_subcommands();
    let public = all.filter(|command| ![STAGE, ANCHOR].contains(&command.get_name()));
    clap::Command::new("larder")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(public.cloned())
}
