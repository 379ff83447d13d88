//! Mounts by `subPath` follow their volume in running containers of pods that ask for it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use larder_agent::{
    agent::PodDeletion,
    config::SubPathUpdates,
    status::{SubPathState, SubPathStatus},
};
use larder_apiserver::Options;
use serde_json::{Value, json};
use tokio::time::{resume, sleep};

use super::containers::{Container, MountPoints, permitted, rereads};
use crate::harness::{Node, config_map, pod};

const SIGNAL: &str = "[{name: hup, signal: SIGHUP, debounce: 0s, retry: {min: 1s, max: 1m}}]";

fn node() -> Node {
    node_with(SubPathUpdates::Annotated)
}

fn node_with(updates: SubPathUpdates) -> Node {
    let mut node = Node::prepare();
    node.sub_path_updates = updates;
    node.pod_deletion = PodDeletion::External;
    node.run();
    node.apply(&config_map("a", &[("f", "0"), ("g", "")]));
    node
}

/// A pod whose container, of the list `kind`, mounts the key `f` at `at`.
fn pod_of(name: &str, kind: &str, at: &Path, updates: Option<&str>) -> Value {
    let mut pod = pod(name)
        .config_map("a", "a")
        .annotation("larder.dev/on-change", SIGNAL)
        .build();
    if let Some(updates) = updates {
        pod["metadata"]["annotations"]["larder.dev/subpath-updates"] = json!(updates);
    }
    let mount = json!({"name": "a", "mountPath": at, "subPathExpr": "$(KEY)"});
    let env = json!([{"name": "KEY", "value": "f"}]);
    let container = json!({"name": "web", "image": "i", "env": env, "volumeMounts": [mount]});
    pod["spec"]["containers"] = json!([{"name": "other", "image": "i"}]);
    pod["spec"][kind] = json!([container]);
    pod
}

/// Creates the pod, and a container as its runtime would.
async fn started(node: &Node, pod: &Value, at: &Path) -> Container {
    started_with(node, pod, at, &rereads(at)).await
}

/// The same with this script.
async fn started_with(node: &Node, pod: &Value, at: &Path, script: &str) -> Container {
    node.apply(pod);
    let name = pod["metadata"]["name"].as_str().unwrap();
    node.until(name, "a", &[("f", "0"), ("g", "")]).await;
    let file = node.volume_path(name, "a").unwrap().join("f");
    Container::start(&[(&file, at)], script)
}

/// A script of a process that says each new content of `file`.
fn follows(file: &Path) -> String {
    let file = file.display();
    format!(
        "echo ready; old=; while :; do new=$(cat {file}); [ \"$new\" = \"$old\" ] || echo \"$new\"
        old=$new; sleep 0.05; done"
    )
}

fn mount_point(points: &MountPoints) -> PathBuf {
    let at = points.path("etc").join("app.conf");
    fs::write(&at, "").unwrap();
    at
}

async fn until_shown(node: &Node, pod: &str, is: impl Fn(&SubPathStatus) -> bool) -> SubPathStatus {
    node.wait("the status of the mount", |node| {
        let shown = node.volume(pod, "a")?.sub_paths.into_iter().next()?;
        is(&shown).then_some(shown)
    })
    .await
}

// subpath 5
// subpath 20
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hook_fires_once_when_the_running_container_can_read_the_new_file() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = mount_point(&points);
    let web = started(&node, &pod_of("web", "containers", &at, Some("true")), &at).await;
    for text in ["1", "2", "3"] {
        node.apply(&config_map("a", &[("f", text), ("g", "")]));
        web.says(text);
        let is_new = |shown: &SubPathStatus| shown.state == SubPathState::Live;
        let shown = until_shown(&node, "web", is_new).await;
        assert_eq!((&*shown.container, &*shown.reason), ("web", ""));
        assert!(shown.replaced_at.is_some() && shown.took_ms.is_some());
    }
    assert_eq!(web.said(), None);
    let metrics = node.metrics();
    let line = "subpath_replacements_total{result=\"replaced\"} 3";
    assert!(metrics.contains(line), "{metrics}");
    assert!(metrics.contains("subpath_replacements_total{result=\"not_permitted\"} 0"));
}

// subpath 24
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ephemeral_container_is_updated() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = mount_point(&points);
    let pod = pod_of("web", "ephemeralContainers", &at, Some("true"));
    let debug = started_with(&node, &pod, &at, &follows(&at)).await;
    debug.says("0");
    for text in ["1", "2"] {
        node.apply(&config_map("a", &[("f", text), ("g", "")]));
        debug.says(text);
    }
    let shown = until_shown(&node, "web", |shown| shown.state == SubPathState::Live).await;
    assert_eq!(&*shown.container, "web");
}

// subpath 6
#[tokio::test(start_paused = true)]
async fn renewed_token_is_seen() {
    if !permitted() {
        return;
    }
    let mut node = Node::prepare_with(Options::default().fill_namespaces(true));
    node.pod_deletion = PodDeletion::External;
    node.run();
    let points = MountPoints::new();
    let at = mount_point(&points);
    let source = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
    let mut web = pod("web")
        .volume("a", json!({"projected": {"sources": [source]}}))
        .annotation("larder.dev/subpath-updates", "true")
        .build();
    let mount = json!({"name": "a", "mountPath": at, "subPath": "token"});
    web["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
    node.apply(&web);
    let token = |node: &Node| fs::read_to_string(node.volume_path("web", "a")?.join("token")).ok();
    let first = node.wait("a token", token).await;
    let file = node.volume_path("web", "a").unwrap().join("token");
    let container = Container::start(&[(&file, &at)], &follows(&at));
    container.says(&first);
    sleep(Duration::from_secs(10)).await;
    // The look at the container takes its time, which is limited.
    resume();
    // By the clock the token's time passes, so it is renewed at once.
    node.set_clock_ahead(3600);
    let next = |node: &Node| token(node).filter(|token| *token != first);
    let second = node.wait("another token", next).await;
    until_shown(&node, "web", |shown| shown.replaced_at.is_some()).await;
    container.says(&second);
}

// subpath 2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_that_does_not_ask_keeps_its_content_and_the_status_says_what_would_change_it() {
    if !permitted() {
        return;
    }
    let refused = "the annotation larder.dev/subpath-updates is \"false\"";
    for (configured, updates, hint) in [
        (
            SubPathUpdates::Annotated,
            None,
            "annotate the pod with larder.dev/subpath-updates: \"true\"",
        ),
        (SubPathUpdates::Annotated, Some("false"), refused),
        (SubPathUpdates::Always, Some("false"), refused),
        (
            SubPathUpdates::Never,
            Some("true"),
            "subPathUpdates is Never in larder's configuration",
        ),
    ] {
        let (node, points) = (node_with(configured), MountPoints::new());
        let at = mount_point(&points);
        let web = started(&node, &pod_of("web", "containers", &at, updates), &at).await;
        for text in ["1", "2", "3"] {
            node.apply(&config_map("a", &[("f", text), ("g", "")]));
            // The hook fires as without larder's updates.
            web.says("0");
        }
        let shown = until_shown(&node, "web", |_| true).await;
        assert_eq!(shown.state, SubPathState::Pinned);
        assert!(shown.reason.contains(hint), "{}", shown.reason);
    }
}

// subpath 2
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_without_the_annotation_is_updated_where_the_node_always_does() {
    if !permitted() {
        return;
    }
    let (node, points) = (node_with(SubPathUpdates::Always), MountPoints::new());
    let at = mount_point(&points);
    let web = started(&node, &pod_of("web", "containers", &at, None), &at).await;
    node.apply(&config_map("a", &[("f", "1"), ("g", "")]));
    web.says("1");
    until_shown(&node, "web", |shown| shown.replaced_at.is_some()).await;
}

// subpath 23
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_pods_with_a_mount_of_one_object_are_all_updated() {
    if !permitted() {
        return;
    }
    let (node, points) = (node(), MountPoints::new());
    let at = mount_point(&points);
    let mut containers = Vec::new();
    for number in 0..100 {
        let pod = pod_of(&format!("p{number}"), "containers", &at, Some("true"));
        containers.push(started(&node, &pod, &at).await);
    }
    node.apply(&config_map("a", &[("f", "1"), ("g", "")]));
    for number in 0..100 {
        let is_new = |shown: &SubPathStatus| shown.replaced_at.is_some();
        until_shown(&node, &format!("p{number}"), is_new).await;
    }
    for container in &containers {
        container.says("1");
    }
    let metrics = node.metrics();
    let line = "subpath_replacements_total{result=\"replaced\"} 100";
    assert!(metrics.contains(line), "{metrics}");
}
