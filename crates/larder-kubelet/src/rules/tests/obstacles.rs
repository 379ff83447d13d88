//! Kubelets, nodes and volumes that do not react to a touch.

use super::*;

// beside-kubelet 9
#[test]
fn a_kubelet_that_stands_still_gets_three_touches() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .swap(20_200, "a", 2)
        .check(expect![[r#"
            0 touch
            1500 touch
            4500 touch
            20200 a verified: late, Some(20200) ms, 3 touches
        "#]]);
}

// beside-kubelet 10
#[test]
fn a_node_that_is_not_ready_is_not_touched_and_catches_up_by_itself() {
    World::new(NO_TTL)
        .gate(0, Gate::KubeletNotReady(Some(Timestamp::UNIX_EPOCH)))
        .compute(100, "a", 2)
        .phase("a")
        .gate(60_000, Gate::Open)
        .swap(61_400, "a", 2)
        .until(600_000)
        .check(expect![[r#"
            100 a is Waiting: kubelet not ready since 1970-01-01T00:00:00Z
            61400 a verified: same, Some(61300) ms, 0 touches
        "#]]);
    World::new(NO_TTL)
        .gate(0, Gate::KubeletNotReady(None))
        .compute(100, "a", 2)
        .phase("a")
        .gate(60_000, Gate::Open)
        .until(65_100)
        .check(expect![[r#"
            100 a is Waiting: kubelet not ready
            65000 touch
        "#]]);
}

#[test]
fn a_dry_run_reports_each_touch_once_and_sends_none() {
    let mut world = World::new(NO_TTL);
    world.disk.insert("b", 1);
    world
        .gate(0, Gate::DryRun)
        .compute(100, "a", 2)
        .compute(200, "a", 2)
        .compute(300, "b", 1)
        .compute(400, "a", 3)
        .swap(500, "a", 3)
        .until(600_000)
        .phase("a")
        .check(expect![[r#"
            100 would touch: volume a: file
            300 b verified: same, None ms, 0 touches
            400 would touch: volume a: file
            500 a verified: same, Some(100) ms, 0 touches
            600000 a is Delivered: 
        "#]]);
}

// beside-kubelet 11
#[test]
fn a_missing_object_causes_no_touch_until_it_is_back() {
    World::new(NO_TTL)
        .lose(100, "a")
        .phase("a")
        .until(2900)
        .compute(3000, "a", 2)
        .swap(3100, "a", 2)
        .check(expect![[r#"
            100 a is Failing: configmap "app" not found
            3000 touch
            3100 a verified: swapped, Some(100) ms, 1 touches
        "#]]);
    // With the content that the volume has kept.
    World::new(NO_TTL)
        .lose(100, "a")
        .compute(3000, "a", 1)
        .phase("a")
        .check(expect![[r#"
            3000 a verified: same, Some(0) ms, 0 touches
            3000 a is Delivered: 
        "#]]);
}

// beside-kubelet 12
#[test]
fn a_volume_in_back_off_shows_when_the_kubelet_retries() {
    World::new(DEFAULT_TTL)
        .lose(0, "a")
        .compute(60_000, "a", 2)
        .until(66_000)
        .phase("a")
        .swap(92_000, "a", 2)
        .until(600_000)
        .phase("a")
        .check(expect![[r#"
            60000 touch
            61500 touch
            64500 touch
            66000 a is Waiting: told the kubelet at 1970-01-01T00:01:04.500Z, attempt 3; kubelet serves a cached object until 1970-01-01T00:02:00Z; kubelet retries at 1970-01-01T00:02:00Z at the latest
            92000 a verified: late, Some(32000) ms, 3 touches
            600000 a is Delivered: 
        "#]]);
}

#[test]
fn a_payload_that_never_arrives_is_reported_once() {
    World::new(DEFAULT_TTL)
        .compute(0, "a", 2)
        .until(3_600_000)
        .compute(3_600_000, "a", 3)
        .until(7_200_000)
        .check(expect![[r#"
            0 touch
            1500 touch
            4500 touch
            61000 touch
            180000 NotRefreshed { volume: "a" }
            3600000 touch
            3601500 touch
            3604500 touch
            3661000 touch
            3780000 NotRefreshed { volume: "a" }
        "#]]);
}

#[test]
fn a_constantly_changing_pod_gets_ten_touches_a_minute_then_one_every_15_s() {
    let mut world = World::new(NO_TTL);
    for (change, content) in (2..=200).enumerate() {
        let at = u64::try_from(change).unwrap() * 500;
        world.compute(at, "a", content).swap(at + 200, "a", content);
    }
    world.log = world
        .log
        .lines()
        .filter(|line| line.ends_with("touch"))
        .fold(String::new(), |log, line| log + line + "\n");
    world.check(expect![[r#"
        0 touch
        500 touch
        1000 touch
        1500 touch
        2000 touch
        2500 touch
        3000 touch
        3500 touch
        4000 touch
        4500 touch
        19500 touch
        34500 touch
        49500 touch
        61500 touch
        62000 touch
        62500 touch
        63000 touch
        63500 touch
        64000 touch
        64500 touch
        79500 touch
        94500 touch
    "#]]);
}

// beside-kubelet 16
#[test]
fn a_pinned_volume_is_held() {
    let mut world = World::new(NO_TTL);
    let observation = PartObservation::Pinned("ConfigMap \"app\"".to_owned());
    let look = look(observation, 2, world.now);
    world
        .rules
        .look(&volume("a"), look, world.now, world.wall());
    world.touch();
    world.until(600_000).phase("a").check(expect![[r#"
        600000 a is Pinned: Pinned: the kubelet serves the immutable ConfigMap "app" that was deleted
    "#]]);
}

// beside-kubelet 19
#[test]
fn a_terminated_or_deleted_pod_is_not_touched() {
    let mut world = World::new(NO_TTL);
    world.view.ending = true;
    world.set_view();
    world.compute(100, "a", 2).until(600_000);
    world.check(expect![[r#""#]]);
    World::new(NO_TTL)
        .compute(100, "a", 2)
        .answer(
            110,
            TouchAnswer::Gone {
                message: "pods \"web\" not found".to_owned(),
            },
        )
        .compute(200, "a", 3)
        .until(600_000)
        .phase("a")
        // The watch still shows the pod: it is there, whatever was answered in place of the API server.
        .until(601_000)
        .check(expect![[r#"
            100 touch
            600000 a is Waiting: the API server does not find the pod: pods "web" not found
            600110 touch
        "#]]);
}

// beside-kubelet 27
#[test]
fn a_volume_that_cannot_be_read_gets_one_touch_for_each_change() {
    let mut world = World::new(NO_TTL);
    world.invisible = true;
    world
        .compute(100, "a", 2)
        .until(60_000)
        .compute(60_000, "a", 3)
        .until(600_000)
        .phase("a")
        .check(expect![[r#"
            100 Unverified
            100 touch
            60000 Unverified
            60000 touch
            600000 a is Unverified: Unverified: no mount
        "#]]);
}

// beside-kubelet 30
#[test]
fn a_volume_torn_down_under_its_containers_is_detached_until_they_are_restarted() {
    let mut world = World::new(NO_TTL);
    world.disk.insert("a", 2);
    world.computed.insert("a", Some(2));
    world.until(1000).look("a", VolumeChange::Recreated);
    world.phase("a").compute(2000, "a", 3).until(60_000);
    world.view.containers = vec![container("main", "id-2", &["a"])];
    world.set_view();
    world.look("a", VolumeChange::None);
    world.swap(60_100, "a", 3).phase("a").check(expect![[r#"
            1000 Detached { volume: "a", containers: ["main"] }
            1000 a is Detached: Detached: torn down under running containers, restart main
            60000 touch
            60100 a verified: swapped, Some(58100) ms, 1 touches
            60100 a is Delivered: 
        "#]]);
}

// beside-kubelet 34
#[test]
fn a_sync_that_takes_long_gets_three_touches() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .swap(11_500, "a", 2)
        .phase("a")
        .check(expect![[r#"
            0 touch
            1500 touch
            4500 touch
            11500 a verified: late, Some(11500) ms, 3 touches
            11500 a is Delivered: 
        "#]]);
}

// beside-kubelet 40
#[test]
fn a_pod_with_a_volume_that_is_republished_gets_the_first_touch_only() {
    let mut world = World::new(DEFAULT_TTL);
    world.view.republishes = true;
    world.set_view();
    world.compute(0, "a", 2).until(600_000).check(expect![[r#"
            0 touch
            180000 NotRefreshed { volume: "a" }
        "#]]);
}
