//! What a reader needs decides what is requested: nothing, a check of the object, or a complete state.

use std::time::Duration;

use expect_test::{Expect, expect};
use larder_watch::Presence;

use crate::{
    scene::{ALL, Scene, one},
    script::{named, object},
};

/// Object `a` is known at version 5 and watched.
async fn watched() -> Scene {
    let mut scene = Scene::new();
    scene.start("a").await;
    scene.synced(5, Some(&object(5, "x"))).await;
    scene.know("a", 5);
    scene.log.clear();
    scene
}

#[track_caller]
fn check(scene: &Scene, expected: Expect) {
    expected.assert_eq(&scene.log);
}

#[tokio::test(start_paused = true)]
async fn a_known_object_is_checked_once_for_all_readers() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.answer(200, &object(5, "x")).await;
    check(
        &scene,
        expect![[r#"
            > get a
            0: object 0 confirmed at 5
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_that_a_check_misses_takes_a_complete_state() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.answer(404, "{}").await;
    scene.synced(9, None).await;
    check(
        &scene,
        expect![[r#"
            > get a
            > streaming list of a
            0: synced at 9: [], confirmed
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn an_absent_object_takes_a_complete_state() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Absent).await;
    check(
        &scene,
        expect![[r#"
            > streaming list of a
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_final_object_is_checked_without_a_watch() {
    let mut scene = watched().await;
    scene.engine.stop(one("a"));
    scene.need(one("a"), &["a"], Presence::Final).await;
    scene.answer(200, &object(5, "x")).await;
    scene.need(one("a"), &["a"], Presence::Unknown).await;
    check(
        &scene,
        expect![[r#"
            > get a
            0: object 0 confirmed at 5
            > streaming list of a
        "#]],
    );
}

// B14
#[tokio::test(start_paused = true)]
async fn a_check_that_is_older_twice_is_that_of_a_restored_server() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.answer(200, &object(3, "x")).await;
    scene.answer(200, &object(3, "x")).await;
    check(
        &scene,
        expect![[r#"
            > get a
            > get a
            0: object 0 confirmed at 3, reset
            > streaming list of a
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_check_that_events_overtook_is_no_restored_server() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.stream().event("MODIFIED", &object(8, "y"));
    scene.settle().await;
    scene.know("a", 8);
    scene.answer(200, &object(6, "x")).await;
    scene.stream().event("MODIFIED", &object(9, "z"));
    scene.settle().await;
    scene.know("a", 9);
    scene.answer(200, &object(8, "y")).await;
    check(
        &scene,
        expect![[r#"
            > get a
            0: a changed at 8
            > get a
            0: a changed at 9
            0: object 0 confirmed at 8
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_check_ahead_of_the_watch_makes_its_events_old() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.answer(200, &object(9, "y")).await;
    scene.stream().event("MODIFIED", &object(8, "x"));
    scene.settle().await;
    check(
        &scene,
        expect![[r#"
            > get a
            0: object 0 confirmed at 9
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_check_backs_off_and_waits_for_a_reader() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.answer(500, "{}").await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene.run(Duration::from_secs(10)).await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    check(
        &scene,
        expect![[r#"
            > get a
            0: check of 0 failed: refused
            0: check due
            > get a
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_decoded_is_not_confirmed() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    scene
        .answer(200, r#"{"metadata":{"name":"a"},"data":["hunter2"]}"#)
        .await;
    check(
        &scene,
        expect![[r#"
            > get a
            0: check of 0 failed: bad_answer
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_removed_object_is_not_checked_any_more() {
    let mut scene = watched().await;
    scene.need(one("a"), &["a"], Presence::Present).await;
    let request = scene.requests.pop_front().unwrap();
    scene.engine.remove(one("a"));
    assert!(request.is_cancelled() && scene.stream().is_dropped());
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_collection_is_checked_by_a_list_of_its_name() {
    let mut scene = Scene::new();
    scene.start_all().await;
    // The state under way may be older than a check, and does not cover the object.
    scene.need(ALL, &["b"], Presence::Unknown).await;
    scene.synced(5, Some(&object(5, "x"))).await;
    scene.need(ALL, &["a", "b"], Presence::Unknown).await;
    scene.list(7, Some(&named("a", 6, "y"))).await;
    scene.list(7, None).await;
    check(
        &scene,
        expect![[r#"
            > streaming list of all
            all: synced at 5: [a], confirmed
            > list of a
            > list of b
            all: object 0 confirmed at 6
            all: object 1 confirmed absent
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn very_many_needs_take_the_state_of_the_collection() {
    let mut scene = Scene::new();
    scene.start_all().await;
    scene.synced(5, None).await;
    let names: Vec<_> = ('a'..='q').map(String::from).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    scene.need(ALL, &names, Presence::Unknown).await;
    check(
        &scene,
        expect![[r#"
            > streaming list of all
            all: synced at 5: [], confirmed
            > streaming list of all
        "#]],
    );
}
