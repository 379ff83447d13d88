//! Tokens of service accounts: renewed by a timer, whatever the clock and the API server do.

use std::{fs, time::Duration};

use larder_agent::status::Phase;
use larder_apiserver::{Fault, Options, Verb};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::harness::{Node, pod};

/// A node with a pod that has a token of ten minutes.
async fn node_with_token() -> Node {
    let mut node = Node::prepare_with(Options::default().fill_namespaces(true));
    node.run();
    let source = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 600}});
    let volume = json!({"projected": {"sources": [source]}});
    node.apply(&pod("web").volume("api", volume).build());
    node.wait("a token", token).await;
    node
}

fn token(node: &Node) -> Option<String> {
    fs::read_to_string(node.volume_path("web", "api")?.join("token")).ok()
}

async fn other_token(node: &Node, old: &str) -> String {
    node.wait("another token", |node| {
        token(node).filter(|token| token != old)
    })
    .await
}

fn requests(node: &Node) -> usize {
    node.requests("create", "/serviceaccounts/default/token")
}

fn phase(node: &Node) -> (Phase, String) {
    let delivery = node.volume("web", "api").unwrap().delivery;
    (delivery.phase, delivery.reason)
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_when_it_has_lived_80_percent_of_its_life() {
    // projection 71
    let mut node = node_with_token().await;
    let (first, began) = (token(&node).unwrap(), Instant::now());
    // Long enough for some passes that look at everything.
    sleep(Duration::from_secs(468)).await;
    assert_eq!(token(&node).unwrap(), first);
    assert_eq!(requests(&node), 1);
    let second = other_token(&node, &first).await;
    let age = began.elapsed();
    // At 480 s, less up to 9 s of jitter; the test looks every few milliseconds.
    assert!(
        (Duration::from_secs(470)..Duration::from_secs(481)).contains(&age),
        "{age:?}"
    );
    assert_eq!(requests(&node), 2);
    sleep(Duration::from_secs(468)).await;
    assert_eq!(token(&node).unwrap(), second);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn while_no_token_is_issued_the_old_one_stays_and_attempts_are_few() {
    // projection 71
    let mut node = node_with_token().await;
    let first = token(&node).unwrap();
    let away = Fault::on(Verb::Create)
        .resource("serviceaccounts")
        .status(503);
    let away = node.server.faults().inject(away);
    sleep(Duration::from_secs(560)).await;
    // It is due since 480 s, and good until 600 s.
    assert_eq!(token(&node).unwrap(), first);
    assert_eq!(phase(&node), (Phase::Delivered, String::new()));
    assert!((2..=9).contains(&away.hits()), "{} attempts", away.hits());
    sleep(Duration::from_secs(140)).await;
    let (phase_now, reason) = phase(&node);
    assert_eq!(phase_now, Phase::Failing);
    assert!(
        reason.starts_with("token default expired and refresh failed: "),
        "{reason}"
    );
    assert_eq!(token(&node).unwrap(), first, "files stay as they are");
    away.lift();
    // The longest pause between two attempts is 122 s.
    sleep(Duration::from_secs(123)).await;
    assert_ne!(token(&node).unwrap(), first);
    assert_eq!(phase(&node), (Phase::Delivered, String::new()));
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn hanging_request_leaves_the_old_token_served() {
    let mut node = node_with_token().await;
    let first = token(&node).unwrap();
    let silence = Fault::on(Verb::Create).resource("serviceaccounts");
    let silence = node.server.faults().inject(silence.never_answer());
    sleep(Duration::from_secs(500)).await;
    assert_eq!(phase(&node), (Phase::Delivered, String::new()));
    assert!(silence.hits() > 1, "{} attempts", silence.hits());
    silence.lift();
    sleep(Duration::from_mins(1)).await;
    assert_ne!(token(&node).unwrap(), first);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_at_once_when_the_clock_has_passed_its_time() {
    let mut node = node_with_token().await;
    let first = token(&node).unwrap();
    sleep(Duration::from_secs(10)).await;
    // The machine has slept for an hour, or its clock was set: only the API server knows which.
    let woken = Instant::now();
    node.set_clock_ahead(3600);
    let second = other_token(&node, &first).await;
    assert!(woken.elapsed() < Duration::from_secs(1));
    // The clock is ahead of the API server's, and takes every token for expired: they are renewed by age, not in a
    // flood.
    sleep(Duration::from_secs(468)).await;
    assert_eq!(token(&node).unwrap(), second);
    assert_eq!(requests(&node), 2);
    assert_eq!(phase(&node), (Phase::Delivered, String::new()));
    other_token(&node, &second).await;
    assert_eq!(requests(&node), 3);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_set_back_delays_no_renewal() {
    let mut node = node_with_token().await;
    let first = token(&node).unwrap();
    sleep(Duration::from_secs(10)).await;
    node.set_clock_ahead(-3600);
    sleep(Duration::from_secs(458)).await;
    assert_eq!(token(&node).unwrap(), first);
    other_token(&node, &first).await;
    assert_eq!(requests(&node), 2);
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_link_that_only_the_user_of_the_pod_may_follow_is_noted() {
    let mut node = Node::prepare_with(Options::default().fill_namespaces(true));
    node.run();
    let source = json!({"serviceAccountToken": {"path": "token"}});
    let volume = json!({"projected": {"sources": [source]}});
    let mut web = pod("web").volume("api", volume).build();
    web["spec"]["securityContext"] = json!({"runAsUser": 1000});
    node.apply(&web);
    node.wait("the token", |node| {
        let phase = node.volume("web", "api")?.delivery.phase;
        (phase == Phase::Delivered).then_some(())
    })
    .await;
    let shown = node.volume("web", "api").unwrap().note;
    // The machine decides.
    let setting = fs::read_to_string("/proc/sys/fs/protected_symlinks").unwrap();
    if setting.trim() == "0" {
        assert_eq!(shown, "");
    } else {
        assert!(
            shown.starts_with("token: only user 1000 may follow"),
            "{shown}"
        );
    }
    node.stop().await;
}
