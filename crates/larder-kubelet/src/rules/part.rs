//! One part of a pod under the rules: its payload, the touches for it, and its state.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use jiff::Timestamp;
use smol_str::SmolStr;
use tokio::time::Instant;

use super::{
    SWAP_TIME,
    terms::{
        Arrival, Gate, Look, Notice, PartName, PartObservation, PartState, PodView, VolumeChange,
        throttled,
    },
};
use crate::{backoff, fingerprint::Fingerprint};

/// Age of a change that was not delivered at which an event says so.
const OVERDUE: Duration = Duration::from_mins(3);

/// What an outdated part waits for, of what concerns all parts of the pod.
pub(super) struct Waiting<'a> {
    pub(super) gate: &'a Gate,
    /// Why the last touch was not accepted.
    pub(super) obstacle: Option<String>,
    /// No pod of the node is touched until then.
    pub(super) throttled_until: Option<Timestamp>,
    /// The time to live of objects that the kubelet may cache.
    pub(super) ttl: Duration,
}

/// One part of a pod.
#[derive(Debug)]
pub(super) struct TrackedPart {
    observation: PartObservation,
    payload: Option<Fingerprint>,
    /// Whether this is the first payload since larder started.
    is_first: bool,
    changed_at: Instant,
    /// The first touch for the payload, or the time at which it is due.
    first_touch: Instant,
    /// Touches sent for the payload.
    touches: u32,
    /// When the first and the last of them were sent.
    touched_at: Option<(Timestamp, Timestamp)>,
    last_touch: Option<Instant>,
    /// Whether the payload was found in place, and a notice says so.
    verified: bool,
    verified_in: Option<Duration>,
    /// Whether an event has said that the payload does not arrive or, in a dry run, a message that it needs a touch.
    is_reported: bool,
    /// Since when it cannot be computed.
    failing_since: Option<Instant>,
    /// When the kubelet tries again at the latest, after it could not set up the volume.
    retries_by: Option<Timestamp>,
    /// The IDs of the containers that the volume was torn down under, by their name (R22).
    detached: BTreeMap<SmolStr, SmolStr>,
}

impl TrackedPart {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            observation: PartObservation::NotMounted,
            payload: None,
            is_first: true,
            changed_at: now,
            first_touch: now,
            touches: 0,
            touched_at: None,
            last_touch: None,
            verified: false,
            verified_in: None,
            is_reported: false,
            failing_since: None,
            retries_by: None,
            detached: BTreeMap::new(),
        }
    }

    pub(super) fn look(
        &mut self,
        name: &PartName,
        look: Look,
        view: &PodView,
        shares_touch: bool,
        now: Instant,
        wall: Timestamp,
    ) -> Vec<Notice> {
        let mut notices = Vec::new();
        if look.volume == VolumeChange::Recreated
            && let PartName::Volume(volume) = name
        {
            notices.extend(self.detach(volume, view));
        }
        match (&look.observation, look.payload) {
            // The last known state stays until a look finds another one.
            (PartObservation::Unread(_), _)
                if self.payload.is_some() || self.failing_since.is_some() =>
            {
                return notices;
            }
            (PartObservation::Uncomputable(_), _) => {
                self.failing_since.get_or_insert(now);
                self.payload = None;
                self.is_first = false;
                self.verified = false;
            }
            (observation, Some(payload)) => {
                let is_new = self.computed(payload, &look, now, wall);
                let is_invisible = matches!(observation, PartObservation::Invisible(_));
                notices.extend((is_new && is_invisible).then_some(Notice::Unverified));
            }
            (_, None) => {}
        }
        self.observation = look.observation;
        if let PartName::Volume(volume) = name
            && self.is_verified()
            && !self.verified
        {
            notices.push(self.verify(volume, shares_touch, now));
        }
        notices
    }

    /// Takes in the payload of a look. A new one resets the touches. Returns whether it is new.
    fn computed(
        &mut self,
        payload: Fingerprint,
        look: &Look,
        now: Instant,
        wall: Timestamp,
    ) -> bool {
        if self.payload == Some(payload) {
            return false;
        }
        *self = Self {
            payload: Some(payload),
            is_first: self.is_first && self.payload.is_none(),
            changed_at: look.changed_at,
            first_touch: now + look.delay,
            retries_by: self.failing_since.map(|since| {
                let wait = (now - since + backoff::FIRST).min(backoff::CAP);
                wall + wait
            }),
            detached: mem::take(&mut self.detached),
            ..Self::new(now)
        };
        true
    }

    fn verify(&mut self, volume: &SmolStr, shares_touch: bool, now: Instant) -> Notice {
        self.verified = true;
        self.retries_by = None;
        self.verified_in = (!self.is_first).then(|| now - self.changed_at);
        let arrival = match self.last_touch {
            // It shares the touch of another volume.
            None if shares_touch => Arrival::Swapped,
            None => Arrival::Same,
            Some(at) if now < at + SWAP_TIME => Arrival::Swapped,
            Some(_) => Arrival::Late,
        };
        Notice::Verified {
            volume: volume.clone(),
            arrival,
            delay: self.verified_in,
            touches: self.touches,
        }
    }

    /// The volume was torn down and set up again. Containers that had mounted it see unknown content from now on.
    fn detach(&mut self, volume: &SmolStr, view: &PodView) -> Option<Notice> {
        let mounting = view
            .containers
            .iter()
            .filter(|container| container.volumes.contains(volume));
        let before = self.detached.len();
        for container in mounting {
            self.detached
                .entry(container.name.clone())
                .or_insert_with(|| container.id.clone());
        }
        let containers = self.detached.keys().cloned().collect();
        (before == 0 && !self.detached.is_empty()).then(|| Notice::Detached {
            volume: volume.clone(),
            containers,
        })
    }

    /// Ends the state *detached* for the containers that were restarted or are gone.
    pub(super) fn reattach(&mut self, name: &PartName, view: &PodView) {
        if self.detached.is_empty() {
            return;
        }
        let running: BTreeSet<_> = view
            .containers
            .iter()
            .map(|container| (&container.name, &container.id))
            .collect();
        self.detached
            .retain(|container, id| running.contains(&(container, id)));
        // The next look at it counts as its verification.
        self.verified &= !(self.detached.is_empty() && matches!(name, PartName::Volume(_)));
    }

    /// Whether a touch could help.
    pub(super) fn is_outstanding(&self) -> bool {
        let is_reason = match self.observation {
            PartObservation::Outdated(_) => true,
            PartObservation::Invisible(_) => self.payload.is_some() && self.touches == 0,
            _ => false,
        };
        is_reason && self.detached.is_empty()
    }

    /// The reason for a first touch that no dry run has reported yet.
    pub(super) fn would_touch(&mut self) -> Option<String> {
        let is_outstanding = self.is_outstanding();
        if mem::replace(&mut self.is_reported, is_outstanding) || !is_outstanding {
            return None;
        }
        match &self.observation {
            PartObservation::Outdated(what) | PartObservation::Invisible(what) => {
                Some(what.clone())
            }
            _ => None,
        }
    }

    /// Whether its new content is on its way. A volume that the kubelet cannot refresh holds no other one back for ever.
    pub(super) fn is_to_come(&self, now: Instant) -> bool {
        self.is_outdated() && now < self.changed_at + OVERDUE
    }

    fn is_outdated(&self) -> bool {
        matches!(self.observation, PartObservation::Outdated(_)) && self.detached.is_empty()
    }

    /// Whether it differs in content that is no reason to touch: the kubelet may change it by itself.
    pub(super) fn is_left_to_kubelet(&self) -> bool {
        matches!(
            self.observation,
            PartObservation::LeftToKubelet(_) | PartObservation::Pinned(_)
        )
    }

    /// Whether the kubelet has everything to set the volume up, and has not done so.
    pub(super) fn is_being_set_up(&self) -> bool {
        self.observation == PartObservation::NotMounted && self.payload.is_some()
    }

    /// When the next touch for it is due; `None` if none is.
    pub(super) fn due(&self, name: &PartName, schedule: &[Duration]) -> Option<Instant> {
        let schedule = self.retry_schedule(name, schedule);
        let next = usize::try_from(self.touches).ok()?;
        let after = schedule.get(next).filter(|_| self.is_outstanding())?;
        // A time that cannot be represented never comes.
        self.first_touch.checked_add(*after)
    }

    /// The times of the schedule that apply. A volume that cannot be verified and a waiting container get one touch (R23,
    /// R6).
    fn retry_schedule<'a>(&self, name: &PartName, schedule: &'a [Duration]) -> &'a [Duration] {
        match (name, &self.observation) {
            (PartName::Environment(_), _) | (_, PartObservation::Invisible(_)) => &schedule[..1],
            (PartName::Volume(_), _) => schedule,
        }
    }

    /// Lets the next touch be due at `at` at the earliest.
    pub(super) fn postpone(&mut self, schedule: &[Duration], at: Instant) {
        let next = usize::try_from(self.touches).unwrap_or(usize::MAX);
        let after = schedule.get(next).copied().unwrap_or_default();
        self.first_touch = self.first_touch.max(at.checked_sub(after).unwrap_or(at));
    }

    pub(super) fn is_first(&self) -> bool {
        self.is_first && self.touches == 0
    }

    pub(super) fn touched(&mut self, now: Instant, wall: Timestamp) {
        if self.touches == 0 {
            self.first_touch = now;
        }
        self.touches += 1;
        self.last_touch = Some(now);
        self.touched_at = Some((self.touched_at.map_or(wall, |(first, _)| first), wall));
    }

    /// The last touch was not accepted.
    pub(super) fn not_touched(&mut self) {
        self.touches = self.touches.saturating_sub(1);
        if self.touches == 0 {
            (self.touched_at, self.last_touch) = (None, None);
        }
    }

    /// When an event is due because the payload does not arrive.
    pub(super) fn overdue_at(&self, name: &PartName, schedule: &[Duration]) -> Option<Instant> {
        let is_volume = matches!(name, PartName::Volume(_));
        let schedule = self.retry_schedule(name, schedule);
        let is_used_up = usize::try_from(self.touches).is_ok_and(|sent| sent >= schedule.len());
        let counts = is_volume && is_used_up && self.is_outdated() && !self.is_reported;
        let last = self.last_touch.filter(|_| counts)?;
        Some((self.changed_at + OVERDUE).max(last + SWAP_TIME))
    }

    pub(super) fn take_overdue(
        &mut self,
        name: &PartName,
        schedule: &[Duration],
        now: Instant,
    ) -> Option<Notice> {
        let at = self.overdue_at(name, schedule)?;
        match name {
            PartName::Volume(volume) if at <= now => {
                self.is_reported = true;
                let volume = volume.clone();
                Some(Notice::NotRefreshed { volume })
            }
            _ => None,
        }
    }

    pub(super) fn verified_in(&self) -> Option<Duration> {
        self.verified_in.filter(|_| self.is_verified())
    }

    pub(super) fn is_verified(&self) -> bool {
        self.observation == PartObservation::Same && self.detached.is_empty()
    }

    /// State and reason, in the words of section 16.
    pub(super) fn state(&self, pod: Waiting<'_>, wall: Timestamp) -> (PartState, String) {
        if !self.detached.is_empty() {
            let containers = self
                .detached
                .keys()
                .map(SmolStr::as_str)
                .collect::<Vec<_>>()
                .join(", ");
            return (
                PartState::Detached,
                format!("Detached: torn down under running containers, restart {containers}"),
            );
        }
        match &self.observation {
            PartObservation::Outdated(what) => {
                (PartState::Waiting, self.why_it_waits(what, pod, wall))
            }
            observation => observation.state(),
        }
    }

    /// The reason why a part waits that is outdated in `what`.
    fn why_it_waits(&self, what: &str, pod: Waiting<'_>, wall: Timestamp) -> String {
        match pod.gate {
            Gate::Open => {}
            Gate::DryRun => return format!("would touch the pod: {what}"),
            closed => return closed.to_string(),
        }
        if let Some(obstacle) = pod.obstacle {
            return obstacle;
        }
        let mut clauses = Vec::new();
        if let Some((first, last)) = self.touched_at {
            let attempt = self.touches;
            clauses.push(format!("told the kubelet at {last:.3}, attempt {attempt}"));
            let cached_until = first.checked_add(pod.ttl).unwrap_or(Timestamp::MAX);
            if attempt > 1 && cached_until > wall {
                clauses.push(format!(
                    "kubelet serves a cached object until {cached_until:.0}"
                ));
            }
            if let Some(by) = self.retries_by.filter(|by| *by > wall) {
                clauses.push(format!("kubelet retries at {by:.0} at the latest"));
            }
        } else {
            clauses.push(format!("out of date: {what}"));
        }
        if let Some(until) = pod.throttled_until {
            clauses.push(throttled(until));
        }
        clauses.join("; ")
    }
}
