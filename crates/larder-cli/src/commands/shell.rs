//! Completion scripts and manual pages, for packages.

use clap::CommandFactory as _;

use super::{Failure, Outcome};
use crate::{
    args::{Args, CompletionArgs, ManArgs},
    output,
};

pub(super) fn completion(args: &CompletionArgs) -> Result<Outcome, Failure> {
    let mut command = Args::command();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "larder", &mut script);
    output::results(|out| out.write_all(&script))?;
    Ok(Outcome::Done)
}

pub(super) fn man(args: &ManArgs) -> Result<Outcome, Failure> {
    let mut command = Args::command();
    // Gives the subcommands their full names.
    command.build();
    let command = match &args.subcommand {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found.ok_or_else(|| Failure::unreadable(format!("there is no subcommand {name:?}")))?
        }
    };
    let title = command
        .get_display_name()
        .unwrap_or(command.get_name())
        .to_owned();
    let page = clap_mangen::Man::new(command.display_name(title));
    output::results(|out| page.render(&mut &mut *out))?;
    Ok(Outcome::Done)
}
