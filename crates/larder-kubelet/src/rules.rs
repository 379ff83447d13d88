//! Decides when to touch a pod, and tracks the state of each of its volumes. Pure: takes time, results of comparisons
//! and answers; returns touches, phases and notices.
//!
//! Rules are cited by their number in `docs/spec/beside-kubelet.md`.
//!
//! Invariants:
//! 1. At most one touch of a pod is under way (R10): no other one is due while a swap is awaited for it. It is a second
//!    thing whether the API server has answered it, since the kubelet may be faster than the answer.
//! 2. A touch is due only for a part whose last comparison found a reason (R3, R4), and only while its payload can be
//!    computed (R5).
//! 3. For one payload of a part at most four touches are sent (R12), and only one if further ones could do harm or
//!    cannot help (R15, R23, R6).
//! 4. A touch that was not accepted is sent again when the answer allows it, and none of its parts counts it. One that
//!    had no effect counts for R14, and several of them in a row count as a rejection (R18). So no answer makes touches
//!    endless.
//! 5. The last answer alone is an obstacle to the next touch. The wait after a 429 is the node's, see
//!    [`touch_limiter`](crate::touch_limiter).

mod part;
mod terms;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    time::Duration,
};

use jiff::Timestamp;
use larder_transport::Backoff;
use smol_str::SmolStr;
use tokio::time::Instant;

use self::part::{TrackedPart, Waiting};
pub(crate) use self::terms::throttled;
pub use self::terms::{
    Arrival, Gate, Look, Notice, PartName, PartObservation, PartState, PodView, RunningContainer,
    VolumeChange,
};
use crate::{backoff::RETRY, touch::TouchAnswer};

/// How long a swap is awaited for a touch, unless the content is verified earlier (R10).
pub const SWAP_TIME: Duration = Duration::from_millis(1500);
/// How long the other volumes may take to follow the first swapped one: the kubelet sets up all volumes of a pod at the
/// same time, and its reconciler looks for them every 100 ms.
const FOLLOWERS: Duration = Duration::from_millis(200);
/// Within this time after the Node has become Ready the kubelet catches up by itself (R13).
const CATCH_UP: Duration = Duration::from_secs(5);
/// Touches of a pod per minute, and the interval of further ones (R14).
const MAX_TOUCHES: usize = 10;
const MINUTE: Duration = Duration::from_mins(1);
const FURTHER: Duration = Duration::from_secs(15);
/// How long a pod is not touched after admission has rejected a touch (R18).
const REFUSED: Duration = Duration::from_mins(10);
/// Pause after the first touch that had no effect; the further ones back off.
const AGAIN: Duration = Duration::from_millis(50);
/// So many touches in a row without effect count as a rejection.
const MAX_WITHOUT_EFFECT: u32 = 4;

/// A touch after which the kubelet is to swap volumes.
#[derive(Clone, Copy, Debug)]
struct AwaitedSwap {
    sent_at: Instant,
    /// When the first swapped volume was noticed.
    first: Option<Instant>,
}

impl AwaitedSwap {
    fn until(self) -> Instant {
        let end = self.sent_at + SWAP_TIME;
        self.first.map_or(end, |first| end.min(first + FOLLOWERS))
    }
}

/// What the last answer puts in the way of the next touch, until then.
#[derive(Debug)]
enum Obstacle {
    /// The touch had no effect.
    WithoutEffect { until: Instant },
    /// It got no usable answer: why.
    Failed { until: Instant, why: &'static str },
    /// It was rejected: the reason for people.
    Rejected { until: Instant, reason: String },
}

impl Obstacle {
    fn until(&self) -> Instant {
        match *self {
            Self::WithoutEffect { until }
            | Self::Failed { until, .. }
            | Self::Rejected { until, .. } => until,
        }
    }

    /// Why the pod is not touched, if a person can do something about it.
    fn reason(&self) -> Option<String> {
        match self {
            Self::WithoutEffect { .. } => None,
            Self::Failed { why, .. } => Some(format!("failed to touch the pod, will retry: {why}")),
            Self::Rejected { reason, .. } => Some(reason.clone()),
        }
    }
}

/// The rules applied to one pod.
#[derive(Debug)]
pub struct PodRules {
    parts: BTreeMap<PartName, TrackedPart>,
    /// How many of them are outstanding.
    outstanding_parts: usize,
    view: PodView,
    gate: Gate,
    /// The time to live of objects that the kubelet may cache (R12).
    ttl: Duration,
    /// Until when the API server has asked the node to send no touch.
    throttled_until: Option<Timestamp>,
    /// The parts of the touch that the API server has not answered; empty without one.
    unanswered: BTreeSet<PartName>,
    awaited_swap: Option<AwaitedSwap>,
    /// The last touches: those that [`MAX_TOUCHES`] is about, and one more, since the last one may be taken back.
    recent: VecDeque<Instant>,
    /// `None` if the last touch was accepted.
    obstacle: Option<Obstacle>,
    backoff: Backoff,
    /// Touches without effect since the last one that had one, or was rejected.
    without_effect: u32,
}

impl PodRules {
    /// The rules of a pod without parts. `ttl` is the time to live of objects that the kubelet may cache (R12).
    pub fn new(gate: Gate, ttl: Duration) -> Self {
        Self {
            parts: BTreeMap::new(),
            outstanding_parts: 0,
            view: PodView::default(),
            gate,
            ttl,
            throttled_until: None,
            unanswered: BTreeSet::new(),
            awaited_swap: None,
            recent: VecDeque::new(),
            obstacle: None,
            backoff: RETRY,
            without_effect: 0,
        }
    }

    /// Sets the view of the pod, and forgets every part that is not in `parts`.
    pub fn set_pod(&mut self, view: PodView, parts: &BTreeSet<PartName>) {
        self.view = view;
        self.parts.retain(|name, _| parts.contains(name));
        for (name, part) in &mut self.parts {
            part.reattach(name, &self.view);
        }
        self.count_outstanding();
    }

    /// Sets whether pods of the node may be touched. Touches that became due while the kubelet did not run are left to
    /// the kubelet for a while (R13).
    pub fn set_gate(&mut self, gate: Gate, now: Instant) {
        let was_not_ready = matches!(self.gate, Gate::KubeletNotReady(_));
        self.gate = gate;
        if was_not_ready && self.gate == Gate::Open {
            let schedule = self.retry_schedule();
            for part in self.parts.values_mut() {
                part.postpone(&schedule, now + CATCH_UP);
            }
        }
    }

    /// Sets whether the pod has a CSI volume of a driver that requires republishing (R15).
    pub fn set_republishes(&mut self, republishes: bool) {
        self.view.republishes = republishes;
    }

    /// Sets until when the API server has asked the node to send no touch. The queue of the node waits; the state says it.
    pub fn set_throttled(&mut self, until: Option<Timestamp>) {
        self.throttled_until = until;
    }

    /// Sets the time to live of objects that the kubelet may cache (R12).
    pub fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    /// Takes in a look. The caller has read the disk at `now`, which the wall clock shows as `wall`.
    pub fn look(
        &mut self,
        name: &PartName,
        look: Look,
        now: Instant,
        wall: Timestamp,
    ) -> Vec<Notice> {
        let is_outdated = matches!(look.observation, PartObservation::Outdated(_));
        let swapped = look.volume.is_swap();
        let part = self
            .parts
            .entry(name.clone())
            .or_insert_with(|| TrackedPart::new(now));
        let was_outstanding = part.is_outstanding();
        let shares_touch = self.awaited_swap.is_some();
        let notices = part.look(name, look, &self.view, shares_touch, now, wall);
        self.outstanding_parts += usize::from(part.is_outstanding());
        self.outstanding_parts -= usize::from(was_outstanding);
        if self.outstanding_parts == 0 || swapped && is_outdated {
            // Everything has arrived, or the kubelet has read content that is outdated by now.
            self.awaited_swap = None;
        }
        if let Some(awaited) = &mut self.awaited_swap
            && swapped
        {
            awaited.first.get_or_insert(now);
        }
        notices
    }

    /// The parts to read before the next touch: those that would be its reason (R4).
    pub fn outstanding(&self) -> impl Iterator<Item = &PartName> {
        let parts = self.parts.iter();
        parts
            .filter(|(_, part)| part.is_outstanding())
            .map(|(name, _)| name)
    }

    /// The parts whose next swap is of interest: those, volumes that the kubelet is setting up, and volumes that it changes
    /// without a touch.
    pub fn awaited(&self) -> impl Iterator<Item = &PartName> {
        let may_come = self.gate == Gate::Open && !self.view.ending;
        let parts = self.parts.iter();
        parts
            .filter(move |(_, part)| {
                part.is_outstanding()
                    || may_come && part.is_being_set_up()
                    || part.is_left_to_kubelet()
            })
            .map(|(name, _)| name)
    }

    /// Whether the last look has found the computed bytes, under containers that see them.
    pub fn is_verified(&self, name: &PartName) -> bool {
        self.parts.get(name).is_some_and(TrackedPart::is_verified)
    }

    /// Whether a container that mounts this volume waits for another one, too (R29).
    pub fn is_awaited_with(&self, volume: &SmolStr, now: Instant) -> bool {
        let mut mounting = self.view.containers.iter();
        mounting.any(|container| container.volumes.contains(volume) && self.waits(container, now))
    }

    /// Whether this container waits for a volume (R29).
    pub fn is_awaited_by(&self, container: &SmolStr, now: Instant) -> bool {
        let mut containers = self.view.containers.iter();
        containers.any(|found| found.name == *container && self.waits(found, now))
    }

    fn waits(&self, container: &RunningContainer, now: Instant) -> bool {
        container.volumes.iter().any(|volume| {
            self.parts
                .get(&PartName::Volume(volume.clone()))
                .is_some_and(|part| part.is_to_come(now))
        })
    }

    /// When a touch of the pod is due; `None` if none is, as far as is known.
    pub fn wanted_at(&self) -> Option<Instant> {
        if self.view.ending || self.gate != Gate::Open {
            return None;
        }
        let schedule = self.retry_schedule();
        let due = self
            .parts
            .iter()
            .filter_map(|(name, part)| part.due(name, &schedule))
            .min()?;
        let awaited = self.awaited_swap.map(AwaitedSwap::until);
        let limits = [awaited, self.obstacle.as_ref().map(Obstacle::until)];
        let due = limits.into_iter().flatten().fold(due, Instant::max);
        Some(due.max(self.limited_until(due)))
    }

    /// Whether a touch of the pod is due now.
    pub fn wants_touch(&self, now: Instant) -> bool {
        self.wanted_at().is_some_and(|at| at <= now)
    }

    /// Whether the touch is only for content that was out of date when larder started (R27).
    pub fn is_catching_up(&self) -> bool {
        let mut outstanding = self.parts.values().filter(|part| part.is_outstanding());
        outstanding.all(TrackedPart::is_first)
    }

    /// A touch was sent.
    pub fn sent(&mut self, now: Instant, wall: Timestamp) {
        let schedule = self.retry_schedule();
        self.unanswered.clear();
        for (name, part) in &mut self.parts {
            if part.due(name, &schedule).is_some() {
                part.touched(now, wall);
                self.unanswered.insert(name.clone());
            }
        }
        self.awaited_swap = Some(AwaitedSwap {
            sent_at: now,
            first: None,
        });
        self.count_outstanding();
        self.recent.push_back(now);
        if self.recent.len() > MAX_TOUCHES + 1 {
            self.recent.pop_front();
        }
    }

    /// The API server has answered the last touch. `random` is uniform in `[0, 1)`: the pods of a node are not to retry at
    /// one moment.
    pub fn answered(&mut self, answer: TouchAnswer, random: f64, now: Instant) {
        let touched = mem::take(&mut self.unanswered);
        let counts_for_limit = matches!(answer, TouchAnswer::NoOp | TouchAnswer::Conflict);
        self.obstacle = match answer {
            TouchAnswer::Touched { .. } => {
                self.obstacle = None;
                self.backoff.reset();
                self.without_effect = 0;
                return;
            }
            TouchAnswer::NoOp => Some(self.without_effect("it drops the annotation", now)),
            TouchAnswer::Conflict => {
                Some(self.without_effect("it reports a conflict each time", now))
            }
            // If the pod is there all the same, as the watch says, it is touched again.
            TouchAnswer::Gone { message } => Some(self.rejected(
                format!("the API server does not find the pod: {message}"),
                now,
            )),
            // The node's limiter waits.
            TouchAnswer::Throttled { .. } => None,
            TouchAnswer::Forbidden { permission } => {
                // The node records it, too, and opens the gate again.
                self.gate = Gate::Forbidden(permission);
                None
            }
            TouchAnswer::Refused { message } => Some(self.refused(&message, now)),
            TouchAnswer::Failed { why } => {
                let delay = self.backoff.next_delay().mul_f64(1.0 + random);
                let until = now + delay;
                Some(Obstacle::Failed { until, why })
            }
        };
        if !counts_for_limit {
            self.recent.pop_back();
        }
        self.awaited_swap = None;
        for name in touched {
            if let Some(part) = self.parts.get_mut(&name) {
                part.not_touched();
            }
        }
        self.count_outstanding();
    }

    fn count_outstanding(&mut self) {
        self.outstanding_parts = self
            .parts
            .values()
            .filter(|part| part.is_outstanding())
            .count();
    }

    /// An outage of the API server is over (R17): a touch that had no usable answer is sent again at `at`, unless it is due
    /// earlier.
    pub fn outage_over(&mut self, at: Instant) {
        if let Some(Obstacle::Failed { until, .. }) = &mut self.obstacle {
            *until = (*until).min(at);
        }
    }

    /// The last touch had no effect, because of `why`, which completes "the API server refused the touch:". Once is chance,
    /// and several times in a row are a policy or a webhook.
    fn without_effect(&mut self, why: &'static str, now: Instant) -> Obstacle {
        self.without_effect += 1;
        let delay = match self.without_effect {
            1 => AGAIN,
            MAX_WITHOUT_EFFECT.. => return self.refused(why, now),
            _ => self.backoff.next_delay(),
        };
        let until = now + delay;
        Obstacle::WithoutEffect { until }
    }

    fn refused(&mut self, why: &str, now: Instant) -> Obstacle {
        self.rejected(format!("the API server refused the touch: {why}"), now)
    }

    fn rejected(&mut self, reason: String, now: Instant) -> Obstacle {
        self.without_effect = 0;
        self.backoff.reset();
        let until = now + REFUSED;
        Obstacle::Rejected { until, reason }
    }

    /// In a dry run, why a touch would be sent now; `None` if none would be. A change is returned once.
    pub fn would_touch(&mut self) -> Option<String> {
        if self.gate != Gate::DryRun || self.view.ending {
            return None;
        }
        let reasons = self.parts.iter_mut().filter_map(|(name, part)| {
            let reason = part.would_touch()?;
            Some(match name {
                PartName::Volume(volume) => format!("volume {volume}: {reason}"),
                PartName::Environment(container) => format!("container {container}: {reason}"),
            })
        });
        let reasons: Vec<_> = reasons.collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Notices that are due because time has passed.
    pub fn overdue(&mut self, now: Instant) -> Vec<Notice> {
        if self.gate != Gate::Open {
            return Vec::new();
        }
        let schedule = self.retry_schedule();
        self.parts
            .iter_mut()
            .filter_map(|(name, part)| part.take_overdue(name, &schedule, now))
            .collect()
    }

    /// When the rules need to run again without a change.
    pub fn next_wake(&self) -> Option<Instant> {
        let schedule = self.retry_schedule();
        let overdue = self
            .parts
            .iter()
            .filter_map(|(name, part)| part.overdue_at(name, &schedule))
            .min()
            .filter(|_| self.gate == Gate::Open);
        [self.wanted_at(), overdue].into_iter().flatten().min()
    }

    /// State and reason of a part; `None` if there has been no look at it.
    pub fn state(&self, name: &PartName, wall: Timestamp) -> Option<(PartState, String)> {
        let part = self.parts.get(name)?;
        let pod = Waiting {
            gate: &self.gate,
            obstacle: self.obstacle.as_ref().and_then(Obstacle::reason),
            throttled_until: self.throttled_until.filter(|until| *until > wall),
            ttl: self.ttl,
        };
        Some(part.state(pod, wall))
    }

    /// Time from the last change of a volume to its verification, if it is verified.
    pub fn verified_in(&self, name: &PartName) -> Option<Duration> {
        self.parts.get(name)?.verified_in()
    }

    /// The times after the first touch at which further ones follow (R12, R15).
    fn retry_schedule(&self) -> Vec<Duration> {
        let mut schedule = vec![Duration::ZERO];
        if !self.view.republishes {
            schedule.extend([SWAP_TIME, Duration::from_millis(4500)]);
            let expired = self.ttl.saturating_add(Duration::from_secs(1));
            schedule.extend((expired > schedule[2]).then_some(expired));
        }
        schedule
    }

    /// The earliest time of a touch that is due at `due`, by R14.
    fn limited_until(&self, due: Instant) -> Instant {
        let first = (self.recent.iter().rev()).nth(MAX_TOUCHES - 1);
        match (first, self.recent.back()) {
            (Some(&first), Some(&last)) if due < first + MINUTE => {
                // At the end of the minute at the latest.
                due.max((last + FURTHER).min(first + MINUTE))
            }
            _ => due,
        }
    }
}
