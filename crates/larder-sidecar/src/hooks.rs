//! Hooks of a sidecar: when they fire, and their rounds beside everything else (rules A4, N1, N2).
//!
//! The engines of `larder-on-change` decide, and `larder-actions` acts. Nothing here waits for a round: the owner asks
//! for the [`next`](Hooks::next) event among its others.
//!
//! Invariants:
//! 1. The owner learns that a round begins before its first step, and records that its outcome is uncertain.
//! 2. A newer change ends the pauses of a round, and starts another one.

use std::{fmt, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use larder_actions::{StepInputs, StepOutcome};
use larder_on_change::{
    Changes, ContentDigest, Hook, HookEngine, HookState, Items, Outcome, RoundId, Start,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use crate::{
    health::{Health, HookHealth},
    request::LabelRound,
    steps::{SidecarEnvironment, StepContext, steps},
    webhook::Webhook,
};

/// The work of a hook's rounds.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// The steps of the hook.
    Steps,
    /// Script and request of the label form.
    Label(Arc<LabelRound>),
    /// A webhook of the reload form.
    Webhook(Arc<Webhook>),
}

/// What happens to a hook.
#[derive(Debug)]
pub(crate) enum HookEvent {
    /// A round is about to begin: its outcome is uncertain from now on.
    Begins(String),
    /// A round was successful for this content.
    Succeeded(String, ContentDigest),
    /// A round has failed.
    Failed,
}

/// The hooks of a sidecar.
pub(crate) struct Hooks {
    tracked: Vec<TrackedHook>,
    running: FuturesUnordered<BoxFuture<'static, (usize, StepOutcome)>>,
    /// A round that was announced.
    announced: Option<usize>,
    context: Arc<StepContext>,
    health: Arc<Health>,
    /// Counts changes, so that rounds notice them.
    changes: watch::Sender<u64>,
    random: fastrand::Rng,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

struct TrackedHook {
    hook: Arc<Hook>,
    work: Work,
    engine: HookEngine,
    present: Items,
    succeeded: Items,
    running: (Option<ContentDigest>, Items),
    round: RoundId,
    reason: String,
    began: Instant,
}

impl Hooks {
    pub(crate) fn new(
        hooks: Vec<(Hook, Work)>,
        context: Arc<StepContext>,
        health: Arc<Health>,
    ) -> Self {
        let tracked = hooks.into_iter().map(|(hook, work)| {
            let hook = Arc::new(hook);
            TrackedHook {
                engine: HookEngine::new(Arc::clone(&hook), Start::FirstDelivery),
                hook,
                work,
                present: Items::default(),
                succeeded: Items::default(),
                running: (None, Items::default()),
                round: RoundId::from_random(0),
                reason: String::new(),
                began: Instant::now(),
            }
        });
        Self {
            tracked: tracked.collect(),
            running: FuturesUnordered::new(),
            announced: None,
            context,
            health,
            changes: watch::Sender::new(0),
            random: fastrand::Rng::new(),
        }
    }

    /// The first sync is complete: `start` decides for each hook by its name whether it fires now.
    pub(crate) fn begin(&mut self, mut start: impl FnMut(&Hook) -> (Start, bool)) {
        for tracked in &mut self.tracked {
            let (start, is_initial) = start(&tracked.hook);
            if is_initial && !tracked.hook.initial {
                tracked.hook = Arc::new(Hook {
                    initial: true,
                    ..(*tracked.hook).clone()
                });
            }
            tracked.engine = HookEngine::new(Arc::clone(&tracked.hook), start);
        }
    }

    /// Everything that has changed together is in place.
    pub(crate) fn observe(&mut self, content: &dyn Fn(&Hook) -> (ContentDigest, Items)) {
        let now = Instant::now();
        for tracked in &mut self.tracked {
            let (digest, items) = content(&tracked.hook);
            tracked.present = items;
            tracked.engine.observe(digest, now);
            if tracked.engine.notified() == Some(digest) {
                tracked.succeeded = tracked.present.clone();
            }
        }
        self.changes.send_modify(|count| *count += 1);
        self.show();
    }

    /// Whether a round runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether every hook has nothing to do, or has given up for now.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut states = self.tracked.iter().map(|tracked| tracked.engine.state());
        states.all(|state| {
            matches!(
                state,
                HookState::Idle | HookState::Retrying | HookState::Failing
            )
        })
    }

    /// The next event. Waits forever if there is none to come.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> HookEvent {
        loop {
            if let Some(index) = self.announced.take() {
                self.run(index);
            }
            let now = Instant::now();
            let random = &mut self.random;
            let due = self
                .tracked
                .iter_mut()
                .enumerate()
                .find_map(|(index, tracked)| {
                    // A sidecar has one application: nothing needs to be spread.
                    let due = tracked.engine.advance(now, 0.0);
                    let round = due.and_then(|_| tracked.engine.start())?;
                    if round.attempt == 1 {
                        tracked.round = RoundId::from_random(random.u128(..));
                    }
                    Some((index, round))
                });
            if let Some((index, round)) = due {
                let tracked = &mut self.tracked[index];
                tracked.running = (Some(round.digest), tracked.present.clone());
                tracked.began = now;
                self.announced = Some(index);
                self.show();
                return HookEvent::Begins(self.tracked[index].hook.name.clone());
            }
            let engines = self.tracked.iter().map(|tracked| &tracked.engine);
            let wakes_at = engines.filter_map(HookEngine::wakes_at).min();
            let waits = wakes_at.is_some();
            // Both arms are cancel-safe.
            tokio::select! {
                biased;
                Some((index, outcome)) = self.running.next() => return self.ended(index, &outcome),
                () = sleep_until(wakes_at.unwrap_or(now)), if waits => {}
                else => std::future::pending().await,
            }
        }
    }

    fn run(&mut self, index: usize) {
        let tracked = &self.tracked[index];
        let mut changes = tracked.running.1.changes_since(&tracked.succeeded);
        for volume in &mut changes.volumes {
            if let Some(path) = self.context.volumes.get(&volume.name) {
                volume.directory.clone_from(path);
            }
        }
        let inputs = StepInputs {
            hook: tracked.hook.name.clone(),
            round: tracked.round,
            attempt: tracked.engine.failures() + 1,
            pod: self.context.pod.clone(),
            changes,
            timeout: Duration::ZERO,
        };
        info!(
            hook = tracked.hook.name,
            changed = changed(&inputs.changes),
            "round begins"
        );
        let (hook, work) = (Arc::clone(&tracked.hook), tracked.work.clone());
        let context = Arc::clone(&self.context);
        let changes = self.changes.subscribe();
        let round = async move {
            let environment = SidecarEnvironment { context: &context };
            let outcome = match work {
                Work::Steps => steps(&hook.steps, &hook, inputs, &environment).await,
                Work::Webhook(webhook) => webhook.run(&hook, inputs, &environment).await,
                Work::Label(round) => round.run(&hook, inputs, &environment, changes).await,
            };
            (index, outcome)
        };
        self.running.push(round.boxed());
    }

    fn ended(&mut self, index: usize, outcome: &StepOutcome) -> HookEvent {
        let now = Instant::now();
        let tracked = &mut self.tracked[index];
        let (digest, items) = std::mem::take(&mut tracked.running);
        let name = tracked.hook.name.clone();
        let took = now - tracked.began;
        let result = if outcome.is_success() {
            info!(hook = name, ?took, "round succeeded");
            tracked.succeeded = items;
            tracked.reason = String::new();
            Outcome::Succeeded
        } else {
            // Once for each reason.
            if tracked.reason != outcome.reason() {
                warn!(hook = name, ?took, error = outcome.reason(), "round failed");
            }
            outcome.reason().clone_into(&mut tracked.reason);
            Outcome::Failed
        };
        // The longest pause: there is one application, and no herd.
        tracked.engine.finished(result, now, 1.0);
        self.show();
        match (result, digest) {
            (Outcome::Succeeded, Some(digest)) => HookEvent::Succeeded(name, digest),
            _ => HookEvent::Failed,
        }
    }

    fn show(&self) {
        let hooks = self.tracked.iter().map(|tracked| HookHealth {
            name: tracked.hook.name.clone(),
            state: tracked.engine.state().name(),
            failures: tracked.engine.failures(),
            reason: tracked.reason.clone(),
        });
        self.health.set_hooks(hooks.collect());
        let states = || self.tracked.iter().map(|tracked| tracked.engine.state());
        let pending = states().filter(|state| *state != HookState::Idle).count();
        let failing =
            states().any(|state| matches!(state, HookState::Retrying | HookState::Failing));
        self.context.metrics.hooks(failing, pending);
    }
}

fn changed(changes: &Changes) -> usize {
    let volumes = changes.volumes.iter();
    let counts =
        volumes.map(|volume| volume.added.len() + volume.changed.len() + volume.removed.len());
    counts.sum()
}
