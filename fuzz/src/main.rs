//! Runs fuzz targets: mutates the inputs of a corpus, and reports those that a target cannot bear.
//!
//! Works with a stable compiler. Without its sanitizers no coverage is measured; an input is interesting if its
//! [`Outcome`](outcome::Outcome) is new, which says how far the input got and why no further.

#![expect(clippy::print_stdout, reason = "the report of a command")]

mod driver;
mod limits;
mod mutation;
mod outcome;
mod structure;
mod targets;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;

use self::{
    driver::{Campaign, Settings},
    targets::{TARGETS, Target},
};

/// Fuzz the parsers of outside input.
#[derive(Parser)]
struct Args {
    /// Targets to run, one after the other; all of them by default
    #[arg(value_parser = target)]
    targets: Vec<&'static Target>,
    /// CPU time for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of inputs for each target, instead of a time
    #[arg(long, conflicts_with = "seconds")]
    inputs: Option<u64>,
    /// Seed of the mutations; the same seed and number of inputs repeat a run
    #[arg(long)]
    seed: Option<u64>,
    /// Add inputs with a new outcome to the corpus
    #[arg(long)]
    keep: bool,
}

fn target(name: &str) -> Result<&'static Target, String> {
    let names = || TARGETS.map(|target| target.name).join(", ");
    let found = TARGETS.iter().find(|target| target.name == name);
    found.ok_or_else(|| format!("expected one of {}", names()))
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    let targets = if args.targets.is_empty() {
        TARGETS.iter().collect()
    } else {
        args.targets
    };
    let settings = Settings {
        directory: PathBuf::from(env!("CARGO_MANIFEST_DIR")),
        time: Duration::from_secs(args.seconds),
        inputs: args.inputs,
        seed: args.seed.unwrap_or_else(|| fastrand::u64(..)),
        keep: args.keep,
    };
    println!("seed {}", settings.seed);
    let mut failures = 0;
    for target in targets {
        let report = Campaign::new(target, &settings)?.run()?;
        println!("{}: {report}", target.name);
        failures += report.failures;
    }
    Ok(ExitCode::from(u8::from(failures > 0)))
}
