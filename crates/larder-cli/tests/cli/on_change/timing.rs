//! Quiet periods, and hooks that take long.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use super::harness::*;
use crate::exec::{Running, desk, edit, may_mount};

// on-change 26, 31
#[test]
fn hook_that_takes_long_delays_no_other() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let slow = "[{name: slow, exec: [sh, -c, 'echo >> /larder-test/scratch/runs; until [ -e /larder-test/scratch/go ]; do sleep 0.01; done']}]";
    let script = "trap 'echo HUP $(cat /larder-test/config/key)' HUP; trap 'wc -l < /larder-test/scratch/runs; exit 0' TERM
        trap 'echo > /larder-test/scratch/go; until [ $(wc -l < /larder-test/scratch/runs) = 2 ]; do sleep 0.01; done; echo again' USR1
        echo ready; while :; do sleep 100 & wait $!; done";
    let flags = ["--on-change", slow, "--on-change", "signal:HUP"];
    let mut running = Running::start(&desk, &flags, script);
    assert_eq!(running.line(), "ready");
    for key in ["a", "b", "c", "d", "e"] {
        edit(&desk, key, "1");
        assert_eq!(running.line(), format!("HUP {key}"));
    }
    running.signal(Signal::USR1);
    assert_eq!(running.line(), "again");
    assert_eq!(end(running), ("2\n".to_owned(), Some(0)));
}

/// Longest stall of this machine with which a test with quiet periods still shows something. They are longer.
const STALL: Duration = Duration::from_millis(900);

const QUIET: &str = "debounce: {min: 1s, max: 60s}, retry: {min: 1s, attempts: 1}";

/// Runs `attempt` until this machine has not stood still in it.
fn without_stalls(attempt: impl Fn() -> bool) {
    let attempted = (0..10).any(|_| attempt());
    assert!(attempted, "this machine stands still all the time");
}

/// Prints each HUP, and at the end how often each other hook has run, when the one that names `last` has.
fn counting(last: &str) -> String {
    format!(
        "cd /larder-test/scratch; trap 'echo HUP $(cat /larder-test/config/key)' HUP
        trap 'until [ -e {last} ]; do sleep 0.01; done; wc -l *; exit 0' TERM
        echo ready; while :; do sleep 100 & wait $!; done"
    )
}

/// A hook that adds a line to the file of its name.
fn counter(name: &str, fields: &str) -> String {
    format!("[{{name: {name}, exec: [sh, -c, 'echo >> /larder-test/scratch/{name}'], {fields}}}]")
}

// on-change 16
#[test]
fn there_and_back_within_the_quiet_period_runs_nothing() {
    if !may_mount() {
        return;
    }
    // The second hook has the same quiet period and looks at the variables only, which change last: when it has run,
    // the first one would have.
    let (files, variables) = (
        counter("files", QUIET),
        counter(
            "variables",
            &format!("volumes: [], environment: true, {QUIET}"),
        ),
    );
    let flags = [
        "--on-change",
        "signal:HUP",
        "--on-change",
        &files,
        "--on-change",
        &variables,
    ];
    without_stalls(|| {
        let desk = desk("");
        let mut running = Running::start(&desk, &flags, &counting("variables"));
        assert_eq!(running.line(), "ready");
        let began = Instant::now();
        edit(&desk, "two", "1");
        assert_eq!(running.line(), "HUP two");
        edit(&desk, "one", "1");
        assert_eq!(running.line(), "HUP one");
        let is_valid = began.elapsed() < STALL;
        edit(&desk, "one", "2");
        let (output, code) = end(running);
        assert_eq!(code, Some(0));
        assert!(!is_valid || output == "1 variables\n", "{output}");
        is_valid
    });
}

// on-change 25
#[test]
fn burst_of_changes_runs_a_command_once() {
    if !may_mount() {
        return;
    }
    let slow = counter("slow", QUIET);
    let flags = ["--on-change", "signal:HUP", "--on-change", &slow];
    without_stalls(|| {
        let desk = desk("");
        let mut running = Running::start(&desk, &flags, &counting("slow"));
        assert_eq!(running.line(), "ready");
        let mut longest = Duration::ZERO;
        for number in 0..30 {
            let began = Instant::now();
            edit(&desk, &format!("k{number}"), "1");
            assert_eq!(running.line(), format!("HUP k{number}"));
            longest = longest.max(began.elapsed());
        }
        let is_valid = longest < STALL;
        let (output, code) = end(running);
        assert_eq!(code, Some(0));
        assert!(!is_valid || output == "1 slow\n", "{output}");
        is_valid
    });
}
