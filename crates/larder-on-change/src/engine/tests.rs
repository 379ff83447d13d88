//! One hook through time: changes go in, the starts of rounds come out.

use super::*;
use crate::{
    digest::{DigestItem, DigestKey},
    hook::{Action, Paths, Restart, Retry, Timing},
};

const MS: Duration = Duration::from_millis(1);

fn content(text: &str) -> ContentDigest {
    let key = DigestKey::from_bytes(&[7; DigestKey::BYTES]);
    key.digest(std::iter::once(DigestItem {
        is_variable: false,
        owner: "v",
        name: "f",
        tag: key.tag(text.as_bytes()),
    }))
}

/// A hook, and a clock in milliseconds.
struct Simulation {
    engine: HookEngine,
    began: Instant,
    now: u32,
    random: f64,
    /// When rounds began, in milliseconds, and with what content.
    rounds: Vec<(u32, ContentDigest)>,
}

impl Simulation {
    fn new(timing: Timing, on_failure: OnFailure, initial: bool, last: LastNotification) -> Self {
        let hook = Hook {
            name: "test".to_owned(),
            volumes: None,
            paths: Paths::default(),
            environment: false,
            container: None,
            steps: vec![Action::Restart(Restart::default())],
            timing,
            on_failure,
            initial,
        };
        Self {
            engine: HookEngine::new(Arc::new(hook), last, None),
            began: Instant::now(),
            now: 0,
            random: 0.0,
            rounds: Vec::new(),
        }
    }

    /// A hook that has had its first delivery.
    fn delivered(timing: Timing) -> Self {
        let mut simulation = Self::new(timing, OnFailure::Retry, false, LastNotification::Nothing);
        simulation.observe("first");
        simulation.engine.baseline = Some(Arc::default());
        simulation
    }

    fn instant(&self) -> Instant {
        self.began + MS * self.now
    }

    fn observe(&mut self, text: &str) {
        self.engine.observe(content(text), self.instant());
    }

    /// Every content known so far becomes `extended`.
    fn extend(&mut self, extended: ContentDigest) {
        let extended = |_: &Content| (Arc::default(), extended);
        self.engine.extend(&Content::default(), extended);
    }

    /// Advances the time to `until`. Rounds begin as soon as they are due, and end at once with `end`, or keep
    /// running.
    fn run(&mut self, until: u32, end: Option<AttemptEnd>) {
        while self.now <= until {
            if self.engine.advance(self.instant(), self.random).is_some() {
                self.engine.start(Arc::default()).expect("a round is due");
                let digest = self.engine.present.expect("there is content");
                self.rounds.push((self.now, digest));
                if let Some(end) = &end {
                    self.finish(end);
                }
            }
            self.now += 1;
        }
    }

    fn finish(&mut self, end: &AttemptEnd) {
        self.engine.finished(end, self.instant(), self.random);
    }

    fn times(&self) -> Vec<u32> {
        self.rounds.iter().map(|(time, _)| *time).collect()
    }
}

fn timing() -> Timing {
    Timing::new(Debounce::DEFAULT)
}

const DONE: Option<AttemptEnd> = Some(AttemptEnd::Succeeded);
const FAILED: AttemptEnd = AttemptEnd::Failed {
    reason: String::new(),
    output: String::new(),
    is_final: false,
};

// on-change 14
#[test]
fn first_delivery_fires_only_initial_hooks() {
    let mut quiet = Simulation::delivered(timing());
    quiet.run(5000, DONE);
    assert!(quiet.rounds.is_empty());
    assert_eq!(quiet.engine.notified(), Some(content("first")));

    let mut initial = Simulation::new(timing(), OnFailure::Retry, true, LastNotification::Nothing);
    initial.observe("first");
    initial.run(5000, DONE);
    assert_eq!(initial.times(), [100]);
}

// on-change 15
#[test]
fn same_content_fires_nothing() {
    let mut simulation = Simulation::delivered(timing());
    for _ in 0..3 {
        simulation.observe("first");
        simulation.run(simulation.now + 500, DONE);
    }
    assert!(simulation.rounds.is_empty());
}

// on-change 16
#[test]
fn there_and_back_within_the_quiet_period_is_no_change() {
    let mut simulation = Simulation::delivered(timing());
    simulation.observe("second");
    simulation.run(50, DONE);
    simulation.observe("first");
    simulation.run(5000, DONE);
    assert!(simulation.rounds.is_empty());
    assert_eq!(simulation.engine.state(), HookState::Idle);
}

#[test]
fn endless_quiet_period_counts_as_a_year() {
    for (min, max, waits) in [(0, u64::MAX, 0), (u64::MAX, u64::MAX, 365 * 24 * 3600)] {
        let (min, max) = (Duration::from_secs(min), Duration::from_secs(max));
        let debounce = Debounce { min, max };
        let mut simulation = Simulation::delivered(Timing {
            debounce,
            ..timing()
        });
        simulation.observe("second");
        let due = simulation.began + Duration::from_secs(waits);
        assert_eq!(simulation.engine.wakes_at(), Some(due));
    }
}

#[test]
fn endless_splay_and_retry_count_as_a_year() {
    let retry = Retry {
        min: Duration::MAX,
        max: Duration::MAX,
        attempts: 0,
    };
    let mut simulation = Simulation::delivered(Timing {
        splay: Duration::MAX,
        retry,
        ..timing()
    });
    simulation.observe("second");
    let engine = &mut simulation.engine;
    let quiet = engine.wakes_at().unwrap();
    engine.advance(quiet, 1.0);
    let due = quiet + MAX_PAUSE;
    assert_eq!(engine.wakes_at(), Some(due));
    assert_eq!(engine.advance(due, 1.0), Some(due));
    engine.start(Arc::default()).unwrap();
    engine.finished(&FAILED, due, 1.0);
    assert_eq!(engine.wakes_at(), Some(due + MAX_PAUSE));
}

// on-change 25
#[test]
fn round_waits_for_quiet_but_not_beyond_the_longest_delay() {
    let mut short = Simulation::delivered(timing());
    for change in 0..30 {
        short.run(change * 50, DONE);
        short.now = change * 50;
        short.observe(&change.to_string());
    }
    short.run(10_000, DONE);
    assert_eq!(short.times(), [1550]);

    let mut long = Simulation::delivered(timing());
    for change in 0..100 {
        long.run(change * 50, DONE);
        long.now = change * 50;
        long.observe(&change.to_string());
    }
    long.run(10_000, DONE);
    assert_eq!(long.times()[0], 2000);
    assert!(long.times().len() > 1);
    assert_eq!(
        long.rounds.last().map(|(_, notified)| *notified),
        Some(content("99"))
    );
}

// on-change 26
#[test]
fn changes_during_a_round_cause_exactly_one_more() {
    let mut simulation = Simulation::delivered(timing());
    simulation.observe("second");
    simulation.run(200, None);
    for change in 0..5 {
        simulation.observe(&format!("meanwhile {change}"));
        simulation.run(simulation.now + 10, None);
    }
    simulation.finish(&AttemptEnd::Succeeded);
    simulation.run(10_000, DONE);
    assert_eq!(simulation.rounds.len(), 2);
    assert_eq!(simulation.rounds[0].1, content("second"));
    assert_eq!(simulation.rounds[1].1, content("meanwhile 4"));
}

// on-change 27
#[test]
fn change_during_the_random_pause_joins_the_round() {
    let splay = Duration::from_secs(10);
    let mut simulation = Simulation::delivered(Timing { splay, ..timing() });
    simulation.random = 0.5;
    simulation.observe("second");
    simulation.run(3000, DONE);
    simulation.observe("third");
    simulation.run(20_000, DONE);
    assert_eq!(simulation.rounds, [(5100, content("third"))]);
}

// on-change 28
#[test]
fn random_pauses_spread_rounds_over_the_splay() {
    let splay = Duration::from_secs(10);
    let mut random = fastrand::Rng::with_seed(7);
    let mut starts = Vec::new();
    for _ in 0..100 {
        let mut simulation = Simulation::delivered(Timing { splay, ..timing() });
        simulation.random = random.f64();
        simulation.observe("second");
        simulation.run(11_000, DONE);
        starts.extend(simulation.times());
    }
    assert_eq!(starts.len(), 100);
    for tenth in 0..10 {
        let begin = 100 + tenth * 1000;
        assert!(
            starts
                .iter()
                .any(|start| (begin..begin + 1000).contains(start)),
            "{starts:?}"
        );
    }
}

// on-change 29
#[test]
fn failed_rounds_are_repeated_with_growing_pauses() {
    for (random, pauses) in [(0.0, [500, 1000, 2000]), (1.0, [1000, 2000, 4000])] {
        let mut simulation = Simulation::delivered(timing());
        simulation.random = random;
        simulation.observe("second");
        while simulation.rounds.len() < 4 {
            let end = if simulation.rounds.len() == 3 {
                AttemptEnd::Succeeded
            } else {
                FAILED
            };
            let begun = simulation.rounds.len();
            while simulation.rounds.len() == begun {
                simulation.run(simulation.now, Some(end.clone()));
            }
        }
        let times = simulation.times();
        let seen: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(seen, pauses);
        assert_eq!(simulation.engine.notified(), Some(content("second")));
        assert_eq!(simulation.engine.state(), HookState::Idle);
    }
}

// on-change 30
#[test]
fn newer_change_resets_the_delays() {
    let mut simulation = Simulation::delivered(timing());
    simulation.observe("second");
    simulation.run(20_000, Some(FAILED));
    assert!(simulation.engine.failures() > 3);
    let before = simulation.rounds.len();
    simulation.observe("third");
    simulation.run(simulation.now + 100, Some(FAILED));
    assert_eq!(simulation.rounds.len(), before + 1);
    assert_eq!(simulation.engine.failures(), 1);
    simulation.run(simulation.now + 1000, DONE);
    assert_eq!(simulation.engine.notified(), Some(content("third")));
}

#[test]
fn return_to_old_content_after_a_failed_attempt_fires() {
    let mut simulation = Simulation::delivered(timing());
    simulation.observe("second");
    simulation.run(150, Some(FAILED));
    simulation.observe("first");
    simulation.run(5000, DONE);
    assert_eq!(
        simulation.rounds.last().map(|(_, notified)| *notified),
        Some(content("first"))
    );
}

// on-change 33
#[test]
fn used_up_attempts_end_as_the_hook_says() {
    let retry = Retry {
        attempts: 2,
        ..Retry::default()
    };
    let outcomes = [OnFailure::Retry, OnFailure::Ignore, OnFailure::Restart].map(|on_failure| {
        let timing = Timing { retry, ..timing() };
        let mut simulation = Simulation::new(timing, on_failure, false, LastNotification::Nothing);
        simulation.observe("first");
        simulation.observe("second");
        let mut restart = false;
        for _ in 0..60_000 {
            simulation.run(simulation.now, None);
            if simulation.engine.state() == HookState::Running {
                restart |= simulation.engine.restarts_after_failure();
                simulation.finish(&FAILED);
            }
        }
        (simulation.rounds.len(), simulation.engine.state(), restart)
    });
    let expected = [
        (2, HookState::Failing, false),
        (1, HookState::Idle, false),
        (2, HookState::Failing, true),
    ];
    assert_eq!(outcomes, expected);
}

#[test]
fn final_failure_rests_until_the_next_change() {
    let mut simulation = Simulation::delivered(timing());
    simulation.observe("second");
    simulation.run(200, None);
    simulation.finish(&AttemptEnd::Failed {
        reason: String::new(),
        output: String::new(),
        is_final: true,
    });
    simulation.run(3_600_000, None);
    assert_eq!(simulation.engine.state(), HookState::Failing);
    simulation.observe("third");
    assert_eq!(simulation.engine.state(), HookState::Waiting);
}

// on-change 33
#[test]
fn newer_content_gets_a_round_before_a_restart() {
    let retry = Retry {
        attempts: 1,
        ..Retry::default()
    };
    let timing = Timing { retry, ..timing() };
    let mut simulation =
        Simulation::new(timing, OnFailure::Restart, false, LastNotification::Nothing);
    simulation.observe("first");
    simulation.observe("second");
    simulation.run(200, None);
    assert!(simulation.engine.restarts_after_failure());
    simulation.observe("third");
    assert!(!simulation.engine.restarts_after_failure());
    simulation.finish(&FAILED);
    assert_eq!(simulation.engine.state(), HookState::Waiting);
}

// on-change 57, 58
#[test]
fn restart_fires_for_a_change_while_away_and_for_nothing_else() {
    let notified = LastNotification::Content(content("first"));
    let mut unchanged = Simulation::new(timing(), OnFailure::Retry, false, notified);
    unchanged.observe("first");
    unchanged.run(20_000, DONE);
    assert!(unchanged.rounds.is_empty());

    let mut changed = Simulation::new(timing(), OnFailure::Retry, false, notified);
    changed.observe("second");
    changed.run(20_000, DONE);
    assert_eq!(changed.times(), [100]);
}

// on-change 59, 60
#[test]
fn uncertain_past_fires_whatever_the_content() {
    let uncertain = LastNotification::Uncertain;
    let mut simulation = Simulation::new(timing(), OnFailure::Retry, false, uncertain);
    simulation.observe("first");
    simulation.run(20_000, DONE);
    assert_eq!(simulation.rounds.len(), 1);
}

// on-change 64
#[test]
fn rounds_due_at_start_are_spread_over_ten_seconds() {
    let mut starts = Vec::new();
    for step in 0..100 {
        let notified = LastNotification::Content(content("first"));
        let mut simulation = Simulation::new(timing(), OnFailure::Retry, false, notified);
        simulation.random = f64::from(step) / 100.0;
        simulation.observe("second");
        simulation.run(20_000, DONE);
        starts.extend(simulation.times());
        // Only the first round after a restart is spread.
        simulation.observe("third");
        let changed = simulation.now;
        simulation.run(changed + 20_000, DONE);
        assert_eq!(simulation.times()[1] - changed, 100);
    }
    assert_eq!((starts[0], starts[99]), (100, 10_000));
}

#[test]
fn interrupted_round_is_not_recorded() {
    let mut simulation = Simulation::delivered(timing());
    simulation.observe("second");
    simulation.run(200, None);
    simulation.finish(&AttemptEnd::Interrupted);
    assert_eq!(simulation.engine.notified(), None);
}

// on-change 14
#[test]
fn content_that_was_missing_until_now_fires_nothing() {
    let mut simulation = Simulation::delivered(timing());
    let (first, second) = (content("first"), content("first and second"));
    assert_eq!(simulation.engine.notified(), Some(first));
    simulation.extend(second);
    simulation.run(5000, DONE);
    assert_eq!(simulation.rounds, []);
    assert_eq!(simulation.engine.notified(), Some(second));
}

// on-change 14, 58
#[test]
fn missing_content_that_arrives_after_a_restart_hides_no_change() {
    let notified = LastNotification::Content(content("first"));
    let mut simulation = Simulation::new(timing(), OnFailure::Retry, false, notified);
    let second = content("second and more");
    simulation.extend(second);
    simulation
        .engine
        .observe_after_restart(second, simulation.instant());
    simulation.run(20_000, DONE);
    assert_eq!(simulation.rounds.len(), 1);
}

// on-change 14
#[test]
fn missing_content_that_arrives_during_a_round_causes_no_further_one() {
    let mut simulation = Simulation::delivered(timing());
    simulation.observe("edited");
    simulation.run(200, None);
    assert_eq!(simulation.engine.state(), HookState::Running);
    let extended = content("edited and more");
    simulation.extend(extended);
    simulation.finish(&AttemptEnd::Succeeded);
    simulation.run(5000, DONE);
    assert_eq!(simulation.rounds.len(), 1);
    assert_eq!(simulation.engine.notified(), Some(extended));
}
