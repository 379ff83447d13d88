//! Commands that show what a hook does to them.

use rustix::process::Signal;

use crate::{Desk, exec::Running};

/// A command that does nothing until it gets a signal, which it prints.
pub(super) const WAIT: &str =
    "trap 'echo HUP $(cat /larder-test/config/key)' HUP; trap 'exit 0' TERM
    echo ready $A; while :; do sleep 100 & wait $!; done";

pub(super) fn start(desk: &Desk, args: &[&str]) -> Running {
    let mut running = Running::start(desk, args, WAIT);
    assert_eq!(running.line(), "ready 1");
    running
}

pub(super) fn end(running: Running) -> (String, Option<i32>) {
    running.signal(Signal::TERM);
    running.end()
}

/// Waits until the command has written a whole line to `file` of its scratch volume, and prints it.
pub(super) fn shown(file: &str) -> String {
    format!(
        "until [ -s /larder-test/scratch/{file} ]; do sleep 0.01; done; cat /larder-test/scratch/{file}"
    )
}
