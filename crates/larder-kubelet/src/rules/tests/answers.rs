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
            606005 NotRefreshed { volume: "a" }
        "#]]);
}

// beside-kubelet 23
#[test]
fn a_throttled_touch_is_due_again_and_the_state_says_what_the_node_waits_for() {
    let mut world = World::new(NO_TTL);
    world.compute(0, "a", 2).answer(
        5,
        TouchAnswer::Throttled {
            retry_after: Duration::from_secs(2),
        },
    );
    // The limiter of the node sends it later.
    assert_eq!(world.rules.wanted_at(), Some(world.start));
    let until = Timestamp::from_second(2).unwrap();
    world.rules.set_throttled(Some(until));
    world.phase("a").now += Duration::from_secs(2);
    world.phase("a").check(expect![[r#"
        0 touch
        5 a is Waiting: out of date: file; the API server has too many requests (429), no pod is touched until 1970-01-01T00:00:02Z
        2005 a is Waiting: out of date: file
    "#]]);
}

#[test]
fn a_rejected_touch_does_not_count_even_if_the_kubelet_was_faster_than_the_answer() {
    for republishes in [false, true] {
        let mut world = World::new(NO_TTL);
        world.view.republishes = republishes;
        world.set_view();
        world
            .compute(0, "a", 2)
            // The kubelet's own sync: it has read what was there a moment ago.
            .swap(20, "a", 9)
            .answer(300, failed())
            .until(1000)
            .check(expect![[r#"
                0 touch
                800 touch
            "#]]);
    }
}

#[test]
fn a_touch_that_is_answered_after_its_content_arrived_does_not_count_for_the_next() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .swap(20, "a", 2)
        .answer(30, failed())
        // Somebody has written the file meanwhile.
        .swap(2000, "a", 9)
        .check(expect![[r#"
            0 touch
            20 a verified: swapped, Some(20) ms, 1 touches
            2000 touch
        "#]]);
}

#[test]
fn a_rejection_is_over_with_the_next_answer() {
    let refused = || TouchAnswer::Refused {
        message: "no".to_owned(),
    };
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(5, refused())
        .phase("a")
        .until(600_010)
        .answer(600_020, failed())
        .phase("a")
        .until(601_000)
        .answer(601_000, touched())
        .phase("a")
        .until(900_000)
        .check(expect![[r#"
            0 touch
            5 a is Waiting: the API server refused the touch: no
            600005 touch
            600020 a is Waiting: failed to touch the pod, will retry: the API server does not answer
            600520 touch
            601000 a is Waiting: told the kubelet at 1970-01-01T00:10:00.520Z, attempt 1
            602020 touch
            605020 touch
            606520 NotRefreshed { volume: "a" }
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
    // An outage that ends hurries nothing else.
    let message = "no".to_owned();
    world.answer(41_001, TouchAnswer::Refused { message });
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
