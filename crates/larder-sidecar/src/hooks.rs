//! Hooks of a sidecar: when they fire, and their rounds beside everything else (rules A4, N1, N2).
//!
//! The schedule of `larder-on-change` decides, and `larder-actions` acts. Nothing here waits for a round: the owner asks
//! for the [`next`](Hooks::next) event among its others.
//!
//! Invariants:
//! 1. The owner learns that a round begins before its first step, and stores the [record](Hooks::record), by which its
//!    outcome is uncertain: rounds are only polled by `next`, which returns when one begins.
//! 2. A newer change ends the pauses of a round, and starts another one.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use larder_actions::run_attempt;
use larder_on_change::{
    Attempt, AttemptEnd, DigestKey, Hook, HookId, HookState, Now, Past, PodHooks, PodOutline,
    Record, Schedule, VolumeChange,
};
use serde_json::json;
use smol_str::SmolStr;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use crate::{
    clock, health::Health, intake::DeliveredPart, request::RequestRound, steps::StepContext,
};

/// The application, of which a sidecar has one.
const APPLICATION: SmolStr = SmolStr::new_static("");

/// A hook, and its round if that is not its steps.
pub(crate) type HookAndRound = (Hook, Option<Arc<RequestRound>>);

/// A round that is over.
struct RoundEnd {
    hook: HookId,
    took: Duration,
    end: AttemptEnd,
}

/// The hooks of a sidecar.
pub(crate) struct Hooks {
    all: Vec<(Arc<Hook>, Option<Arc<RequestRound>>)>,
    pub(crate) adopted: Arc<PodHooks>,
    schedule: Schedule<()>,
    running: FuturesUnordered<BoxFuture<'static, RoundEnd>>,
    context: Arc<StepContext>,
    health: Arc<Health>,
    /// Counts changes, so that rounds notice them.
    changes: watch::Sender<u64>,
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        time: clock::now(),
    }
}

impl Hooks {
    pub(crate) fn new(hooks: Vec<HookAndRound>, context: StepContext, health: Arc<Health>) -> Self {
        let shared = hooks
            .into_iter()
            .map(|(hook, round)| (Arc::new(hook), round));
        Self {
            all: shared.collect(),
            adopted: Arc::new(PodHooks::of_command([], &PodOutline::default())),
            // A sidecar has one application: nothing needs to be spread.
            schedule: Schedule::of_one(None),
            running: FuturesUnordered::new(),
            context: Arc::new(context),
            health,
            changes: watch::Sender::new(0),
        }
    }

    /// From now on these hooks fire. Those that were adopted before go on; new ones start from the past or, if others
    /// were adopted before them, from the present.
    pub(crate) fn adopt(&mut self, is_meant: impl Fn(&Hook) -> bool, past: &Past, key: &DigestKey) {
        let meant = self
            .all
            .iter()
            .filter(|(hook, _)| is_meant(hook))
            .map(|(hook, _)| Arc::clone(hook));
        self.adopted = Arc::new(PodHooks::of_command(meant, &PodOutline::default()));
        let hooks = Arc::clone(&self.adopted);
        self.schedule
            .adopt(&APPLICATION, (), hooks, past, key, clock::now());
    }

    /// Everything that has changed together is in place.
    pub(crate) fn observe(&mut self, content: Vec<DeliveredPart>, key: &DigestKey) {
        self.schedule.pass(&APPLICATION, content, key, now());
        self.changes.send_modify(|count| *count += 1);
        self.show();
    }

    /// What the application was last notified of, if that has changed since the last call.
    pub(crate) fn record(&mut self, key: &DigestKey) -> Option<Record> {
        self.schedule.record(&APPLICATION, key)
    }

    /// The state of the hook of this name, if it was adopted.
    pub(crate) fn state(&self, name: &str) -> Option<HookState> {
        let mut hooks = self.schedule.pod(&APPLICATION)?.tracked();
        let (_, tracked) = hooks.find(|(hook, _)| hook.hook.name == name)?;
        Some(tracked.state())
    }

    /// Whether a round runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether every hook has nothing to do, or has given up for now.
    pub(crate) fn is_at_rest(&self) -> bool {
        let mut hooks = self.schedule.tracked_hooks();
        hooks.all(|hook| !matches!(hook.state(), HookState::Waiting | HookState::Running))
    }

    /// Waits until a round begins or ends; forever if there is none to come.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> RoundEvent {
        loop {
            let now = now();
            let (due, wakes_at) = self.schedule.due(now);
            if !due.is_empty() {
                for attempt in due {
                    self.begins(attempt, now.instant);
                }
                self.show();
                return RoundEvent::Begun;
            }
            // Both arms are cancel-safe.
            tokio::select! {
                biased;
                Some(end) = self.running.next() => {
                    self.ended(end);
                    return RoundEvent::Ended;
                }
                () = sleep_until(wakes_at.unwrap_or(now.instant)), if wakes_at.is_some() => {}
                else => std::future::pending().await,
            }
        }
    }

    /// Nothing of the round happens before [`next`](Self::next) waits again.
    fn begins(&mut self, attempt: Attempt<()>, now: Instant) {
        if let Some(changed) = attempt.changed_at.filter(|_| attempt.number == 1) {
            self.context.metrics.on_change.delayed(now - changed);
        }
        let mut change = attempt.change(self.context.pod.clone());
        change.changes.locate(&self.context.volumes);
        let volumes = change.changes.volumes.iter();
        let changed: usize = volumes.map(VolumeChange::files).sum();
        info!(hook = change.hook, changed, "round begins");
        let mut all = self.all.iter();
        let own_round = all
            .find(|(hook, _)| Arc::ptr_eq(hook, &attempt.hook().hook))
            .and_then(|(_, round)| round.clone());
        let context = Arc::clone(&self.context);
        let newer = self.changes.subscribe();
        let round = async move {
            let began = Instant::now();
            let end = if let Some(round) = own_round {
                round.run(&change, &context, newer).await
            } else {
                let outcome = run_attempt(&attempt, Duration::ZERO, &change, &*context).await;
                AttemptEnd::of(outcome.failure(), String::new())
            };
            RoundEnd {
                hook: attempt.id,
                took: began.elapsed(),
                end,
            }
        };
        self.running.push(round.boxed());
    }

    fn ended(&mut self, round: RoundEnd) {
        if let Some(ended) = self.schedule.ended(round.hook, &round.end, now()) {
            let (hook, took) = (ended.hook, round.took);
            match round.end {
                AttemptEnd::Succeeded => {
                    info!(hook, ?took, "round succeeded");
                    self.context.metrics.on_change.succeeded(clock::now());
                }
                // Once for each reason.
                AttemptEnd::Failed { reason: error, .. } if ended.is_news => {
                    warn!(hook, ?took, error, "round failed");
                }
                _ => {}
            }
        }
        self.show();
    }

    fn show(&self) {
        let (mut failing, mut pending, mut shown) = (0, 0, Vec::new());
        let application = self.schedule.pod(&APPLICATION);
        for (hook, tracked) in application.iter().flat_map(|pod| pod.tracked()) {
            let state = tracked.state();
            failing += usize::from(matches!(state, HookState::Retrying | HookState::Failing));
            pending += usize::from(state != HookState::Idle);
            shown.push(json!({
                "name": hook.hook.name, "state": state.name(),
                "failures": tracked.failures(), "reason": tracked.reason(),
            }));
        }
        self.health.set_hooks(shown);
        self.context.metrics.on_change.set_hooks(failing, pending);
    }
}

/// What has happened to a round.
pub(crate) enum RoundEvent {
    Begun,
    Ended,
}
