//! Copies that expire, and keys that are exposed, lost or rotated.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use larder_agent::{config::CheckpointConfig, status::Phase};
use larder_apiserver::Fault;
use larder_checkpoint::KeySource;
use tokio::time::sleep;

use super::harness::*;
use crate::harness::Node;

/// A repair pass has happened after this time.
const REPAIR: Duration = Duration::from_mins(2);

#[tokio::test(start_paused = true)]
async fn an_expired_secret_is_not_served_and_its_status_says_so() {
    // offline 9
    let mut node = rebooted_node_with_web().await;
    let proven = node.clock.now();
    node.set_clock_ahead(8 * 24 * 3600);
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "cfg", &[("a", "1"), ("b", "2")]).await;
    let reason = node.wait("the expiry", |node| {
        let delivery = node.volume("web", "tls")?.delivery;
        (delivery.phase == Phase::Failing).then_some(delivery.reason)
    });
    let reason = reason.await;
    let day = proven.to_string();
    let (day, _) = day.split_once('T').unwrap();
    assert!(
        reason.starts_with(&format!("last known good of {day}")),
        "{reason}"
    );
    assert!(reason.contains(" has expired: "), "{reason}");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_the_moment_decides_whether_a_copy_has_expired() {
    let mut node = rebooted_node_with_web().await;
    // Nine days ahead, and set right later.
    node.set_clock_ahead(9 * 24 * 3600);
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    let has_expired = |node: &Node| {
        let delivery = node.volume("web", "tls")?.delivery;
        delivery.reason.contains(" has expired: ").then_some(())
    };
    node.wait("the expiry", has_expired).await;
    node.set_clock_ahead(0);
    node.until("web", "tls", &[("key", CANARY)]).await;
    // A week later it is not written again, though it was served.
    node.set_clock_ahead(8 * 24 * 3600);
    sleep(REPAIR).await;
    node.wait("the expiry while it is served", has_expired)
        .await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_in_1970_makes_no_copy_expire() {
    // offline 10
    let mut node = rebooted_node_with_web().await;
    let now = node.clock.now();
    node.set_clock_ahead(-now.as_second());
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_exposed_key_turns_the_checkpoint_off_and_nothing_else() {
    // offline 11
    let mut node = prepare();
    apply_web(&node);
    let key = node.static_pods.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    let problem = checkpoint(&node).problem;
    assert!(problem.contains("has mode 0644"), "{problem}");
    assert!(!node.path().join("checkpoint").exists());
    // As soon as only its owner can read it, it is used.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    recorded(&node).await;
    assert_eq!(checkpoint(&node).problem, "");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_missing_costs_nothing_and_is_reported() {
    // offline 12
    let mut node = rebooted_node_with_web().await;
    let key = node.static_pods.path().join("key");
    let content = fs::read(&key).unwrap();
    fs::remove_file(&key).unwrap();
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.wait("the problem", |node| {
        let problem = checkpoint(node).problem;
        problem.contains("key is missing").then_some(())
    })
    .await;
    assert!(!key.exists());
    assert!(node.status().pods.is_empty());
    // Its disk is mounted.
    fs::write(&key, content).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    node.until("web", "tls", &[("key", CANARY)]).await;
    assert_eq!(checkpoint(&node).problem, "");
    away.lift();
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rotated_key_opens_old_copies_and_seals_new_ones() {
    // offline 13
    let mut node = rebooted_node_with_web().await;
    let keys = |names: &[&str]| {
        let keys = names
            .iter()
            .map(|name| KeySource::File(node.static_pods.path().join(name)));
        CheckpointConfig::new(keys.collect())
    };
    let (both, new) = (keys(&["new", "key"]), keys(&["new"]));
    node.checkpoint = Some(both);
    let away = node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    away.lift();
    recorded(&node).await;
    reboot(&mut node).await;
    node.checkpoint = Some(new);
    node.server.faults().inject(Fault::on_any().status(503));
    node.run();
    node.until("web", "tls", &[("key", CANARY)]).await;
    assert!(checkpoint(&node).rejected.is_empty());
    node.stop().await;
}
