//! Nodes and Secrets that the API server denies.

use std::{fs, time::Duration};

use larder_agent::status::Phase;
use larder_apiserver::Fault;
use larder_e2e::pod_files;
use serde_json::json;
use tokio::time::sleep;

use super::harness::*;
use crate::harness::{NODE, pod};

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_accepted_gets_no_copies() {
    // offline 5
    for code in [401, 403] {
        let mut node = rebooted_node_with_web().await;
        let denied = node.server.faults().inject(Fault::on_any().status(code));
        node.run();
        sleep(Duration::from_secs(10)).await;
        assert!(node.status().pods.is_empty());
        assert!(checkpoint(&node).serving.is_none());
        // Nor when it stops answering after that.
        denied.lift();
        let away = node.server.faults().inject(Fault::on_any().status(503));
        sleep(Duration::from_mins(1)).await;
        assert!(node.status().pods.is_empty());
        away.lift();
        node.until("web", "tls", &[("key", CANARY)]).await;
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_secret_is_not_served_and_loses_its_copy() {
    // offline 6
    let mut node = node_with_web().await;
    assert_eq!(checkpoint(&node).entries, 5);
    reboot(&mut node).await;
    node.server
        .faults()
        .inject(Fault::on_any().resource("secrets").name("tls").status(403));
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    node.wait("the denial", |node| {
        let reason = node.volume("web", "tls")?.delivery.reason;
        reason
            .contains("not allowed to read secret default/tls")
            .then_some(())
    })
    .await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(node.files("web", "tls"), None);
    assert_eq!(checkpoint(&node).entries, 4);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_denied_after_serving_stays_in_its_volume_and_reaches_no_other() {
    // offline 6: the files stay, as those of any object that is denied or deleted
    let mut node = rebooted_node_with_web().await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    let path = node.volume_path("web", "tls").unwrap().join("..data");
    let set = fs::read_link(&path).unwrap();
    let stale_as_of = node.volume("web", "tls").unwrap().stale_as_of;
    assert!(stale_as_of.is_some());

    let denied = node
        .server
        .faults()
        .inject(Fault::on_any().resource("secrets").name("tls").status(403));
    away.lift();
    let words = "not allowed to read secret default/tls";
    failing(&node, "web", "tls", words).await;
    let mode = json!({"secret": {"secretName": "tls"}});
    node.apply(&pod("late").volume("tls", mode).build());
    failing(&node, "late", "tls", words).await;
    // Repairs change nothing.
    sleep(Duration::from_mins(10)).await;
    assert_eq!(node.files("late", "tls"), None);
    node.until("web", "tls", &[("key", CANARY)]).await;
    assert_eq!(fs::read_link(&path).unwrap(), set);
    assert_eq!(
        node.volume("web", "tls").unwrap().stale_as_of,
        stale_as_of,
        "its files are still those of the copy"
    );
    assert_eq!(node.environment("web", "main").unwrap()["key"], CANARY);
    assert_eq!(
        checkpoint(&node).entries,
        5,
        "two pods, the ConfigMap, node and Services"
    );

    // Nor does the next start serve it, which finds the files of this one.
    node.stop().await;
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.wait("the pods from the checkpoint", |node| {
        (node.status().pods.len() == 2).then_some(())
    })
    .await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(node.files("late", "tls"), None);
    node.until("web", "tls", &[("key", CANARY)]).await;
    away.lift();
    denied.lift();
    // A denied object is requested again at growing intervals.
    sleep(Duration::from_mins(5)).await;
    node.until("late", "tls", &[("key", CANARY)]).await;
    node.wait("the mark to go", |node| {
        let tls = node.volume("web", "tls")?;
        tls.stale_as_of.is_none().then_some(())
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn a_node_denied_after_copies_were_served_serves_them_to_no_new_pod() {
    // offline 5
    for code in [401, 403] {
        let (mut node, _key) = prepare_with_static_pods();
        apply_web(&node);
        node.run();
        entries(&node, 5).await;
        reboot(&mut node).await;
        let away = node.server.faults().inject(Fault::on_any().status(503));
        node.run();
        node.wait("the pod from the checkpoint", |node| {
            (node.pod("web")?.delivery.phase == Phase::Stale).then_some(())
        })
        .await;
        assert_eq!(node.files("web", "tls").unwrap()["key"], CANARY);
        let before = pod_files(node.path());
        node.server.faults().inject(Fault::on_any().status(code));
        away.lift();
        failing(&node, "web", "tls", "").await;
        node.wait("the denial of the pods", |node| {
            let denied =
                format!("failed to follow the pods of node {NODE}: fault injected: {code}");
            let problems = node.status().problems;
            let mut problems = problems.iter();
            problems
                .any(|problem| problem.contains(&denied))
                .then_some(())
        })
        .await;
        node.static_pod(pod("late").config_map("cfg", "app").build());
        let late = format!("late-{NODE}");
        failing(&node, &late, "cfg", "").await;
        assert_eq!(node.files(&late, "cfg"), None, "{code}");
        // Running pods keep their files.
        let mut now = pod_files(node.path());
        now.retain(|path, _| before.contains_key(path));
        assert_eq!(now, before, "{code}");
        node.stop().await;
    }
}
