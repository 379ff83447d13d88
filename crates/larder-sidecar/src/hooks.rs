//! Hooks of a sidecar: when they fire, and their rounds beside everything else (rules A4, N1, N2).
//!
//! The engines of `larder-on-change` decide, and `larder-actions` acts. Nothing here waits for a round: the owner asks
//! for the [`next`](Hooks::next) event among its others.
//!
//! Invariants:
//! 1. The owner learns that a round begins before its first step, and records that its outcome is uncertain.
//! 2. A newer change ends the pauses of a round, and starts another one.

use std::{fmt, mem, sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use larder_actions::{StepInputs, StepOutcome, run_steps};
use larder_on_change::{
    ContentDigest, Hook, HookEngine, HookState, Items, Outcome, RoundId, Start,
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use crate::{clock, health::Health, metrics, request::RequestRound, steps::StepContext};

/// A hook, and its round if that is not its steps.
pub(crate) type HookAndRound = (Hook, Option<Arc<RequestRound>>);

/// News of a hook, for its record: the content of its last success, or `None` while that is uncertain.
pub(crate) type HookEvent = Option<(String, Option<ContentDigest>)>;

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
    own_round: Option<Arc<RequestRound>>,
    engine: HookEngine,
    present: Items,
    succeeded: Items,
    running: (Option<ContentDigest>, Items),
    round: RoundId,
    reason: String,
    /// Since when the application lacks a change.
    changed: Option<Instant>,
    began: Instant,
}

impl Hooks {
    pub(crate) fn new(hooks: Vec<HookAndRound>, context: StepContext, health: Arc<Health>) -> Self {
        let tracked = hooks.into_iter().map(|(hook, own_round)| {
            let hook = Arc::new(hook);
            TrackedHook {
                engine: HookEngine::new(Arc::clone(&hook), Start::FirstDelivery),
                hook,
                own_round,
                present: Items::default(),
                succeeded: Items::default(),
                running: (None, Items::default()),
                round: RoundId::from_random(0),
                reason: String::new(),
                changed: None,
                began: Instant::now(),
            }
        });
        Self {
            tracked: tracked.collect(),
            running: FuturesUnordered::new(),
            announced: None,
            context: Arc::new(context),
            health,
            changes: watch::Sender::new(0),
            random: fastrand::Rng::new(),
        }
    }

    /// The first sync is complete: `start` decides for each hook by its name whether it fires now.
    pub(crate) fn begin(&mut self, start: impl Fn(&str) -> (Start, bool)) {
        for tracked in &mut self.tracked {
            let (start, is_initial) = start(&tracked.hook.name);
            Arc::make_mut(&mut tracked.hook).initial |= is_initial;
            tracked.engine = HookEngine::new(Arc::clone(&tracked.hook), start);
        }
    }

    /// Everything that has changed together is in place.
    pub(crate) fn observe(&mut self, mut content: impl FnMut(&Hook) -> (ContentDigest, Items)) {
        let now = Instant::now();
        for tracked in &mut self.tracked {
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
        states.all(|state| !matches!(state, HookState::Waiting | HookState::Running))
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
            for (index, tracked) in self.tracked.iter_mut().enumerate() {
                // A sidecar has one application: nothing needs to be spread.
                let due = tracked.engine.advance(now, 0.0);
                let Some(round) = due.and_then(|_| tracked.engine.start()) else {
                    continue;
                };
                if round.attempt == 1 {
                    tracked.round = RoundId::from_random(self.random.u128(..));
                }
                tracked.running = (Some(round.digest), tracked.present.clone());
                tracked.began = now;
                if let Some(changed) = tracked.changed.take() {
                    let delay = &self.context.metrics.delay;
                    delay.observe((now - changed).as_secs_f64());
                }
                self.announced = Some(index);
                let name = tracked.hook.name.clone();
                self.show();
                return Some((name, None));
            }
            let engines = self.tracked.iter().map(|tracked| &tracked.engine);
            let wakes_at = engines.filter_map(HookEngine::wakes_at).min();
            // Both arms are cancel-safe.
            tokio::select! {
                biased;
                Some((index, outcome)) = self.running.next() => return self.ended(index, &outcome),
                () = sleep_until(wakes_at.unwrap_or(now)), if wakes_at.is_some() => {}
                else => std::future::pending().await,
            }
        }
    }

    fn run(&mut self, index: usize) {
        let tracked = &self.tracked[index];
        let mut changes = tracked.running.1.changes_since(&tracked.succeeded);
        let mut count = 0;
        for volume in &mut changes.volumes {
            count += volume.added.len() + volume.changed.len() + volume.removed.len();
            if let Some(path) = self.context.volumes.get(&volume.name) {
                volume.directory.clone_from(path);
            }
        }
        let mut inputs = StepInputs {
            hook: tracked.hook.name.clone(),
            round: tracked.round,
            attempt: tracked.engine.failures() + 1,
            pod: self.context.pod.clone(),
            changes,
            timeout: Duration::ZERO,
        };
        info!(hook = inputs.hook, changed = count, "round begins");
        let (hook, own_round) = (Arc::clone(&tracked.hook), tracked.own_round.clone());
        let (context, changes) = (Arc::clone(&self.context), self.changes.subscribe());
        let round = async move {
            let outcome = match own_round {
                Some(round) => round.run(&hook, inputs, &context, changes).await,
                None => run_steps(&hook.steps, &hook, Duration::ZERO, &mut inputs, &*context).await,
            };
            (index, outcome)
        };
        self.running.push(round.boxed());
    }

    fn ended(&mut self, index: usize, outcome: &StepOutcome) -> HookEvent {
        let now = Instant::now();
        let tracked = &mut self.tracked[index];
        let (digest, items) = mem::take(&mut tracked.running);
        let name = tracked.hook.name.clone();
        let (took, error) = (now - tracked.began, outcome.reason());
        let is_success = outcome.is_success();
        if is_success {
            info!(hook = name, ?took, "round succeeded");
            tracked.succeeded = items;
            self.context.metrics.succeeded(clock::now());
        } else if tracked.reason != error {
            // Once for each reason.
            warn!(hook = name, ?took, error, "round failed");
        }
        tracked.reason = if is_success {
            String::new()
        } else {
            error.to_owned()
        };
        let result = if is_success {
            Outcome::Succeeded
        } else {
            Outcome::Failed
        };
        // The longest pause: there is one application, and no herd.
        tracked.engine.finished(result, now, 1.0);
        self.show();
        is_success.then_some((name, digest))
    }

    fn show(&self) {
        let hooks = self.tracked.iter().map(|tracked| {
            json!({
                "name": tracked.hook.name, "state": tracked.engine.state().name(),
                "failures": tracked.engine.failures(), "reason": tracked.reason,
            })
        });
        self.health.set_hooks(hooks.collect());
        let states = || self.tracked.iter().map(|tracked| tracked.engine.state());
        let pending = states().filter(|state| *state != HookState::Idle).count();
        let failing =
            states().any(|state| matches!(state, HookState::Retrying | HookState::Failing));
        let metrics = &self.context.metrics;
        metrics.last_failed.set(failing.into());
        metrics::set(&metrics.pending, pending);
    }
}
