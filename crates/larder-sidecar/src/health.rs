//! Health that can be believed (rules H1 to H7).
//!
//! A watch is *proven* by an event, a bookmark, a complete list, or an answer that opens it. Readiness is reached once,
//! and stays. During an outage of the API server health is good, since a restart would not help, and says `degraded`.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use jiff::Timestamp;
use larder_objects::ResourceVersion;
use parking_lot::Mutex;
use prometheus_client::{
    metrics::gauge::Gauge,
    registry::{Registry, Unit},
};
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::{clock, selection::Selection};

/// The health of one watch.
#[derive(Debug)]
pub(crate) struct WatchHealth {
    selection: Selection,
    state: Mutex<WatchState>,
}

#[derive(Debug)]
struct WatchState {
    version: SmolStr,
    /// The last proof.
    proven: Option<Instant>,
    /// The last proof or finished attempt, or the start.
    heard: Instant,
    is_listed: bool,
    error: Option<WatchError>,
}

#[derive(Debug)]
struct WatchError {
    text: String,
    since: Timestamp,
}

impl WatchHealth {
    pub(crate) fn new(selection: Selection, now: Instant) -> Arc<Self> {
        let state = Mutex::new(WatchState {
            version: SmolStr::default(),
            proven: None,
            heard: now,
            is_listed: false,
            error: None,
        });
        Arc::new(Self { selection, state })
    }

    pub(crate) fn proven(&self, version: Option<&ResourceVersion>, now: Instant) {
        let mut state = self.state.lock();
        state.proven = Some(now);
        state.heard = now;
        state.error = None;
        if let Some(version) = version.filter(|version| version.as_str() != state.version) {
            state.version = version.as_str().into();
        }
    }

    pub(crate) fn listed(&self, now: Instant) {
        self.proven(None, now);
        self.state.lock().is_listed = true;
    }

    pub(crate) fn failed(&self, text: &str, now: Instant) {
        let mut state = self.state.lock();
        state.heard = now;
        let since = state.error.take().map(|error| error.since);
        state.error = Some(WatchError {
            text: text.to_owned(),
            since: since.unwrap_or_else(clock::now),
        });
    }

    fn to_json(&self, now: Instant) -> Value {
        let (selection, state) = (&self.selection, self.state.lock());
        json!({
            "kind": selection.kind.as_str(),
            "namespace": selection.namespace,
            "name": selection.name,
            "selector": selection.labels,
            "version": state.version,
            "proofAgeSeconds": state.proven.map(|proven| (now - proven).as_secs()),
            "error": state.error.as_ref().map(|error| &error.text),
        })
    }
}

/// The state of a hook, as health shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookHealth {
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) failures: u32,
    pub(crate) reason: String,
}

/// The health of a sidecar.
#[derive(Debug)]
pub struct Health {
    max_silence: Duration,
    watches: Mutex<Vec<Arc<WatchHealth>>>,
    state: Mutex<HealthState>,
    age: Gauge<f64, AtomicAge>,
}

type AtomicAge = std::sync::atomic::AtomicU64;

#[derive(Debug, Default)]
struct HealthState {
    is_ready: bool,
    /// Why it is not ready yet.
    reason: Option<String>,
    hooks: Vec<HookHealth>,
}

/// What a probe is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the probe succeeds.
    pub is_ok: bool,
    /// JSON.
    pub body: String,
}

impl Health {
    /// The health of a sidecar whose watches are opened anew after `max_silence`.
    pub fn new(max_silence: Duration) -> Arc<Self> {
        Arc::new(Self {
            max_silence,
            watches: Mutex::default(),
            state: Mutex::default(),
            age: Gauge::default(),
        })
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "proof_age",
            "Age of the oldest proof of a watch",
            Unit::Seconds,
            self.age.clone(),
        );
    }

    /// Follows these selections from now on; what is known of one that stays is kept.
    pub(crate) fn follow(
        &self,
        selections: impl IntoIterator<Item = Selection>,
        now: Instant,
    ) -> Vec<(Selection, Arc<WatchHealth>)> {
        let followed = selections.into_iter().map(|selection| {
            let health = WatchHealth::new(selection.clone(), now);
            (selection, health)
        });
        let followed: Vec<_> = followed.collect();
        let watches = followed.iter().map(|(_, health)| Arc::clone(health));
        *self.watches.lock() = watches.collect();
        followed
    }

    pub(crate) fn set_ready(&self) {
        let mut state = self.state.lock();
        state.is_ready = true;
        state.reason = None;
    }

    /// Why it is not ready yet, beyond lists that are missing.
    pub(crate) fn set_reason(&self, reason: Option<String>) {
        self.state.lock().reason = reason;
    }

    pub(crate) fn set_hooks(&self, hooks: Vec<HookHealth>) {
        self.state.lock().hooks = hooks;
    }

    /// Whether it is ready, or was once.
    pub fn is_ready(&self) -> bool {
        self.state.lock().is_ready
    }

    /// Brings the metric of the oldest proof up to date.
    pub(crate) fn refresh(&self, now: Instant) {
        let watches = self.watches.lock();
        let ages = watches.iter().filter_map(|watch| watch.state.lock().proven);
        let oldest = ages
            .min()
            .map_or(0.0, |proven| (now - proven).as_secs_f64());
        self.age.set(oldest);
    }

    /// Whether a restart would not help (rule H3). With `max_age`, also whether every proof is as young as that.
    pub fn live(&self, max_age: Option<Duration>, now: Instant) -> Answer {
        let mut problems = String::new();
        let mut degraded = None;
        for watch in self.watches.lock().iter() {
            let (selection, state) = (&watch.selection, watch.state.lock());
            let silent = now - state.heard;
            if silent >= 2 * self.max_silence {
                let seconds = silent.as_secs();
                write!(problems, "watch of {selection}: no sign for {seconds} s; ")
                    .expect("writing to a String does not fail");
            }
            let age = state.proven.map(|proven| now - proven);
            if max_age.is_some_and(|max| age.is_none_or(|age| age > max)) {
                write!(problems, "watch of {selection}: no proof in time; ")
                    .expect("writing to a String does not fail");
            }
            if let Some(error) = &state.error {
                degraded.get_or_insert_with(|| {
                    format!("degraded: api server unreachable since {}", error.since)
                });
            }
        }
        if problems.is_empty() {
            self.answer(true, degraded.as_deref().unwrap_or("ok"), now)
        } else {
            self.answer(false, problems.trim_end_matches("; "), now)
        }
    }

    /// Whether the first sync is complete and written (rule H4).
    pub fn ready(&self, now: Instant) -> Answer {
        let reason = {
            let state = self.state.lock();
            if state.is_ready {
                None
            } else {
                Some(self.missing().or(state.reason.clone()))
            }
        };
        match reason {
            None => self.answer(true, "ok", now),
            Some(reason) => {
                let reason = reason.unwrap_or_else(|| "the first sync is under way".to_owned());
                self.answer(false, &format!("not ready: {reason}"), now)
            }
        }
    }

    /// Both (rule H6).
    pub fn live_and_ready(&self, max_age: Option<Duration>, now: Instant) -> Answer {
        let ready = self.ready(now);
        if ready.is_ok {
            self.live(max_age, now)
        } else {
            ready
        }
    }

    /// A watch that has no complete list yet, and its error.
    pub(crate) fn missing(&self) -> Option<String> {
        let watches = self.watches.lock();
        let mut missing = watches.iter().filter_map(|watch| {
            let state = watch.state.lock();
            let error = state.error.as_ref().map(|error| error.text.clone());
            let text = error.unwrap_or_else(|| format!("no list of {} yet", watch.selection));
            (!state.is_listed).then_some((state.error.is_none(), text))
        });
        // An error says more than a list that is under way.
        let all: Vec<_> = missing.by_ref().collect();
        all.into_iter().min().map(|(_, text)| text)
    }

    fn answer(&self, is_ok: bool, status: &str, now: Instant) -> Answer {
        let watches = self.watches.lock();
        let watches: Vec<_> = watches.iter().map(|watch| watch.to_json(now)).collect();
        let hooks = self.state.lock().hooks.clone();
        let hooks = hooks.into_iter().map(|hook| {
            json!({
                "name": hook.name, "state": hook.state,
                "failures": hook.failures, "reason": hook.reason,
            })
        });
        let body = json!({
            "status": status,
            "watches": watches,
            "hooks": hooks.collect::<Vec<_>>(),
        });
        Answer {
            is_ok,
            body: body.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_objects::Kind;

    use super::*;

    const SILENCE: Duration = Duration::from_mins(2);

    fn followed() -> (Arc<Health>, Arc<WatchHealth>) {
        let health = Health::new(SILENCE);
        let selection = Selection {
            kind: Kind::ConfigMap,
            namespace: Some("n".into()),
            name: None,
            labels: Some("l".to_owned()),
        };
        let mut followed = health.follow([selection], Instant::now());
        (health, followed.remove(0).1)
    }

    // sidecar 41
    #[tokio::test(start_paused = true)]
    async fn outage_is_degraded_and_fails_only_for_who_asks_for_the_age() {
        let (health, watch) = followed();
        let start = Instant::now();
        watch.listed(start);
        health.set_ready();
        let now = start + Duration::from_mins(10);
        watch.failed("cannot watch configmaps in namespace n: no route", now);
        let live = health.live(None, now);
        assert!(live.is_ok);
        assert!(live.body.contains("degraded: api server unreachable since"));
        assert!(live.body.contains("no route") && live.body.contains(r#""proofAgeSeconds":600"#));
        assert!(health.ready(now).is_ok);
        assert!(!health.live(Some(Duration::from_mins(1)), now).is_ok);
        watch.proven(None, now);
        assert!(
            health
                .live(Some(Duration::from_mins(1)), now)
                .body
                .contains(r#""status":"ok""#)
        );
    }

    // sidecar 42
    #[tokio::test(start_paused = true)]
    async fn watch_without_any_sign_fails_within_twice_the_silence() {
        let (health, watch) = followed();
        let start = Instant::now();
        watch.listed(start);
        assert!(
            health
                .live(None, start + 2 * SILENCE - Duration::from_secs(1))
                .is_ok
        );
        let live = health.live(None, start + 2 * SILENCE);
        assert!(
            !live.is_ok
                && live
                    .body
                    .contains("configmaps in namespace n: no sign for 240 s")
        );
    }

    // sidecar 43
    #[tokio::test(start_paused = true)]
    async fn before_the_first_sync_the_missing_right_is_named() {
        let (health, watch) = followed();
        let now = Instant::now();
        assert!(!health.live_and_ready(None, now).is_ok);
        watch.failed("cannot list configmaps in namespace n: forbidden", now);
        let ready = health.ready(now);
        assert!(!ready.is_ok && ready.body.contains("cannot list configmaps in namespace n"));
        assert!(health.live(None, now).is_ok);
    }
}
