//! Hooks of the configuration are added, kept and removed by a reload, and by a restart.

use std::time::Duration;

use larder_agent::config::{Config, Flags, Host};
use larder_on_change::parse::{AllowedActions, ConfiguredHook};

use super::harness::*;
use crate::harness::{Node, config_map, pod};

/// A hook of the configuration. Nothing runs in the pod, so its attempts fail.
const HUP: &str = "[{name: hup, signal: SIGHUP, debounce: 0s}]";
const USR1: &str = "[{name: usr1, signal: SIGUSR1, debounce: 0s}]";

/// A node with the pod `web`, its volume `a`, and the hook of the test.
async fn node() -> (Node, Rounds) {
    let mut node = Node::prepare();
    let rounds = with_hook(&mut node, immediate());
    node.run();
    edit(&node, "0");
    node.apply(&pod("web").config_map("a", "a").build());
    delivered(&node, "web", "a", "0").await;
    (node, rounds)
}

fn edit(node: &Node, text: &str) {
    node.apply(&config_map("a", &[("f", text)]));
}

/// Waits until the pod has exactly the hooks of these names.
async fn until_hooks(node: &Node, names: &[&str]) {
    node.wait(&format!("the hooks {names:?}"), |node| {
        let hooks = node.pod("web")?.on_change;
        let found = hooks.iter().map(|hook| hook.name.as_str());
        found.eq(names.iter().copied()).then_some(())
    })
    .await;
}

/// Waits until the record of the pod names exactly these hooks.
async fn until_recorded(node: &Node, names: &[&str]) {
    node.wait(&format!("the record of {names:?}"), |node| {
        node.pod("web")?;
        let text = std::fs::read(record_path(node, "web")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&text).ok()?;
        let hooks = record["hooks"].as_array()?.iter();
        let found = hooks.map(|hook| hook["name"].as_str().unwrap());
        found.eq(names.iter().copied()).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reload_adds_and_removes_hooks_without_firing_any() {
    let (mut node, mut rounds) = node().await;
    node.on_change.hooks = vec![configured(HUP)];
    node.reload();
    until_hooks(&node, &["hup", HOOK]).await;
    until_recorded(&node, &["hup", HOOK]).await;
    rounds.none().await;
    let hup = node.hook("web", "hup").unwrap();
    assert_eq!((hup.state.as_str(), hup.attempts), ("Idle", 0));
    assert_eq!(hup.place, "configuration");
    edit(&node, "1");
    rounds.succeed().await;
    node.wait("the new hook to be tried", |node| {
        let hook = node.hook("web", "hup")?;
        (hook.reason == "no process of container main").then_some(())
    })
    .await;
    // One is removed while its retries are due, another one is added.
    node.on_change.hooks = vec![configured(USR1)];
    node.reload();
    until_hooks(&node, &["usr1", HOOK]).await;
    until_recorded(&node, &["usr1", HOOK]).await;
    assert!(node.metrics().contains("on_change_pending 0"));
    node.on_change.hooks.clear();
    node.reload();
    until_hooks(&node, &[HOOK]).await;
    until_recorded(&node, &[HOOK]).await;
    edit(&node, "2");
    rounds.succeed().await;
    rounds.none().await;
}

#[tokio::test(start_paused = true)]
async fn unchanged_hook_keeps_its_round_and_its_record_across_a_reload() {
    let (mut node, mut rounds) = node().await;
    edit(&node, "1");
    let first = rounds.fail("not yet").await;
    until_state(&node, "web", "Retrying").await;
    node.on_change.hooks = vec![configured(HUP)];
    node.reload();
    until_hooks(&node, &["hup", HOOK]).await;
    let status = node.hook("web", HOOK).unwrap();
    assert_eq!((status.attempts, status.reason.as_str()), (1, "not yet"));
    let second = rounds.next().await;
    assert_eq!(
        (second.change.round, second.change.attempt),
        (first.round, 2)
    );
    // While it runs, too.
    node.on_change.hooks.clear();
    node.reload();
    until_hooks(&node, &[HOOK]).await;
    second.answer.send(Ok(())).unwrap();
    until_state(&node, "web", "Idle").await;
    until_recorded(&node, &[HOOK]).await;
    assert!(record(&node, "web").contains("lastSuccess"));
    node.kill().await;
    node.run();
    delivered(&node, "web", "a", "1").await;
    rounds.none().await;
}

#[tokio::test(start_paused = true)]
async fn reload_that_forbids_signals_removes_the_hooks_of_pods() {
    let (mut node, mut rounds) = node().await;
    let annotated = pod("web")
        .config_map("a", "a")
        .annotation("on-change.larder.dev/main", "signal:SIGHUP");
    node.apply(&annotated.build());
    until_hooks(&node, &["0-signal", HOOK]).await;
    node.on_change.from_pods = AllowedActions {
        signal: false,
        ..AllowedActions::default()
    };
    node.reload();
    // The last valid value stays in force after an error, but not if the operator forbids it.
    until_hooks(&node, &[HOOK, ""]).await;
    let hooks = node.pod("web").unwrap().on_change;
    assert_eq!(
        hooks[1].reason,
        "this node does not allow it (onChangeFromPods)"
    );
    node.on_change.from_pods = AllowedActions::default();
    node.reload();
    until_hooks(&node, &["0-signal", HOOK]).await;
    rounds.none().await;
}

#[tokio::test(start_paused = true)]
async fn more_rounds_run_at_once_after_a_reload_that_allows_them() {
    let mut node = Node::prepare();
    let mut rounds = with_hook(&mut node, immediate());
    node.on_change.parallelism = 1;
    node.run();
    edit(&node, "0");
    for name in ["one", "two"] {
        node.apply(&pod(name).config_map("a", "a").build());
        delivered(&node, name, "a", "0").await;
    }
    edit(&node, "1");
    let first = rounds.next().await;
    rounds.none_within(Duration::from_secs(30)).await;
    node.on_change.parallelism = 2;
    node.reload();
    rounds.succeed().await;
    first.answer.send(Ok(())).unwrap();
    rounds.none().await;
}

#[tokio::test(start_paused = true)]
async fn hooks_that_were_removed_while_no_agent_ran_leave_no_record() {
    let mut node = Node::prepare();
    node.on_change.key_dirs = vec![node.memory().to_owned()];
    node.on_change.hooks = vec![configured(HUP), configured(USR1)];
    node.run();
    edit(&node, "0");
    node.apply(&pod("web").config_map("a", "a").build());
    until_recorded(&node, &["hup", "usr1"]).await;
    let path = record_path(&node, "web");
    node.kill().await;
    node.on_change.hooks.pop();
    node.run();
    until_recorded(&node, &["hup"]).await;
    node.kill().await;
    node.on_change.hooks.clear();
    node.run();
    node.until("web", "a", &[("f", "0")]).await;
    node.wait("the record to go", |_| (!path.exists()).then_some(()))
        .await;
}

/// The hooks of a configuration file.
fn from_file(hooks: &[&str]) -> Vec<ConfiguredHook> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.yaml");
    let lines = hooks
        .iter()
        .map(|hook| format!("- {{pods: ['*/*'], {hook}}}\n"));
    std::fs::write(&path, format!("onChange:\n{}", lines.collect::<String>())).unwrap();
    let (config, _) = Config::load(Some(&path), Flags::default(), &Host::current()).unwrap();
    config.on_change.hooks
}

/// What is known of the pod's hooks: action, attempts that have failed, time of the last success.
fn known(node: &Node) -> Vec<(String, u32, Option<jiff::Timestamp>)> {
    let hooks = node.pod("web").unwrap().on_change.into_iter();
    hooks
        .map(|hook| (hook.action, hook.attempts, hook.last_success))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn hooks_without_a_name_keep_their_records_when_one_is_inserted_before_them() {
    // Nothing runs in the pod: the first is done after one attempt, and the second one tries for ever.
    let done = "signal: SIGHUP, debounce: 0s, onFailure: Ignore";
    let retrying = "signal: SIGUSR1, debounce: 0s, retry: {min: 1h, max: 1h}";
    let mut node = Node::prepare();
    node.on_change.key_dirs = vec![node.memory().to_owned()];
    node.on_change.hooks = from_file(&[done, retrying]);
    node.run();
    edit(&node, "0");
    node.apply(&pod("web").config_map("a", "a").build());
    node.wait("both hooks", |node| {
        (node.pod("web")?.on_change.len() == 2).then_some(())
    })
    .await;
    edit(&node, "1");
    node.wait("both attempts", |node| {
        let hooks = node.pod("web")?.on_change;
        (hooks[0].last_success.is_some() && hooks[1].state == "Retrying").then_some(())
    })
    .await;
    let before = known(&node);
    node.on_change.hooks = from_file(&["signal: SIGUSR2", done, retrying]);
    node.reload();
    node.wait("three hooks", |node| {
        (node.pod("web")?.on_change.len() == 3).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(known(&node)[0], ("signal:SIGUSR2".to_owned(), 0, None));
    assert_eq!(known(&node)[1..], before);
    // The same while no agent runs.
    node.kill().await;
    node.on_change.hooks = from_file(&["signal: SIGWINCH", "signal: SIGUSR2", done, retrying]);
    node.run();
    node.wait("the attempt that was due", |node| {
        let hooks = node.pod("web")?.on_change;
        (hooks.get(3)?.state == "Retrying").then_some(())
    })
    .await;
    assert_eq!(known(&node)[2..], before);
}
