//! What every output of an agent says of a pod, in each situation that its parts can be in.

use std::{
    any::Any,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    time::Duration,
};

use axum::{body::Body, http::Request};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};
use larder_agent::{
    agent::PodDeletion,
    config::CheckpointConfig,
    status::{AgentStatus, Phase},
};
use larder_apiserver::Fault;
use larder_checkpoint::KeySource;
use larder_e2e::{
    HungFs,
    pods::PodBuilder,
    situations::{SITUATIONS, Situation, normalized_text},
};
use larder_manifests::Feed;
use serde_json::{Value, json};
use tokio::{sync::watch, time::sleep};
use tower::ServiceExt as _;

use crate::{
    disks::Disk,
    harness::{NODE, Node, UNDECODABLE, config_map, pod, secret},
    on_change::{immediate, with_hook},
};

/// Situations with a disk that hangs, which holds paused time.
const IN_REAL_TIME: [&str; 2] = [
    "a step waits for the disk",
    "a manifest is on a disk that does not answer",
];

/// Situations of a manifest that is edited.
const EDITED: [&str; 3] = [
    "the manifest of the Secret has an unknown field",
    "the manifest of the Secret cannot be read",
    "the manifest of the pod is rejected",
];

/// What keeps a node in a situation.
type Kept = Vec<Box<dyn Any>>;

/// A node in the situation of this name. Its pod `web` has the Secret `tls` in the volume `tls`, `static` is a static pod.
/// `None` where that is not permitted.
#[expect(clippy::too_many_lines, reason = "it is a table of situations")]
async fn arranged(name: &str) -> Option<(Node, Kept)> {
    let mut node = Node::prepare();
    node.pod_deletion = PodDeletion::External;
    node.apply(&secret("tls", &[("key", "old")]));
    node.apply(&web());
    let mut kept: Kept = Vec::new();
    match name {
        "the right on the Node is taken away" | "the Node cannot be decoded" => {
            let of_node =
                json!({"containerName": "main", "resource": "limits.cpu", "divisor": "1m"});
            let items = json!([{"path": "cpu", "resourceFieldRef": of_node}]);
            let info = json!({"downwardAPI": {"items": items}});
            node.apply(&with_uid(
                pod("web").secret("tls", "tls").volume("info", info),
            ));
        }
        "the right on ClusterTrustBundles is taken away" => {
            let roots = json!({"name": "roots", "optional": true, "path": "ca.pem"});
            let trust = json!({"projected": {"sources": [{"clusterTrustBundle": roots}]}});
            node.apply(&with_uid(
                pod("web").secret("tls", "tls").volume("trust", trust),
            ));
        }
        "the manifest of a static pod is rejected" => static_pod(&node, "command"),
        "the disk is full" => {
            let pods = node.path().join("pods");
            fs::create_dir(&pods).unwrap();
            kept.push(Box::new(Disk::mount(&pods)?));
        }
        "the checkpoint cannot be written" => {
            let open = node.path().join("open");
            fs::create_dir(&open).unwrap();
            fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
            let key = KeySource::File(node.memory().join("key"));
            node.checkpoint = Some(CheckpointConfig::new(vec![key]));
            node.checkpoint_dir = Some(open.join("checkpoint"));
        }
        "the copy of a checkpoint is too old by the clock"
        | "the API server is away at the start" => {
            let key = KeySource::File(node.memory().join("key"));
            node.checkpoint = Some(CheckpointConfig::new(vec![key]));
        }
        "the hook fails" => kept.push(Box::new(failing_hook(&mut node))),
        "a connection without PING is silent" => {
            node.without_ping = Some(watch::Sender::default());
        }
        _ => {}
    }
    fs::create_dir(node.path().join("manifests")).unwrap();
    let feed = if EDITED.contains(&name) {
        edit(&node, "stringData: {key: old}");
        edit_pod(&node, "command");
        Some(feed(&mut node).await)
    } else {
        None
    };
    node.run();
    if let Some(feed) = feed {
        node.handle().show_problems_of(feed.problems());
        let mut task = tokio::task::JoinSet::new();
        task.spawn(feed.run());
        kept.push(Box::new(task));
    }
    node.until("web", "tls", &[("key", "old")]).await;
    node.settled().await;
    match name {
        "delivered" | "the checkpoint cannot be written" => {}
        "the hook fails" => node.apply(&secret("tls", &[("key", "new")])),
        "a key is missing" => {
            let mut web = web();
            web["spec"]["volumes"][0]["secret"]["items"] = json!([{"key": "none", "path": "none"}]);
            // The volumes of a pod never change.
            web["metadata"]["uid"] = json!("of-web-2");
            node.apply(&web);
        }
        "the disk is full" => node.apply(&secret("tls", &[("key", &"x".repeat(300 << 10))])),
        "the copy of a checkpoint is too old by the clock" => {
            stop_for_reboot(&mut node).await;
            node.set_clock_ahead(8 * 24 * 60 * 60);
            node.run();
        }
        "the API server is away at the start" => {
            stop_for_reboot(&mut node).await;
            node.run();
        }
        "a step waits for the disk" => {
            let path = node.pod("web").unwrap().path;
            kept.push(Box::new(HungFs::mount(path.as_ref())?));
            node.apply(&secret("tls", &[("key", "new")]));
        }
        "the right on the Secret is taken away and it changes" => {
            interrupt(&node, secret_requests().status(403));
        }
        "the credentials are refused for Secrets" => {
            interrupt(&node, Fault::on_any().resource("secrets").status(401));
        }
        "the watch of one object fails" => interrupt(&node, secret_requests().status(500)),
        "the server accepts requests for the Secret and is silent" => {
            interrupt(&node, secret_requests().never_answer());
        }
        "a connection without PING is silent" => {
            silence(&node, true);
            node.apply(&secret("tls", &[("key", "new")]));
        }
        "outage" => interrupt(&node, Fault::on_any().drop_connection()),
        "the right on Services is taken away" => {
            interrupt(&node, Fault::on_any().resource("services").status(403));
        }
        "the right on the Node is taken away" => {
            interrupt(&node, Fault::on_any().resource("nodes").status(403));
        }
        "the right on ClusterTrustBundles is taken away" => {
            let requests = Fault::on_any().resource("clustertrustbundles");
            interrupt(&node, requests.status(403));
        }
        "a Service cannot be decoded" => node.apply(&service(UNDECODABLE)),
        "the Node cannot be decoded" => node.apply(&node_object(UNDECODABLE)),
        "the right on the pods is taken away" => {
            interrupt(&node, Fault::on_any().resource("pods").status(403));
        }
        "the hook is not valid" => annotate(&node, "larder.dev/on-change", "signal:SIGNOPE main"),
        "an annotation is misspelled" => annotate(&node, "larder.dev/on-chnage", "signal:HUP"),
        "another pod states its UID" => {
            let mut thief = pod("aaa").secret("tls", "tls").build();
            thief["metadata"]["uid"] = json!("of-web");
            node.apply(&thief);
        }
        "a static pod has an unknown field" => {
            let mut other = pod("other").build();
            other["metadata"]["uid"] = json!("of-other");
            other["spec"]["comand"] = json!(["x"]);
            node.static_pod(other);
        }
        "the manifest of a static pod is rejected" => static_pod(&node, "comand"),
        "the manifest of the pod is rejected" => edit_pod(&node, "comand"),
        "a manifest has an unknown field" => {
            let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\nstringDat: {k: v}\n";
            kept.push(fed(&node, "tls.yaml", text).await);
        }
        "the manifest of the Secret has an unknown field" => edit(&node, "stringDat: {key: new}"),
        "the manifest of the Secret cannot be read" => edit(&node, "stringData: {key: 'new}"),
        "a document is rejected" => {
            let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\ndata: {k: '?'}\n";
            kept.push(fed(&node, "tls.yaml", text).await);
        }
        "a manifest is on a disk that does not answer" => {
            let disk = tempfile::tempdir().unwrap();
            kept.push(Box::new(HungFs::mount(disk.path())?));
            let link = node.path().join("manifests/linked.yaml");
            symlink(disk.path().join("linked.yaml"), link).unwrap();
            kept.push(Box::new(disk));
            let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: other}\n";
            kept.push(fed(&node, "tls.yaml", text).await);
        }
        other => panic!("nobody arranges {other:?}"),
    }
    Some((node, kept))
}

/// Stops the node. After a reboot it has its checkpoint and no API server.
async fn stop_for_reboot(node: &mut Node) {
    // The changes of a second share a write.
    sleep(Duration::from_secs(5)).await;
    node.stop().await;
    larder_e2e::reboot(node.path());
    fs::create_dir_all(node.path().join("manifests")).unwrap();
    node.server.faults().inject(Fault::on_any().status(503));
}

/// A hook of the node, every round of which fails. It fails as long as the value lives.
fn failing_hook(node: &mut Node) -> impl Any + use<> {
    let mut rounds = with_hook(node, immediate());
    let mut task = tokio::task::JoinSet::new();
    task.spawn(async move {
        loop {
            let round = rounds.next().await;
            // Its agent may have ended.
            let _ = round.answer.send(Err("the application says no".to_owned()));
        }
    });
    task
}

/// Writes the manifest of the Secret, with this line.
fn edit(node: &Node, line: &str) {
    let text = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: tls}}\n{line}\n");
    fs::write(node.path().join("manifests/tls.yaml"), text).unwrap();
}

/// Writes the manifest of the pod, whose container has this field.
fn edit_pod(node: &Node, field: &str) {
    let mut web = web();
    web["spec"]["containers"][0][field] = json!(["x"]);
    fs::write(node.path().join("manifests/web.json"), web.to_string()).unwrap();
}

/// Writes the manifest of the static pod, whose container has this field.
fn static_pod(node: &Node, field: &str) {
    let mut pod = pod("static").build();
    pod["metadata"]["uid"] = json!("of-static");
    pod["spec"]["containers"][0][field] = json!(["x"]);
    node.static_pod(pod);
}

/// Whether nothing comes over connections without PING.
fn silence(node: &Node, is_silent: bool) {
    if let Some(silent) = &node.without_ping {
        silent.send_replace(is_silent);
    }
}

/// Ends the situation. What it held up is done.
fn mend(node: &Node, name: &str) {
    node.server.faults().clear();
    silence(node, false);
    if EDITED.contains(&name) {
        edit(node, "stringData: {key: new}");
        edit_pod(node, "command");
    } else {
        node.apply(&secret("tls", &[("key", "new")]));
    }
    match name {
        "the manifest of a static pod is rejected" => static_pod(node, "command"),
        "a Service cannot be decoded" => node.apply(&service("text")),
        "the Node cannot be decoded" => node.apply(&node_object("text")),
        _ => {}
    }
}

/// What fills the API server of the node from its manifests. Its agent does not run yet.
async fn feed(node: &mut Node) -> Feed {
    let manifests = node.path().join("manifests");
    let feed = Feed::open(&manifests, node.server.clone(), None, None);
    let feed = feed.await.unwrap();
    node.manifests = Some((feed.hidden_objects(), feed.kept_objects()));
    feed
}

/// Follows the manifests of the node, of which one has this text.
async fn fed(node: &Node, file: &str, text: &str) -> Box<dyn Any> {
    let manifests = node.path().join("manifests");
    fs::write(manifests.join(file), text).unwrap();
    let feed = Feed::open(&manifests, node.server.clone(), None, None);
    let feed = feed.await.unwrap();
    node.handle().show_problems_of(feed.problems());
    node.handle().show_waits_of(feed.waits());
    Box::new(feed)
}

fn annotate(node: &Node, key: &str, text: &str) {
    let mut web = web();
    web["metadata"]["annotations"] = json!({key: text});
    node.apply(&web);
}

fn web() -> Value {
    with_uid(pod("web").secret("tls", "tls"))
}

/// The Service `db`, with an annotation of this text.
fn service(text: &str) -> Value {
    let metadata = json!({"namespace": "default", "name": "db", "annotations": {"a": text}});
    let spec = json!({"clusterIP": "10.0.0.9", "ports": [{"port": 80}]});
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

/// The Node of the agent, with an annotation of this text.
fn node_object(text: &str) -> Value {
    let metadata = json!({"name": NODE, "annotations": {"a": text}});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
}

fn with_uid(web: PodBuilder) -> Value {
    web.set("/metadata/uid", json!("of-web")).build()
}

fn secret_requests() -> Fault {
    Fault::on_any().resource("secrets").name("tls")
}

/// Requests have this fault from now on, no watch stays open, and the Secret changes.
fn interrupt(node: &Node, fault: Fault) {
    node.server.faults().inject(fault);
    node.server.faults().cut_watches();
    node.apply(&secret("tls", &[("key", "new")]));
}

async fn answer(node: &Node, path: &str) -> (u16, Vec<u8>) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = node.http_api().oneshot(request).await.unwrap();
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap();
    (status, body.to_bytes().to_vec())
}

/// The value of a metric with this name and these labels.
fn metric(metrics: &str, name: &str) -> usize {
    let mut lines = metrics.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("no {name} in {metrics}"));
    value.parse().unwrap()
}

async fn has_event(node: &Node, reason: &str) -> bool {
    let client = Client::new(node.server.service(), "default");
    let events: Api<Event> = Api::default_namespaced(client);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
    reasons.any(|found| found == reason)
}

/// The directories of a node: root directory, static pods, memory.
fn directories(node: &Node) -> [String; 3] {
    [node.path(), node.static_pods.path(), node.memory()].map(|path| path.display().to_string())
}

fn places([root, static_pods, memory]: &[String; 3]) -> [(&str, &'static str); 3] {
    [
        (root, "/root-dir"),
        (static_pods, "/static-pods"),
        (memory, "/memory"),
    ]
}

/// Whether the agent is in the situation: a problem may come last, since a pod with an invalid hook is delivered before and
/// after.
fn is_in(node: &Node, situation: &Situation) -> Option<()> {
    let directories = directories(node);
    let status = node.status();
    let web = status.pods.iter().find(|pod| pod.name == situation.pod)?;
    let Situation { hook, problem, .. } = situation;
    let has_phase = web.delivery.phase.as_str() == situation.phase;
    let has_hook = match web.on_change.first() {
        Some(found) => {
            let text = format!("{} {}", found.place, found.reason);
            found.state == hook[0] && text.contains(hook[1])
        }
        None => hook[0].is_empty(),
    };
    let mut problems = status.problems.iter();
    let has_problem = problem.is_empty()
        || problems.any(|found| normalized_text(found, &places(&directories)).starts_with(problem));
    let reason = normalized_text(&web.delivery.reason, &places(&directories));
    let is_said = reason.contains(situation.reason);
    (has_phase && has_hook && has_problem && is_said).then_some(())
}

async fn check(situation: Situation) {
    let name = situation.name;
    let Some((mut node, kept)) = arranged(name).await else {
        return;
    };
    let directories = directories(&node);
    if !IN_REAL_TIME.contains(&name) {
        // Most situations take a while, in which there is nothing to look at.
        sleep(Duration::from_mins(1)).await;
    }
    node.wait(name, |node| is_in(node, &situation)).await;
    let differs = |node: &Node| {
        let status = serde_json::to_value(node.status()).unwrap();
        situation.difference(status, &places(&directories))
    };
    // It may come in steps.
    let mut patience = 0..1500;
    while let Some(difference) = differs(&node) {
        assert!(patience.next().is_some(), "{difference}");
        sleep(Duration::from_millis(2)).await;
    }
    check_outputs(&node, &situation).await;

    let mut patience = 0..600;
    while !situation.event.is_empty() && !has_event(&node, situation.event).await {
        assert!(
            patience.next().is_some(),
            "{name}: no event {}",
            situation.event
        );
        sleep(Duration::from_millis(100)).await;
    }
    if situation.phase == "Stale" {
        mend(&node, name);
        check_recovery(&node, situation.pod).await;
    }
    drop(kept);
    node.stop().await;
}

/// Holds document, metrics and health to the situation.
async fn check_outputs(node: &Node, situation: &Situation) {
    let name = situation.name;
    let directories = directories(node);
    let (code, text) = answer(node, "/status").await;
    assert_eq!(code, 200, "{name}");
    let status: AgentStatus = serde_json::from_slice(&text).unwrap();
    let web = status
        .pods
        .iter()
        .find(|pod| pod.name == situation.pod)
        .unwrap();
    let phase = web.delivery.phase;
    let parts = web.volumes.iter().map(|volume| volume.delivery.phase);
    let parts = parts.chain(web.containers.iter().map(|one| one.delivery.phase));
    assert_eq!(parts.max(), Some(phase), "{name}");
    assert_eq!(phase.as_str(), situation.phase, "{name}");
    let overview = node.handle().overview();
    let mut pods = overview.pods.iter();
    let shown = pods.find(|pod| pod.key.name == situation.pod).unwrap();
    assert_eq!(shown.delivery, web.delivery, "{name}");

    let metrics = node.metrics();
    let problems = metric(&metrics, "problems");
    assert_eq!(problems, status.problems.len(), "{name}: {metrics}");
    assert_eq!(problems, status.problem_kinds.len(), "{name}");
    assert_eq!(
        problems > 0,
        !situation.problem.is_empty(),
        "{name}: {:?}",
        status.problems
    );
    for phase in Phase::ALL {
        let pods = metric(&metrics, &format!("pods{{phase=\"{}\"}}", phase.as_str()));
        let shown = status.pods.iter().filter(|pod| pod.delivery.phase == phase);
        assert_eq!(pods, shown.count(), "{name}: {}", phase.as_str());
    }
    let hooks = metric(&metrics, "on_change_invalid") + metric(&metrics, "on_change_last_failed");
    assert_eq!(
        hooks > 0,
        !situation.hook[0].is_empty(),
        "{name}: {metrics}"
    );

    // A restart would mend none of it, and would lose what is known.
    let (code, health) = answer(node, "/healthz").await;
    let health = String::from_utf8(health).unwrap();
    let health = normalized_text(&health, &places(&directories));
    assert_eq!(code, 200, "{name}: {health}");
    if situation.waiting.is_empty() {
        assert_eq!(health, "ok\n", "{name}");
    } else {
        let line = format!("ok\nwaiting: {}", situation.waiting);
        assert!(health.starts_with(&line), "{name}: {health}");
        assert_eq!(health.lines().count(), 2, "{name}: {health}");
    }
    let ready = if status.silent_sources.is_empty() {
        200
    } else {
        503
    };
    assert_eq!(answer(node, "/readyz").await.0, ready, "{name}");
}

/// What is there stays readable, and is current again when the situation is over.
async fn check_recovery(node: &Node, pod: &str) {
    sleep(Duration::from_mins(2)).await;
    node.until("web", "tls", &[("key", "new")]).await;
    node.wait("fresh", |node| {
        let is_fresh = node.pod(pod)?.delivery.phase == Phase::Delivered;
        (is_fresh && node.status().problems.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_output_says_the_same_in_every_situation() {
    let is_here = |one: &Situation| {
        !IN_REAL_TIME.contains(&one.name) && !one.name.starts_with("beside a kubelet")
    };
    for situation in SITUATIONS.into_iter().filter(is_here) {
        check(situation).await;
    }
}

#[tokio::test]
async fn every_output_says_what_a_disk_holds_up() {
    for name in IN_REAL_TIME {
        check(Situation::named(name)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_of_the_stream_is_told_of_stale_parts() {
    let node = Node::start();
    node.apply(&config_map("app", &[("k", "v")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("k", "v")]).await;
    node.settled().await;
    let mut changes = node.handle().pod_changes();
    for (fault, phase) in [(true, Phase::Stale), (false, Phase::Delivered)] {
        changes.borrow_and_update();
        if fault {
            let denied = Fault::on_any().resource("configmaps").name("app");
            node.server.faults().inject(denied.status(403));
            node.server.faults().cut_watches();
        } else {
            node.server.faults().clear();
        }
        while node.pod("web").unwrap().delivery.phase != phase {
            let next = tokio::time::timeout(Duration::from_mins(10), changes.changed()).await;
            next.expect("the change is published").unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_are_cut_and_opened_again_make_nothing_stale() {
    let node = Node::start();
    node.apply(&config_map("app", &[("k", "v")]));
    node.apply(&pod("web").config_map("cfg", "app").build());
    node.until("web", "cfg", &[("k", "v")]).await;
    node.settled().await;
    for _ in 0..20 {
        node.server.faults().cut_watches();
        for _ in 0..20 {
            sleep(Duration::from_millis(50)).await;
            let web = node.pod("web").unwrap();
            assert_eq!(
                web.delivery.phase,
                Phase::Delivered,
                "{}",
                web.delivery.reason
            );
        }
    }
}
