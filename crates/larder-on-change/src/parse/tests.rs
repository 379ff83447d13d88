//! Hooks as people write them, and the messages for their mistakes.

mod forms;
mod hostile;

use expect_test::{Expect, expect};
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::hook::{HttpTarget, OnFailure, Port, Restart};
use std::{collections::BTreeMap, time::Duration};

fn outline(restart_policy: &str) -> PodOutline {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "restartPolicy": restart_policy,
            "initContainers": [{"name": "setup"}, {"name": "side", "restartPolicy": "Always"}],
            "containers": [{"name": "web", "ports": [{"name": "http", "containerPort": 8080}]}, {"name": "worker"}],
            "volumes": [
                {"name": "config", "configMap": {"name": "c"}},
                {"name": "tls", "secret": {"secretName": "t"}},
                {"name": "data", "emptyDir": {}},
                {"name": "scratch"},
            ],
        },
    }))
    .unwrap();
    PodOutline::of(&pod)
}

const POD: HookOrigin = HookOrigin::Annotation(AllowedActions {
    signal: true,
    http: true,
    restart: true,
});

#[track_caller]
fn check(text: &str, origin: HookOrigin, message: Expect) {
    let error = hooks(text, origin, Some(&outline("Always"))).unwrap_err();
    message.assert_eq(&error.to_string());
}

// on-change 1
#[test]
fn short_forms_are_read() {
    let one = |text| {
        hooks(text, POD, Some(&outline("Always")))
            .unwrap()
            .pop()
            .unwrap()
    };
    assert!(hooks("none", POD, None).unwrap().is_empty());
    assert_eq!(one("signal:HUP"), one("signal:SIGHUP"));
    assert_eq!(one("signal:SIGHUP").timing.debounce, Debounce::DEFAULT);
    let restart = one("restart");
    assert!(restart.environment && restart.volumes.is_none());
    assert_eq!(restart.timing.debounce, Debounce::RESTART);
    assert_eq!(one("restart:environment").volumes, Some(Vec::new()));
    let Action::Http(call) = &one("http:http/-/reload").steps[0] else {
        panic!("no request")
    };
    let path = "/-/reload".to_owned();
    assert_eq!(
        call.target,
        HttpTarget::Pod {
            port: Port::Name("http".into()),
            path,
            tls: false
        }
    );
    assert!(call.is_expected(204) && !call.is_expected(301));
    let exec = hooks("exec:/bin/true", HookOrigin::CommandLine, None).unwrap();
    assert_eq!(exec[0].timing.debounce, Debounce::NONE);
}

#[test]
fn path_or_scheme_beside_a_url_is_rejected() {
    for (field, value) in [("path", "/x"), ("scheme", "https"), ("port", "80")] {
        let text = format!("[{{http: {{url: 'http://h/', {field}: {value}}}}}]");
        let found =
            hooks(&text, HookOrigin::Configuration, None).map_err(|error| error.to_string());
        let message = "[0].http.url: expected either url, or port, path and scheme";
        assert_eq!(found, Err(message.to_owned()), "{field}");
    }
}

// on-change 1
#[test]
fn each_mistake_has_its_message() {
    check(
        "reload",
        POD,
        expect![[
            r#""reload": expected none, restart, restart:environment, signal:NAME, http:PORT/PATH or a list"#
        ]],
    );
    check(
        "signal:SIGFOO",
        POD,
        expect![
            "expected one of SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT"
        ],
    );
    check("signal:1", POD, expect!["name the signal, as in SIGHUP"]);
    check(
        "[{signal: SIGHUP, http: 80/}]",
        POD,
        expect!["[0]: signal and http: one action expected; steps takes several"],
    );
    check(
        "[{volumes: [config]}]",
        POD,
        expect!["[0]: expected one of signal, http, restart, exec, steps"],
    );
    check(
        "[{exec: [reboot]}]",
        POD,
        expect![
            "[0].exec: a pod may not run commands on its node: use onChange of the agent's configuration"
        ],
    );
    check(
        "[{http: {url: 'http://169.254.169.254/'}}]",
        POD,
        expect![
            "[0].http.url: a hook in an annotation may call only its own pod; use port and path"
        ],
    );
    check(
        "[{http: {port: metrics}}]",
        POD,
        expect![[r#"[0].http.port: no container has a port named "metrics""#]],
    );
    check(
        "[{signal: SIGHUP, volumes: [conf]}]",
        POD,
        expect![[r#"[0].volumes: no volume "conf"; there are config, tls"#]],
    );
    check(
        "[{signal: SIGHUP, volumes: [data]}]",
        POD,
        expect![[r#"[0].volumes: volume "data" is an emptyDir, which larder does not deliver"#]],
    );
    check(
        "[{signal: SIGHUP, container: db}]",
        POD,
        expect![[r#"[0].container: no container "db""#]],
    );
    check(
        "[{signal: SIGHUP, container: setup}]",
        POD,
        expect![[r#"[0].container: container "setup" is an init container"#]],
    );
    check(
        "[{signal: SIGHUP, debounce: {min: 10s, max: 5s}}]",
        POD,
        expect!["[0].debounce: min is more than max"],
    );
    check(
        "[{signal: SIGHUP}, {restart: true}]",
        POD,
        expect![
            "[1].restart: [0] sends a signal for the same volumes: give volumes, or restart:environment"
        ],
    );
    check(
        "[{signal: SIGHUP, debuonce: 1s}]",
        POD,
        expect![[r#"[0]: unknown field "debuonce""#]],
    );
    check(
        "[{signla: SIGHUP}]",
        POD,
        expect![[r#"[0]: unknown field "signla""#]],
    );
    check(
        "[{signal: SIGHUP, splay: 5}]",
        POD,
        expect!["[0].splay: expected a duration such as 100ms, 20s or 1m30s"],
    );
    check("- signal: [", POD, expect!["line 1: unclosed bracket '['"]);
}

// on-change 1
#[test]
fn restart_needs_a_container_that_comes_back() {
    let error = hooks("[{restart: true}]", POD, Some(&outline("OnFailure"))).unwrap_err();
    expect!["[0].restart: restartPolicy is OnFailure: the container might not come back"]
        .assert_eq(&error.to_string());
    assert!(
        hooks(
            "[{restart: true, container: side}]",
            POD,
            Some(&outline("Never"))
        )
        .is_ok()
    );
    assert!(
        hooks(
            "[{signal: HUP, onFailure: Restart}]",
            POD,
            Some(&outline("Never"))
        )
        .is_err()
    );
}

// on-change 7
#[test]
fn annotations_cannot_run_commands_even_in_steps() {
    check(
        "[{steps: [{signal: SIGHUP}, {exec: [reboot]}]}]",
        POD,
        expect![
            "[0].steps[1].exec: a pod may not run commands on its node: use onChange of the agent's configuration"
        ],
    );
    check(
        "exec:/bin/sh",
        POD,
        expect![
            "exec: a pod may not run commands on its node: use onChange of the agent's configuration"
        ],
    );
}

// on-change 10
#[test]
fn nodes_limit_what_annotations_may_do() {
    let none = AllowedActions {
        signal: false,
        http: false,
        restart: false,
    };
    check(
        "[{signal: SIGHUP}]",
        HookOrigin::Annotation(none),
        expect!["[0].signal: this node does not allow it (onChangeFromPods)"],
    );
    assert!(hooks("[{signal: SIGHUP}]", HookOrigin::Configuration, None).is_ok());
}

// on-change 2, 4, 6
#[test]
fn annotations_are_read_each_by_itself() {
    let annotations = BTreeMap::from([
        (
            ANNOTATION.to_owned(),
            "[{signal: SIGHUP}, {signal: SIGFOO}]".to_owned(),
        ),
        (
            format!("{ANNOTATION_PREFIX}web"),
            "signal:SIGHUP".to_owned(),
        ),
        (
            format!("{ANNOTATION_PREFIX}setup"),
            "signal:SIGHUP".to_owned(),
        ),
        ("other".to_owned(), "[".to_owned()),
    ]);
    let found = annotated_hooks(&annotations, AllowedActions::default(), &outline("Always"));
    let good: Vec<_> = found
        .iter()
        .filter_map(|one| one.hooks.as_ref().ok())
        .collect();
    assert_eq!((found.len(), good.len()), (3, 1));
    assert_eq!(good[0][0].container.as_deref(), Some("web"));

    let many = format!("[{}]", ["{signal: HUP}"; 17].join(","));
    let long = format!("[{{signal: HUP, name: {}}}]", "x".repeat(17 << 10));
    for text in [many, long] {
        let annotations = BTreeMap::from([(ANNOTATION.to_owned(), text)]);
        let found = annotated_hooks(&annotations, AllowedActions::default(), &outline("Always"));
        assert!(found[0].hooks.is_err());
    }
}

// on-change 5
#[test]
fn example_of_the_documentation_is_read() {
    let text = "
- volumes: [config]
  http: {port: http, path: /-/reload}
  debounce: 1s
- {container: worker, restart: true, volumes: []}     # when its variables change
";
    let hooks = hooks(text, POD, Some(&outline("Always"))).unwrap();
    let debounce = Debounce {
        min: Duration::from_secs(1),
        max: Duration::from_secs(4),
    };
    assert_eq!(hooks[0].timing.debounce, debounce);
    assert_eq!(hooks[1].steps, [Action::Restart(Restart::default())]);
    assert!(hooks[1].environment);
    assert_eq!((&*hooks[0].name, &*hooks[1].name), ("0-http", "1-restart"));
}

#[test]
fn long_form_has_every_field() {
    let text = "
- name: all
  volumes: [config]
  paths: ['*.conf']
  environment: true
  container: web
  steps:
  - exec: {command: [nginx, -t], user: nobody, workingDirectory: /tmp, env: {A: b}, logOutput: true}
  - http:
      url: https://localhost:1/x
      method: PUT
      headers: {X-A: b}
      body: text
      expect: [204, 3xx]
      auth: {volume: tls, username: u, password: p}
      tls: {ca: /ca, serverName: host, insecureSkipVerify: true}
  - signal: {name: SIGHUP, process: nginx}
  splay: 5s
  timeout: 3s
  retry: {min: 2s, max: 1m, attempts: 3}
  onFailure: Ignore
  initial: true
";
    let hook = hooks(text, HookOrigin::Configuration, Some(&outline("Always")))
        .unwrap()
        .pop()
        .unwrap();
    assert!(hook.initial && hook.runs_commands() && hook.signals() && !hook.restarts());
    assert_eq!(hook.on_failure, OnFailure::Ignore);
    assert_eq!(hook.timing.retry.attempts, 3);
    let Action::Http(call) = &hook.steps[1] else {
        panic!("no request")
    };
    assert!(call.is_expected(204) && call.is_expected(307) && !call.is_expected(200));
    // on-change 53
    assert!(!format!("{hook:?}").contains("X-A"));
}

#[test]
fn reserved_headers_and_split_lines_are_rejected() {
    for headers in [
        "{Host: x}",
        "{connection: x}",
        "{\"A\\r\\nB\": x}",
        "{A: \"x\\r\\nB: y\"}",
        "{'a b': x}",
    ] {
        let text = format!("[{{http: {{port: 80, headers: {headers}}}}}]");
        assert!(hooks(&text, POD, None).is_err(), "{headers}");
    }
}

// on-change 56
#[test]
fn signal_and_restart_exclude_each_other_unless_for_variables() {
    let both = [
        hooks("signal:SIGHUP", HookOrigin::CommandLine, None).unwrap(),
        hooks("restart", HookOrigin::CommandLine, None).unwrap(),
    ];
    let named = |hooks: Vec<Vec<Hook>>| {
        let hooks = hooks.into_iter().flatten().enumerate();
        hooks
            .map(|(index, hook)| Hook {
                name: index.to_string(),
                ..hook
            })
            .collect::<Vec<_>>()
    };
    assert!(check_together(&named(both.to_vec())).is_err());
    let apart = [
        hooks("signal:SIGHUP", HookOrigin::CommandLine, None).unwrap(),
        hooks("restart:environment", HookOrigin::CommandLine, None).unwrap(),
    ];
    assert!(check_together(&named(apart.to_vec())).is_ok());
}

proptest! {
    #[test]
    fn any_text_is_read_or_rejected(text in "[\\[{-]?[ -~\n]{0,200}") {
        let _ = hooks(&text, POD, Some(&outline("Always")));
    }
}

#[test]
fn hook_with_a_command_is_named_after_its_program() {
    for (program, name) in [
        ("/usr/sbin/nginx", "0-nginx".to_owned()),
        ("a\u{1b}b", "0-ab".to_owned()),
        ("/", "0-exec".to_owned()),
        (&"é".repeat(50), format!("0-{}", "é".repeat(20))),
    ] {
        let text = serde_json::json!([{"exec": [program]}]).to_string();
        let read = hooks(&text, HookOrigin::CommandLine, None).unwrap();
        assert_eq!(read[0].name, name);
    }
}
