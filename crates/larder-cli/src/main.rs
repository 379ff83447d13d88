//! The command `larder`: arguments in, wiring, results out. The work is done by the libraries.
//!
//! Exit codes: 0 all done; 1 something asked for failed, the rest was done; 2 bad usage, or input that could not be read at all.

mod args;
mod ask;
mod commands;
mod exec;
mod input;
mod logging;
mod offline;
mod output;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => return output::usage(&error),
    };
    match commands::run(args.command) {
        Ok(code) => code,
        Err(failure) => {
            output::error(&failure);
            failure.exit_code()
        }
    }
}
