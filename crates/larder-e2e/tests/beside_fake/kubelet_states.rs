//! A kubelet that is stopped, down or busy.

use larder_agent::status::Phase;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{World, millis, pod, secs};

async fn web() -> World {
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_stopped_kubelet_is_touched_at_most_three_times() {
    // beside-kubelet 9
    let world = web().await;
    world.kubelet.stop();
    world.config_map("app", &[("n", "1")]);
    sleep(secs(20)).await;
    assert!(
        (1..=3).contains(&world.touches()),
        "{} touches",
        world.touches()
    );
    let (phase, reason) = world.phase("web", "v").unwrap();
    assert_eq!(phase, Phase::Waiting);
    assert!(reason.contains("told the kubelet at"), "{reason}");
    world.kubelet.resume();
    let taken = world.until_file("web", "v", "n", "1").await;
    assert!(taken <= millis(320), "{taken:?}");
    world.until_delivered("web").await;
    assert!(world.touches() <= 3, "{} touches", world.touches());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_is_down_is_not_touched_and_catches_up_by_itself() {
    // beside-kubelet 10
    let mut world = web().await;
    world.kubelet.kill().await;
    world.kubelet.lose_node().await.unwrap();
    sleep(secs(1)).await;
    world.config_map("app", &[("n", "1")]);
    sleep(secs(60)).await;
    assert_eq!(world.touches(), 0);
    let reason = world.phase("web", "v").unwrap();
    assert!(reason.1.contains("kubelet not ready since"), "{reason:?}");
    world.kubelet.start_again().await.unwrap();
    world.until_file("web", "v", "n", "1").await;
    world.until_delivered("web").await;
    sleep(secs(60)).await;
    assert_eq!(world.touches(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_old_lease_stops_touches_although_the_node_is_still_ready() {
    // beside-kubelet 10: the node controller takes longer than the lease.
    let mut world = web().await;
    world.kubelet.kill().await;
    sleep(secs(55)).await;
    world.config_map("app", &[("n", "1")]);
    sleep(secs(10)).await;
    assert_eq!(world.touches(), 0);
    world.kubelet.start_again().await.unwrap();
    world.until_delivered("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_long_hook_of_a_container_costs_at_most_three_touches() {
    // beside-kubelet 34
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let hook = json!({"postStart": {"sleep": {"seconds": 15}}});
    let slow = pod("web")
        .config_map("v", "app")
        .set("/spec/containers/0/lifecycle", hook);
    world.apply(&slow.build());
    world.until_file("web", "v", "n", "0").await;
    sleep(secs(3)).await;
    world.config_map("app", &[("n", "1")]);
    let taken = world.until_file("web", "v", "n", "1").await;
    assert!((secs(10)..=millis(15_500)).contains(&taken), "{taken:?}");
    world.until_delivered("web").await;
    assert!(
        (1..=3).contains(&world.touches()),
        "{} touches",
        world.touches()
    );
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_torn_down_under_its_container_is_detached() {
    // beside-kubelet 30: as the fake does it.
    let world = web().await;
    world.kubelet.fail_write("web", "v");
    world.config_map("app", &[("n", "1")]);
    world.until_file("web", "v", "n", "1").await;
    world.until_phase("web", "v", Phase::Held, "Detached").await;
    let before = world.touches();
    world.config_map("app", &[("n", "2")]);
    sleep(secs(10)).await;
    assert_eq!(world.touches(), before);
    let (phase, _) = world.phase("web", "v").unwrap();
    assert_eq!(phase, Phase::Held, "the host's path does not count");
}
