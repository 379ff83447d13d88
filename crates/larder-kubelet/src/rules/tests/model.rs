//! The rules against a naive model, which keeps everything that has happened and decides from all of it, by the text of the
//! rules R4, R5, R10 to R12, R14, R15, R17 and R18. Times are milliseconds.

use proptest::prelude::*;

use super::*;

const VOLUMES: [&str; 2] = ["a", "b"];
const TTL: u64 = 60_000;
/// Every time in the rules is a multiple of it.
const TICK: u64 = 50;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Touched,
    NoOp,
    Conflict,
    Failed,
    Refused,
    Gone,
    Throttled,
}

#[derive(Clone, Copy, Debug)]
enum Fact {
    /// This content is computed for a volume, or none can be.
    Computed(usize, Option<u8>),
    /// The kubelet has swapped a volume to this content.
    Swapped(usize, u8),
    Touch,
    Answer(Answer),
    Gate(bool),
}

/// Everything that has happened, in its order.
struct History {
    facts: Vec<(u64, Fact)>,
    republishes: bool,
}

impl History {
    fn schedule(&self) -> &'static [u64] {
        if self.republishes {
            &[0]
        } else {
            &[0, 1500, 4500, TTL + 1000]
        }
    }

    /// The computed content of a volume before the fact of this number.
    fn computed(&self, volume: usize, before: usize) -> Option<u8> {
        let mut facts = self.facts[..before].iter().rev();
        facts.find_map(|(_, fact)| match fact {
            Fact::Computed(of, content) if *of == volume => Some(*content),
            _ => None,
        })?
    }

    fn is_outdated(&self, volume: usize, before: usize) -> bool {
        let mut facts = self.facts[..before].iter().rev();
        let disk = facts.find_map(|(_, fact)| match fact {
            Fact::Swapped(of, content) if *of == volume => Some(*content),
            _ => None,
        });
        let computed = self.computed(volume, before);
        disk.is_some() && computed.is_some() && disk != computed
    }

    fn is_any_outdated(&self, before: usize) -> bool {
        (0..VOLUMES.len()).any(|volume| self.is_outdated(volume, before))
    }

    /// The answer to the touch of this number.
    fn answer(&self, touch: usize) -> Option<Answer> {
        self.facts[touch..].iter().find_map(|(_, fact)| match fact {
            Fact::Answer(answer) => Some(*answer),
            _ => None,
        })
    }

    /// The numbers of the touches that were not turned down.
    fn accepted(&self) -> impl DoubleEndedIterator<Item = usize> {
        let is_touch = |at: &usize| matches!(self.facts[*at].1, Fact::Touch);
        let accepted = |at: &usize| matches!(self.answer(*at), None | Some(Answer::Touched));
        (0..self.facts.len()).filter(is_touch).filter(accepted)
    }

    /// When the next touch for a volume is due (R11, R12).
    fn due(&self, volume: usize) -> Option<u64> {
        let end = self.facts.len();
        if !self.is_outdated(volume, end) {
            return None;
        }
        let content = self.computed(volume, end);
        let is_other = |at: &usize| self.computed(volume, at + 1) != content;
        let since = (0..end).rev().find(is_other).map_or(0, |at| at + 1);
        let mut touches = Vec::new();
        for touch in self.accepted().filter(|touch| *touch >= since) {
            if self.is_outdated(volume, touch) && touches.len() < self.schedule().len() {
                touches.push(self.facts[touch].0);
            }
        }
        let first = touches.first().copied().unwrap_or(self.facts[since].0);
        self.schedule()
            .get(touches.len())
            .map(|after| first + after)
    }

    /// Until when the last touch is under way (R10). The other volumes have 200 ms to follow the first one.
    fn under_way(&self) -> u64 {
        let Some(touch) = self.accepted().next_back() else {
            return 0;
        };
        let mut until = self.facts[touch].0 + 1500;
        for at in touch + 1..self.facts.len() {
            let (time, fact) = self.facts[at];
            let shows_other = |volume| self.is_outdated(volume, at + 1);
            match fact {
                Fact::Swapped(volume, _) if shows_other(volume) => return 0,
                Fact::Swapped(..) | Fact::Computed(..) if !self.is_any_outdated(at + 1) => {
                    return 0;
                }
                Fact::Swapped(..) => until = until.min(time + 200),
                _ => {}
            }
        }
        until
    }

    /// Until when the answers so far let the pod wait (R17, R18).
    fn turned_down(&self) -> u64 {
        let (mut until, mut delay, mut without_effect) = (0, 500, 0);
        for (time, fact) in &self.facts {
            let Fact::Answer(answer) = fact else { continue };
            let again = time + delay;
            let mut is_rejected = matches!(answer, Answer::Refused | Answer::Gone);
            until = match answer {
                Answer::Touched | Answer::Throttled | Answer::Refused | Answer::Gone => 0,
                Answer::NoOp | Answer::Conflict => {
                    without_effect += 1;
                    is_rejected = without_effect == 4;
                    if without_effect == 1 {
                        time + 50
                    } else {
                        again
                    }
                }
                Answer::Failed => again,
            };
            if until == again {
                delay = (delay * 2).min(122_000);
            }
            if is_rejected {
                until = time + 600_000;
            }
            if is_rejected || *answer == Answer::Touched {
                (delay, without_effect) = (500, 0);
            }
        }
        until
    }

    /// Whether ten touches within a minute allow another one now (R14).
    fn is_within_limit(&self, now: u64) -> bool {
        let counts = |at: &usize| {
            let answer = self.answer(*at);
            let effective = [
                None,
                Some(Answer::Touched),
                Some(Answer::NoOp),
                Some(Answer::Conflict),
            ];
            matches!(self.facts[*at].1, Fact::Touch) && effective.contains(&answer)
        };
        let touches: Vec<_> = (0..self.facts.len())
            .filter(counts)
            .map(|at| self.facts[at].0)
            .collect();
        let in_a_minute = touches.iter().filter(|at| **at + 60_000 > now).count();
        in_a_minute < 10 || touches.last().is_none_or(|last| last + 15_000 <= now)
    }

    fn wants_touch(&self, now: u64) -> bool {
        let gate = self.facts.iter().rev().find_map(|(_, fact)| match fact {
            Fact::Gate(open) => Some(*open),
            _ => None,
        });
        let is_due = (0..VOLUMES.len()).any(|volume| self.due(volume).is_some_and(|at| at <= now));
        gate != Some(false)
            && is_due
            && self.under_way() <= now
            && self.turned_down() <= now
            && self.is_within_limit(now)
    }
}

/// The rules and the model, in step.
struct Pair {
    rules: PodRules,
    start: Instant,
    now: u64,
    disk: [u8; 2],
    computed: [Option<u8>; 2],
    unanswered: bool,
    history: History,
}

impl Pair {
    fn new(republishes: bool) -> Self {
        let mut rules = PodRules::new(Gate::Open, Duration::from_millis(TTL));
        let view = PodView {
            republishes,
            ..PodView::default()
        };
        rules.set_pod(view, &VOLUMES.map(volume).into());
        let mut pair = Self {
            rules,
            start: Instant::now(),
            now: 0,
            disk: [1; 2],
            computed: [Some(1); 2],
            unanswered: false,
            history: History {
                facts: Vec::new(),
                republishes,
            },
        };
        for volume in 0..VOLUMES.len() {
            pair.history.facts.push((0, Fact::Swapped(volume, 1)));
            pair.history
                .facts
                .push((0, Fact::Computed(volume, Some(1))));
            pair.look(volume, VolumeChange::None);
        }
        pair
    }

    fn at(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn look(&mut self, index: usize, change: VolumeChange) {
        let observation = match self.computed[index] {
            None => PartObservation::Uncomputable("no object".to_owned()),
            Some(content) if content == self.disk[index] => PartObservation::Same,
            Some(_) => PartObservation::Outdated("file".to_owned()),
        };
        let now = self.at();
        let look = Look {
            payload: self.computed[index].map(payload),
            volume: change,
            ..Look::new(observation, now)
        };
        self.rules
            .look(&volume(VOLUMES[index]), look, now, Timestamp::UNIX_EPOCH);
    }

    fn take(&mut self, fact: Fact) {
        let now = self.at();
        match fact {
            Fact::Touch => return,
            Fact::Computed(volume, content) => self.computed[volume] = content,
            Fact::Swapped(volume, content) => self.disk[volume] = content,
            Fact::Gate(open) => {
                let gate = if open { Gate::Open } else { Gate::Locked };
                self.rules.set_gate(gate, now);
            }
            Fact::Answer(_) if !self.unanswered => return,
            Fact::Answer(answer) => {
                self.unanswered = false;
                self.rules.answered(real(answer), 0.0, now);
            }
        }
        self.history.facts.push((self.now, fact));
        match fact {
            Fact::Computed(volume, _) => self.look(volume, VolumeChange::None),
            Fact::Swapped(volume, _) => self.look(volume, VolumeChange::Swapped),
            _ => {}
        }
    }

    /// Lets time pass, in which both decide alike.
    fn pass(&mut self, millis: u64) {
        let (from, end) = (self.now, self.now + millis);
        loop {
            // The caller of the rules sends nothing before the last touch is answered.
            if !self.unanswered {
                let (rules, model) = (
                    self.rules.wants_touch(self.at()),
                    self.history.wants_touch(self.now),
                );
                assert_eq!(
                    rules, model,
                    "at {} after {:?}",
                    self.now, self.history.facts
                );
                if rules {
                    self.rules.sent(self.at(), Timestamp::UNIX_EPOCH);
                    self.history.facts.push((self.now, Fact::Touch));
                    self.unanswered = true;
                }
            }
            if self.now >= end {
                return;
            }
            let step = if self.now - from < 5000 { TICK } else { 1000 };
            self.now = end.min(self.now + step);
        }
    }
}

fn real(answer: Answer) -> TouchAnswer {
    let message = "no".to_owned();
    match answer {
        Answer::Touched => touched(),
        Answer::NoOp => TouchAnswer::NoOp,
        Answer::Conflict => TouchAnswer::Conflict,
        Answer::Failed => failed(),
        Answer::Refused => TouchAnswer::Refused { message },
        Answer::Gone => TouchAnswer::Gone { message },
        Answer::Throttled => TouchAnswer::Throttled {
            retry_after: Duration::from_secs(2),
        },
    }
}

fn facts() -> impl Strategy<Value = Fact> {
    let answers = prop_oneof![
        12 => Just(Answer::Touched),
        2 => Just(Answer::NoOp),
        2 => Just(Answer::Conflict),
        3 => Just(Answer::Failed),
        1 => Just(Answer::Refused),
        1 => Just(Answer::Gone),
        1 => Just(Answer::Throttled),
    ];
    prop_oneof![
        4 => (0..2_usize, 1..4_u8).prop_map(|(volume, content)| Fact::Computed(volume, Some(content))),
        1 => (0..2_usize).prop_map(|volume| Fact::Computed(volume, None)),
        4 => (0..2_usize, 1..4_u8).prop_map(|(volume, content)| Fact::Swapped(volume, content)),
        8 => answers.prop_map(Fact::Answer),
        1 => any::<bool>().prop_map(Fact::Gate),
    ]
}

fn waits() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => Just(0),
        6 => (1..5_u64).prop_map(|ticks| ticks * TICK),
        3 => (1..60_u64).prop_map(|ticks| ticks * TICK),
        1 => Just(16_000),
        1 => Just(62_000),
        1 => Just(601_000),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: std::env::var("LARDER_MODEL_SEQUENCES").map_or(60, |text| text.parse().expect("a number")),
        ..ProptestConfig::default()
    })]

    #[test]
    fn rules_and_model_touch_at_the_same_moments(
        republishes in any::<bool>(),
        steps in prop::collection::vec((waits(), facts()), 1..60),
    ) {
        let mut pair = Pair::new(republishes);
        for (wait, fact) in steps {
            pair.pass(wait);
            pair.take(fact);
        }
        pair.pass(2000);
    }
}
