//! What every output says of a pod, in each situation that its parts can be in.

use std::time::Duration;

use axum::{body::Body, http::Request};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};
use larder_agent::{
    agent::PodDeletion,
    status::{AgentStatus, Phase},
};
use larder_apiserver::Fault;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::ServiceExt as _;

use crate::harness::{Node, config_map, pod, secret};

/// A situation, and what the outputs say of the pod `web`, which has a Secret in the volume `tls`.
#[derive(Clone, Copy)]
struct Situation {
    name: &'static str,
    /// Brings it about.
    arrange: fn(&Node),
    phase: Phase,
    /// In the reason of the pod.
    reason: &'static str,
    /// In the problems; empty if there is none.
    problem: &'static str,
    /// The reason of an event; empty if there is none, or the API server would not take it.
    event: &'static str,
}

const SITUATIONS: [Situation; 10] = [
    Situation {
        name: "delivered",
        arrange: |_| {},
        phase: Phase::Delivered,
        reason: "",
        problem: "",
        event: "",
    },
    Situation {
        name: "a key is missing",
        arrange: |node| {
            let item = json!({"key": "none", "path": "none"});
            let volume = json!({"secret": {"secretName": "tls", "items": [item]}});
            node.apply(&pod("web").volume("tls", volume).build());
        },
        phase: Phase::Failing,
        reason: "references non-existent secret key: none",
        problem: "",
        event: "FailedMount",
    },
    Situation {
        name: "the right on the Secret is taken away, and it changes",
        arrange: |node| interrupt(node, secret_requests().status(403)),
        phase: Phase::Stale,
        reason: "volume tls: secret tls: ",
        problem: "secret default/tls may have changed unnoticed since ",
        event: "ContentMayBeStale",
    },
    Situation {
        name: "the credentials are refused for Secrets",
        arrange: |node| interrupt(node, Fault::on_any().resource("secrets").status(401)),
        phase: Phase::Stale,
        reason: "volume tls: secret tls: ",
        problem: "secret default/tls may have changed unnoticed since ",
        event: "ContentMayBeStale",
    },
    Situation {
        name: "the watch of one object fails",
        arrange: |node| interrupt(node, secret_requests().status(500)),
        phase: Phase::Stale,
        reason: "volume tls: secret tls: ",
        problem: "secret default/tls may have changed unnoticed since ",
        event: "ContentMayBeStale",
    },
    Situation {
        name: "the server accepts requests for the Secret and is silent",
        arrange: |node| interrupt(node, secret_requests().never_answer()),
        phase: Phase::Stale,
        reason: "volume tls: secret tls: ",
        problem: "secret default/tls may have changed unnoticed since ",
        event: "ContentMayBeStale",
    },
    Situation {
        name: "outage",
        arrange: |node| interrupt(node, Fault::on_any().drop_connection()),
        phase: Phase::Stale,
        reason: "volume tls: secret tls: ",
        problem: "secret default/tls may have changed unnoticed since ",
        event: "",
    },
    Situation {
        name: "the hook is not valid",
        arrange: |node| {
            let mut web = web();
            web["metadata"]["annotations"] = json!({"larder.dev/on-change": "signal:SIGNOPE main"});
            node.apply(&web);
        },
        phase: Phase::Delivered,
        reason: "",
        problem: "pod default/web: larder.dev/on-change: ",
        event: "InvalidOnChange",
    },
    Situation {
        name: "an annotation is misspelled",
        arrange: |node| {
            let mut web = web();
            web["metadata"]["annotations"] = json!({"larder.dev/on-chnage": "signal:HUP"});
            node.apply(&web);
        },
        phase: Phase::Delivered,
        reason: "",
        problem: "pod default/web: annotation larder.dev/on-chnage: ",
        event: "",
    },
    Situation {
        name: "another pod states its UID",
        arrange: |node| {
            let mut thief = pod("aaa").secret("tls", "tls").build();
            thief["metadata"]["uid"] = json!("of-web");
            node.apply(&thief);
        },
        phase: Phase::Delivered,
        reason: "",
        problem: "ignoring pod aaa_default",
        event: "FailedValidation",
    },
];

fn web() -> Value {
    let mut web = pod("web").secret("tls", "tls").build();
    web["metadata"]["uid"] = json!("of-web");
    web
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

async fn check(situation: Situation) {
    let Situation { name, phase, .. } = situation;
    let mut node = Node::prepare();
    node.pod_deletion = PodDeletion::External;
    node.apply(&secret("tls", &[("key", "old")]));
    node.apply(&web());
    node.run();
    node.until("web", "tls", &[("key", "old")]).await;
    node.settled().await;
    (situation.arrange)(&node);
    // A problem comes last: a pod with an invalid hook is delivered before and after.
    node.wait(name, |node| {
        let pod = node.pod("web")?;
        let problems = node.status().problems;
        let has_problem = |problem: &String| problem.starts_with(situation.problem);
        let is_said = situation.problem.is_empty() || problems.iter().any(has_problem);
        let is_there =
            pod.delivery.phase == phase && pod.delivery.reason.contains(situation.reason);
        (is_there && is_said).then_some(())
    })
    .await;

    // The document is what the handle says, and the parts agree with the pod.
    let (code, text) = answer(&node, "/status").await;
    assert_eq!(code, 200, "{name}");
    let status: AgentStatus = serde_json::from_slice(&text).unwrap();
    let web = status.pods.iter().find(|pod| pod.name == "web").unwrap();
    let parts = web.volumes.iter().map(|volume| volume.delivery.phase);
    let parts = parts.chain(web.containers.iter().map(|one| one.delivery.phase));
    assert_eq!(parts.max(), Some(phase), "{name}");
    assert_eq!(web.delivery.phase, phase, "{name}");
    let overview = node.handle().overview();
    let web = overview
        .pods
        .iter()
        .find(|pod| pod.key.name == "web")
        .unwrap();
    assert_eq!(web.delivery.phase, phase, "{name}");

    // So do the metrics.
    let metrics = node.metrics();
    let problems = metric(&metrics, "problems");
    assert_eq!(
        problems,
        status.problems.len(),
        "{name}: {:?}",
        status.problems
    );
    assert_eq!(
        problems > 0,
        !situation.problem.is_empty(),
        "{name}: {:?}",
        status.problems
    );
    for other in Phase::ALL {
        let pods = metric(&metrics, &format!("pods{{phase=\"{}\"}}", other.as_str()));
        assert_eq!(
            pods,
            usize::from(other == phase),
            "{name}: {}",
            other.as_str()
        );
    }
    // A restart would mend none of it, and would lose what is known.
    assert_eq!(answer(&node, "/healthz").await.0, 200, "{name}");
    assert_eq!(answer(&node, "/readyz").await.0, 200, "{name}");

    let mut patience = 0..600;
    while !situation.event.is_empty() && !has_event(&node, situation.event).await {
        assert!(
            patience.next().is_some(),
            "{name}: no event {}",
            situation.event
        );
        sleep(Duration::from_millis(100)).await;
    }
    if phase == Phase::Stale {
        // What is there stays readable.
        node.until("web", "tls", &[("key", "old")]).await;
        node.server.faults().clear();
        node.until("web", "tls", &[("key", "new")]).await;
        node.wait("fresh", |node| {
            let is_fresh = node.pod("web")?.delivery.phase == Phase::Delivered;
            (is_fresh && node.status().problems.is_empty()).then_some(())
        })
        .await;
    }
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_output_says_the_same_in_every_situation() {
    for situation in SITUATIONS {
        check(situation).await;
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
