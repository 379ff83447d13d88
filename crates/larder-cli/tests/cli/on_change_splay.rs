//! `larder exec --on-change` with `splay`: the random pause before a round.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use rustix::process::Signal;
use tokio::time::Instant;

use crate::exec::{Running, desk, edit, may_mount};

/// The longest random pause.
const SPLAY: Duration = Duration::from_secs(2);
/// A hook that runs when the rounds of all others have begun.
const LAST: &str =
    "[{name: last, exec: [touch, /larder-test/scratch/last], debounce: {min: 3s, max: 60s}}]";
/// Most hooks of a command.
const HOOKS: usize = 16;
/// Longest stall of this machine with which starts that spread over the pause still differ from those that do not.
const STALL: Duration = Duration::from_millis(250);

/// Prints each HUP, and at the end the lines of `rounds`, when the last hook has run.
const SHOW: &str = "cd /larder-test/scratch; trap 'echo HUP $(cat /larder-test/config/key)' HUP
    trap 'until [ -e last ]; do sleep 0.01; done; cat rounds; exit 0' TERM
    echo ready; while :; do sleep 100 & wait $!; done";

/// Runs `attempt` until the machine has let it show something.
fn until_shown(attempt: impl Fn() -> bool) {
    let shown = (0..10).any(|_| attempt());
    assert!(shown, "no attempt of ten shows anything");
}

// on-change 27
#[test]
fn change_during_the_random_pause_joins_the_round() {
    if !may_mount() {
        return;
    }
    let script = "(cat /larder-test/config/key; echo) >> /larder-test/scratch/rounds";
    let hook = format!(
        "[{{name: rounds, exec: [sh, -c, '{script}'], splay: {}s}}]",
        SPLAY.as_secs()
    );
    let flags = [
        "--on-change",
        "signal:SIGHUP",
        "--on-change",
        &hook,
        "--on-change",
        LAST,
    ];
    until_shown(|| {
        let desk = desk("");
        let mut running = Running::start(&desk, &flags, SHOW);
        assert_eq!(running.line(), "ready");
        for key in ["two", "three"] {
            edit(&desk, key, "1");
            assert_eq!(running.line(), format!("HUP {key}"));
        }
        running.signal(Signal::TERM);
        let (rounds, code) = running.end();
        assert_eq!(code, Some(0));
        // The pause may have been over before the second change.
        let is_valid = rounds != "two\nthree\n";
        assert!(!is_valid || rounds == "three\n", "{rounds}");
        is_valid
    });
}

/// Whether this machine stood still while `work` ran.
fn stalls(work: impl FnOnce()) -> bool {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::park_timeout(STALL / 10);
                longest = longest.max(began.elapsed());
            }
            longest > STALL
        });
        work();
        is_over.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    })
}

// on-change 28
#[test]
fn random_pauses_spread_the_rounds_of_many_hooks() {
    if !may_mount() {
        return;
    }
    // Milliseconds, one line for each start.
    let script = "date +%s%3N >> /larder-test/scratch/rounds";
    let hook = |number: usize| {
        format!(
            "[{{name: hook-{number}, exec: [sh, -c, '{script}'], splay: {}s}}]",
            SPLAY.as_secs()
        )
    };
    let hooks: Vec<_> = (1..HOOKS).map(hook).collect();
    let mut flags = vec!["--on-change", LAST];
    flags.extend(hooks.iter().flat_map(|hook| ["--on-change", hook.as_str()]));
    until_shown(|| {
        let desk = desk("");
        let mut starts = Vec::new();
        let is_stalled = stalls(|| {
            let script = SHOW.replace(
                "cat rounds",
                "until [ $(wc -l < rounds) = 15 ]; do sleep 0.01; done; cat rounds",
            );
            let mut running = Running::start(&desk, &flags, &script);
            assert_eq!(running.line(), "ready");
            edit(&desk, "two", "1");
            running.signal(Signal::TERM);
            let (rounds, code) = running.end();
            assert_eq!(code, Some(0));
            starts = rounds
                .lines()
                .map(|line| line.parse::<u64>().unwrap())
                .collect();
        });
        starts.sort_unstable();
        assert_eq!(starts.len(), HOOKS - 1);
        let span = u128::from(starts[starts.len() - 1] - starts[0]);
        let (least, most) = (SPLAY / 4, SPLAY + STALL);
        assert!(
            is_stalled || (least.as_millis()..most.as_millis()).contains(&span),
            "{starts:?}"
        );
        !is_stalled
    });
}
