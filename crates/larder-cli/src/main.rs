//! The command `larder`: parses arguments, sets up the libraries, which do the work, and prints results.
//!
//! A module uses only modules of lower layers.
//!
//! | layer | modules | purpose |
//! | --: | --- | --- |
//! | 4 | `commands` | one module for each command |
//! | 3 | `agent`, `input`, `offline`, `rendered`, `sandbox`, `logging`, `kubeconfig_file` | modules that several commands share |
//! | 2 | `output` | everything that is printed |
//! | 1 | `args`, `outcome` | the parsed command line, exit codes |

mod agent;
mod args;
mod commands;
mod input;
#[cfg(feature = "manifests")]
mod kubeconfig_file;
mod logging;
mod offline;
mod outcome;
mod output;
mod rendered;
mod sandbox;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    logging::hide_panic_texts();
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
