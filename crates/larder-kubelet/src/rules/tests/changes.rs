//! A change and its touch, without failures.

use super::*;

// beside-kubelet 1
#[test]
fn a_change_is_touched_once_and_verified_by_the_swap() {
    World::new(DEFAULT_TTL)
        .compute(3000, "a", 2)
        .phase("a")
        .swap(3090, "a", 2)
        .phase("a")
        .until(600_000)
        .check(expect![[r#"
            3000 touch
            3000 a is Waiting: told the kubelet at 1970-01-01T00:00:03.000Z, attempt 1
            3090 a verified: swapped, Some(90) ms, 1 touches
            3090 a is Delivered: 
        "#]]);
}

// beside-kubelet 3
#[test]
fn a_change_during_a_touch_sends_none_and_a_swap_to_older_content_sends_one() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .compute(20, "a", 3)
        .swap(90, "a", 3)
        .check(expect![[r#"
            0 touch
            90 a verified: swapped, Some(70) ms, 0 touches
        "#]]);
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .compute(150, "a", 3)
        .swap(180, "a", 2)
        .swap(900, "a", 3)
        .check(expect![[r#"
            0 touch
            180 touch
            900 a verified: swapped, Some(750) ms, 1 touches
        "#]]);
}

// beside-kubelet 5
#[test]
fn volumes_that_change_together_share_a_touch() {
    let mut world = World::new(NO_TTL);
    for name in ["b", "c", "d"] {
        world.disk.insert(name, 1);
        world.compute(0, name, 1);
    }
    world.log.clear();
    world
        .compute(100, "a", 2)
        .compute(103, "b", 2)
        .compute(106, "c", 2)
        .compute(109, "d", 2)
        .swap(190, "b", 2)
        .swap(191, "a", 2)
        .swap(192, "d", 2)
        .swap(195, "c", 2)
        .until(10_000)
        .check(expect![[r#"
            100 touch
            190 b verified: swapped, Some(87) ms, 0 touches
            191 a verified: swapped, Some(91) ms, 1 touches
            192 d verified: swapped, Some(83) ms, 0 touches
            195 c verified: swapped, Some(89) ms, 0 touches
        "#]]);
}

#[test]
fn a_volume_that_does_not_follow_the_others_gets_its_own_touch_soon() {
    let mut world = World::new(NO_TTL);
    world.disk.insert("b", 1);
    world
        .compute(0, "b", 1)
        .compute(100, "a", 2)
        .compute(180, "b", 2)
        .swap(190, "a", 2)
        .until(400)
        .swap(500, "b", 2)
        .until(10_000)
        .check(expect![[r#"
            0 b verified: same, None ms, 0 touches
            100 touch
            190 a verified: swapped, Some(90) ms, 1 touches
            390 touch
            500 b verified: swapped, Some(320) ms, 1 touches
        "#]]);
}

// beside-kubelet 6
#[test]
fn content_that_is_in_place_already_is_not_touched() {
    let mut world = World::new(NO_TTL);
    world.disk.insert("a", 2);
    world
        .compute(100, "a", 2)
        .compute(200, "a", 2)
        .until(600_000)
        .check(expect![[r#"
            100 a verified: same, Some(0) ms, 0 touches
        "#]]);
}

// beside-kubelet 8
#[test]
fn a_kubelet_that_caches_gets_the_last_touch_when_its_copy_has_expired() {
    World::new(DEFAULT_TTL)
        .compute(0, "a", 2)
        .until(5000)
        .phase("a")
        .swap(61_090, "a", 2)
        .until(600_000)
        .check(expect![[r#"
            0 touch
            1500 touch
            4500 touch
            5000 a is Waiting: told the kubelet at 1970-01-01T00:00:04.500Z, attempt 3; kubelet serves a cached object until 1970-01-01T00:01:00Z
            61000 touch
            61090 a verified: swapped, Some(61090) ms, 4 touches
        "#]]);
    World::new(Duration::from_mins(5))
        .compute(0, "a", 2)
        .until(600_000)
        .check(expect![[r#"
            0 touch
            1500 touch
            4500 touch
            301000 touch
            302500 NotRefreshed { volume: "a" }
        "#]]);
}

#[test]
fn a_time_to_live_without_end_stops_no_pod() {
    World::new(Duration::MAX)
        .compute(0, "a", 2)
        .until(600_000)
        .phase("a")
        .swap(700_000, "a", 2)
        .check(expect![[r#"
            0 touch
            1500 touch
            4500 touch
            600000 a is Waiting: told the kubelet at 1970-01-01T00:00:04.500Z, attempt 3; kubelet serves a cached object until 9999-12-30T22:00:00Z
            700000 a verified: late, Some(700000) ms, 3 touches
        "#]]);
}

// beside-kubelet 35
#[test]
fn a_pod_that_differs_at_the_start_is_touched_as_soon_as_the_node_is_known() {
    World::new(NO_TTL)
        .gate(0, Gate::Unknown)
        .compute(0, "a", 2)
        .phase("a")
        .gate(50, Gate::Open)
        .until(1_000)
        .check(expect![[r#"
            0 a is Waiting: waiting for the Node
            50 touch
        "#]]);
}

#[test]
fn a_touch_waits_for_its_random_time_in_a_large_cluster() {
    let mut world = World::new(NO_TTL);
    world.delay = Duration::from_millis(3200);
    world.compute(1000, "a", 2).until(6000).check(expect![[r#"
            4200 touch
            5700 touch
        "#]]);
}

// beside-kubelet 15
#[test]
fn a_container_that_waits_for_its_environment_gets_one_touch_for_each_change() {
    let mut world = World::new(NO_TTL);
    let part = PartName::Environment("main".into());
    let mut parts: BTreeSet<_> = [volume("a")].into();
    parts.insert(part.clone());
    world.rules.set_pod(world.view.clone(), &parts);
    for (at, content) in [(0, 1), (10_000, 1), (20_000, 2)] {
        world.until(at);
        let observation = PartObservation::Outdated("waits for its environment".to_owned());
        let look = look(observation, content, world.start);
        world.rules.look(&part, look, world.now, world.wall());
        world.touch();
    }
    world.until(600_000).check(expect![[r#"
        0 touch
        20000 touch
    "#]]);
}
