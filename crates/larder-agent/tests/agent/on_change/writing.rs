//! Hooks as they are written, and who may cause what (sections 4 and 5).

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};
use larder_agent::agent::PodDeletion;
use larder_on_change::parse::AllowedActions;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::harness::{Node, config_map, pod};

const ANNOTATION: &str = "larder.dev/on-change";
const OF_MAIN: &str = "on-change.larder.dev/main";

/// A node that posts events.
fn node() -> Node {
    let mut node = Node::prepare();
    node.pod_deletion = PodDeletion::External;
    node.apply(&config_map("a", &[("f", "1")]));
    node
}

fn names(node: &Node) -> Vec<(String, String, String)> {
    let hooks = node.pod("web").unwrap().on_change;
    let shown = hooks
        .into_iter()
        .map(|hook| (hook.name, hook.action, hook.state));
    shown.collect()
}

/// Waits until the hooks of the pod are these: name, action, state.
async fn until_hooks(node: &Node, expected: &[(&str, &str, &str)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(name, action, state)| {
            (
                (*name).to_owned(),
                (*action).to_owned(),
                (*state).to_owned(),
            )
        })
        .collect();
    node.wait(&format!("the hooks {expected:?}"), |node| {
        (node.pod("web").is_some() && names(node) == expected).then_some(())
    })
    .await;
}

/// The messages of events with this reason.
pub(super) async fn messages(node: &Node, reason: &str) -> Vec<String> {
    let events: Api<Event> = Api::default_namespaced(Client::new(node.server.service(), "default"));
    let found = events
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter();
    let found = found.filter(|event| event.reason.as_deref() == Some(reason));
    found.filter_map(|event| event.message).collect()
}

pub(super) async fn until_message(node: &Node, reason: &str, message: &str) {
    let deadline = Instant::now() + Duration::from_mins(10);
    loop {
        let found = messages(node, reason).await;
        if found.iter().any(|found| found == message) {
            return;
        }
        let status = node.pod("web");
        assert!(
            Instant::now() < deadline,
            "no event {message:?} but {found:?}; {status:#?}"
        );
        sleep(Duration::from_millis(10)).await;
    }
}

// on-change 2
#[tokio::test(start_paused = true)]
async fn annotation_with_an_error_adds_no_hook_and_delays_nothing() {
    let mut node = node();
    node.run();
    let text = "[{signal: SIGHUP}, {signal: SIGFOO}]";
    node.apply(
        &pod("web")
            .config_map("a", "a")
            .annotation(ANNOTATION, text)
            .build(),
    );
    node.until("web", "a", &[("f", "1")]).await;
    until_hooks(&node, &[("", "", "Invalid")]).await;
    let expected = "larder.dev/on-change: [1].signal: expected one of SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, \
                    SIGWINCH, SIGCONT";
    until_message(&node, "InvalidOnChange", expected).await;
    assert!(node.metrics().contains("on_change_invalid 1\n"));
}

// on-change 3
#[tokio::test(start_paused = true)]
async fn last_valid_hooks_stay_when_the_annotation_breaks() {
    let mut node = node();
    node.run();
    let web = |text: &str| {
        pod("web")
            .config_map("a", "a")
            .annotation(OF_MAIN, text)
            .build()
    };
    node.apply(&web("signal:SIGHUP"));
    until_hooks(&node, &[("0-signal", "signal:SIGHUP", "Idle")]).await;
    node.apply(&web("signal:SIGFOO"));
    until_hooks(
        &node,
        &[("0-signal", "signal:SIGHUP", "Idle"), ("", "", "Invalid")],
    )
    .await;
    // They still fire: nothing runs here, so the attempt fails.
    node.apply(&config_map("a", &[("f", "2")]));
    until_message(
        &node,
        "OnChangeFailed",
        "hook 0-signal: no process of container main",
    )
    .await;
    // Without the annotation they are gone, and with them their record.
    node.apply(&pod("web").config_map("a", "a").build());
    until_hooks(&node, &[]).await;
    let path = std::path::PathBuf::from(node.pod("web").unwrap().path);
    node.wait("the record to go", |_| {
        (!path.join("on-change.json").exists()).then_some(())
    })
    .await;
}

// on-change 4
#[tokio::test(start_paused = true)]
async fn hooks_of_both_annotations_apply() {
    let mut node = node();
    node.run();
    node.apply(
        &pod("web")
            .config_map("a", "a")
            .annotation(OF_MAIN, "signal:HUP")
            .annotation(ANNOTATION, "[{name: reload, http: 9090/-/reload}]")
            .build(),
    );
    until_hooks(
        &node,
        &[
            ("reload", "http:9090/-/reload", "Idle"),
            ("0-signal", "signal:SIGHUP", "Idle"),
        ],
    )
    .await;
    let hooks = node.pod("web").unwrap().on_change;
    assert_eq!(
        (hooks[0].place.as_str(), hooks[1].place.as_str()),
        (ANNOTATION, OF_MAIN)
    );
}

// on-change 6
#[tokio::test(start_paused = true)]
async fn too_many_hooks_and_too_long_texts_are_rejected() {
    let mut node = node();
    node.run();
    let many = format!(
        "[{}]",
        vec!["{signal: SIGHUP, volumes: [a]}"; 17].join(", ")
    );
    node.apply(
        &pod("web")
            .config_map("a", "a")
            .annotation(ANNOTATION, &many)
            .build(),
    );
    until_message(
        &node,
        "InvalidOnChange",
        "larder.dev/on-change: more than 16 hooks",
    )
    .await;
    let long = format!("signal:SIGHUP{}", " ".repeat(17 << 10));
    node.apply(
        &pod("web")
            .config_map("a", "a")
            .annotation(ANNOTATION, &long)
            .build(),
    );
    until_message(
        &node,
        "InvalidOnChange",
        "larder.dev/on-change: longer than 16 KiB",
    )
    .await;
}

// on-change 7
#[tokio::test(start_paused = true)]
async fn commands_in_annotations_are_rejected_and_never_run() {
    let mut node = node();
    node.run();
    let proof = node.path().join("proof");
    let command = json!(["touch", proof]);
    for (text, field) in [
        (json!([{"exec": command, "initial": true}]), "[0].exec"),
        (
            json!([{"steps": [{"signal": "SIGHUP"}, {"exec": command}]}]),
            "[0].steps[1].exec",
        ),
    ] {
        let text = Value::to_string(&text);
        node.apply(
            &pod("web")
                .config_map("a", "a")
                .annotation(ANNOTATION, &text)
                .build(),
        );
        let problem =
            "a pod may not run commands on its node: use onChange of the agent's configuration";
        let expected = format!("{ANNOTATION}: {field}: {problem}");
        until_message(&node, "InvalidOnChange", &expected).await;
    }
    node.apply(&config_map("a", &[("f", "2")]));
    node.until("web", "a", &[("f", "2")]).await;
    sleep(Duration::from_mins(1)).await;
    assert!(!proof.exists());
}

// on-change 10
#[tokio::test(start_paused = true)]
async fn node_that_allows_nothing_rejects_annotations_only() {
    let mut node = node();
    node.on_change.from_pods = AllowedActions {
        signal: false,
        http: false,
        restart: false,
    };
    let mut rounds = super::harness::with_hook(&mut node, super::harness::immediate());
    node.run();
    node.apply(
        &pod("web")
            .config_map("a", "a")
            .annotation(OF_MAIN, "signal:HUP")
            .build(),
    );
    until_hooks(&node, &[("test", "program", "Idle"), ("", "", "Invalid")]).await;
    let expected = "on-change.larder.dev/main: this node does not allow it (onChangeFromPods)";
    until_message(&node, "InvalidOnChange", expected).await;
    node.apply(&config_map("a", &[("f", "2")]));
    rounds.succeed().await;
}

#[tokio::test(start_paused = true)]
async fn success_after_a_failure_is_an_event() {
    let mut node = node();
    let mut rounds = super::harness::with_hook(&mut node, super::harness::immediate());
    node.run();
    node.apply(&pod("web").config_map("a", "a").build());
    super::harness::delivered(&node, "web", "a", "1").await;
    node.apply(&config_map("a", &[("f", "2")]));
    rounds.fail("broken").await;
    until_message(&node, "OnChangeFailed", "hook test: broken").await;
    assert!(node.metrics().contains("on_change_last_failed 1"));
    rounds.succeed().await;
    until_message(&node, "OnChangeSucceeded", "hook test succeeded").await;
    node.apply(&config_map("a", &[("f", "3")]));
    rounds.succeed().await;
    super::harness::until_state(&node, "web", "Idle").await;
    assert_eq!(messages(&node, "OnChangeSucceeded").await.len(), 1);
    let metrics = node.metrics();
    for line in [
        "on_change_runs_total{action=\"program\",outcome=\"failed\"} 1",
        "on_change_runs_total{action=\"program\",outcome=\"succeeded\"} 2",
        "on_change_run_seconds_count{action=\"program\"} 3",
        "on_change_delay_seconds_count 2",
        "on_change_last_success_timestamp_seconds ",
        "on_change_last_failed 0",
        "on_change_pending 0",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}
