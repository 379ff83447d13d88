//! Completion scripts and manual pages, for packages.

use std::process::ExitCode;

use clap::CommandFactory as _;
use larder_exec::{ANCHOR, STAGE};

use crate::{
    args::{Args, CompletionArgs, ManArgs},
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

pub(super) fn man(args: &ManArgs) -> Result<ExitCode, Failure> {
    let mut command = Args::command();
    // Gives the subcommands their full names.
    command.build();
    let command = match &args.subcommand {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found.ok_or_else(|| Failure::unreadable(format!("unknown subcommand {name:?}")))?
        }
    };
    let title = command.get_display_name().unwrap_or(command.get_name());
    let title = title.to_owned();
    let source = format!("larder {}", command.get_version().unwrap_or_default());
    let page = clap_mangen::Man::new(command.display_name(title)).source(source);
    output::results(|out| page.render(&mut &mut *out))?;
    Ok(ExitCode::SUCCESS)
}
