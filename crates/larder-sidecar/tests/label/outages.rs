//! Outages of the API server, and what health says of them.

use std::time::Duration;

use larder_apiserver::{Fault, Kind};
use tokio::time::{Instant, sleep};

use crate::world::{World, until};

// sidecar 40
#[tokio::test(start_paused = true)]
async fn silent_watch_is_opened_anew_and_the_change_meanwhile_arrives() {
    let world = World::new().with("WATCH_CLIENT_TIMEOUT", "60");
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    let paused = world.api.faults().pause_delivery();
    world.config_map("n", "a", &[("a", "2")]);
    let before = world.requests().len();
    for _ in 0..5 {
        sleep(Duration::from_secs(10)).await;
        assert!(sidecar.health.live(None, Instant::now()).is_ok);
    }
    assert_eq!(world.files(), "a=1");
    until(|| world.requests().len() > before).await;
    drop(paused);
    world.until_files("a=2").await;
    let request = &world.requests()[before];
    assert_eq!(request.verb, "watch");
    assert!(
        request.query.contains("resourceVersion="),
        "resumed: {}",
        request.query
    );
}

// sidecar 41
#[tokio::test(start_paused = true)]
async fn outage_changes_no_file_and_deletions_of_the_meantime_arrive() {
    let world = World::new();
    world.config_map("n", "a", &[("a", "1")]);
    world.config_map("n", "b", &[("b", "1")]);
    let sidecar = world.ready().await;
    let fault = world.api.faults().inject(Fault::on_any().drop_connection());
    world.api.faults().cut_watches();
    sleep(Duration::from_mins(10)).await;
    assert_eq!(world.files(), "a=1 b=1");
    let now = Instant::now();
    assert!(sidecar.health.ready(now).is_ok);
    let live = sidecar.health.live(None, now);
    assert!(
        live.is_ok && live.body.contains("degraded"),
        "{}",
        live.body
    );
    assert!(!sidecar.health.live(Some(Duration::from_mins(1)), now).is_ok);
    world.delete(Kind::ConfigMap, "n", "a");
    world.config_map("n", "b", &[("b", "2")]);
    fault.lift();
    let back = Instant::now();
    world.until_files("b=2").await;
    assert!(
        back.elapsed() <= Duration::from_mins(1),
        "{:?}",
        back.elapsed()
    );
    let live = sidecar
        .health
        .live(Some(Duration::from_mins(1)), Instant::now());
    assert!(
        live.is_ok && !live.body.contains("degraded"),
        "{}",
        live.body
    );
}

// sidecar 43
#[tokio::test(start_paused = true)]
async fn forbidden_namespace_keeps_readiness_away_and_nothing_of_it_is_removed() {
    let world = World::new().with("NAMESPACE", "a,b");
    world.config_map("a", "x", &[("x", "1")]);
    world.config_map("b", "y", &[("y", "1")]);
    world.ready().await.kill().await;
    let _fault = world
        .api
        .faults()
        .inject(Fault::on_any().namespace("b").status(403));
    world.config_map("a", "x", &[("x", "2")]);
    world.delete(Kind::ConfigMap, "b", "y");
    let sidecar = world.start();
    world.until_files("x=2 y=1").await;
    sleep(Duration::from_mins(5)).await;
    let ready = sidecar.health.live_and_ready(None, Instant::now());
    assert!(!ready.is_ok);
    assert!(
        ready.body.contains("configmaps in namespace b"),
        "{}",
        ready.body
    );
    assert_eq!(world.files(), "x=2 y=1");
}

// sidecar 47
#[tokio::test(start_paused = true)]
async fn no_file_is_lost_over_expired_throttled_and_cut_watches() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.config_map("n", name, &[(name, "1")]);
    }
    let _sidecar = world.ready().await;
    // Its version is too old.
    world.api.faults().cut_watches();
    world.config_map("n", "a", &[("a", "2")]);
    world.api.compact();
    world.until_files("a=2 b=1 c=1").await;
    // Throttled.
    let fault = Fault::on_any().times(3).retry_after(429, 2);
    let fault = world.api.faults().inject(fault);
    world.api.faults().cut_watches();
    world.config_map("n", "b", &[("b", "2")]);
    world.until_files("a=2 b=2 c=1").await;
    assert_eq!(fault.hits(), 3);
    // Cut in the middle of an object.
    for bytes in [10, 200, 500] {
        let fault = Fault::on(larder_apiserver::Verb::Watch);
        let fault = world
            .api
            .faults()
            .inject(fault.times(1).cut_after_bytes(bytes));
        world.api.faults().cut_watches();
        let text = bytes.to_string();
        world.config_map("n", "c", &[("c", &text)]);
        world.until_files(&format!("a=2 b=2 c={bytes}")).await;
        fault.lift();
    }
}
