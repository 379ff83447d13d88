//! Signals and restarts reach the processes of the pod's containers and no others (rules G1 to G8, R2 to R5).

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use larder_agent::agent::PodDeletion;
use serde_json::{Value, json};

use super::{
    containers::{Container, MountPoints, permitted, rereads},
    harness::until_state_of,
    writing::until_message,
};
use crate::harness::{Node, config_map, pod};

const ANNOTATION: &str = "larder.dev/on-change";
/// Fires at once.
const SIGNAL: &str = "[{name: hup, signal: SIGHUP, debounce: 0s, retry: {min: 1s, max: 1m}}]";

fn node() -> Node {
    let mut node = Node::prepare();
    node.pod_deletion = PodDeletion::External;
    node.run();
    node.apply(&config_map("a", &[("f", "0")]));
    node
}

fn edit(node: &Node, text: &str) {
    node.apply(&config_map("a", &[("f", text)]));
}

/// A container of a pod that mounts the volume `a` at `path`.
fn container(name: &str, path: &Path) -> Value {
    json!({"name": name, "image": "i", "volumeMounts": [{"name": "a", "mountPath": path}]})
}

/// A pod with the volume `a`, these containers, and this annotation.
fn pod_of(name: &str, containers: &[Value], annotation: &str) -> Value {
    let mut pod = pod(name)
        .config_map("a", "a")
        .annotation(ANNOTATION, annotation)
        .build();
    pod["spec"]["containers"] = json!(containers);
    pod
}

/// Creates the pod and waits for its volume; its directory.
async fn created(node: &Node, pod: &Value) -> PathBuf {
    node.apply(pod);
    let name = pod["metadata"]["name"].as_str().unwrap();
    node.until(name, "a", &[("f", "0")]).await;
    node.wait("the hooks", |node| {
        (!node.pod(name)?.on_change.is_empty()).then_some(())
    })
    .await;
    node.volume_path(name, "a").unwrap()
}

/// Waits until a hook of the pod has succeeded since the last look.
async fn until_notified(node: &Node, pod: &str, text: &str) {
    node.until(pod, "a", &[("f", text)]).await;
    until_state_of(node, pod, "Idle").await;
}

// on-change 35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_reaches_the_container_and_not_the_shell_beside_it() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let volume = created(&node, &pod_of("web", &[container("web", &at)], SIGNAL)).await;
    let web = Container::start(&[(&volume, &at)], &rereads(&at.join("f")));
    // One that sees the volume where no container of the pod has it, and one without it.
    let elsewhere = points.path("elsewhere");
    let other = Container::start(&[(&volume, &elsewhere)], &rereads(&elsewhere.join("f")));
    let shell = Container::start(&[], &rereads(&volume.join("f")));
    for text in ["1", "2", "3"] {
        edit(&node, text);
        web.says(text);
        until_notified(&node, "web", text).await;
    }
    assert_eq!((other.said(), shell.said()), (None, None));
    let metrics = node.metrics();
    let line = "on_change_runs_total{action=\"signal\",outcome=\"succeeded\"} 3";
    assert!(metrics.contains(line), "{metrics}");
}

// on-change 13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hook_of_one_pod_reaches_only_its_own_processes() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let mine = created(&node, &pod_of("mine", &[container("web", &at)], SIGNAL)).await;
    let mut theirs = pod_of("theirs", &[container("web", &at)], SIGNAL);
    theirs["metadata"]["annotations"] = json!({});
    node.apply(&theirs);
    node.until("theirs", "a", &[("f", "0")]).await;
    let theirs = node.volume_path("theirs", "a").unwrap();
    let (mine, theirs) = (
        Container::start(&[(&mine, &at)], &rereads(&at.join("f"))),
        Container::start(&[(&theirs, &at)], &rereads(&at.join("f"))),
    );
    edit(&node, "1");
    mine.says("1");
    until_notified(&node, "mine", "1").await;
    node.until("theirs", "a", &[("f", "1")]).await;
    assert_eq!(theirs.said(), None);
}

// on-change 36
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_process_gets_the_signal_instead_of_the_main_one() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let hook =
        "[{signal: {name: SIGHUP, process: nginx}, debounce: 0s, retry: {min: 1s, max: 1m}}]";
    let volume = created(&node, &pod_of("web", &[container("web", &at)], hook)).await;
    // The wrapper would say so if it got the signal. Its child is a copy of the shell under the name of the server.
    let nginx = points.path("bin").join("nginx");
    // Not by this process: a child that another test forks meanwhile would keep the file open for writing.
    let copied = Command::new("cp")
        .args([Path::new("/bin/bash"), &nginx])
        .status();
    assert!(copied.unwrap().success());
    let child = points.path("bin").join("child");
    std::fs::write(&child, rereads(&at.join("f"))).unwrap();
    let script = format!(
        "trap 'echo wrapper' HUP; {} {} & wait; wait",
        nginx.display(),
        child.display()
    );
    let web = Container::start(&[(&volume, &at)], &script);
    edit(&node, "1");
    web.says("1");
    until_notified(&node, "web", "1").await;
    assert_eq!(web.said(), None);
}

// on-change 37
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_without_a_handler_is_not_killed() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let hook = "[{signal: SIGHUP, debounce: 0s, timeout: 300ms, retry: {min: 1h, max: 1h}}]";
    let volume = created(&node, &pod_of("web", &[container("web", &at)], hook)).await;
    // It sets its handler on request.
    let go = points.path("go").join("go");
    let script = format!(
        "echo ready; until [ -e '{}' ]; do sleep 0.05; done; echo going; {}",
        go.display(),
        rereads(&at.join("f"))
    );
    let web = Container::start(&[(&volume, &at)], &script);
    edit(&node, "1");
    let reason = node
        .wait("the failure", |node| {
            let hook = node.pod("web")?.on_change.remove(0);
            (hook.state == "Retrying").then_some(hook.reason)
        })
        .await;
    assert!(
        reason.starts_with("process ") && reason.ends_with(" does not handle SIGHUP"),
        "{reason}"
    );
    std::fs::write(&go, "").unwrap();
    web.says("going");
    web.says("ready");
    edit(&node, "2");
    web.says("2");
    until_notified(&node, "web", "2").await;
}

// on-change 37
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signal_waits_for_a_handler_that_comes_within_the_timeout() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let volume = created(&node, &pod_of("web", &[container("web", &at)], SIGNAL)).await;
    let go = points.path("go").join("go");
    let script = format!(
        "echo ready; until [ -e '{}' ]; do sleep 0.05; done; {}",
        go.display(),
        rereads(&at.join("f"))
    );
    let web = Container::start(&[(&volume, &at)], &script);
    edit(&node, "1");
    until_state_of(&node, "web", "Running").await;
    std::fs::write(&go, "").unwrap();
    web.says("ready");
    web.says("1");
    until_notified(&node, "web", "1").await;
}

// on-change 39
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_that_started_after_the_swap_is_skipped() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let volume = created(&node, &pod_of("web", &[container("web", &at)], SIGNAL)).await;
    edit(&node, "1");
    // Nothing runs yet, so attempts fail. The pause before the second one exceeds a clock tick, in which starts are
    // counted.
    node.wait("a failure", |node| {
        let hook = node.pod("web")?.on_change.remove(0);
        (hook.reason == "no process of container web" && hook.attempts >= 2).then_some(())
    })
    .await;
    let web = Container::start(&[(&volume, &at)], &rereads(&at.join("f")));
    until_state_of(&node, "web", "Idle").await;
    assert_eq!(web.said(), None);
    let metrics = node.metrics();
    let line = "on_change_runs_total{action=\"signal\",outcome=\"skipped\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

// on-change 40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_with_the_same_mounts_are_signaled_together_or_not_at_all() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let containers = [container("a", &at), container("b", &at)];
    let volume = created(&node, &pod_of("both", &containers, SIGNAL)).await;
    let start = || Container::start(&[(&volume, &at)], &rereads(&at.join("f")));
    let (one, two) = (start(), start());
    edit(&node, "1");
    one.says("1");
    two.says("1");
    until_notified(&node, "both", "1").await;
    // With the container named, the two cannot be distinguished.
    let named = "[{signal: SIGHUP, container: a, debounce: 0s}]";
    node.apply(&pod_of("both", &containers, named));
    node.wait("the new hook", |node| {
        let hooks = node.pod("both")?.on_change;
        (hooks.len() == 1 && hooks[0].name == "0-signal").then_some(())
    })
    .await;
    edit(&node, "2");
    node.wait("the error", |node| {
        let hook = node.pod("both")?.on_change.remove(0);
        (hook.reason == "containers a and b have identical mounts; remove `container`")
            .then_some(())
    })
    .await;
    assert_eq!((one.said(), two.said()), (None, None));
}

// on-change 54
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_ends_the_container_and_the_next_one_starts_with_the_new_variables() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let hook = "[{restart: {signal: SIGTERM, grace: 1h}, debounce: 0s, retry: {min: 1s, max: 1m}}]";
    let mut web = container("web", &at);
    web["envFrom"] = json!([{"configMapRef": {"name": "env"}}]);
    node.apply(&config_map("env", &[("LEVEL", "1")]));
    let volume = created(&node, &pod_of("web", &[web], hook)).await;
    let variables = PathBuf::from(node.pod("web").unwrap().path).join("containers/web");
    node.wait("the variables", |_| {
        variables.join("env.json").exists().then_some(())
    })
    .await;
    let env = points.path("env");
    // Says what the variables of its successor are when it is asked to end.
    let script = format!(
        "trap 'cat {}/env.json; echo; exit 0' TERM; echo ready; while :; do sleep 1000 & wait $! || :; done",
        env.display()
    );
    let mut first = Container::start(&[(&volume, &at), (&variables, &env)], &script);
    node.apply(&config_map("env", &[("LEVEL", "2")]));
    first.says("{\"LEVEL\":\"2\"}");
    first.ended();
    until_state_of(&node, "web", "Idle").await;
    let message = "container web: variable LEVEL changed";
    until_message(&node, "RestartedOnChange", message).await;
}

// on-change 54
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn container_that_does_not_end_is_killed_after_the_grace_period() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let hook =
        "[{restart: {signal: SIGTERM, grace: 50ms}, debounce: 0s, retry: {min: 1s, max: 1m}}]";
    let volume = created(&node, &pod_of("web", &[container("web", &at)], hook)).await;
    let script = "trap '' TERM; echo ready; while :; do sleep 1000 & wait $! || :; done";
    let mut web = Container::start(&[(&volume, &at)], script);
    edit(&node, "1");
    web.ended();
    until_notified(&node, "web", "1").await;
}

// on-change 33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_hook_restarts_the_container_in_the_end() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    // Nothing listens on the port, and the pod has no address.
    let hook = "[{http: 9/-/reload, onFailure: Restart, debounce: 0s, retry: {min: 1s, max: 1m, attempts: 2}}]";
    let volume = created(&node, &pod_of("web", &[container("web", &at)], hook)).await;
    let script =
        "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 1000 & wait $! || :; done";
    let mut web = Container::start(&[(&volume, &at)], script);
    edit(&node, "1");
    web.says("term");
    web.ended();
    until_notified(&node, "web", "1").await;
}

// on-change 55
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixth_restart_within_ten_minutes_waits_and_says_so() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = points.path("config");
    let hook = "[{restart: true, debounce: 0s, retry: {min: 1s, max: 1m}}]";
    let volume = created(&node, &pod_of("web", &[container("web", &at)], hook)).await;
    let script =
        "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 1000 & wait $! || :; done";
    for restart in 1..=5 {
        let mut web = Container::start(&[(&volume, &at)], script);
        edit(&node, &restart.to_string());
        web.says("term");
        web.ended();
        until_notified(&node, "web", &restart.to_string()).await;
    }
    let web = Container::start(&[(&volume, &at)], script);
    edit(&node, "6");
    let reason = node
        .wait("the limit", |node| {
            let hook = node.pod("web")?.on_change.remove(0);
            (hook.state == "Waiting" && !hook.reason.is_empty()).then_some(hook.reason)
        })
        .await;
    let expected = "container web was restarted 5 times within 10 min, waiting until ";
    assert!(reason.starts_with(expected), "{reason}");
    node.until("web", "a", &[("f", "6")]).await;
    assert_eq!(web.said(), None);
}
