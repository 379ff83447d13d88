//! The schedule against an observer that keeps its own account of turns, threads and waits.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*};

use super::*;

/// Enough for every step.
const MANY_THREADS: usize = 1000;

#[derive(Clone, Debug)]
enum Action {
    Add(usize),
    /// The step that stands there among those that run or are stuck.
    PausePoint(usize),
    End(usize),
    /// A queued step is no longer wanted.
    Withdraw(usize),
    Pass(u64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        3 => (0..4usize).prop_map(Action::Add),
        5 => (0..16usize).prop_map(Action::PausePoint),
        2 => (0..16usize).prop_map(Action::End),
        1 => (0..16usize).prop_map(Action::Withdraw),
        4 => prop_oneof![Just(1), Just(3), Just(60)].prop_map(Action::Pass),
    ];
    vec(action, 1..80)
}

/// What the observer knows of a step, by what it was told.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Queued,
    /// With its last pause point.
    HasTurn(Instant),
    /// Its turn was lent on.
    HadTurn,
    Paused,
}

struct Observer {
    schedule: Schedule,
    limits: Limits,
    now: Instant,
    steps: BTreeMap<StepId, (usize, Known)>,
    /// Of each namespace that waits: the grants of the others since it waits. `None` where threads are short, so that
    /// one may have to wait for a thread.
    overtaken: Option<BTreeMap<usize, Vec<usize>>>,
}

impl Observer {
    fn new(limits: Limits) -> Self {
        Self {
            schedule: Schedule::new(limits),
            limits,
            now: Instant::now(),
            steps: BTreeMap::new(),
            overtaken: (limits.threads >= MANY_THREADS).then(BTreeMap::new),
        }
    }

    fn with(&self, wanted: impl Fn(Known) -> bool) -> Vec<StepId> {
        let fitting = self.steps.iter().filter(|(_, (_, known))| wanted(*known));
        fitting.map(|(id, _)| *id).collect()
    }

    fn threads(&self, namespace: Option<usize>) -> usize {
        let begun = self.steps.values().filter(|(of, known)| {
            *known != Known::Queued && namespace.is_none_or(|namespace| namespace == *of)
        });
        begun.count()
    }

    fn act(&mut self, action: Action) {
        let begun = |known| matches!(known, Known::HasTurn(_) | Known::HadTurn);
        let chosen =
            |ids: Vec<StepId>, index: usize| (!ids.is_empty()).then(|| ids[index % ids.len()]);
        match action {
            Action::Add(namespace) => {
                let id = self.schedule.add(&name(namespace), self.now);
                self.steps.insert(id, (namespace, Known::Queued));
            }
            Action::PausePoint(index) => {
                if let Some(id) = chosen(self.with(begun), index) {
                    let at = self.schedule.pause_point(id, self.now);
                    let known = &mut self.steps.get_mut(&id).unwrap().1;
                    *known = match (at, *known) {
                        (AtPause::Wait, _) => Known::Paused,
                        (AtPause::Continue, Known::HasTurn(_)) => Known::HasTurn(self.now),
                        (AtPause::Continue, known) => panic!("{known:?} goes on without a turn"),
                    };
                }
            }
            Action::End(index) => {
                if let Some(id) = chosen(self.with(begun), index) {
                    self.schedule.remove(id);
                    self.steps.remove(&id);
                }
            }
            Action::Withdraw(index) => {
                if let Some(id) = chosen(self.with(|known| known == Known::Queued), index) {
                    self.schedule.remove(id);
                    self.steps.remove(&id);
                }
            }
            Action::Pass(millis) => {
                self.now += Duration::from_millis(millis);
                self.schedule.lend(self.now);
                for (_, known) in self.steps.values_mut() {
                    if matches!(known, Known::HasTurn(at) if *at + STUCK_AFTER <= self.now) {
                        *known = Known::HadTurn;
                    }
                }
            }
        }
        self.take_grants();
        self.check();
    }

    fn take_grants(&mut self) {
        // Those that wait now, before any grant.
        let waiting = self.waiting();
        if let Some(overtaken) = &mut self.overtaken {
            overtaken.retain(|namespace, _| waiting.contains(namespace));
            for namespace in waiting {
                overtaken.entry(namespace).or_default();
            }
        }
        while let Some(grant) = self.schedule.grant(self.now) {
            let (Grant::Begin(id) | Grant::Resume(id)) = grant;
            let (namespace, known) = self.steps[&id];
            match grant {
                Grant::Begin(_) => {
                    assert_eq!(known, Known::Queued);
                    let free = self.limits.threads - self.threads(None);
                    assert!(self.threads(Some(namespace)) < free, "invariant 4");
                }
                Grant::Resume(_) => assert_eq!(known, Known::Paused),
            }
            self.steps.insert(id, (namespace, Known::HasTurn(self.now)));
            let waits_again = self.waiting().contains(&namespace);
            let Some(overtaken) = &mut self.overtaken else {
                continue;
            };
            overtaken.remove(&namespace);
            for grants in overtaken.values_mut() {
                assert!(
                    !grants.contains(&namespace),
                    "invariant 2: {namespace} was before"
                );
                grants.push(namespace);
            }
            if waits_again {
                overtaken.insert(namespace, Vec::new());
            }
        }
    }

    /// The namespaces that have a step which could go on.
    fn waiting(&self) -> BTreeSet<usize> {
        let free = self.limits.threads - self.threads(None);
        let waiting = self
            .steps
            .values()
            .filter(|(namespace, known)| match known {
                Known::Paused => true,
                Known::Queued => self.threads(Some(*namespace)) < free,
                Known::HasTurn(_) | Known::HadTurn => false,
            });
        waiting.map(|(namespace, _)| *namespace).collect()
    }

    fn check(&self) {
        let running = self.with(|known| matches!(known, Known::HasTurn(_))).len();
        assert!(running <= self.limits.turns, "invariant 1");
        let waits = !self.waiting().is_empty();
        assert!(
            !waits || running == self.limits.turns,
            "invariant 1: a turn was lost"
        );
        assert_eq!(self.schedule.threads().0, self.threads(None));
        for (id, (_, known)) in &self.steps {
            let fits = match self.schedule.state(*id).unwrap() {
                StepState::Queued { .. } => *known == Known::Queued,
                StepState::Running { .. } => matches!(known, Known::HasTurn(_)),
                StepState::Stuck { .. } => *known == Known::HadTurn,
                StepState::Paused { .. } => *known == Known::Paused,
            };
            assert!(fits, "{known:?}");
        }
    }
}

fn name(namespace: usize) -> SmolStr {
    SmolStr::from(format!("tenant-{namespace}"))
}

proptest! {
    #[test]
    fn every_namespace_gets_its_turns(actions in actions(), turns in 1..4usize) {
        let mut observer = Observer::new(Limits { turns, threads: MANY_THREADS });
        for action in actions {
            observer.act(action);
        }
    }

    #[test]
    fn threads_are_left_for_other_namespaces(actions in actions(), threads in 2..6usize) {
        let mut observer = Observer::new(Limits { turns: 2, threads });
        for action in actions {
            observer.act(action);
        }
    }
}

#[test]
fn one_namespace_has_at_most_half_of_the_threads() {
    let mut observer = Observer::new(Limits {
        turns: 1,
        threads: 8,
    });
    for _ in 0..20 {
        observer.act(Action::Add(0));
        // Each hangs.
        observer.act(Action::Pass(60));
    }
    assert_eq!(observer.threads(Some(0)), 4);
    observer.act(Action::Add(1));
    assert_eq!(observer.threads(Some(1)), 1);
    let queued = observer.with(|known| known == Known::Queued);
    assert!(!observer.schedule.has_thread_for(queued[0]));
}

#[test]
fn a_slice_ends_only_if_another_step_waits() {
    let mut observer = Observer::new(Limits {
        turns: 1,
        threads: 8,
    });
    observer.act(Action::Add(0));
    observer.act(Action::Pass(3));
    observer.act(Action::PausePoint(0));
    assert_eq!(observer.schedule.next_lending(), None);
    observer.act(Action::Add(1));
    let lending = observer.schedule.next_lending();
    assert_eq!(lending, Some(observer.now + STUCK_AFTER));
    observer.act(Action::PausePoint(0));
    assert_eq!(observer.with(|known| known == Known::Paused).len(), 1);
}
