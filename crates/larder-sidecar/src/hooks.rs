//! Hooks of a sidecar: when they fire, and their rounds beside everything else (rules A4, N1, N2).
//!
//! The engines of `larder-on-change` decide, and `larder-actions` acts. Nothing here waits for a round: the owner asks
//! for the [`next`](Hooks::next) event among its others.
//!
//! Invariants:
//! 1. The owner learns that a round begins before its first step, and records that its outcome is uncertain: rounds
//!    are only polled by `next`, which returns when one begins.
//! 2. A newer change ends the pauses of a round, and starts another one.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use larder_actions::{StepOutcome, run_steps};
use larder_on_change::{
    ContentDigest, DueRound, Hook, HookRounds, HookState, Items, Rounds, VolumeChange,
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use crate::{clock, health::Health, request::RequestRound, steps::StepContext};

/// A hook, and its round if that is not its steps.
pub(crate) type HookAndRound = (Hook, Option<Arc<RequestRound>>);

/// News of a hook, for its record: the content of its last success, or `None` while that is uncertain.
pub(crate) type HookEvent = Option<(String, Option<ContentDigest>)>;

/// The hooks of a sidecar.
pub(crate) struct Hooks {
    pub(crate) rounds: Rounds,
    own_rounds: Vec<Option<Arc<RequestRound>>>,
    running: FuturesUnordered<BoxFuture<'static, (usize, Duration, StepOutcome)>>,
    context: Arc<StepContext>,
    health: Arc<Health>,
    /// Counts changes, so that rounds notice them.
    changes: watch::Sender<u64>,
}

impl Hooks {
    pub(crate) fn new(hooks: Vec<HookAndRound>, context: StepContext, health: Arc<Health>) -> Self {
        let (hooks, own_rounds): (Vec<_>, _) = hooks.into_iter().unzip();
        Self {
            // A sidecar has one application: nothing needs to be spread.
            rounds: Rounds::new(hooks, context.pod.clone(), false),
            own_rounds,
            running: FuturesUnordered::new(),
            context: Arc::new(context),
            health,
            changes: watch::Sender::new(0),
        }
    }

    /// Everything that has changed together is in place.
    pub(crate) fn observe(&mut self, content: impl FnMut(&Hook) -> (ContentDigest, Items)) {
        self.rounds.observe(Instant::now(), content);
        self.changes.send_modify(|count| *count += 1);
        self.show();
    }

    /// Whether a round runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether every hook has nothing to do, or has given up for now.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut states = self.rounds.hooks().iter().map(HookRounds::state);
        states.all(|state| !matches!(state, HookState::Waiting | HookState::Running))
    }

    /// The next event. Waits forever if there is none to come.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> HookEvent {
        loop {
            let now = Instant::now();
            if let Some(due) = self.rounds.begin(now) {
                return Some((self.begins(due, now), None));
            }
            let wakes_at = self.rounds.wakes_at();
            // Both arms are cancel-safe.
            tokio::select! {
                biased;
                Some((index, took, outcome)) = self.running.next() => return self.ended(index, took, &outcome),
                () = sleep_until(wakes_at.unwrap_or(now)), if wakes_at.is_some() => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Returns the name of the hook. Nothing of the round happens before [`next`](Self::next) waits again.
    fn begins(&mut self, due: DueRound, now: Instant) -> String {
        let (index, hook, mut change) = (due.index, due.hook, due.change);
        if let Some(changed) = due.changed {
            self.context.metrics.on_change.delayed(now - changed);
        }
        change.changes.locate(&self.context.volumes);
        let volumes = change.changes.volumes.iter();
        let changed: usize = volumes.map(VolumeChange::files).sum();
        let name = change.hook.clone();
        info!(hook = name, changed, "round begins");
        let (context, own_round) = (Arc::clone(&self.context), self.own_rounds[index].clone());
        let newer = self.changes.subscribe();
        let round = async move {
            let began = Instant::now();
            let outcome = match own_round {
                Some(round) => round.run(&change, &context, newer).await,
                None => run_steps(&hook.steps, &hook, Duration::ZERO, &change, &*context).await,
            };
            (index, began.elapsed(), outcome)
        };
        self.running.push(round.boxed());
        self.show();
        name
    }

    fn ended(&mut self, index: usize, took: Duration, outcome: &StepOutcome) -> HookEvent {
        let failure = outcome.failure();
        let ended = self.rounds.finished(index, failure, Instant::now());
        let name = self.rounds.hooks()[index].hook.name.clone();
        match failure {
            None => {
                info!(hook = name, ?took, "round succeeded");
                self.context.metrics.on_change.succeeded(clock::now());
            }
            // Once for each reason.
            Some(error) if ended.is_news => warn!(hook = name, ?took, error, "round failed"),
            Some(_) => {}
        }
        self.show();
        ended.succeeded.map(|digest| (name, Some(digest)))
    }

    fn show(&self) {
        let (mut failing, mut pending, mut shown) = (0, 0, Vec::new());
        for hook in self.rounds.hooks() {
            let state = hook.state();
            failing += usize::from(matches!(state, HookState::Retrying | HookState::Failing));
            pending += usize::from(state != HookState::Idle);
            shown.push(json!({
                "name": hook.hook.name, "state": state.name(),
                "failures": hook.failures(), "reason": hook.reason,
            }));
        }
        self.health.set_hooks(shown);
        self.context.metrics.on_change.set_hooks(failing, pending);
    }
}
