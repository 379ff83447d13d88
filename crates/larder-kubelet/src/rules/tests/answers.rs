//! The API server's answers to a touch.

use super::*;

// beside-kubelet 22
#[test]
fn a_touch_that_is_not_permitted_waits_for_the_permission() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(
            5,
            TouchAnswer::Forbidden {
                permission: "patch pods/status".to_owned(),
            },
        )
        .compute(1000, "a", 3)
        .phase("a")
        .gate(400_000, Gate::Open)
        .until(400_000)
        .swap(400_100, "a", 3)
        .check(expect![[r#"
            0 touch
            1000 a is Waiting: permission is missing: patch pods/status
            400000 touch
            400100 a verified: swapped, Some(399100) ms, 1 touches
        "#]]);
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(
            5,
            TouchAnswer::Refused {
                message: "policy says no".to_owned(),
            },
        )
        .compute(1000, "a", 3)
        .phase("a")
        .until(700_000)
        .check(expect![[r#"
            0 touch
            1000 a is Waiting: the API server refused the touch: policy says no
            600005 touch
            601505 touch
            604505 touch
        "#]]);
}

// beside-kubelet 23
#[test]
fn a_throttled_touch_is_sent_after_the_api_servers_retry_after() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(
            5,
            TouchAnswer::Throttled {
                retry_after: Some(Duration::from_secs(2)),
            },
        )
        .until(2100)
        .swap(2150, "a", 2)
        .check(expect![[r#"
            0 touch
            2005 touch
            2150 a verified: swapped, Some(2150) ms, 1 touches
        "#]]);
}

#[test]
fn a_touch_that_changed_nothing_or_got_no_answer_does_not_count() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(5, TouchAnswer::NoOp)
        .until(60)
        .answer(61, failed())
        .until(600)
        .answer(610, failed())
        .until(2000)
        .swap(2050, "a", 2)
        .check(expect![[r#"
            0 touch
            55 touch
            561 touch
            1610 touch
            2050 a verified: swapped, Some(2050) ms, 1 touches
        "#]]);
}

// beside-kubelet 22
#[test]
fn touches_that_never_have_an_effect_count_as_a_rejection() {
    for (answer, why) in [
        (TouchAnswer::NoOp, "it drops the annotation"),
        (TouchAnswer::Conflict, "it reports a conflict each time"),
    ] {
        let mut world = World::new(NO_TTL);
        world.compute(0, "a", 2);
        let mut touches = 1;
        // The API server answers each touch at once.
        for at in (0..700_000).step_by(5) {
            world.until(at);
            let sent = world.log.matches("touch\n").count();
            if sent == touches {
                world.answer(at, answer.clone());
                touches += 1;
            }
        }
        world.phase("a");
        let reason = format!("a is Waiting: the API server refused the touch: {why}\n");
        assert!(world.log.ends_with(&reason), "{}", world.log);
        let log = world.log.clone();
        let times: Vec<_> = log
            .lines()
            .filter_map(|line| line.strip_suffix(" touch"))
            .collect();
        let expected = [
            "0", "50", "550", "1550", "601550", "601600", "602100", "603100",
        ];
        assert_eq!(times, expected);
    }
}

#[test]
fn touches_without_effect_count_for_the_limit_of_a_minute() {
    let mut world = World::new(NO_TTL);
    // Each change is touched with one conflict before it succeeds.
    for (change, content) in (2..=20).enumerate() {
        let at = u64::try_from(change).unwrap() * 500;
        world
            .compute(at, "a", content)
            .answer(at, TouchAnswer::Conflict)
            .until(at + 60)
            .answer(at + 70, touched())
            .swap(at + 200, "a", content);
    }
    let touches = world.log.lines().filter(|line| line.ends_with(" touch"));
    assert_eq!(touches.count(), MAX_TOUCHES, "{}", world.log);
}

#[test]
fn a_touch_that_failed_is_sent_again_when_the_outage_is_over() {
    let mut world = World::new(NO_TTL);
    world.compute(0, "a", 2);
    for at in [0, 500, 1500, 3500, 7500, 15_500, 31_500] {
        world.answer(at, failed());
    }
    world.until(40_000).phase("a");
    world
        .rules
        .outage_over(world.start + Duration::from_millis(40_300));
    world.until(41_000).answer(41_000, touched()).phase("a");
    // An outage that ends delays nothing, and hurries nothing else.
    world.answer(
        41_001,
        TouchAnswer::Throttled {
            retry_after: Some(Duration::from_mins(1)),
        },
    );
    world
        .rules
        .outage_over(world.start + Duration::from_millis(41_300));
    let log = world.until(60_000).log.clone();
    let from = log.find("31500 touch").unwrap();
    world.log = log[from..].to_owned();
    world.check(expect![[r#"
        31500 touch
        40000 a is Waiting: failed to touch the pod, will retry: the API server does not answer
        40300 touch
        41000 a is Waiting: told the kubelet at 1970-01-01T00:00:40.300Z, attempt 1
    "#]]);
}

#[test]
fn touches_that_failed_together_are_not_sent_again_together() {
    let retried_at = |random| {
        let mut world = World::new(NO_TTL);
        world.compute(0, "a", 2);
        world.rules.answered(failed(), random, world.now);
        world.rules.wanted_at().unwrap() - world.start
    };
    assert_eq!(retried_at(0.0), Duration::from_millis(500));
    assert_eq!(retried_at(0.5), Duration::from_millis(750));
}
