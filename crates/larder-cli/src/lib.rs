//! The executables of this package, which call one function each: `larder` and `larder-sidecar`. They parse arguments,
//! set up the libraries, which do the work, and print results. This is no library for others.
//!
//! A module uses only modules of lower layers.
//!
//! | layer | modules | purpose |
//! | --: | --- | --- |
//! | 4 | `commands` | one module for each command |
//! | 3 | `agent`, `cluster`, `input`, `offline`, `rendered`, `runtime`, `logging`, `kubeconfig_file` | modules that several commands share |
//! | 2 | `output` | everything that is printed |
//! | 1 | `args`, `outcome` | what the user gave, parsed: the command line, the variables and the file of a sidecar; exit codes |

mod agent;
mod args;
mod cluster;
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

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::Parser;
use larder_console::Console;

#[doc(hidden)]
pub use self::commands::{diff_report, exec_starts, manifests_of_revision, render_report};

/// The executable `larder`.
pub fn larder() -> ExitCode {
    if let Some(code) = commands::answer_shell() {
        return code;
    }
    start(|args: args::Args| commands::run(args.command))
}

/// The executable `larder-sidecar`: `larder sidecar` without the other commands. What it does not name is not linked, so
/// less code is resident.
pub fn larder_sidecar() -> ExitCode {
    start(|args: args::SidecarArgs| commands::run_sidecar(&args))
}

/// The settings of a sidecar of the label form, or all mistakes; `variables` finds a value by its name. For tests of what
/// becomes of these settings.
#[doc(hidden)]
pub fn label_settings(
    variables: impl Fn(&str) -> Option<String>,
) -> Result<larder_sidecar::LabelSettings, Vec<String>> {
    args::sidecar::variables::LabelVariables::read(variables).map(|read| read.settings)
}

fn start<A: Parser>(run: impl FnOnce(A) -> Result<ExitCode, outcome::Failure>) -> ExitCode {
    // Its end writes the last lines, those of a failure included.
    let _console = Console::default();
    logging::hide_panic_texts();
    let result = if is_called("configmap-reload") {
        let args = args::ReloadArgs::try_parse_from(with_double_dashes(std::env::args_os()));
        args.map(|args| commands::run_reload(&args, args::LogFormat::Text, &[]))
    } else {
        A::try_parse().map(run)
    };
    match result {
        Err(usage) => output::usage(&usage),
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => {
            output::error(failure.error.as_ref());
            failure.exit_code
        }
    }
}

/// Whether this program was called by the name of another one.
fn is_called(name: &str) -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|called| Path::new(&called).file_name() == Some(name.as_ref()))
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
