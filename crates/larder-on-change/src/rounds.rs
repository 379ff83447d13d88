//! The hooks of a program that serves one application: their engines, and the rounds that are due.
//!
//! Nothing here waits or acts: the caller runs each round that [begins](Rounds::begin), and reports its end.

use std::sync::Arc;

use larder_objects::PodIdentity;
use tokio::time::Instant;

use crate::{
    changes::PodChange,
    digest::{ContentDigest, Items},
    engine::{HookEngine, HookState, LastNotification, Outcome},
    hook::Hook,
    round_id::RoundId,
};

/// All hooks of an application.
#[derive(Debug)]
pub struct Rounds {
    hooks: Vec<HookRounds>,
    pod: PodIdentity,
    /// Pauses are random, as each hook's timing says. Otherwise nothing is spread.
    is_spread: bool,
    random: fastrand::Rng,
}

/// A hook, and the content that it has succeeded for.
#[derive(Debug)]
pub struct HookRounds {
    /// The hook.
    pub hook: Arc<Hook>,
    engine: HookEngine,
    /// The present content, that of the last success, and that of the running round.
    present: Items,
    succeeded: Items,
    running: (Option<ContentDigest>, Items),
    round: RoundId,
    /// The reason of the last failure; empty after a success.
    pub reason: String,
    /// Since when the application lacks a change.
    changed: Option<Instant>,
}

/// A round that begins.
#[derive(Debug)]
pub struct DueRound {
    /// Which hook.
    pub index: usize,
    /// The hook.
    pub hook: Arc<Hook>,
    /// Since when the application lacks the change, for the first attempt.
    pub changed: Option<Instant>,
    /// The change, without the directories of volumes.
    pub change: PodChange,
}

/// A round that is over.
#[derive(Debug)]
pub struct EndedRound {
    /// The content that the application was notified of, if it was.
    pub succeeded: Option<ContentDigest>,
    /// It ended as the one before did not.
    pub is_news: bool,
    /// What the hook shall restart must be restarted, because all attempts have failed.
    pub restarts: bool,
}

impl HookRounds {
    /// Its state.
    pub fn state(&self) -> HookState {
        self.engine.state()
    }

    /// Number of failed attempts in a row.
    pub fn failures(&self) -> u32 {
        self.engine.failures()
    }
}

impl Rounds {
    /// Hooks of an application that has not started, in this pod.
    pub fn new(hooks: impl IntoIterator<Item = Hook>, pod: PodIdentity, is_spread: bool) -> Self {
        let hooks = hooks.into_iter().map(Arc::new).map(|hook| HookRounds {
            engine: HookEngine::new(Arc::clone(&hook), LastNotification::Nothing),
            hook,
            present: Items::default(),
            succeeded: Items::default(),
            running: (None, Items::default()),
            round: RoundId::from_random(0),
            reason: String::new(),
            changed: None,
        });
        Self {
            hooks: hooks.collect(),
            pod,
            is_spread,
            random: fastrand::Rng::new(),
        }
    }

    /// The hooks, in order.
    pub fn hooks(&self) -> &[HookRounds] {
        &self.hooks
    }

    /// What each hook starts from, and whether it fires for what is there already.
    pub fn start_from(&mut self, start: impl Fn(&str) -> (LastNotification, bool)) {
        for tracked in &mut self.hooks {
            let (last, is_initial) = start(&tracked.hook.name);
            Arc::make_mut(&mut tracked.hook).initial |= is_initial;
            tracked.engine = HookEngine::new(Arc::clone(&tracked.hook), last);
        }
    }

    /// Everything that has changed together is in place (rule F1).
    pub fn observe(
        &mut self,
        now: Instant,
        mut content: impl FnMut(&Hook) -> (ContentDigest, Items),
    ) {
        for tracked in &mut self.hooks {
            let (digest, items) = content(&tracked.hook);
            tracked.present = items;
            tracked.engine.observe(digest, now);
            if tracked.engine.notified() == Some(digest) {
                tracked.succeeded = tracked.present.clone();
                tracked.changed = None;
            } else {
                tracked.changed.get_or_insert(now);
            }
        }
    }

    /// When a round may become due.
    pub fn wakes_at(&self) -> Option<Instant> {
        let engines = self.hooks.iter().map(|tracked| &tracked.engine);
        engines.filter_map(HookEngine::wakes_at).min()
    }

    /// A round that begins now. The caller runs it, and reports with [`finished`](Self::finished).
    pub fn begin(&mut self, now: Instant) -> Option<DueRound> {
        for (index, tracked) in self.hooks.iter_mut().enumerate() {
            let pause = if self.is_spread {
                self.random.f64()
            } else {
                0.0
            };
            let due = tracked.engine.advance(now, pause);
            let Some(round) = due.and_then(|_| tracked.engine.start()) else {
                continue;
            };
            if round.attempt == 1 {
                tracked.round = RoundId::from_random(self.random.u128(..));
            }
            tracked.running = (Some(round.digest), tracked.present.clone());
            return Some(DueRound {
                index,
                hook: Arc::clone(&tracked.hook),
                changed: tracked.changed.take(),
                change: PodChange {
                    pod: self.pod.clone(),
                    hook: tracked.hook.name.clone(),
                    round: tracked.round,
                    attempt: round.attempt,
                    changes: tracked.present.changes_since(&tracked.succeeded),
                },
            });
        }
        None
    }

    /// A round is over, for this reason if it has failed.
    pub fn finished(&mut self, index: usize, failure: Option<&str>, now: Instant) -> EndedRound {
        let pause = if self.is_spread {
            self.random.f64()
        } else {
            1.0
        };
        let tracked = &mut self.hooks[index];
        let is_news = tracked.reason != failure.unwrap_or_default();
        failure.unwrap_or_default().clone_into(&mut tracked.reason);
        let (digest, items) = std::mem::take(&mut tracked.running);
        let (outcome, restarts) = if failure.is_none() {
            tracked.succeeded = items;
            (Outcome::Succeeded, false)
        } else {
            (Outcome::Failed, tracked.engine.restarts_after_failure())
        };
        tracked.engine.finished(outcome, now, pause);
        EndedRound {
            succeeded: digest.filter(|_| failure.is_none()),
            is_news,
            restarts,
        }
    }
}
