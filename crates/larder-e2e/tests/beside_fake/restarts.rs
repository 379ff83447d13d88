//! larder restarts, or two of them run.

use tokio::time::sleep;

use crate::world::{Setup, World, millis, pod, secs};

#[tokio::test(start_paused = true)]
async fn a_restart_touches_no_pod_whose_files_have_arrived_meanwhile() {
    // beside-kubelet 35
    let mut world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    world.config_map("app", &[("n", "1")]);
    let touched = || world.touches() == 1;
    world.until("the touch", touched).await;
    world.kill_larder().await;
    let value = world.refresh("web").unwrap();
    world.until_file("web", "v", "n", "1").await;
    world.set_clock_ahead(-3600);
    world.start_larder();
    world.until_delivered("web").await;
    sleep(secs(5)).await;
    assert_eq!(world.touches(), 1);
    world.config_map("app", &[("n", "2")]);
    let taken = world.until_file("web", "v", "n", "2").await;
    assert!(taken <= millis(300), "{taken:?}");
    let next = world.refresh("web").unwrap();
    assert_ne!(next, value);
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 2, "every touch has changed the value");
}

#[tokio::test(start_paused = true)]
async fn a_restart_touches_the_pods_that_differ() {
    // beside-kubelet 35
    let mut world = World::without_larder(Setup::default()).await;
    world.config_map("app", &[("n", "0")]);
    world.apply(&pod("web").config_map("v", "app").build());
    world.until_file("web", "v", "n", "0").await;
    sleep(secs(5)).await;
    world.config_map("app", &[("n", "1")]);
    world.start_larder();
    let taken = world.until_file("web", "v", "n", "1").await;
    assert!(taken <= secs(2), "{taken:?}");
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_larders_one_touches_and_the_other_takes_over() {
    // beside-kubelet 36
    let mut world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    world.run(pod("web").config_map("v", "app")).await;
    world.start_larder();
    sleep(secs(5)).await;
    world.config_map("app", &[("n", "1")]);
    world.until_file("web", "v", "n", "1").await;
    sleep(secs(10)).await;
    assert_eq!(world.touches(), 1);
    world.kill_larder().await;
    sleep(secs(30)).await;
    world.config_map("app", &[("n", "2")]);
    let taken = world.until_file("web", "v", "n", "2").await;
    assert!(taken <= millis(300), "{taken:?}");
    world.until_delivered("web").await;
    assert_eq!(world.touches(), 2);
}
