//! The rules as tables: events in the world, and the touches and notices that follow. Times are milliseconds.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use larder_on_change::{DigestKey, Digester};

use super::*;

const NO_TTL: Duration = Duration::ZERO;
const DEFAULT_TTL: Duration = Duration::from_mins(1);

/// One pod, its computed content, its kubelet's files, and the rules.
struct World {
    rules: PodRules,
    start: Instant,
    now: Instant,
    /// By volume; `None` cannot be computed.
    computed: BTreeMap<&'static str, Option<u8>>,
    disk: BTreeMap<&'static str, u8>,
    view: PodView,
    invisible: bool,
    delay: Duration,
    log: String,
}

fn payload(content: u8) -> ContentDigest {
    let mut digester = Digester::new(&DigestKey::from_bytes(&[7; 32]));
    digester.file("volume", "file", &[content]);
    digester.finish()
}

fn volume(name: &str) -> PartName {
    PartName::Volume(name.into())
}

fn container(name: &str, id: &str, volumes: &[&str]) -> RunningContainer {
    RunningContainer {
        name: name.into(),
        id: id.into(),
        volumes: volumes.iter().map(SmolStr::new).collect(),
    }
}

fn failed() -> TouchOutcome {
    TouchOutcome::Failed {
        why: "the API server does not answer",
        random: 0.0,
    }
}

impl World {
    /// A pod with a volume `a` that is up to date with content 1.
    fn new(ttl: Duration) -> Self {
        let start = Instant::now();
        let mut world = Self {
            rules: PodRules::new(Gate::Open, ttl),
            start,
            now: start,
            computed: BTreeMap::new(),
            disk: BTreeMap::new(),
            view: PodView {
                containers: vec![container("main", "id-1", &["a", "b"])],
                ..PodView::default()
            },
            invisible: false,
            delay: Duration::ZERO,
            log: String::new(),
        };
        world.set_view();
        world.disk.insert("a", 1);
        world.compute(0, "a", 1);
        world.log.clear();
        world
    }

    fn set_view(&mut self) {
        let parts = ["a", "b", "c", "d"].map(volume).into();
        self.rules.set_pod(self.view.clone(), &parts);
    }

    fn wall(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.now.duration_since(self.start)
    }

    fn say(&mut self, text: &str) {
        let at = self.now.duration_since(self.start).as_millis();
        let _ = writeln!(self.log, "{at} {text}");
    }

    fn notices(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            let text = match notice {
                Notice::Verified {
                    part: PartName::Volume(name) | PartName::Environment(name),
                    how,
                    delay,
                    touches,
                } => {
                    let delay = delay.map(|delay| delay.as_millis());
                    format!("{name} verified: {how:?}, {delay:?} ms, {touches} touches")
                }
                other => format!("{other:?}"),
            };
            self.say(&text);
        }
    }

    fn look(&mut self, name: &'static str, remade: bool, swapped: bool) {
        let computed = self.computed.get(name).copied().flatten();
        let sight = match (computed, self.disk.get(name)) {
            (None, _) => Sight::Uncomputable("configmap \"app\" not found".to_owned()),
            (Some(_), _) if self.invisible => Sight::Invisible("no mount".to_owned()),
            (Some(_), None) => Sight::NotMounted,
            (Some(computed), Some(disk)) if computed == *disk => Sight::Same,
            (Some(_), Some(_)) => Sight::Outdated("file".to_owned()),
        };
        let look = Look {
            sight,
            payload: computed.map(payload),
            remade,
            swapped,
            changed_at: self.now,
            delay: self.delay,
        };
        let (now, wall) = (self.now, self.wall());
        let notices = self.rules.look(&volume(name), look, now, wall);
        self.notices(notices);
        self.touch();
    }

    /// Sends the touch that is due now, if any.
    fn touch(&mut self) {
        let counted = self.rules.outstanding().count();
        assert_eq!(self.rules.outstanding_parts, counted);
        if self.rules.wants_touch(self.now) {
            self.rules.sent(self.now, self.wall());
            self.say("touch");
        }
    }

    /// Lets time pass until `at`.
    fn until(&mut self, at: u64) -> &mut Self {
        let at = self.start + Duration::from_millis(at);
        while let Some(wake) = self.rules.next_wake().filter(|wake| *wake <= at) {
            self.now = self.now.max(wake);
            let notices = self.rules.overdue(self.now);
            self.notices(notices);
            self.touch();
        }
        self.now = at;
        self
    }

    /// Objects change; this content is computed now.
    fn compute(&mut self, at: u64, name: &'static str, content: u8) -> &mut Self {
        self.until(at);
        self.computed.insert(name, Some(content));
        self.look(name, false, false);
        self
    }

    /// A required object is deleted.
    fn lose(&mut self, at: u64, name: &'static str) -> &mut Self {
        self.until(at);
        self.computed.insert(name, None);
        self.look(name, false, false);
        self
    }

    /// The kubelet swaps the volume.
    fn swap(&mut self, at: u64, name: &'static str, content: u8) -> &mut Self {
        self.until(at);
        self.disk.insert(name, content);
        self.look(name, false, true);
        self
    }

    fn gate(&mut self, at: u64, gate: Gate) -> &mut Self {
        self.until(at);
        self.rules.set_gate(gate, self.now);
        self
    }

    fn answer(&mut self, at: u64, answer: TouchOutcome) -> &mut Self {
        self.until(at);
        self.rules.answered(answer, self.now);
        self
    }

    fn phase(&mut self, name: &str) -> &mut Self {
        let (phase, reason) = self.rules.phase(&volume(name), self.wall()).unwrap();
        self.say(&format!("{name} is {phase:?}: {reason}"));
        self
    }

    #[track_caller]
    fn check(&mut self, expected: Expect) {
        expected.assert_eq(&self.log);
    }
}

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
            3090 a verified: Swapped, Some(90) ms, 1 touches
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
            90 a verified: Swapped, Some(70) ms, 0 touches
        "#]]);
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .compute(150, "a", 3)
        .swap(180, "a", 2)
        .swap(900, "a", 3)
        .check(expect![[r#"
            0 touch
            180 touch
            900 a verified: Swapped, Some(750) ms, 1 touches
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
            190 b verified: Swapped, Some(87) ms, 0 touches
            191 a verified: Swapped, Some(91) ms, 1 touches
            192 d verified: Swapped, Some(83) ms, 0 touches
            195 c verified: Swapped, Some(89) ms, 0 touches
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
            0 b verified: Same, None ms, 0 touches
            100 touch
            190 a verified: Swapped, Some(90) ms, 1 touches
            390 touch
            500 b verified: Swapped, Some(320) ms, 1 touches
        "#]]);
}

#[test]
fn a_look_at_many_parts_asks_each_part_a_fixed_number_of_times() {
    let now = Instant::now();
    let mut rules = PodRules::new(Gate::Open, NO_TTL);
    part::ASKED.set(0);
    for number in 0..500 {
        let look = Look {
            sight: Sight::Same,
            payload: Some(payload(1)),
            remade: false,
            swapped: false,
            changed_at: now,
            delay: Duration::ZERO,
        };
        let name = volume(&format!("v{number}"));
        rules.look(&name, look, now, Timestamp::UNIX_EPOCH);
    }
    assert_eq!(part::ASKED.get(), 2 * 500);
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
            100 a verified: Same, Some(0) ms, 0 touches
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
            61090 a verified: Swapped, Some(61090) ms, 4 touches
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
            700000 a verified: Late, Some(700000) ms, 3 touches
        "#]]);
}

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
            20200 a verified: Late, Some(20200) ms, 3 touches
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
            61400 a verified: Same, Some(61300) ms, 0 touches
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
            3100 a verified: Swapped, Some(100) ms, 1 touches
        "#]]);
    // With the content that the volume has kept.
    World::new(NO_TTL)
        .lose(100, "a")
        .compute(3000, "a", 1)
        .phase("a")
        .check(expect![[r#"
            3000 a verified: Same, Some(0) ms, 0 touches
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
            92000 a verified: Late, Some(32000) ms, 3 touches
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
    let look = Look {
        sight: Sight::Pinned("ConfigMap \"app\"".to_owned()),
        payload: Some(payload(2)),
        remade: false,
        swapped: false,
        changed_at: world.now,
        delay: Duration::ZERO,
    };
    world
        .rules
        .look(&volume("a"), look, world.now, world.wall());
    world.touch();
    world.until(600_000).phase("a").check(expect![[r#"
        600000 a is Held: Pinned: the kubelet serves the immutable ConfigMap "app" that was deleted
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
        .answer(110, TouchOutcome::Gone)
        .compute(200, "a", 3)
        .until(600_000)
        .check(expect![[r#"
            100 touch
        "#]]);
}

// beside-kubelet 22
#[test]
fn a_touch_that_is_not_permitted_waits_for_the_permission() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(5, TouchOutcome::Forbidden("patch pods/status".to_owned()))
        .compute(1000, "a", 3)
        .phase("a")
        .gate(400_000, Gate::Open)
        .until(400_000)
        .swap(400_100, "a", 3)
        .check(expect![[r#"
            0 touch
            1000 a is Waiting: permission is missing: patch pods/status
            400000 touch
            400100 a verified: Swapped, Some(399100) ms, 1 touches
        "#]]);
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(5, TouchOutcome::Refused("policy says no".to_owned()))
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
        .answer(5, TouchOutcome::Throttled(Some(Duration::from_secs(2))))
        .until(2100)
        .swap(2150, "a", 2)
        .check(expect![[r#"
            0 touch
            2005 touch
            2150 a verified: Swapped, Some(2150) ms, 1 touches
        "#]]);
}

#[test]
fn a_touch_that_changed_nothing_or_got_no_answer_does_not_count() {
    World::new(NO_TTL)
        .compute(0, "a", 2)
        .answer(5, TouchOutcome::Again("it drops the annotation"))
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
            2050 a verified: Swapped, Some(2050) ms, 1 touches
        "#]]);
}

// beside-kubelet 22
#[test]
fn touches_that_never_have_an_effect_count_as_a_rejection() {
    for why in ["it drops the annotation", "it reports a conflict each time"] {
        let mut world = World::new(NO_TTL);
        world.compute(0, "a", 2);
        let mut touches = 1;
        // The API server answers each touch at once.
        for at in (0..700_000).step_by(5) {
            world.until(at);
            let sent = world.log.matches("touch\n").count();
            if sent == touches {
                world.answer(at, TouchOutcome::Again(why));
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
            .answer(at, TouchOutcome::Again("it reports a conflict each time"))
            .until(at + 60)
            .answer(at + 70, TouchOutcome::Touched)
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
    world
        .until(41_000)
        .answer(41_000, TouchOutcome::Touched)
        .phase("a");
    // An outage that ends delays nothing, and hurries nothing else.
    world.answer(
        41_001,
        TouchOutcome::Throttled(Some(Duration::from_mins(1))),
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
        world.compute(0, "a", 2).answer(
            0,
            TouchOutcome::Failed {
                why: "the API server does not answer",
                random,
            },
        );
        world.rules.wanted_at().unwrap() - world.start
    };
    assert_eq!(retried_at(0.0), Duration::from_millis(500));
    assert_eq!(retried_at(0.5), Duration::from_millis(750));
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
            600000 a is Held: Unverified: no mount
        "#]]);
}

// beside-kubelet 30
#[test]
fn a_volume_torn_down_under_its_containers_is_detached_until_they_are_restarted() {
    let mut world = World::new(NO_TTL);
    world.disk.insert("a", 2);
    world.computed.insert("a", Some(2));
    world.until(1000).look("a", true, true);
    world.phase("a").compute(2000, "a", 3).until(60_000);
    world.view.containers = vec![container("main", "id-2", &["a"])];
    world.set_view();
    world.look("a", false, false);
    world.swap(60_100, "a", 3).phase("a").check(expect![[r#"
            1000 Detached { volume: "a", containers: ["main"] }
            1000 a is Held: Detached: torn down under running containers, restart main
            60000 touch
            60100 a verified: Swapped, Some(58100) ms, 1 touches
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
            11500 a verified: Late, Some(11500) ms, 3 touches
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
    let look = |content| Look {
        sight: Sight::Outdated("waits for its environment".to_owned()),
        payload: Some(payload(content)),
        remade: false,
        swapped: false,
        changed_at: world.start,
        delay: Duration::ZERO,
    };
    let looks = [look(1), look(1), look(2)];
    for (at, look) in [0, 10_000, 20_000].into_iter().zip(looks) {
        world.until(at);
        world.rules.look(&part, look, world.now, world.wall());
        world.touch();
    }
    world.until(600_000).check(expect![[r#"
        0 touch
        20000 touch
    "#]]);
}
