//! Faults in hooks, which end the run before it starts.

use std::process::Command;

use crate::{Desk, exec::desk};

// on-change 1, 56
#[test]
fn faulty_hooks_end_the_run_before_it_starts() {
    let hooks = "- signal: SIGHUP\n# a comment\n- {exec: ['true'], debuonce: 1s}\n";
    let desk = Desk::with([
        ("app.yaml", crate::exec::manifest("one", "1", "").as_str()),
        ("hooks.yaml", hooks),
        ("broken.yaml", "- signal: [\n"),
    ]);
    for (flags, message) in [
        (
            &["reload"][..],
            "\"reload\": expected none, restart, restart:environment, signal:NAME, http:PORT/PATH, exec:PATH or a list",
        ),
        (&["signal:SIGFOO"], "expected one of SIGHUP, SIGINT, "),
        (&["signal:1"], "name the signal, as in SIGHUP"),
        (
            &["[{signal: HUP, http: 80/}]"],
            "[0]: signal and http: one action expected; steps takes several",
        ),
        (
            &["[{}]"],
            "[0]: expected one of signal, http, restart, exec, steps",
        ),
        (
            &["- {signal: HUP, debounce: {min: 10s, max: 5s}}"],
            "[0].debounce: min is more than max",
        ),
        (
            &["@hooks.yaml"],
            "hooks.yaml:3: [1]: unknown field \"debuonce\"",
        ),
        (&["@broken.yaml"], "broken.yaml: line "),
        (&["@missing.yaml"], "cannot read missing.yaml: "),
        (
            &["[{signal: HUP, volumes: [conf]}]"],
            "--on-change [0].volumes: no volume \"conf\"; there are config, tls",
        ),
        (
            &["[{signal: HUP, volumes: [scratch]}]"],
            "[0].volumes: volume \"scratch\" is an emptyDir, which larder does not deliver",
        ),
        (
            &["[{signal: HUP, container: other}]"],
            "[0].container: no container \"other\"",
        ),
        (
            &["http:metrics/-/reload"],
            "no container has a port named \"metrics\"",
        ),
        (
            &["[{exec: {command: [id], user: root}}]"],
            "[0].exec.user: only for the agent's configuration",
        ),
        (
            &["signal:SIGHUP", "restart"],
            "--on-change [1].restart: [0] sends a signal for the same volumes: give volumes, or restart:environment",
        ),
    ] {
        let flags = flags.iter().flat_map(|flag| ["--on-change", flag]);
        let output = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(["exec", "-f", "app.yaml"])
            .args(flags)
            .args(["--", "touch", "started"])
            .current_dir(desk.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(message), "{message} in {stderr}");
        assert_eq!(output.status.code(), Some(125), "{message}");
        assert!(!desk.path().join("started").exists(), "{message}");
    }
}

#[test]
fn timing_without_an_action_is_an_error() {
    let desk = desk("");
    let run = desk.run("exec -f app.yaml --on-change-debounce 1s -- true");
    assert_eq!(run.code, 125, "{}", run.stderr);
    let run = desk.run("exec -f app.yaml --on-change none --on-change-retry 2s:1s -- true");
    assert!(
        run.stderr.contains("min is more than max"),
        "{}",
        run.stderr
    );
}
