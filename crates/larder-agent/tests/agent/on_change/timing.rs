//! When rounds begin, how they are repeated, and how many run at once (rules T1 to T9).

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::harness::*;
use crate::harness::{Node, config_map, pod};

const SECOND: Duration = Duration::from_secs(1);

/// A node with the pod `web` and its volume `a`, which was delivered.
async fn node(hook: larder_on_change::Hook) -> (Node, Rounds) {
    let mut node = Node::prepare();
    let rounds = with_hook(&mut node, hook);
    node.run();
    node.apply(&config_map("a", &[("f", "0")]));
    node.apply(&pod("web").config_map("a", "a").build());
    delivered(&node, "web", "a", "0").await;
    (node, rounds)
}

fn edit(node: &Node, text: &str) {
    node.apply(&config_map("a", &[("f", text)]));
}

// on-change 25
#[tokio::test(start_paused = true)]
async fn burst_of_changes_is_one_round() {
    let (node, mut rounds) = node(hook("debounce: {min: 1s, max: 20s}")).await;
    let began = Instant::now();
    for edits in 1..=10 {
        edit(&node, &edits.to_string());
        node.until("web", "a", &[("f", &edits.to_string())]).await;
        sleep(SECOND / 2).await;
    }
    rounds.succeed().await;
    let took = began.elapsed();
    // The last change came after 4.5 s, and its pass and the looks of this test take some milliseconds.
    assert!(
        (Duration::from_millis(5400)..Duration::from_millis(5900)).contains(&took),
        "{took:?}"
    );
    rounds.none().await;
}

// on-change 25
#[tokio::test(start_paused = true)]
async fn steady_changes_cause_a_round_after_the_longest_wait() {
    let (node, mut rounds) = node(hook("debounce: {min: 1s, max: 3s}")).await;
    let began = Instant::now();
    let edits = async {
        for edits in 1..=20 {
            edit(&node, &edits.to_string());
            sleep(SECOND / 2).await;
        }
    };
    let rounds_end = async {
        rounds.succeed().await;
        let first = began.elapsed();
        assert!(
            (Duration::from_millis(2900)..Duration::from_millis(3400)).contains(&first),
            "{first:?}"
        );
        rounds.succeed().await;
        rounds.succeed().await;
    };
    tokio::join!(edits, rounds_end);
}

// on-change 27
#[tokio::test(start_paused = true)]
async fn change_during_the_random_pause_joins_the_round() {
    let (node, mut rounds) = node(hook("debounce: {min: 0s, max: 0s}, splay: 30s")).await;
    edit(&node, "1");
    until_state(&node, "web", "Waiting").await;
    edit(&node, "2");
    node.until("web", "a", &[("f", "2")]).await;
    rounds.succeed().await;
    assert_eq!(node.files("web", "a").unwrap()["f"], "2");
    rounds.none().await;
}

// on-change 28
#[tokio::test(start_paused = true)]
async fn random_pauses_spread_the_rounds_of_many_pods() {
    let mut node = Node::prepare();
    let mut rounds = with_hook(&mut node, hook("debounce: {min: 0s, max: 0s}, splay: 10s"));
    node.on_change.parallelism = 100;
    node.run();
    edit(&node, "0");
    let names: Vec<_> = (0..100).map(|number| format!("web-{number}")).collect();
    for name in &names {
        node.apply(&pod(name).config_map("a", "a").build());
    }
    for name in &names {
        delivered(&node, name, "a", "0").await;
    }
    edit(&node, "1");
    let began = Instant::now();
    let mut tenths = [0; 10];
    for _ in &names {
        rounds.succeed().await;
        let tenth = usize::try_from(began.elapsed().as_millis() / 1000).unwrap();
        // Passes and looks take some milliseconds beyond the longest pause.
        tenths[tenth.min(9)] += 1;
    }
    assert!(
        tenths.iter().all(|count| (2..=25).contains(count)),
        "{tenths:?}"
    );
}

// on-change 29
#[tokio::test(start_paused = true)]
async fn pauses_double_after_failures_and_success_is_recorded() {
    let (node, mut rounds) = node(immediate()).await;
    edit(&node, "1");
    let first = rounds.fail("not yet").await;
    assert_eq!(first.attempt, 1);
    for (attempt, low, high) in [(2, 500, 1000), (3, 1000, 2000), (4, 2000, 4000)] {
        until_state(&node, "web", "Retrying").await;
        let status = node.hook("web", HOOK).unwrap();
        assert_eq!(
            (status.attempts, status.reason.as_str()),
            (attempt - 1, "not yet")
        );
        let (took, round) = millis(rounds.next()).await;
        // A look at the state takes up to 2 ms.
        assert!((low - 20..=high + 20).contains(&took), "{took}");
        assert_eq!(
            (round.change.attempt, round.change.round),
            (attempt, first.round)
        );
        let answer = if attempt == 4 {
            Ok(())
        } else {
            Err("not yet".to_owned())
        };
        round.answer.send(answer).unwrap();
    }
    until_state(&node, "web", "Idle").await;
    let status = node.hook("web", HOOK).unwrap();
    assert_eq!((status.attempts, status.reason.as_str()), (0, ""));
    assert!(status.last_success.is_some());
    assert!(record(&node, "web").contains("\"lastSuccess\""));
    rounds.none().await;
}

// on-change 30
#[tokio::test(start_paused = true)]
async fn newer_change_resets_the_pauses() {
    let (node, mut rounds) = node(hook(
        "debounce: {min: 0s, max: 0s}, retry: {min: 1h, max: 2h}",
    ))
    .await;
    edit(&node, "1");
    rounds.fail("broken").await;
    until_state(&node, "web", "Retrying").await;
    edit(&node, "2");
    let (took, change) = millis(rounds.succeed()).await;
    assert!(took < 1000, "{took}");
    assert_eq!(change.attempt, 1);
    rounds.none().await;
    // Back to the content of the notification before the failure: a later one has reached it since.
    edit(&node, "0");
    rounds.succeed().await;
}

// on-change 31
#[tokio::test(start_paused = true)]
async fn hook_that_hangs_delays_neither_others_nor_deliveries() {
    let mut node = Node::prepare();
    let mut rounds = with_hook(&mut node, immediate());
    node.run();
    for name in ["a", "b"] {
        node.apply(&config_map(name, &[("f", "0")]));
        node.apply(&pod(name).config_map("v", name).build());
        delivered(&node, name, "v", "0").await;
    }
    node.apply(&config_map("a", &[("f", "1")]));
    let hanging = rounds.next().await;
    assert_eq!(hanging.change.pod.name, "a");
    node.apply(&config_map("b", &[("f", "1")]));
    let (took, change) = millis(rounds.succeed()).await;
    assert_eq!(change.pod.name, "b");
    assert!(took < 500, "{took}");
    node.apply(&config_map("a", &[("f", "2")]));
    let (took, ()) = millis(node.until("a", "v", &[("f", "2")])).await;
    assert!(took < 500, "{took}");
    drop(hanging);
}

// on-change 34
#[tokio::test(start_paused = true)]
async fn no_more_rounds_run_at_once_than_configured() {
    let mut node = Node::prepare();
    let mut rounds = with_hook(&mut node, immediate());
    node.run();
    edit(&node, "0");
    for number in 0..20 {
        node.apply(&pod(&format!("web-{number}")).config_map("a", "a").build());
    }
    for number in 0..20 {
        delivered(&node, &format!("web-{number}"), "a", "0").await;
    }
    edit(&node, "1");
    let mut running = Vec::new();
    for _ in 0..8 {
        running.push(rounds.next().await);
    }
    rounds.none_within(Duration::from_secs(30)).await;
    assert!(
        node.metrics().contains("on_change_pending 20"),
        "{}",
        node.metrics()
    );
    for _ in 8..20 {
        running.remove(0).answer.send(Ok(())).unwrap();
        running.push(rounds.next().await);
    }
    for round in running {
        round.answer.send(Ok(())).unwrap();
    }
    rounds.none().await;
    assert!(node.metrics().contains("on_change_pending 0"));
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_running_rounds_their_time() {
    let (mut node, mut rounds) = node(immediate()).await;
    edit(&node, "1");
    let round = rounds.next().await;
    let answer = async {
        sleep(SECOND * 2).await;
        round.answer.send(Ok(())).unwrap();
    };
    tokio::join!(node.stop(), answer);
    node.run();
    delivered(&node, "web", "a", "1").await;
    rounds.none().await;
    // One that needs longer is notified again.
    edit(&node, "2");
    let round = rounds.next().await;
    node.stop().await;
    drop(round);
    node.run();
    rounds.succeed().await;
}

#[tokio::test(start_paused = true)]
async fn jumps_of_the_clock_neither_hasten_delay_nor_repeat_a_round() {
    const HOUR: i64 = 3600;
    let hook_text = "debounce: {min: 5s, max: 60s}, retry: {min: 8s, max: 8s}";
    let (mut node, mut rounds) = node(hook(hook_text)).await;
    for (number, hours) in [1, -1, 100, -10_000, 0].into_iter().enumerate() {
        edit(&node, &format!("{number}a"));
        until_state(&node, "web", "Waiting").await;
        let began = Instant::now();
        node.set_clock_ahead(hours * HOUR);
        rounds.fail("not yet").await;
        let took = began.elapsed().as_millis();
        assert!((4900..5500).contains(&took), "{hours}: {took}");
        until_state(&node, "web", "Retrying").await;
        node.set_clock_ahead(-hours * HOUR);
        let (took, change) = millis(rounds.next()).await;
        assert!((3900..8100).contains(&took), "{hours}: {took}");
        assert_eq!(change.change.attempt, 2);
        // While it runs, too.
        node.set_clock_ahead(2 * hours * HOUR);
        change.answer.send(Ok(())).unwrap();
        until_state(&node, "web", "Idle").await;
        rounds.none().await;
    }
    // A restart with another clock than that of the record.
    node.kill().await;
    node.set_clock_ahead(-48 * HOUR);
    node.run();
    delivered(&node, "web", "a", "4a").await;
    rounds.none().await;
}
