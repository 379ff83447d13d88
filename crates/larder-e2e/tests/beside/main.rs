//! larder beside a real kubelet: the scenarios of `docs/spec/beside-kubelet.md` that need one.
//!
//! ```text
//! KUBEBUILDER_ASSETS=DIR cargo test -p larder-e2e --test beside              # all
//! KUBEBUILDER_ASSETS=DIR cargo test -p larder-e2e --test beside -- policy    # those with this in their name
//! ```
//!
//! `measure` and `soak` run only when named. CONTRIBUTING.md lists the requirements; if one is not met, this prints
//! what is missing and which scenarios it skips, and passes; with `LARDER_KUBELET` it fails. One API server, one containerd and one kubelet serve all scenarios, one after another,
//! each in a namespace of its own: a kubelet needs most of its time for its start. That is why this test does not use
//! the usual harness.

#![expect(
    clippy::print_stdout,
    reason = "the report of a test binary without the usual harness"
)]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod bed;
mod node;
mod scenarios;

use std::{env, panic::AssertUnwindSafe, process::ExitCode};

use anyhow::bail;
use bed::Bed;
use futures::{FutureExt as _, future::LocalBoxFuture};
use larder_e2e::Binaries;
use node::{build_larder, isolation};
use tokio::time::Instant;

/// A scenario: its name and its function.
struct Scenario {
    name: &'static str,
    /// It takes minutes and runs only when it is named.
    on_demand: bool,
    run: for<'a> fn(&'a mut Bed) -> LocalBoxFuture<'a, ()>,
}

fn main() -> ExitCode {
    let mut filters: Vec<_> = env::args().skip(1).collect();
    // cargo-nextest asks for the names, and then runs each in a process of its own: for it, this is one test.
    if filters.iter().any(|filter| filter == "--list") {
        if !filters.iter().any(|filter| filter == "--ignored") {
            println!("beside_a_kubelet: test");
        }
        return ExitCode::SUCCESS;
    }
    filters.retain(|filter| !filter.starts_with('-') && filter != "beside_a_kubelet");
    let binaries = match Binaries::find() {
        Ok(binaries) => binaries,
        Err(unmet) => {
            let skipped: Vec<_> = chosen(&filters).map(|scenario| scenario.name).collect();
            println!(
                "skipped {} scenarios beside a kubelet, because {:#}: {}",
                skipped.len(),
                unmet.missing,
                skipped.join(", ")
            );
            if unmet.is_requested {
                println!("LARDER_KUBELET names a kubelet, so this is a failure");
                return ExitCode::FAILURE;
            }
            return ExitCode::SUCCESS;
        }
    };
    match run(&binaries, &filters) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn chosen(filters: &[String]) -> impl Iterator<Item = Scenario> {
    scenarios::all().filter(|scenario| {
        filters.is_empty() && !scenario.on_demand
            || filters
                .iter()
                .any(|filter| scenario.name.contains(filter.as_str()))
    })
}

fn run(binaries: &Binaries, filters: &[String]) -> anyhow::Result<()> {
    let isolated = isolation::enter()?;
    let larder = build_larder()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut bed = Bed::start(&isolated, binaries, larder).await?;
        let mut failed = Vec::new();
        for scenario in chosen(filters) {
            let started = Instant::now();
            let outcome = AssertUnwindSafe((scenario.run)(&mut bed))
                .catch_unwind()
                .await;
            let outcome = if outcome.is_ok() { "ok" } else { "FAILED" };
            println!(
                "{} ... {outcome} ({:.1} s)",
                scenario.name,
                started.elapsed().as_secs_f64()
            );
            if outcome != "ok" {
                bed.explain();
                failed.push(scenario.name);
            }
            bed.clear().await?;
        }
        if !failed.is_empty() {
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    })
}
