//! Hooks across a restart of the agent (rules P1 to P6).

use std::{fs, time::Duration};

use super::harness::*;
use crate::harness::{Node, config_map, pod, secret};

async fn started(node: &Node, pods: usize) {
    for number in 0..pods {
        let name = format!("web-{number}");
        node.wait("the hook of the pod", |node| node.hook(&name, HOOK))
            .await;
    }
}

/// A node with pods `web-0`, `web-1`, … whose volume `a` is filled from an object of their own.
async fn node(pods: usize) -> (Node, Rounds) {
    let mut node = Node::prepare();
    let rounds = with_hook(&mut node, immediate());
    node.run();
    for number in 0..pods {
        edit(&node, number, "0");
        let name = format!("web-{number}");
        node.apply(&pod(&name).config_map("a", &format!("a-{number}")).build());
    }
    started(&node, pods).await;
    (node, rounds)
}

fn edit(node: &Node, number: usize, text: &str) {
    node.apply(&config_map(&format!("a-{number}"), &[("f", text)]));
}

/// A hook with a quiet period that an agent does not live to see the end of.
fn with_slow_hook(node: &mut Node) -> Rounds {
    with_hook(node, hook("debounce: {min: 5m, max: 5m}"))
}

/// A node whose agent is killed after it swapped the volume of `web-0`, and before its round. `hook` is the hook of this
/// agent and of the next one, whose rounds are returned.
async fn killed_before_the_round(hook: fn(&mut Node) -> Rounds) -> (Node, Rounds) {
    let mut node = Node::prepare();
    let rounds = hook(&mut node);
    node.run();
    edit(&node, 0, "0");
    node.apply(&pod("web-0").config_map("a", "a-0").build());
    delivered(&node, "web-0", "a", "0").await;
    edit(&node, 0, "1");
    until_state(&node, "web-0", "Waiting").await;
    node.kill().await;
    rounds.close();
    let later = hook(&mut node);
    (node, later)
}

/// A node with pod `web-0` whose agent is killed during the round for content `1`.
async fn killed_during_the_round() -> (Node, Rounds) {
    let (mut node, mut rounds) = node(1).await;
    edit(&node, 0, "1");
    let round = rounds.next().await;
    node.kill().await;
    drop(round);
    (node, rounds)
}

// on-change 57
#[tokio::test(start_paused = true)]
async fn restart_without_a_change_fires_nothing() {
    let (mut node, mut rounds) = node(110).await;
    edit(&node, 7, "1");
    rounds.succeed().await;
    until_state(&node, "web-7", "Idle").await;
    for _ in 0..2 {
        node.kill().await;
        node.run();
        started(&node, 110).await;
        rounds.none().await;
    }
}

// on-change 59
#[tokio::test(start_paused = true)]
async fn crash_between_swap_and_round_fires_after_the_restart() {
    let (mut node, mut rounds) = killed_before_the_round(with_slow_hook).await;
    node.run();
    delivered(&node, "web-0", "a", "1").await;
    let (took, round) = millis(rounds.next()).await;
    // Quiet period and an extra pause of up to 10 s.
    assert!((299_000..312_000).contains(&took), "{took}");
    assert_eq!(round.change.pod.name, "web-0");
}

// on-change 59: where no directory is in memory, each agent has a key of its own, and the containers live on.
#[tokio::test(start_paused = true)]
async fn crash_between_swap_and_round_fires_without_a_kept_key() {
    let (mut node, mut rounds) = killed_before_the_round(|node| {
        let rounds = with_slow_hook(node);
        node.on_change.key_dirs.clear();
        rounds
    })
    .await;
    node.run();
    assert_eq!(rounds.succeed().await.pod.name, "web-0");
    until_state(&node, "web-0", "Idle").await;
    node.kill().await;
    node.run();
    delivered(&node, "web-0", "a", "1").await;
    rounds.none().await;
}

// on-change 60
#[tokio::test(start_paused = true)]
async fn crash_before_the_success_is_recorded_fires_again_once() {
    // The application has reloaded, and the agent does not live to learn of it.
    let (mut node, mut rounds) = killed_during_the_round().await;
    node.run();
    rounds.succeed().await;
    until_state(&node, "web-0", "Idle").await;
    node.kill().await;
    node.run();
    started(&node, 1).await;
    rounds.none().await;
}

// on-change 60: the content of a failed attempt may have reached the application, so going back is a change.
#[tokio::test(start_paused = true)]
async fn crash_during_an_attempt_and_content_that_goes_back_fires() {
    let (mut node, mut rounds) = killed_during_the_round().await;
    edit(&node, 0, "0");
    node.run();
    rounds.succeed().await;
    rounds.none().await;
}

// on-change 61
#[tokio::test(start_paused = true)]
async fn hook_that_is_new_or_edited_starts_from_the_present_content() {
    let (mut node, rounds) = node(1).await;
    node.kill().await;
    edit(&node, 0, "1");
    let mut edited = with_hook(&mut node, hook("debounce: 20ms"));
    node.run();
    delivered(&node, "web-0", "a", "1").await;
    edited.none().await;
    edit(&node, 0, "2");
    edited.succeed().await;
    rounds.close();
}

// on-change 62
#[tokio::test(start_paused = true)]
async fn without_the_key_the_files_on_disk_are_compared() {
    let (mut node, mut rounds) = node(2).await;
    node.kill().await;
    fs::remove_file(node.memory().join("on-change.key")).unwrap();
    node.run();
    started(&node, 2).await;
    rounds.none().await;
    node.kill().await;
    fs::remove_file(node.memory().join("on-change.key")).unwrap();
    edit(&node, 1, "1");
    node.run();
    assert_eq!(rounds.succeed().await.pod.name, "web-1");
    rounds.none().await;
}

// on-change 62: after a reboot a volume in memory is gone, and whatever reads it starts with its new content.
#[tokio::test(start_paused = true)]
async fn volume_that_was_lost_with_the_key_is_a_first_delivery() {
    let (mut node, mut rounds) = node(1).await;
    let volume = node.volume_path("web-0", "a").unwrap();
    node.kill().await;
    fs::remove_file(node.memory().join("on-change.key")).unwrap();
    fs::remove_dir_all(volume).unwrap();
    edit(&node, 0, "1");
    node.run();
    delivered(&node, "web-0", "a", "1").await;
    rounds.none().await;
}

// on-change 63
#[tokio::test(start_paused = true)]
async fn malformed_record_is_as_if_absent() {
    let (mut node, mut rounds) = node(1).await;
    let path = record_path(&node, "web-0");
    let text = fs::read_to_string(&path).unwrap();
    for garbage in [
        "",
        "{",
        &text[..text.len() / 2],
        "[1, 2]",
        &"x".repeat(1 << 20),
    ] {
        node.kill().await;
        fs::write(&path, garbage).unwrap();
        node.run();
        started(&node, 1).await;
        rounds.none().await;
        assert!(record(&node, "web-0").starts_with('{'));
    }
    node.kill().await;
    fs::write(&path, "{").unwrap();
    edit(&node, 0, "1");
    node.run();
    rounds.succeed().await;
    rounds.none().await;
}

// on-change 64
#[tokio::test(start_paused = true)]
async fn many_changes_while_no_agent_ran_fire_without_a_herd() {
    let (mut node, mut rounds) = node(100).await;
    node.kill().await;
    for number in 0..100 {
        edit(&node, number, "1");
    }
    node.run();
    let began = tokio::time::Instant::now();
    let mut tenths = [0; 10];
    let mut notified = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let change = rounds.succeed().await;
        notified.insert(change.pod.name);
        let tenth = usize::try_from(began.elapsed().as_secs()).unwrap();
        tenths[tenth.min(9)] += 1;
    }
    assert!(
        began.elapsed() < Duration::from_secs(11),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(notified.len(), 100);
    assert!(tenths.iter().all(|count| *count > 0), "{tenths:?}");
    rounds.none().await;
}

// on-change 65
#[tokio::test(start_paused = true)]
async fn record_depends_on_a_secret_through_the_key_only() {
    let mut node = Node::prepare();
    let mut rounds = with_hook(&mut node, immediate());
    node.run();
    node.apply(&secret("s", &[("f", "hunter2")]));
    node.apply(&pod("web").secret("s", "s").build());
    delivered(&node, "web", "s", "hunter2").await;
    let first = record(&node, "web");
    assert!(!first.contains("hunter2"));
    node.kill().await;
    fs::remove_file(node.memory().join("on-change.key")).unwrap();
    node.run();
    started_with(&node, "web").await;
    rounds.none().await;
    let second = record(&node, "web");
    let digests = |text: &str| -> Vec<String> {
        let record: serde_json::Value = serde_json::from_str(text).unwrap();
        let digest = record["hooks"][0]["digest"].as_str().unwrap();
        vec![
            record["key"].as_str().unwrap().to_owned(),
            digest.to_owned(),
        ]
    };
    let (first, second) = (digests(&first), digests(&second));
    assert_ne!(first[0], second[0]);
    assert_ne!(first[1], second[1]);
}

async fn started_with(node: &Node, pod: &str) {
    node.wait("the hook of the pod", |node| node.hook(pod, HOOK))
        .await;
}
