//! Events about what cannot be delivered.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};
use larder_agent::{agent::PodDeletion, status::Phase};
use larder_apiserver::{Fault, Options};
use larder_e2e::NodeAuthorizer;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::harness::{NODE, Node, config_map, pod, secret};

/// A node whose pods others run, at an API server that is strict to nodes.
fn node() -> Node {
    let mut node = Node::prepare_with(Options::default().authorization(NodeAuthorizer));
    node.pod_deletion = PodDeletion::External;
    node.run();
    node
}

/// The event with this reason, once it counts so much.
async fn event(node: &Node, reason: &str, count: i32) -> Event {
    let events: Api<Event> = Api::default_namespaced(Client::new(node.server.service(), "default"));
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let found = events.list(&ListParams::default()).await.unwrap().items;
        let is_wanted =
            |event: &&Event| event.reason.as_deref() == Some(reason) && event.count >= Some(count);
        if let Some(event) = found.iter().find(is_wanted) {
            return event.clone();
        }
        assert!(
            Instant::now() < deadline,
            "no {reason} times {count} but {found:#?}; the agent says {:#?}",
            node.status()
        );
        sleep(Duration::from_millis(10)).await;
    }
}

// Attack: a manifest states the UID of a pod that is served.
#[tokio::test]
async fn stolen_uid_is_an_event_and_a_reason_in_status() {
    let node = node();
    node.apply(&config_map("app", &[("a", "1")]));
    let mut victim = pod("prod").config_map("cfg", "app").build();
    victim["metadata"]["uid"] = json!("of-prod");
    node.apply(&victim);
    node.until("prod", "cfg", &[("a", "1")]).await;
    let mut thief = pod("aaa").config_map("cfg", "app").build();
    thief["metadata"]["uid"] = json!("of-prod");
    node.apply(&thief);

    let reason = "ignoring pod aaa_default of source api: pod prod_default of source api already has its UID";
    let posted = event(&node, "FailedValidation", 1).await;
    assert_eq!(posted.message.as_deref(), Some(reason));
    assert_eq!(posted.type_.as_deref(), Some("Warning"));
    assert_eq!(posted.involved_object.name.as_deref(), Some("aaa"));
    assert_eq!(node.status().problems, [reason]);
    assert!(node.pod("aaa").is_none());
    node.until("prod", "cfg", &[("a", "1")]).await;
}

#[tokio::test(start_paused = true)]
async fn failed_delivery_is_reported_in_the_kubelets_words() {
    let mut node = node();
    node.apply(&secret("login", &[("password", "hunter2")]));
    let key = json!({"name": "P", "valueFrom": {"secretKeyRef": {"name": "login", "key": "none"}}});
    let web = pod("web").config_map("cfg", "missing").env(key);
    node.apply(&web.build());
    let uid = node
        .wait("the pod", |node| Some(node.pod("web")?.uid))
        .await;

    let mount = event(&node, "FailedMount", 3).await;
    let message = r#"MountVolume.SetUp failed for volume "cfg" : configmap "missing" not found"#;
    assert_eq!(mount.message.as_deref(), Some(message));
    assert_eq!(mount.type_.as_deref(), Some("Warning"));
    assert_eq!(mount.involved_object.kind.as_deref(), Some("Pod"));
    assert_eq!(mount.involved_object.uid.as_ref(), Some(&uid));
    assert_eq!(mount.involved_object.field_path, None);
    let source = mount.source.unwrap();
    assert_eq!(source.component.as_deref(), Some("larder"));
    assert_eq!(source.host.as_deref(), Some(NODE));
    assert!(mount.last_timestamp > mount.first_timestamp);

    let failed = event(&node, "Failed", 1).await;
    let message = "Error: couldn't find key none in Secret default/login";
    assert_eq!(failed.message.as_deref(), Some(message));
    let field = failed.involved_object.field_path.as_deref();
    assert_eq!(field, Some("spec.containers{main}"));

    // One of each, however often they were tried. And nothing more when all is well.
    assert_eq!(node.requests("create", "/events"), 2);
    node.apply(&config_map("missing", &[]));
    node.apply(&secret("login", &[("none", "x")]));
    node.wait("the pod to heal", |node| {
        (node.pod("web")?.delivery.phase == Phase::Delivered).then_some(())
    })
    .await;
    node.stop().await;
    assert_eq!(node.requests("create", "/events"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_may_not_post_events_serves_its_pods_all_the_same() {
    let node = node();
    let forbidden = Fault::on_any().resource("events").status(403);
    let forbidden = node.server.faults().inject(forbidden);
    node.apply(&pod("web").config_map("cfg", "missing").build());
    node.wait("the refusal", |_| (forbidden.hits() > 0).then_some(()))
        .await;
    node.apply(&config_map("missing", &[("k", "v")]));
    node.until("web", "cfg", &[("k", "v")]).await;
    assert_eq!(forbidden.hits(), 1);
}
