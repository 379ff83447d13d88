//! One hook of one pod while the agent runs: its engine, its round, and what status shows of it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use tokio::{sync::Notify, time::Instant};

use crate::{
    content::{Content, PartContent},
    digest::DigestKey,
    engine::{HookEngine, HookState, LastNotification},
    part::PartKey,
    pod_hooks::PodHook,
    queue::HookId,
    record::{HookRecord, Past},
    round_id::RoundId,
};

/// The present, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For pauses and deadlines.
    pub instant: Instant,
    /// For status and records.
    pub time: Timestamp,
}

/// A hook of a pod.
#[derive(Debug)]
pub struct TrackedHook {
    pub(crate) id: HookId,
    pub(crate) engine: HookEngine,
    /// `None` while the hook is idle and the last round succeeded, as nearly all hooks of a node are.
    pending: Option<Box<Pending>>,
    /// The state at the last [`note_state`](Self::note_state).
    shown: HookState,
    /// When it entered that state.
    pub since: Timestamp,
    /// When a round succeeded last.
    pub last_success: Option<Timestamp>,
    /// The hook started from the current content. So the first content of each part counts as its first delivery,
    /// whatever was on disk (rule P5).
    starts_afresh: bool,
    /// Its last round has failed, and an event about the pod reported it.
    pub has_failed: bool,
}

/// What a hook needs between a change and the success of its round.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// What controls the round in progress.
    pub(crate) running: Option<Arc<RoundControl>>,
    /// Identifies the round; all its attempts share it.
    pub(crate) round: Option<RoundId>,
    /// Reason of the last failure, or of the delay of an attempt.
    pub(crate) reason: String,
    /// The output of the command that failed last, as far as it may be shown.
    pub(crate) output: String,
    /// Arrival of the first change that the application was not yet notified of.
    pub(crate) changed_at: Option<Instant>,
    /// The hook's entry among the timers.
    pub(crate) timer: Option<Instant>,
}

/// Of a hook at rest.
static NOTHING: LazyLock<Pending> = LazyLock::new(Pending::default);

impl Pending {
    fn is_empty(&self) -> bool {
        matches!(self, Self { running: None, round: None, changed_at: None, timer: None, reason, output }
            if reason.is_empty() && output.is_empty())
    }
}

/// How the schedule controls a round in progress. Each is waited for by the round alone.
#[derive(Debug, Default)]
pub struct RoundControl {
    pub(crate) cancel: Notify,
    pub(crate) place: Notify,
    /// A failure of the attempt is the last one, and a restart follows.
    restarts: AtomicBool,
}

impl RoundControl {
    /// Waits until the round is to end, since its hook is gone. Cancel-safe.
    pub async fn cancelled(&self) {
        self.cancel.notified().await;
    }

    /// Whether the container is to be restarted after a failure, as the last step of the attempt (`onFailure: Restart`).
    /// Newer content that has arrived gets a round of its own instead.
    pub fn restarts_after_failure(&self) -> bool {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Waits for the place that the round has [claimed](crate::Schedule::claim_place). Cancel-safe.
    pub async fn placed(&self) {
        self.place.notified().await;
    }
}

impl TrackedHook {
    /// A hook that is new to this agent. Its last notification comes from its record or, without a usable record, from
    /// the files on disk (rule P3).
    ///
    /// `past` has the content that the record is about. It is `None` if the pod had other hooks under this agent. Then the hook starts from the current content
    /// (rule P5).
    pub(crate) fn new(
        id: HookId,
        hook: &PodHook,
        past: Option<(&Past, &Content)>,
        key: &DigestKey,
        now: Timestamp,
    ) -> Self {
        let content = past.map(|(_, content)| content);
        let past = past.map(|(past, _)| past);
        let record = past.and_then(|past| past.record.as_ref());
        let (recorded, last_success) = match (past, record) {
            (None, _) => (Some(LastNotification::Nothing), None),
            (Some(_), Some(record)) => record.of(hook, key),
            (Some(past), None) => {
                let uncertain = past.is_uncertain.then_some(LastNotification::Uncertain);
                (uncertain, None)
            }
        };
        let on_disk = content
            .filter(|content| content.concerns(hook))
            .map(|content| (content, content.digest(hook, key)));
        let last = recorded.unwrap_or(match on_disk {
            Some((_, digest)) => LastNotification::Content(digest),
            None => LastNotification::Nothing,
        });
        let baseline = on_disk
            .filter(|(_, digest)| last == LastNotification::Content(*digest))
            .map(|(content, _)| Arc::new(extended(&Content::default(), content.parts(), hook)));
        Self {
            id,
            engine: HookEngine::new(Arc::clone(&hook.hook), last, baseline),
            pending: None,
            shown: HookState::Idle,
            since: now,
            last_success,
            starts_afresh: recorded == Some(LastNotification::Nothing),
            has_failed: false,
        }
    }

    /// Its state.
    pub fn state(&self) -> HookState {
        self.engine.state()
    }

    /// Number of failed attempts in a row.
    pub fn failures(&self) -> u32 {
        self.engine.failures()
    }

    /// Reason of the last failure, or of the delay of an attempt; empty while there is none.
    pub fn reason(&self) -> &str {
        &self.pending().reason
    }

    /// The output of the command that failed last, as far as it may be shown; empty after a success.
    pub fn output(&self) -> &str {
        &self.pending().output
    }

    /// Its record with digests of `key`; `is_changing` says that its content is about to change. If the next agent has
    /// another key, a digest cannot show it that the application lacks a notification.
    pub(crate) fn record(&self, hook: &PodHook, is_changing: bool, key: &DigestKey) -> HookRecord {
        let digest = self.engine.notified();
        let is_behind = is_changing || self.pending().changed_at.is_some();
        // Without content there was no delivery.
        let is_hidden = key.ends_with_agent() && is_behind && digest.is_some();
        let uncertain = self.engine.is_uncertain() || is_hidden;
        HookRecord::new(hook, digest, uncertain, self.last_success)
    }

    /// Takes in a pass, which changed the pod's content from `before` to `after`. The parts in `confirmed` were
    /// delivered by this agent for the first time; before, only their files on disk were known.
    pub(crate) fn passed(
        &mut self,
        hook: &PodHook,
        before: &Content,
        after: &Arc<Content>,
        confirmed: &BTreeSet<PartKey>,
        key: &DigestKey,
        now: Instant,
    ) {
        let digest = after.digest(hook, key);
        if hook.hook.initial && self.engine.notified().is_none() && !after.concerns(hook) {
            // The first delivery is yet to come.
            return;
        }
        let is_first = |part: &PartKey| {
            before.get(part).is_none() || (self.starts_afresh && confirmed.contains(part))
        };
        let first: Vec<_> = after
            .parts()
            .filter(|(part, _)| hook.selects_part(part) && is_first(part))
            .collect();
        if !hook.hook.initial && !first.is_empty() {
            self.engine.extend(before, |content| {
                let content = extended(content, first.iter().copied(), hook);
                let digest = content.digest(hook, key);
                (Arc::new(content), digest)
            });
        }
        if confirmed.iter().any(|part| hook.selects_part(part)) {
            self.engine.observe_after_restart(digest, now);
        } else {
            self.engine.observe(digest, now);
        }
        if self.engine.notified() == Some(digest) {
            self.engine.baseline = Some(Arc::clone(after));
            if let Some(pending) = &mut self.pending {
                pending.changed_at = None;
            }
        } else {
            self.pending_mut().changed_at.get_or_insert(now);
        }
        self.note_restart();
    }

    /// Lets the round in progress know whether a failure is followed by a restart.
    pub(crate) fn note_restart(&self) {
        if let Some(running) = &self.pending().running {
            let restarts = self.engine.restarts_after_failure();
            running.restarts.store(restarts, Ordering::Relaxed);
        }
    }

    /// What the hook needs besides while it is not at rest.
    pub(crate) fn pending(&self) -> &Pending {
        self.pending.as_deref().unwrap_or(&NOTHING)
    }

    /// Lends [`pending`](Self::pending) for changes. [`settle`](Self::settle) frees it when it is not needed any more.
    pub(crate) fn pending_mut(&mut self) -> &mut Pending {
        self.pending.get_or_insert_default()
    }

    /// Frees what a hook at rest does not need.
    pub(crate) fn settle(&mut self) {
        self.pending.take_if(|pending| pending.is_empty());
    }

    /// Takes in a successful round.
    pub(crate) fn succeeded(&mut self, now: Now) {
        self.last_success = Some(now.time);
        self.has_failed = false;
        let is_idle = self.engine.state() == HookState::Idle;
        let pending = self.pending_mut();
        pending.round = None;
        pending.reason = String::new();
        pending.output = String::new();
        pending.changed_at = (!is_idle).then_some(now.instant);
    }

    /// Records the time if the state has changed, and returns whether it has.
    pub(crate) fn note_state(&mut self, now: Timestamp) -> bool {
        let state = self.engine.state();
        let has_changed = state != self.shown;
        if has_changed {
            self.shown = state;
            self.since = now;
        }
        has_changed
    }
}

/// `content` with those of `parts` that `hook` selects.
fn extended<'a>(
    content: &Content,
    parts: impl Iterator<Item = (&'a PartKey, &'a Arc<PartContent>)>,
    hook: &PodHook,
) -> Content {
    let selected = parts
        .filter(|(part, _)| hook.selects_part(part))
        .map(|(part, content)| (part.clone(), Arc::clone(content)));
    content.with(selected)
}
