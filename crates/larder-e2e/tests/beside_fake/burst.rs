//! Many pods at once, and a throttling API server.

use larder_agent::status::Phase;
use serde_json::json;
use tokio::time::sleep;

use crate::world::{World, millis, on_touch, pod, secs};

#[tokio::test(start_paused = true)]
async fn pods_that_share_an_object_are_all_touched_within_a_second_by_priority() {
    // beside-kubelet 24
    const PODS: usize = 105;
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let priority = |index: usize| i32::try_from(index % 3).unwrap() * 1000;
    let pods = (0..PODS).map(|index| {
        let spec = pod(&format!("p{index}")).config_map("v", "app");
        spec.set("/spec/priority", json!(priority(index)))
    });
    world.run_all(pods).await;
    // So that they queue: eight are under way at a time.
    let slow = world.server.faults().inject(on_touch().delay(millis(20)));
    world.config_map("app", &[("n", "1")]);
    let all = || {
        (0..PODS).all(|index| world.file(&format!("p{index}"), "v", "n").as_deref() == Some("1"))
    };
    let taken = world.until("all files", all).await;
    assert!(taken <= secs(1), "{taken:?}");
    let delivered = || {
        let pods = world.status().pods;
        let mut volumes = pods.iter().flat_map(|pod| &pod.volumes);
        volumes.all(|volume| volume.delivery.phase == Phase::Delivered)
    };
    world.until("all to be verified", delivered).await;
    sleep(secs(5)).await;
    assert_eq!(slow.hits(), u32::try_from(PODS).unwrap());
    let name = |path: &str| {
        path.split('/').nth(6).unwrap()[1..]
            .parse::<usize>()
            .unwrap()
    };
    let patches = world.patches();
    let order: Vec<_> = patches
        .iter()
        .map(|patch| priority(name(&patch.path)))
        .collect();
    // The first eight find no queue. Later, each of the eight in flight is compared once more before its request.
    for (index, one) in order.iter().enumerate().skip(8) {
        let later = order.iter().skip(index + 8).max();
        assert!(later.is_none_or(|later| one >= later), "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_api_server_gets_no_touch_until_its_retry_after() {
    // beside-kubelet 23
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    let rate = |world: &World| world.metric("beside_rate_limit ").unwrap();
    let before = rate(&world);
    world
        .server
        .faults()
        .inject(on_touch().times(1).retry_after(429, 2));
    world.config_map("app", &[("n", "1")]);
    tokio::time::sleep(secs(1)).await;
    let (_, reason) = world.phase("web", "v").unwrap();
    let problem = world.status().beside.unwrap().problem;
    for shown in [&reason, &problem] {
        assert!(shown.contains("no pod is touched until"), "{shown}");
    }
    world.until_file("web", "v", "n", "1").await;
    world.until_delivered("web").await;
    assert_eq!(world.status().beside.unwrap().problem, "");
    let times = world.touch_times();
    assert_eq!(times.len(), 2, "{times:?}");
    // The first one is at 0.
    assert!((secs(2)..=millis(2_500)).contains(&times[1]), "{times:?}");
    let (after, half) = (rate(&world), before / 2.0);
    assert!((after - half).abs() < 1.0, "{before} → {after}");
}
