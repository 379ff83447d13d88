//! Directories of volumes that do not answer.

use std::time::Duration;

use larder_agent::status::{Phase, WaitsFor};
use larder_e2e::HungFs;
use tokio::time::{resume, timeout};

use crate::world::{World, pod};

/// Longest shutdown: far less than the agent waits for steps that go on.
const SHUTDOWN: Duration = Duration::from_secs(5);

// Attack: four pods mount file systems that never answer on their volumes.
#[tokio::test(start_paused = true)]
async fn volumes_that_hang_stop_no_touch_of_other_pods_and_no_shutdown() {
    const HANGING: [&str; 4] = ["one", "two", "three", "four"];
    let mut world = World::start().await;
    world.config_map("app", &[("n", "0")]);
    let pods = HANGING.iter().chain(&["web"]);
    world
        .run_all(pods.map(|name| pod(name).config_map("v", "app")))
        .await;
    let mut hung = Vec::new();
    for name in HANGING {
        let Some(mounted) = HungFs::mount(&world.path(name, "v")) else {
            return;
        };
        hung.push(mounted);
    }
    // Paused time stands still while a thread hangs.
    resume();
    for value in ["1", "2"] {
        world.config_map("app", &[("n", value)]);
        world.until_file("web", "v", "n", value).await;
    }
    world.until_delivered("web").await;
    let waits_for_disk = |name: &str| {
        let pods = world.status().pods;
        let pod = pods.iter().find(|found| found.name == name).unwrap();
        let waits = pod.waits_for.map(|wait| wait.what);
        waits == Some(WaitsFor::Disk) && pod.delivery.phase == Phase::Waiting
    };
    for name in HANGING {
        let what = format!("{name} to wait for the disk");
        world.until(&what, || waits_for_disk(name)).await;
    }
    let stopped = timeout(SHUTDOWN, world.stop_larder()).await;
    stopped.expect("nothing waits");
    // The runtime of the test waits for its threads.
    drop(hung);
}
