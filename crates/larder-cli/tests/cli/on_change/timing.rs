//! Hooks that take long.

use rustix::process::Signal;

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
