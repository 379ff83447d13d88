//! Hooks that fail.

use super::harness::*;
use crate::exec::{Running, desk, edit, may_mount};

// on-change 37
#[test]
fn missing_handler_is_reported_after_the_timeout() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let flags = [
        "--on-change",
        "signal:HUP",
        "--on-change-timeout",
        "50ms",
        "--on-change-retry",
        "1s:1s:1",
    ];
    let mut running = Running::with_errors(&desk, &flags, "echo ready; read line; exit 7");
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    let line = running.error_line();
    assert!(
        line.starts_with("larder: on change, 0-signal: process "),
        "{line}"
    );
    assert!(line.ends_with(" does not handle SIGHUP"), "{line}");
    let line = running.error_line();
    assert_eq!(
        line,
        "larder: on change, 0-signal: gave up until the next change"
    );
    running.write("end\n");
    assert_eq!(running.end(), (String::new(), Some(7)));
}

// on-change 33
#[test]
fn hook_that_keeps_failing_may_restart_the_command() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{exec: ['false'], onFailure: Restart, retry: {min: 1ms, attempts: 2}}]";
    let mut running = start(&desk, &["--on-change", hook]);
    edit(&desk, "two", "1");
    assert_eq!(running.line(), "ready 1");
    assert_eq!(end(running), (String::new(), Some(0)));
}

#[test]
fn missing_command_of_a_hook_is_named() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let flags = ["--on-change", "exec:no-such-command"];
    let mut running = Running::with_errors(&desk, &flags, WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "1");
    assert_eq!(
        running.error_line(),
        "larder: on change, 0-no-such-command: no such command"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 44
#[test]
fn hook_that_exceeds_its_time_is_killed() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{exec: [sh, -c, 'trap \"\" TERM; sleep 1000 & wait; wait'], timeout: 50ms, retry: {min: 1s, attempts: 1}}]";
    let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 100 & wait $!; done";
    let mut running = Running::with_errors(&desk, &["--on-change", hook], script);
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    assert_eq!(
        running.error_line(),
        "larder: on change, 0-sh: timed out after 50ms"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

/// Prints the key, and ends with 3 if it is `bad`.
const PICKY: &str = "key=$(cat /larder-test/config/key); echo ready $key; [ $key != bad ] || exit 3
    trap 'exit 0' TERM; while :; do sleep 100 & wait $!; done";

#[test]
fn command_that_fails_after_a_restart_waits_for_the_next_change() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let mut running = Running::with_errors(&desk, &["--on-change", "restart"], PICKY);
    assert_eq!(running.line(), "ready one");
    let failed =
        "larder: the command failed (exit status: 3), waiting for a change to start it again";
    let restarting = "larder: restarting the command: volume config changed";
    edit(&desk, "bad", "1");
    assert_eq!(running.error_line(), restarting);
    assert_eq!(running.line(), "ready bad");
    assert_eq!(running.error_line(), failed);
    edit(&desk, "good", "1");
    let again = "larder: the content has changed, starting the command again";
    assert_eq!(running.error_line(), again);
    assert_eq!(running.line(), "ready good");
    // Also the second time; and a signal ends the wait.
    edit(&desk, "bad", "1");
    assert_eq!(running.error_line(), restarting);
    assert_eq!(running.line(), "ready bad");
    assert_eq!(running.error_line(), failed);
    assert_eq!(end(running), (String::new(), Some(3)));
}

#[test]
fn command_that_fails_after_a_restart_may_end_larder() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let flags = ["--on-change", "restart", "--on-exit", "exit"];
    let mut running = Running::start(&desk, &flags, PICKY);
    assert_eq!(running.line(), "ready one");
    edit(&desk, "bad", "1");
    assert_eq!(running.end(), ("ready bad\n".to_owned(), Some(3)));
}

#[test]
fn variables_that_the_command_does_not_see_are_named_with_a_remedy() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let mut running = Running::with_errors(&desk, &["--on-change", "signal:HUP"], WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "one", "2");
    assert_eq!(
        running.error_line(),
        "larder: the running command keeps its old variable A; --on-change restart:environment restarts it after such a change"
    );
    edit(&desk, "one", "1");
    assert_eq!(
        running.error_line(),
        "larder: the running command has the present variables and mounts again"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}
