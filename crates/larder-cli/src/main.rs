//! The command `larder`: parses arguments, sets up the libraries, which do the work, and prints results.
//!
//! A module uses only modules of lower layers.
//!
//! | layer | modules | purpose |
//! | --: | --- | --- |
//! | 4 | `commands` | one module for each command |
//! | 3 | `agent`, `input`, `offline`, `rendered`, `runtime`, `sandbox`, `logging`, `kubeconfig_file` | modules that several commands share |
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
mod runtime;
mod sandbox;

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Parser as _;

fn main() -> ExitCode {
    logging::hide_panic_texts();
    let result = if is_called("configmap-reload") {
        match args::ConfigmapReload::try_parse_from(with_double_dashes(std::env::args_os())) {
            Ok(args) => commands::run_configmap_reload(&args.reload),
            Err(error) => return output::usage(&error),
        }
    } else {
        match args::Args::try_parse() {
            Ok(args) => commands::run(args.command),
            Err(error) => return output::usage(&error),
        }
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            output::error(&failure);
            failure.exit_code()
        }
    }
}

/// Whether this program was called by the name of another one.
fn is_called(name: &str) -> bool {
    let called = std::env::args_os().next();
    called.is_some_and(|called| Path::new(&called).file_name() == Some(name.as_ref()))
}

/// Go's programs take flags with one dash, too.
fn with_double_dashes(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    args.map(|word| match word.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => {
            format!("-{text}").into()
        }
        _ => word,
    })
}
