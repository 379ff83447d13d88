//! The hooks of a command: the content that they select, and what is printed about their rounds.

use larder_actions::StepOutcome;
use larder_objects::PodIdentity;
use larder_on_change::{DigestKey, Hook, HookState, Rounds};
use tokio::time::Instant;

use super::content::Content;
use crate::output;

/// All hooks of a command.
pub(super) struct CommandHooks {
    pub(super) rounds: Rounds,
    key: DigestKey,
}

impl CommandHooks {
    /// The hooks of a command that has not started.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub(super) fn new(hooks: Vec<Hook>, pod: PodIdentity) -> anyhow::Result<Self> {
        Ok(Self {
            rounds: Rounds::new(hooks, pod, true),
            key: DigestKey::temporary()?,
        })
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.rounds.hooks().is_empty()
    }

    /// The name of a hook.
    pub(super) fn name(&self, index: usize) -> &str {
        &self.rounds.hooks()[index].hook.name
    }

    /// Whether a hook restarts the command when its start would differ.
    pub(super) fn restart_for_environment(&self) -> bool {
        let mut hooks = self.rounds.hooks().iter();
        hooks.any(|tracked| tracked.hook.environment && tracked.hook.restarts())
    }

    /// Everything that has changed together is in place (rule F1). The first time, the command is about to start with it
    /// (rule P7).
    pub(super) fn observe(&mut self, content: &Content, now: Instant) {
        let key = &self.key;
        self.rounds.observe(now, |hook| content.of(hook, key));
    }

    /// A round is over. Returns whether the command must be restarted, because all attempts have failed.
    pub(super) fn finished(&mut self, index: usize, outcome: &StepOutcome, now: Instant) -> bool {
        let failure = outcome.failure();
        let ended = self.rounds.finished(index, failure, now);
        let name = self.name(index);
        if ended.is_news {
            let result = failure.unwrap_or("succeeded");
            output::note(format_args!("on change, {name}: {result}"));
        }
        if self.rounds.hooks()[index].state() == HookState::Failing {
            output::note(format_args!(
                "on change, {name}: gave up until the next change"
            ));
        }
        ended.restarts
    }
}
