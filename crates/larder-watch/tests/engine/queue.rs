//! Requests in flight, and what a queued request has learned by the time it is sent.

use expect_test::expect;
use larder_watch::Presence;

use crate::{
    scene::{Scene, one},
    script::{named, object},
};

#[tokio::test(start_paused = true)]
async fn requests_that_readers_wait_for_go_first() {
    let mut scene = Scene::with_max_requests(1);
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
async fn a_queued_request_asks_for_a_version_that_is_fresh_enough() {
    let mut scene = Scene::with_max_requests(1);
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
