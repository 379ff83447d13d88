//! Actions of hooks: commands, signals, requests and restarts.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
};

use rustix::process::geteuid;
use serde_json::Value;

use super::harness::*;
use crate::{
    Desk,
    exec::{Running, callers, desk, edit, manifest, may_mount, web_pod},
};

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

/// In place of the output of a hook, whose container has the Secret `tls`.
const WITHHELD: &str = "larder: on change, 0-sh: 8 bytes of output, withheld because the container reads Secrets, tokens \
    or private keys: to see them, run sh by hand, with the arguments of the hook";

// on-change 43
// Attack: a Secret comes into a volume while the command runs.
#[test]
fn output_is_withheld_once_a_volume_holds_a_secret() {
    if !may_mount() {
        return;
    }
    let manifest = |source: &str, key: &str| {
        let config = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{key: {key}}}}}"
        );
        let secret = "{apiVersion: v1, kind: Secret, metadata: {name: tls}, stringData: {password: hunter2}}";
        let mount = "env: [{name: A, value: '1'}], volumeMounts: [{name: config, mountPath: /larder-test/config}]";
        let volume = format!(
            "{{name: config, projected: {{sources: [{{configMap: {{name: app}}}}{source}]}}}}"
        );
        format!("{config}\n---\n{secret}\n---\n{}", web_pod(mount, &volume))
    };
    let desk = Desk::with([("app.yaml", manifest("", "one").as_str())]);
    let script = "echo key; cat /larder-test/config/password 2>&-; true";
    let hook = serde_json::json!([{"exec": {"command": ["sh", "-c", format!("{script}; exit 1")], "logOutput": true},
        "onFailure": "Ignore"}]);
    let mut running = Running::with_errors(&desk, &["--on-change", &hook.to_string()], WAIT);
    assert_eq!(running.line(), "ready 1");
    desk.replace("app.yaml", &manifest("", "two"));
    assert_eq!(running.error_line(), "larder: on change, 0-sh: key");
    let failed = "larder: on change, 0-sh: exit status 1";
    assert_eq!(running.error_line(), failed);
    desk.replace("app.yaml", &manifest(", {secret: {name: tls}}", "two"));
    assert_eq!(
        running.error_line(),
        WITHHELD.replace("8 bytes", "11 bytes")
    );
    assert_eq!(running.error_line(), failed);
    // It stays so: what the command reads may be from before.
    desk.replace("app.yaml", &manifest("", "three"));
    assert_eq!(running.error_line(), WITHHELD.replace("8 bytes", "4 bytes"));
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 43
#[test]
fn output_of_a_hook_has_no_secret() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{exec: {command: [sh, -c, 'echo $PASSWORD; exit 1'], logOutput: true}, onFailure: Ignore}]";
    let mut running = Running::with_errors(&desk, &["--on-change", hook], WAIT);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "1");
    assert_eq!(running.error_line(), WITHHELD);
    assert_eq!(end(running), (String::new(), Some(0)));
}

#[test]
fn output_of_a_hook_is_not_printed_unless_the_hook_says_so() {
    if !may_mount() {
        return;
    }
    let pod = web_pod(
        "env: [{name: A, value: '1'}, {name: PASSWORD, value: hunter2}], volumeMounts: [
        {name: config, mountPath: /larder-test/config}]",
        "{name: config, configMap: {name: app}}",
    );
    let write = |key: &str| {
        format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{key: {key}}}}}\n---\n{pod}"
        )
    };
    let desk = Desk::with([("app.yaml", write("one").as_str())]);
    let hook = "[{exec: [sh, -c, 'echo $PASSWORD; exit 3'], onFailure: Ignore}]";
    let mut running = Running::with_errors(&desk, &["--on-change", hook], WAIT);
    assert_eq!(running.line(), "ready 1");
    desk.replace("app.yaml", &write("two"));
    assert_eq!(
        running.error_line(),
        "larder: on change, 0-sh: 8 bytes of output, which logOutput would show"
    );
    assert_eq!(
        running.error_line(),
        "larder: on change, 0-sh: exit status 3"
    );
    assert_eq!(end(running), (String::new(), Some(0)));
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
    let pod = "securityContext: {runAsUser: 4711, runAsGroup: 42}";
    desk.replace("app.yaml", &manifest("two", "1", pod));
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
        desk.replace("app.yaml", &manifest("two", "1", pod));
        let (output, code) = running.end();
        let expected = "1000\ntwo\n{\"volumes\":[{\"name\":\"config\",";
        assert!(output.starts_with(expected), "{caller:?}: {output}");
        assert_eq!(code, Some(0));
    }
}

// on-change 54
#[test]
fn restart_has_a_signal_of_its_own() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let hook = "[{restart: {signal: SIGINT, grace: 1h}}]";
    let script = "trap 'echo INT $A; exit 0' INT; trap 'exit 0' TERM; echo ready $A
        while :; do sleep 100 & wait $!; done";
    let mut running = Running::start(&desk, &["--on-change", hook], script);
    assert_eq!(running.line(), "ready 1");
    edit(&desk, "two", "2");
    assert_eq!(running.line(), "INT 1");
    assert_eq!(running.line(), "ready 2");
    assert_eq!(end(running), (String::new(), Some(0)));
}

// on-change 54
#[test]
fn restart_has_a_grace_period_of_its_own() {
    if !may_mount() {
        return;
    }
    // The pod's own would be longer than this test waits.
    let pod = "terminationGracePeriodSeconds: 86400";
    let desk = desk(pod);
    let hook = "[{restart: {signal: SIGINT, grace: 50ms}}]";
    let script = "trap '' INT; trap 'exit 0' TERM; echo ready $A
        while :; do sleep 100 & wait $!; done";
    let mut running = Running::start(&desk, &["--on-change", hook], script);
    assert_eq!(running.line(), "ready 1");
    desk.replace("app.yaml", &manifest("two", "2", pod));
    assert_eq!(running.line(), "ready 2");
    assert_eq!(end(running), (String::new(), Some(0)));
}
