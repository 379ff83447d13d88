//! `larder exec --on-change`: real commands, signals, requests and restarts.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::Command,
    time::Duration,
};

use rustix::process::{Signal, geteuid};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Desk,
    exec::{Running, callers, desk, edit, may_mount},
};

/// A command that does nothing until it gets a signal, which it prints.
const WAIT: &str = "trap 'echo HUP $(cat /larder-test/config/key)' HUP; trap 'exit 0' TERM
    echo ready $A; while :; do sleep 100 & wait $!; done";

fn start(desk: &Desk, args: &[&str]) -> Running {
    let mut running = Running::start(desk, args, WAIT);
    assert_eq!(running.line(), "ready 1");
    running
}

fn end(running: Running) -> (String, Option<i32>) {
    running.signal(Signal::TERM);
    running.end()
}

/// Waits until the command has written a whole line to `file` of its scratch volume, and prints it.
fn shown(file: &str) -> String {
    format!(
        "until [ -s /larder-test/scratch/{file} ]; do sleep 0.01; done; cat /larder-test/scratch/{file}"
    )
}

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
            "\"reload\": expected none, restart, signal:NAME, http:PORT/PATH or a list",
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
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(!desk.path().join("started").exists(), "{message}");
    }
}

#[test]
fn timing_without_an_action_is_an_error() {
    let desk = desk("");
    let run = desk.run("exec -f app.yaml --on-change-debounce 1s -- true");
    assert_eq!(run.code, 2, "{}", run.stderr);
    let run = desk.run("exec -f app.yaml --on-change none --on-change-retry 2s:1s -- true");
    assert!(
        run.stderr.contains("min is more than max"),
        "{}",
        run.stderr
    );
}

// on-change 42, 47
#[test]
fn command_of_a_hook_runs_in_the_view_of_the_command() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = r#"cat $LARDER_CHANGES > /larder-test/scratch/changes
        stat -Lc '%a %u' $LARDER_CHANGES; cat > /larder-test/scratch/empty
        echo $A $PASSWORD $LARDER_HOOK $LARDER_POD $LARDER_NAMESPACE $LARDER_VOLUMES $LARDER_REASON $LARDER_ATTEMPT
        cat /larder-test/config/key /etc/larder-test/key; echo; id -u; pwd; ls /proc | grep -c '^1$'
        ps -o pgid= -p $$ | grep -qw $$ && echo leader"#;
    let hook = serde_json::json!([{"name": "show", "exec":
        ["sh", "-c", format!("({script}) > /larder-test/scratch/all 2>&1; mv /larder-test/scratch/all /larder-test/scratch/done")]}]);
    let command = format!(
        "echo ready; {}; cat /larder-test/scratch/changes",
        shown("done")
    );
    let mut running = Running::start(&desk, &["--on-change", &hook.to_string()], &command);
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    let (output, code) = running.end();
    let lines: Vec<_> = output.lines().collect();
    let user = geteuid().as_raw();
    assert_eq!(
        lines[..lines.len() - 1],
        [
            format!("600 {user}"),
            "1 hunter2 show web default config volumes 1".to_owned(),
            "twotwo".to_owned(),
            user.to_string(),
            "/".to_owned(),
            "1".to_owned(),
            "leader".to_owned(),
        ],
        "{output}"
    );
    let changes: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(
        changes["volumes"],
        serde_json::json!([{"name": "config", "directory": "/larder-test/config",
            "added": [], "changed": ["key"], "removed": []}])
    );
    assert_eq!(code, Some(0));
}

// on-change 47
#[test]
fn short_form_runs_a_program_in_the_view() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let program = desk.path().join("reload");
    fs::write(&program, "#!/bin/sh\ncp /larder-test/config/key /larder-test/scratch/next\nmv /larder-test/scratch/next /larder-test/scratch/done\n").unwrap();
    fs::set_permissions(
        &program,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let hook = format!("exec:{}", program.display());
    let command = format!("echo ready; {}", shown("done"));
    let mut running = Running::start(&desk, &["--on-change", &hook], &command);
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    assert_eq!(running.end(), ("two".to_owned(), Some(0)));
}

// on-change 56
#[test]
fn files_are_signaled_and_variables_restart() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let flags = [
        "--on-change",
        "signal:SIGHUP",
        "--on-change",
        "restart:environment",
    ];
    let mut running = start(&desk, &flags);
    edit(&desk, "two", "1");
    assert_eq!(running.line(), "HUP two");
    edit(&desk, "two", "2");
    assert_eq!(running.line(), "ready 2");
    edit(&desk, "three", "2");
    assert_eq!(running.line(), "HUP three");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 15, 16, 17
#[test]
fn only_other_bytes_of_matching_files_fire() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{signal: HUP, paths: [k*]}]";
    let mut running = start(&desk, &["--on-change", hook]);
    let write = |text: &str| {
        let next = desk.path().join("app.yaml.next");
        fs::write(&next, text).unwrap();
        fs::rename(next, desk.path().join("app.yaml")).unwrap();
    };
    // A label, a mode, and another file.
    let manifest = crate::exec::manifest("one", "1", "");
    let labeled = manifest.replace("{name: app}", "{name: app, labels: {a: b}}");
    write(&labeled);
    write(&labeled.replace(
        "configMap: {name: app}",
        "configMap: {name: app, defaultMode: 0600}",
    ));
    write(&labeled.replace("other: x", "other: y"));
    write(&manifest.replace("key: one", "key: last"));
    assert_eq!(running.line(), "HUP last");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 37
#[test]
fn command_without_a_handler_is_not_killed() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = "echo ready; read line; trap 'echo HUP; exit 4' HUP; echo trapped
        while :; do sleep 100 & wait $!; done";
    let mut running = Running::start(&desk, &["--on-change", "signal:HUP"], script);
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    // The hook waits until the signal is handled.
    running.write("go\n");
    assert_eq!(running.line(), "trapped");
    assert_eq!(running.end(), ("HUP\n".to_owned(), Some(4)));
}

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

// on-change 36
#[test]
fn named_child_gets_the_signal() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    // The wrapper would die of the signal.
    let script = "perl -e '$SIG{HUP} = sub { print \"perl HUP\\n\"; exit 0 }; $| = 1; print \"ready\\n\"; sleep 100 while 1'; exit 6";
    let hook = "[{signal: {name: HUP, process: perl}}]";
    let mut running = Running::start(&desk, &["--on-change", hook], script);
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    assert_eq!(running.end(), ("perl HUP\n".to_owned(), Some(6)));
}

/// Answers one request with `status`, and returns it.
fn answer(listener: &TcpListener, status: &str) -> String {
    let (stream, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(stream);
    let mut request = String::new();
    while lines.read_line(&mut request).unwrap() > 2 {}
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
    lines.get_mut().write_all(answer.as_bytes()).unwrap();
    request
}

// on-change 29, 48, 49
#[test]
fn request_goes_to_this_machine_and_is_repeated() {
    if !may_mount() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let desk = desk("");
    let hook = format!("http:{port}/-/reload");
    let flags = ["--on-change", hook.as_str(), "--on-change-retry", "1ms:2ms"];
    let mut running = Running::with_errors(&desk, &flags, WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "1");
    let first = answer(&listener, "503 Not Yet");
    let second = answer(&listener, "200 OK");
    assert!(first.starts_with("POST /-/reload HTTP/1.1\r\n"), "{first}");
    assert_eq!(first, second, "a retry has the same round");
    let line = running.error_line();
    assert_eq!(
        line,
        format!("larder: on change, 0-http: {port}/-/reload: answered 503")
    );
    assert_eq!(running.error_line(), "larder: on change, 0-http: succeeded");
    edit(&desk, "three", "1");
    let third = answer(&listener, "200 OK");
    assert_ne!(first, third, "another round");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 32
#[test]
fn failed_step_ends_the_round() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "{steps: [{exec: [grep, -q, good, /larder-test/config/key]}, {signal: HUP}], retry: {min: 1s, attempts: 1}}";
    let mut running = Running::with_errors(&desk, &["--on-change", hook], WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "bad", "1");
    assert_eq!(
        running.error_line(),
        "larder: on change, 0-exec: exit status 1"
    );
    edit(&desk, "good", "1");
    assert_eq!(running.line(), "HUP good");
    assert_eq!(end(running), (String::new(), Some(0)));
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

// on-change 43
#[test]
fn output_of_a_hook_has_no_secret() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{exec: {command: [sh, -c, 'echo $PASSWORD; echo shown'], output: Always}}]";
    let mut running = Running::with_errors(&desk, &["--on-change", hook], WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "1");
    assert_eq!(
        running.error_line(),
        "larder: on change, 0-exec: (withheld)"
    );
    assert_eq!(running.error_line(), "larder: on change, 0-exec: shown");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 14
#[test]
fn initial_hook_fires_once_after_the_start() {
    if !may_mount() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let desk = desk("");
    let hook = format!("[{{http: {port}/ready, initial: true}}]");
    let running = start(&desk, &["--on-change", &hook]);
    assert!(answer(&listener, "200 OK").starts_with("POST /ready "));
    assert_eq!(end(running).1, Some(0));
}

#[test]
fn commands_of_hooks_end_with_the_command() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook =
        "[{exec: [sh, -c, 'echo > /larder-test/scratch/running; setsid sleep 1000; sleep 1000']}]";
    let script = format!("echo ready; {}; exit 3", shown("running"));
    let mut running = Running::start(&desk, &["--on-change", hook], &script);
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    // The end of the output shows that no process is left.
    assert_eq!(running.end(), ("\n".to_owned(), Some(3)));
}

// on-change 47
#[test]
fn hook_runs_as_the_user_of_the_pod() {
    if !may_mount() {
        return;
    }
    let desk = desk("securityContext: {runAsUser: 4711, runAsGroup: 42}");
    let hook = "[{exec: [sh, -c, 'id -u > /larder-test/scratch/x; id -g >> /larder-test/scratch/x; cat $LARDER_CHANGES >> /larder-test/scratch/x; mv /larder-test/scratch/x /larder-test/scratch/done']}]";
    let command = format!("echo ready; {}", shown("done"));
    let mut running = Running::start(&desk, &["--on-change", hook], &command);
    assert_eq!(running.line(), "ready");
    let next = desk.path().join("app.yaml.next");
    let pod = "securityContext: {runAsUser: 4711, runAsGroup: 42}";
    fs::write(&next, crate::exec::manifest("two", "1", pod)).unwrap();
    fs::rename(next, desk.path().join("app.yaml")).unwrap();
    let (output, code) = running.end();
    assert!(output.starts_with("4711\n42\n{\"volumes\":[{"), "{output}");
    assert_eq!(code, Some(0));
}

// on-change 47
#[test]
fn every_caller_has_hooks_and_fresh_sub_paths() {
    if !may_mount() {
        return;
    }
    for &caller in callers() {
        let pod = "securityContext: {runAsUser: 1000, runAsGroup: 3, fsGroup: 1001}";
        let desk = desk(pod);
        let script = "cd /larder-test/scratch; (id -u; cat /etc/larder-test/key; echo; cat $LARDER_CHANGES) > x; mv x done";
        let hook = serde_json::json!([{"exec": ["sh", "-c", script]}]).to_string();
        let command = format!("echo ready; {}", shown("done"));
        let mut running = Running::by(caller, &desk, &["--on-change", &hook], &command);
        assert_eq!(running.line(), "ready", "{caller:?}");
        let next = desk.path().join("app.yaml.next");
        fs::write(&next, crate::exec::manifest("two", "1", pod)).unwrap();
        fs::rename(next, desk.path().join("app.yaml")).unwrap();
        let (output, code) = running.end();
        let expected = "1000\ntwo\n{\"volumes\":[{\"name\":\"config\",";
        assert!(output.starts_with(expected), "{caller:?}: {output}");
        assert_eq!(code, Some(0));
    }
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
        "larder: on change, 0-exec: no such command"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 24
#[test]
fn stale_sub_path_is_named_and_the_hook_fires() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let flags = ["--on-change", "signal:HUP", "--subpath-updates=false"];
    let mut running = Running::with_errors(&desk, &flags, WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "1");
    assert_eq!(running.line(), "HUP two");
    assert_eq!(
        running.error_line(),
        "larder: container web mounts config by subPath: only a restart shows it the new file"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

/// A pod with two volumes of one ConfigMap, one of an optional Secret, and variables, one of which hides a key.
fn several(key: &str, hidden: &str, shown: &str, secret: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{key: {key}}}}}
---
{{apiVersion: v1, kind: ConfigMap, metadata: {{name: env}}, data: {{A: '{hidden}', B: '{shown}'}}}}
{secret}
---
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  containers:
  - name: web
    image: example
    envFrom: [{{configMapRef: {{name: env}}}}]
    env: [{{name: A, value: own}}]
    volumeMounts:
    - {{name: one, mountPath: /larder-test/one}}
    - {{name: two, mountPath: /larder-test/two}}
    - {{name: maybe, mountPath: /larder-test/maybe}}
  volumes:
  - {{name: one, configMap: {{name: app}}}}
  - {{name: two, configMap: {{name: app}}}}
  - {{name: maybe, secret: {{secretName: maybe, optional: true}}}}
"
    )
}

const SECRET: &str =
    "---\n{apiVersion: v1, kind: Secret, metadata: {name: maybe}, stringData: {key: s}}";

/// Prints what it sees at each signal.
const SEVERAL: &str =
    "trap 'echo $(cd /larder-test; cat one/key two/key; cat maybe/key 2>/dev/null)' HUP
    trap 'exit 0' TERM; echo ready $A $B; while :; do sleep 100 & wait $!; done";

fn write_several(desk: &Desk, text: &str) {
    let next = desk.path().join("app.yaml.next");
    fs::write(&next, text).unwrap();
    fs::rename(next, desk.path().join("app.yaml")).unwrap();
}

// on-change 19, 20
#[test]
fn volumes_that_change_together_are_told_together() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", several("a", "1", "1", "").as_str())]);
    let mut running = Running::start(&desk, &["--on-change", "signal:HUP"], SEVERAL);
    assert_eq!(running.line(), "ready own 1");
    write_several(&desk, &several("b", "1", "1", ""));
    assert_eq!(running.line(), "bb");
    // An optional object that comes, and one that goes.
    write_several(&desk, &several("b", "1", "1", SECRET));
    assert_eq!(running.line(), "bbs");
    write_several(&desk, &several("b", "1", "1", ""));
    assert_eq!(running.line(), "bb");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 22
#[test]
fn hidden_variable_restarts_nothing() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", several("a", "1", "1", "").as_str())]);
    let flags = [
        "--on-change",
        "restart:environment",
        "--on-change",
        "signal:HUP",
    ];
    let mut running = Running::start(&desk, &flags, SEVERAL);
    assert_eq!(running.line(), "ready own 1");
    write_several(&desk, &several("a", "2", "1", ""));
    // What comes next shows that nothing came before.
    write_several(&desk, &several("b", "2", "1", ""));
    assert_eq!(running.line(), "bb");
    write_several(&desk, &several("b", "2", "2", ""));
    assert_eq!(running.line(), "ready own 2");
    assert_eq!(end(running), (String::new(), Some(0)));
}

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
        "larder: on change, 0-exec: timed out after 50ms"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 21
#[test]
fn volume_that_fails_holds_no_other_back() {
    if !may_mount() {
        return;
    }
    let text = |one: &str, two: &str| {
        several("a", "1", "1", "")
            .replace("data: {key: a}", &format!("data: {{{one}}}"))
            .replace(
                "name: two, configMap: {name: app}",
                "name: two, configMap: {name: two}",
            )
            .replace(
                "name: one, configMap: {name: app}",
                "name: one, configMap: {name: app, items: [{key: key, path: key}]}",
            )
            + &format!(
                "---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: two}}, data: {{key: {two}}}}}\n"
            )
    };
    let desk = Desk::with([("app.yaml", text("key: a", "x").as_str())]);
    let flags = ["--on-change", "signal:HUP"];
    let mut running = Running::with_errors(&desk, &flags, SEVERAL);
    assert_eq!(running.line(), "ready own 1");
    write_several(&desk, &text("other: b", "z"));
    assert_eq!(running.line(), "az");
    let line = running.error_line();
    assert!(
        line.contains("cannot update volume one, keeping its last good copy"),
        "{line}"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 54
#[test]
fn restart_has_a_signal_and_a_grace_period_of_its_own() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{restart: {signal: SIGINT, grace: 50ms}}]";
    let script = "trap 'echo INT $A' INT; trap 'exit 0' TERM; echo ready $A
        while :; do sleep 100 & wait $!; done";
    let mut running = Running::start(&desk, &["--on-change", hook], script);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "2");
    assert_eq!(running.line(), "INT 1");
    assert_eq!(running.line(), "ready 2");
    assert_eq!(end(running), (String::new(), Some(0)));
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

// on-change 30
#[test]
fn newer_change_is_tried_at_once_after_a_failure() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "{steps: [{exec: [grep, -q, good, /larder-test/config/key]}, {signal: HUP}], retry: {min: 1h, max: 1h}}";
    let mut running = Running::with_errors(&desk, &["--on-change", hook], WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "bad", "1");
    let failed = "larder: on change, 0-exec: exit status 1";
    assert_eq!(running.error_line(), failed);
    edit(&desk, "good", "1");
    assert_eq!(running.line(), "HUP good");
    assert_eq!(end(running), (String::new(), Some(0)));
}
