//! The hooks of a command: their engines, and the rounds that are due.

use std::sync::Arc;

use larder_actions::StepOutcome;
use larder_on_change::{
    Changes, DigestKey, Hook, HookEngine, HookState, Items, Outcome, RoundId, Start,
};
use tokio::time::Instant;

use super::content::Content;
use crate::output;

/// All hooks of a command.
pub(super) struct Rounds {
    hooks: Vec<TrackedHook>,
    key: DigestKey,
    random: fastrand::Rng,
}

/// A hook, and the content that it has succeeded for.
struct TrackedHook {
    hook: Arc<Hook>,
    engine: HookEngine,
    /// The present content, that of the last success, and that of the running round.
    present: Items,
    succeeded: Items,
    running: Items,
    round: RoundId,
    /// The reason of the last failure, so that it is printed once.
    failing: Option<String>,
}

/// A round that begins.
pub(super) struct DueRound {
    /// Which hook.
    pub(super) index: usize,
    pub(super) hook: Arc<Hook>,
    pub(super) round: RoundId,
    pub(super) attempt: u32,
    /// Without the directories of volumes.
    pub(super) changes: Changes,
}

impl Rounds {
    /// The hooks of a command that has not started.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub(super) fn new(hooks: Vec<Hook>) -> anyhow::Result<Self> {
        let hooks = hooks.into_iter().map(Arc::new);
        let hooks = hooks.map(|hook| TrackedHook {
            engine: HookEngine::new(Arc::clone(&hook), Start::FirstDelivery),
            hook,
            present: Items::default(),
            succeeded: Items::default(),
            running: Items::default(),
            round: RoundId::from_random(0),
            failing: None,
        });
        Ok(Self {
            hooks: hooks.collect(),
            key: DigestKey::temporary()?,
            random: fastrand::Rng::new(),
        })
    }

    /// The command is about to start with this content (rule P7).
    pub(super) fn start_with(&mut self, content: &Content, now: Instant) {
        self.observe(content, now);
        let hooks = self.hooks.iter_mut();
        for tracked in hooks.filter(|tracked| !tracked.hook.initial) {
            tracked.succeeded = tracked.present.clone();
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// The name of a hook.
    pub(super) fn name(&self, index: usize) -> &str {
        &self.hooks[index].hook.name
    }

    /// Whether a hook restarts the command when its start would differ.
    pub(super) fn restart_for_environment(&self) -> bool {
        let mut hooks = self.hooks.iter().map(|tracked| &tracked.hook);
        hooks.any(|hook| hook.environment && hook.restarts())
    }

    /// Everything that has changed together is in place (rule F1).
    pub(super) fn observe(&mut self, content: &Content, now: Instant) {
        for tracked in &mut self.hooks {
            let (digest, items) = content.of(&tracked.hook, &self.key);
            tracked.present = items;
            tracked.engine.observe(digest, now);
        }
    }

    /// When a round may become due.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        let engines = self.hooks.iter().map(|tracked| &tracked.engine);
        engines.filter_map(HookEngine::wakes_at).min()
    }

    /// The rounds that begin now. The caller runs each, and reports with [`finished`](Self::finished).
    pub(super) fn begin(&mut self, now: Instant) -> Vec<DueRound> {
        let mut due = Vec::new();
        for (index, tracked) in self.hooks.iter_mut().enumerate() {
            let Some(round) = tracked
                .engine
                .advance(now, self.random.f64())
                .and_then(|_| tracked.engine.start())
            else {
                continue;
            };
            if round.attempt == 1 {
                tracked.round = RoundId::from_random(self.random.u128(..));
            }
            tracked.running = tracked.present.clone();
            let mut changes = tracked.running.changes_since(&tracked.succeeded);
            changes.variables.retain(|name| !name.is_empty());
            due.push(DueRound {
                index,
                hook: Arc::clone(&tracked.hook),
                round: tracked.round,
                attempt: round.attempt,
                changes,
            });
        }
        due
    }

    /// A round is over. Returns whether the command must be restarted, because all attempts have failed.
    pub(super) fn finished(&mut self, index: usize, outcome: &StepOutcome, now: Instant) -> bool {
        let tracked = &mut self.hooks[index];
        let name = &tracked.hook.name;
        let result = if outcome.is_success() {
            if tracked.failing.take().is_some() {
                output::note(format_args!("on change, {name}: succeeded"));
            }
            tracked.succeeded = tracked.running.clone();
            Outcome::Succeeded
        } else {
            if tracked.failing.as_deref() != Some(outcome.reason()) {
                output::note(format_args!("on change, {name}: {}", outcome.reason()));
                tracked.failing = Some(outcome.reason().to_owned());
            }
            Outcome::Failed
        };
        let restart = result == Outcome::Failed && tracked.engine.restarts_after_failure();
        tracked.engine.finished(result, now, self.random.f64());
        if tracked.engine.state() == HookState::Failing {
            output::note(format_args!(
                "on change, {}: gave up until the next change",
                tracked.hook.name
            ));
        }
        restart
    }
}
