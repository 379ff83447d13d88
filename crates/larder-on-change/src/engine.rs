//! The engine of one hook: takes the content that the hook selects, and decides when a round begins.
//!
//! A round goes through these states; a change while it waits restarts the quiet period or joins the round:
//!
//! ```text
//!  Idle ─change─► Quiet ─min passed─► Splay ─► Due ─start─► Running ─success─► Idle, or Quiet if there was a change meanwhile
//!   ▲               ▲                                          │
//!   └─ as notified ─┤                                          └─failure─► Retrying ─pause─► Due
//!                   └────────────── newer change ◄───────────────────────────┘      └─► Failing: rests until the next change
//! ```
//!
//! Invariants:
//! 1. `notified` is the digest of the last success (rule F2). It is unknown from the first step of an attempt until
//!    success: a failed attempt may have reached the application. `baseline` outlives the attempt: what the next one
//!    lists as changed is what differs from it.
//! 2. At most one round runs, and changes during it cause exactly one more (rule T3).
//! 3. Time and random numbers in [0, 1) are arguments.
//! 4. A hook at rest is small: a node has one for each of its pods. State that only a round needs lives as long as the
//!    round, and the definition is shared.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    content::Content,
    digest::ContentDigest,
    hook::{Debounce, Hook, OnFailure, timing::MAX_PAUSE},
};

/// The last notification of an application, as far as it is known. A new hook starts from it (rules P3 to P6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastNotification {
    /// No content has been delivered yet. The first content is a first delivery, which fires only hooks with `initial`.
    Nothing,
    /// The content of the last success, or of the first delivery. A change since a restart fires after a random pause of
    /// up to 10 s.
    Content(ContentDigest),
    /// An attempt failed, so the application may have seen its content or not. After a restart, any content fires
    /// likewise.
    Uncertain,
}

/// The state of a hook, for status output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    /// The application was notified of the present content.
    Idle,
    /// A change waits for its quiet period, its random pause, or a free place.
    Waiting,
    /// A round runs.
    Running,
    /// The last attempt failed; another one follows.
    Retrying,
    /// Every attempt failed; the hook rests until the next change.
    Failing,
}

impl HookState {
    /// The name in status output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Waiting => "Waiting",
            Self::Running => "Running",
            Self::Retrying => "Retrying",
            Self::Failing => "Failing",
        }
    }
}

/// Longest extra pause of a round that is due because of a change during a restart, so that no herd starts (rule P6).
const RESTART_SPREAD: Duration = Duration::from_secs(10);

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// Every step succeeded.
    Succeeded,
    /// A step failed or timed out.
    Failed {
        /// Why.
        reason: String,
        /// The output of its command, as far as it may be shown.
        output: String,
        /// No attempt follows, however many are left.
        is_final: bool,
    },
    /// It may not continue before this time, for this reason. Then it begins again, with the content of that time. Changes
    /// meanwhile join it.
    Deferred(Instant, String),
    /// The pod was removed, or larder shuts down: nothing is recorded (rule T9).
    Interrupted,
}

impl AttemptEnd {
    /// By the reason of a failure, if it is one, and the output of its command.
    pub fn of(failure: Option<&str>, output: String) -> Self {
        failure.map_or(Self::Succeeded, |reason| Self::Failed {
            reason: reason.to_owned(),
            output,
            is_final: false,
        })
    }
}

#[derive(Clone, Debug)]
enum Phase {
    Idle,
    /// Since the first and since the latest change.
    Quiet {
        first: Instant,
        latest: Instant,
    },
    /// Until the end of the random pause.
    Splay {
        until: Instant,
    },
    /// Waits for a free place among the running rounds.
    Due {
        since: Instant,
    },
    Running(Box<RunningPhase>),
    Retrying {
        until: Instant,
    },
    Failing,
}

/// The round that runs.
#[derive(Clone, Debug)]
struct RunningPhase {
    /// The content of the round's notification.
    content: Arc<Content>,
    digest: ContentDigest,
    /// First and latest change since it began.
    meanwhile: Option<(Instant, Instant)>,
}

/// The engine of one hook.
#[derive(Clone, Debug)]
pub(crate) struct HookEngine {
    hook: Arc<Hook>,
    phase: Phase,
    notified: LastNotification,
    /// The content since which the next attempt lists changes: that of the last success, if more is known of it than the
    /// digest.
    pub(crate) baseline: Option<Arc<Content>>,
    /// The present content; `None` before the first delivery.
    present: Option<ContentDigest>,
    failures: u32,
    /// The next round is due because of a change during a restart.
    spread: bool,
}

impl HookEngine {
    /// A hook that starts after this notification.
    pub(crate) fn new(
        hook: Arc<Hook>,
        notified: LastNotification,
        baseline: Option<Arc<Content>>,
    ) -> Self {
        Self {
            hook,
            phase: Phase::Idle,
            notified,
            baseline,
            present: None,
            failures: 0,
            spread: notified != LastNotification::Nothing,
        }
    }

    /// A pass is over: every part of the pod that was due is in place, and the hook selects this content (rule F1).
    pub(crate) fn observe(&mut self, content: ContentDigest, now: Instant) {
        let before = self.present.replace(content);
        if before == Some(content) {
            return;
        }
        if self.notified == LastNotification::Nothing && before.is_none() && !self.hook.initial {
            // A first delivery: its readers start with it (rule F4).
            self.notified = LastNotification::Content(content);
            self.spread = false;
            return;
        }
        let changed = self.notified != LastNotification::Content(content);
        match &mut self.phase {
            Phase::Running(running) => {
                let first = running.meanwhile.map_or(now, |(first, _)| first);
                let differs = running.digest != content;
                running.meanwhile = differs.then_some((first, now));
            }
            // There and back (rule F3).
            phase if !changed => {
                self.failures = 0;
                self.spread = false;
                *phase = Phase::Idle;
            }
            Phase::Quiet { latest, .. } => *latest = now,
            Phase::Splay { .. } | Phase::Due { .. } => {}
            // A newer change resets the delays (rule T8).
            phase @ (Phase::Idle | Phase::Retrying { .. } | Phase::Failing) => {
                self.failures = 0;
                *phase = Phase::Quiet {
                    first: now,
                    latest: now,
                };
            }
        }
    }

    /// Like [`observe`](Self::observe), for the first look at content since a restart: a change came meanwhile, so its
    /// round gets an extra random pause (rule P6).
    pub(crate) fn observe_after_restart(&mut self, content: ContentDigest, now: Instant) {
        self.spread = true;
        self.observe(content, now);
        if matches!(self.phase, Phase::Idle) {
            self.spread = false;
        }
    }

    /// Content that was missing until now was delivered for the first time, and nothing else has changed: it is part of
    /// all contents known so far, so nothing fires (rule F4). `extended` adds it to one of them; `before` is the present
    /// one without it.
    pub(crate) fn extend(
        &mut self,
        before: &Content,
        extended: impl Fn(&Content) -> (Arc<Content>, ContentDigest),
    ) {
        let is_known = self.baseline.is_some() || self.notified().is_some();
        if let Some(baseline) = &mut self.baseline {
            let (content, digest) = extended(baseline);
            *baseline = content;
            if let LastNotification::Content(known) = &mut self.notified {
                *known = digest;
            }
        }
        if let Phase::Running(running) = &mut self.phase {
            let (content, digest) = extended(&running.content);
            running.content = content;
            if is_known {
                running.digest = digest;
            }
        }
        // Content that was not observed yet may differ from the last success.
        if let Some(present) = self.present.as_mut().filter(|_| is_known) {
            *present = extended(before).1;
        }
    }

    /// The next time at which [`advance`](Self::advance) has an effect.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Quiet { first, latest } => Some(self.quiet_until(first, latest)),
            Phase::Splay { until } | Phase::Retrying { until } => Some(until),
            Phase::Idle | Phase::Due { .. } | Phase::Running(_) | Phase::Failing => None,
        }
    }

    fn quiet_until(&self, first: Instant, latest: Instant) -> Instant {
        let Debounce { min, max } = self.hook.timing.debounce;
        let min = min.min(MAX_PAUSE);
        (latest + min).min(first + max.clamp(min, MAX_PAUSE))
    }

    /// Advances the time. Returns since when a round has been due, if one is. `random` decides the pause that may begin
    /// now.
    pub(crate) fn advance(&mut self, now: Instant, random: f64) -> Option<Instant> {
        loop {
            let due = self.wakes_at().filter(|due| *due <= now);
            self.phase = match (&self.phase, due) {
                (Phase::Quiet { .. }, Some(due)) => {
                    let spread = if std::mem::take(&mut self.spread) {
                        RESTART_SPREAD
                    } else {
                        Duration::ZERO
                    };
                    let splay = self.hook.timing.splay.min(MAX_PAUSE);
                    let pause = (splay + spread).mul_f64(random);
                    Phase::Splay { until: due + pause }
                }
                (Phase::Splay { .. } | Phase::Retrying { .. }, Some(due)) => {
                    Phase::Due { since: due }
                }
                (Phase::Due { since }, _) => return Some(*since),
                _ => return None,
            };
        }
    }

    /// Begins the round that is due: the caller runs the steps, and reports with [`finished`](Self::finished).
    ///
    /// It notifies the application of `content`, the present one. Returns the number of the attempt, 1 for the first one of
    /// the round; `None` if no round is due.
    pub(crate) fn start(&mut self, content: Arc<Content>) -> Option<u32> {
        let (Phase::Due { .. }, Some(digest)) = (&self.phase, self.present) else {
            return None;
        };
        self.notified = LastNotification::Uncertain;
        self.phase = Phase::Running(Box::new(RunningPhase {
            content,
            digest,
            meanwhile: None,
        }));
        Some(self.failures + 1)
    }

    /// A step of the round that [`start`](Self::start) has begun has failed. Returns whether the container is to be
    /// restarted, because no attempt is left (`onFailure: Restart`). Newer content that has arrived gets a round of its
    /// own instead.
    pub(crate) fn restarts_after_failure(&self) -> bool {
        let Phase::Running(running) = &self.phase else {
            return false;
        };
        self.hook.on_failure == OnFailure::Restart
            && running.meanwhile.is_none()
            && self.is_last_failure(self.failures + 1)
    }

    /// Whether no attempt follows after this many failures in a row.
    fn is_last_failure(&self, failures: u32) -> bool {
        let attempts = self.hook.timing.retry.attempts;
        attempts > 0 && failures >= attempts
    }

    /// The round that [`start`](Self::start) has begun is over. `random` decides the pause before the next attempt.
    pub(crate) fn finished(&mut self, end: &AttemptEnd, now: Instant, random: f64) {
        let Phase::Running(running) = &self.phase else {
            return;
        };
        let succeeded = match *end {
            AttemptEnd::Succeeded => true,
            AttemptEnd::Failed { .. } => self.hook.on_failure == OnFailure::Ignore,
            AttemptEnd::Interrupted => {
                self.phase = Phase::Failing;
                return;
            }
            AttemptEnd::Deferred(until, _) => {
                self.phase = Phase::Splay { until };
                return;
            }
        };
        let is_final = matches!(end, AttemptEnd::Failed { is_final: true, .. });
        let meanwhile = running.meanwhile;
        if succeeded {
            self.notified = LastNotification::Content(running.digest);
            self.baseline = Some(Arc::clone(&running.content));
            self.failures = 0;
        } else {
            self.failures += 1;
        }
        self.phase = if let Some((first, latest)) = meanwhile {
            self.failures = 0;
            Phase::Quiet { first, latest }
        } else if succeeded {
            Phase::Idle
        } else if is_final || self.is_last_failure(self.failures) {
            Phase::Failing
        } else {
            let pause = self.hook.timing.retry.pause(self.failures, random);
            Phase::Retrying { until: now + pause }
        };
    }

    /// The content of the last success, to be stored; `None` if it is unknown, so that the round runs again after a
    /// restart (rule P4).
    pub(crate) fn notified(&self) -> Option<ContentDigest> {
        match self.notified {
            LastNotification::Content(digest) => Some(digest),
            LastNotification::Nothing | LastNotification::Uncertain => None,
        }
    }

    /// Whether an attempt without a later success may have notified the application; to be stored with
    /// [`notified`](Self::notified).
    pub(crate) fn is_uncertain(&self) -> bool {
        self.notified == LastNotification::Uncertain
    }

    /// The state of the hook.
    pub(crate) fn state(&self) -> HookState {
        match self.phase {
            Phase::Idle => HookState::Idle,
            Phase::Quiet { .. } | Phase::Splay { .. } | Phase::Due { .. } => HookState::Waiting,
            Phase::Running(_) => HookState::Running,
            Phase::Retrying { .. } => HookState::Retrying,
            Phase::Failing => HookState::Failing,
        }
    }

    /// Number of failed attempts in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests;
