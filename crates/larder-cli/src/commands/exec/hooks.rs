//! The hooks of the command, whose rounds the supervisor runs.

use std::sync::Arc;

use larder_on_change::{
    Attempt, AttemptEnd, DigestKey, Hook, HookId, HookState, Now, PartContent, PartKey, Past,
    PodHooks, PodOutline, Schedule,
};
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::output;

/// The command, which is the only application here.
const COMMAND: SmolStr = SmolStr::new_static("");

/// The hooks, and what they know of the command.
pub(super) struct CommandHooks {
    hooks: Arc<PodHooks>,
    schedule: Schedule<()>,
    key: DigestKey,
}

impl CommandHooks {
    /// Hooks that start from the first content that they observe (rule P7).
    pub(super) fn new(hooks: Vec<Hook>, outline: &PodOutline) -> anyhow::Result<Self> {
        let hooks = hooks.into_iter().map(Arc::new);
        let hooks = Arc::new(PodHooks::of_command(hooks, outline));
        let (mut schedule, key) = (
            Schedule::of_one(Some(fastrand::Rng::new())),
            DigestKey::temporary()?,
        );
        let (all, now) = (Arc::clone(&hooks), output::now());
        schedule.adopt(&COMMAND, (), all, &Past::default(), &key, now);
        Ok(Self {
            hooks,
            schedule,
            key,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hooks.hooks.is_empty()
    }

    /// Whether one restarts the command when its variables have changed.
    pub(super) fn restart_for_variables(&self) -> bool {
        let mut hooks = self.hooks.hooks.iter();
        hooks.any(|found| found.hook.environment && found.hook.restarts())
    }

    /// What they select.
    pub(super) fn selected(&self) -> (&PodHooks, &DigestKey) {
        (&self.hooks, &self.key)
    }

    /// Everything that has changed together is in place (rule F1).
    pub(super) fn observe(&mut self, content: Vec<(PartKey, Arc<PartContent>)>) {
        self.schedule.pass(&COMMAND, content, &self.key, now());
    }

    /// The attempts that begin now, and when to ask again.
    pub(super) fn due(&mut self) -> (Vec<Attempt<()>>, Option<Instant>) {
        self.schedule.due(now())
    }

    /// An attempt is over, for this reason if it has failed.
    pub(super) fn ended(&mut self, id: HookId, failure: Option<&str>) {
        let end = AttemptEnd::of(failure, String::new());
        let Some(ended) = self.schedule.ended(id, &end, now()) else {
            return;
        };
        let name = &ended.hook;
        if ended.is_news || failure.is_none() && ended.was_reported {
            let result = failure.unwrap_or("succeeded");
            output::note(format_args!("on change, {name}: {result}"));
        }
        if ended.state == HookState::Failing {
            output::note(format_args!(
                "on change, {name}: gave up until the next change"
            ));
        }
    }
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        time: output::now(),
    }
}
