//! Limits: requests in flight, watches, and what a queued request has learned by the time it is sent.

use expect_test::expect;
use larder_watch::{Limits, Presence};

use crate::{
    scene::{Scene, one},
    script::{named, object},
};

fn scene(max_requests_in_flight: usize, max_watches: usize) -> Scene {
    Scene::with_limits(Limits {
        max_requests_in_flight,
        max_watches,
    })
}

#[tokio::test(start_paused = true)]
async fn requests_that_readers_wait_for_go_first() {
    let mut scene = scene(1, 9);
    for name in ["a", "b", "c"] {
        scene.start(name).await;
    }
    scene.need(one("c"), &["c"], Presence::Unknown).await;
    scene.synced(5, Some(&object(5, "x"))).await;
    scene.synced(6, Some(&named("c", 6, "x"))).await;
    expect![[r#"
        > streaming list of a
        0: synced at 5: [a], confirmed
        > streaming list of c
        2: synced at 6: [c], confirmed
        > streaming list of b from 6
    "#]]
    .assert_eq(&scene.log);
}

#[tokio::test(start_paused = true)]
async fn no_more_objects_are_watched_than_the_limit_allows() {
    let mut scene = scene(9, 1);
    scene.start("a").await;
    scene.start("b").await;
    scene.need(one("b"), &["b"], Presence::Unknown).await;
    scene.start("c").await;
    scene.engine.remove(one("b"));
    scene.engine.stop(one("a"));
    scene.settle().await;
    scene.need(one("c"), &["c"], Presence::Unknown).await;
    expect![[r#"
        > streaming list of a
        no slot
        no slot
        no slot
        2: slot granted
        > streaming list of c
    "#]]
    .assert_eq(&scene.log);
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_asks_for_a_version_that_is_fresh_enough() {
    let mut scene = scene(1, 9);
    for name in ["a", "b", "c"] {
        scene.start(name).await;
    }
    // The first request was sent before the others registered, the second one after.
    scene.synced(5, None).await;
    scene.synced(6, None).await;
    expect![[r#"
        > streaming list of a
        0: synced at 5: [], confirmed
        > streaming list of b
        1: synced at 6: [], confirmed
        > streaming list of c from 6
    "#]]
    .assert_eq(&scene.log);
}
