//! An API server that rejects touches.

use larder_agent::status::Phase;
use larder_apiserver::{Fault, Verb};
use tokio::time::sleep;

use crate::world::{World, on_touch, pod, secs};

#[tokio::test(start_paused = true)]
async fn a_missing_permission_stops_all_touches_until_it_is_granted() {
    // beside-kubelet 22
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let pods = ["a", "b"].map(|name| pod(name).config_map("v", "app"));
    world.run_all(pods).await;
    let why = "pods \"a\" is forbidden: User \"system:node:node-1\" cannot patch resource \"pods/status\" in API group \"\" \
               in the namespace \"default\"";
    let denied = world.server.faults().inject(on_touch().rejection(403, why));
    // Among what it creates are the reviews of its permissions.
    let reviews = Fault::on(Verb::Create);
    let unreviewed = world.server.faults().inject(reviews.rejection(403, why));
    world.config_map("app", &[("n", "1")]);
    sleep(secs(5)).await;
    let first = world.touches();
    assert!((1..=2).contains(&first), "{first} touches");
    let problem = world.status().beside.unwrap().problem;
    assert!(problem.contains("patch pods/status"), "{problem}");
    world.config_map("app", &[("n", "2")]);
    sleep(secs(30)).await;
    assert_eq!(world.touches(), first);
    denied.lift();
    unreviewed.lift();
    world.config_map("app", &[("n", "3")]);
    // The kubelet's own sync is sooner; the test checks that larder continues.
    sleep(secs(600)).await;
    assert_eq!(world.status().beside.unwrap().problem, "");
    world.config_map("app", &[("n", "4")]);
    let taken = world.until_file("a", "v", "n", "4").await;
    assert!(taken <= secs(1), "{taken:?}");
    assert_eq!(
        world
            .metric("beside_touches_total{result=\"forbidden\"} ")
            .map(|count| count >= 1.0),
        Some(true)
    );
}

#[tokio::test(start_paused = true)]
async fn a_touch_that_a_policy_rejects_is_repeated_every_ten_minutes() {
    // beside-kubelet 22
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    let why = "admission webhook \"policy.example.com\" denied the request: no annotations";
    world.server.faults().inject(on_touch().rejection(422, why));
    world.config_map("app", &[("n", "1")]);
    sleep(secs(2)).await;
    let (phase, reason) = world.phase("web", "v").unwrap();
    assert_eq!(phase, Phase::Waiting);
    assert!(reason.contains(why), "{reason}");
    for n in 2..20 {
        world.config_map("app", &[("n", &n.to_string())]);
        sleep(secs(30)).await;
    }
    assert_eq!(world.touches(), 1);
    for n in 20..24 {
        world.config_map("app", &[("n", &n.to_string())]);
        sleep(secs(30)).await;
    }
    assert_eq!(world.touches(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_stays_is_not_met_with_endless_touches() {
    // beside-kubelet 22
    let world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    let why = "admission webhook \"policy.example.com\" denied the request: not now";
    world.server.faults().inject(on_touch().rejection(409, why));
    world.config_map("app", &[("n", "1")]);
    sleep(secs(10)).await;
    let (phase, reason) = world.phase("web", "v").unwrap();
    assert_eq!(phase, Phase::Waiting);
    assert!(reason.contains("reports a conflict each time"), "{reason}");
    assert_eq!(world.touches(), 4);
    // The kubelet's own sync has delivered this one.
    world.until_file("web", "v", "n", "1").await;
    world.config_map("app", &[("n", "2")]);
    sleep(secs(30)).await;
    assert_eq!(world.touches(), 4);
}
