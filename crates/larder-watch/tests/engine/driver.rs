//! One target: from the first state to the watch, and back.

use std::time::Duration;

use expect_test::{Expect, expect};
use larder_watch::MinFreshness;

use crate::{
    scene::{ALL, Scene, one},
    script::{named, object},
};

#[track_caller]
fn check(scene: &Scene, expected: Expect) {
    expected.assert_eq(&scene.log);
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_continues_as_the_watch() {
    let mut scene = Scene::new();
    scene.start("a").await;
    scene.synced(5, Some(&object(5, "x"))).await;
    scene.stream().event("MODIFIED", &object(6, "y"));
    scene.stream().bookmark(8);
    scene.stream().event("DELETED", &object(9, "y"));
    scene.run(Duration::from_secs(5)).await;
    scene.end_stream().await;
    scene.open().await;
    check(
        &scene,
        expect![[r#"
            > streaming list of a
            0: synced at 5: [a], confirmed
            0: a changed at 6
            0: a deleted at 9
            0: interrupted: ended
            > watch of a from 9
            0: resumed
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_rejected_streaming_list_becomes_a_list_and_a_watch() {
    let mut scene = Scene::new();
    scene.start("a").await;
    scene.answer(400, "{}").await;
    scene.list(5, Some(&object(4, "x"))).await;
    scene.open().await;
    check(
        &scene,
        expect![[r#"
            > streaming list of a
            > list of a
            0: synced at 5: [a], confirmed
            > watch of a from 5
            0: resumed
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_that_does_not_end_becomes_a_list() {
    let mut scene = Scene::new();
    scene.start("a").await;
    scene.open().await;
    scene.stream().event("ADDED", &object(5, "x"));
    scene.run(Duration::from_secs(11)).await;
    check(
        &scene,
        expect![[r#"
            > streaming list of a
            0: interrupted: stalled
            > list of a
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_streaming_list_is_waited_for_while_events_come() {
    let mut scene = Scene::new();
    scene.start_all().await;
    scene.open().await;
    for _ in 0..3 {
        scene.run(Duration::from_secs(9)).await;
        scene.stream().event("ADDED", &object(5, "x"));
    }
    scene.run(Duration::from_secs(9)).await;
    scene.stream().end_of_initial_events(6);
    scene.settle().await;
    check(
        &scene,
        expect![[r#"
            > streaming list of all
            all: synced at 6: [a], confirmed
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_that_never_ends_becomes_a_list() {
    let mut scene = Scene::new();
    scene.start("a").await;
    scene.open().await;
    for version in 5..65 {
        scene.stream().event("MODIFIED", &object(version, "x"));
        scene.run(Duration::from_secs(5)).await;
    }
    check(
        &scene,
        expect![[r#"
            > streaming list of a
            0: interrupted: stalled
            > list of a
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn an_item_without_a_name_makes_the_state_incomplete() {
    let mut scene = Scene::new();
    scene.start_all().await;
    scene.open().await;
    scene.stream().event("ADDED", &object(5, "x"));
    scene.stream().event("ADDED", r#"{"metadata":7}"#);
    scene.stream().end_of_initial_events(6);
    scene.settle().await;
    check(
        &scene,
        expect![[r#"
            > streaming list of all
            all: synced at 6: [a], confirmed, incomplete
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_no_event_takes_a_new_state() {
    let mut scene = Scene::new();
    scene.start("a").await;
    scene.synced(5, None).await;
    scene.stream().raw("hunter2\n");
    scene.run(Duration::from_secs(2)).await;
    check(
        &scene,
        expect![[r#"
            > streaming list of a
            0: synced at 5: [], confirmed
            0: interrupted: refused
            0: failed: failed to watch: bad_answer
            > streaming list of a from 5
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_stopped_target_starts_from_its_last_version() {
    let mut scene = Scene::new();
    scene.start("a").await;
    scene.synced(5, None).await;
    scene.engine.stop(one("a"));
    assert!(scene.stream().is_dropped() && scene.engine.is_resting(one("a")));
    scene.engine.start(one("a"), MinFreshness::Seen);
    scene.settle().await;
    check(
        &scene,
        expect![[r#"
            > streaming list of a
            0: synced at 5: [], confirmed
            > streaming list of a from 5
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_backs_off_and_is_reported() {
    let mut scene = Scene::new();
    scene.start_all().await;
    scene.answer(403, "{}").await;
    assert!(scene.engine.is_backing_off(ALL));
    scene.run(Duration::from_secs(1)).await;
    scene.synced(7, Some(&named("b", 6, "x"))).await;
    check(
        &scene,
        expect![[r#"
            > streaming list of all
            all: interrupted: refused
            all: failed: failed to list: forbidden
            > streaming list of all
            all: synced at 7: [b], confirmed
        "#]],
    );
}
