//! Health that can be believed (rules H1 to H7).
//!
//! A watch is *proven* by an event, a bookmark, a complete list, or an answer that opens it. Readiness is reached once,
//! and stays. During an outage of the API server health is good, since a restart would not help, and says `degraded`.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use larder_objects::ResourceVersion;
use parking_lot::Mutex;
use serde_json::{Value, json};
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
    version: ResourceVersion,
    /// The last proof.
    proven: Option<Instant>,
    /// The last proof or finished attempt, or the start.
    heard: Instant,
    is_listed: bool,
    /// The last error, and since when there has been no proof between errors.
    error: Option<(String, Timestamp)>,
}

impl WatchHealth {
    pub(crate) fn proven(&self, version: Option<&ResourceVersion>, now: Instant) {
        let mut state = self.state.lock();
        state.proven = Some(now);
        state.heard = now;
        state.error = None;
        if let Some(version) = version {
            state.version.clone_from(version);
        }
    }

    pub(crate) fn listed(&self, now: Instant) {
        self.proven(None, now);
        self.state.lock().is_listed = true;
    }

    pub(crate) fn failed(&self, text: &str, now: Instant) {
        let mut state = self.state.lock();
        state.heard = now;
        let since = state.error.take().map(|(_, since)| since);
        state.error = Some((text.to_owned(), since.unwrap_or_else(clock::now)));
    }

    fn to_json(&self, now: Instant) -> Value {
        let (selection, state) = (&self.selection, self.state.lock());
        json!({
            "kind": selection.kind.as_str(),
            "namespace": selection.namespace,
            "name": selection.name,
            "selector": selection.labels,
            "version": state.version.as_str(),
            "proofAgeSeconds": state.proven.map(|proven| (now - proven).as_secs()),
            "error": state.error.as_ref().map(|(text, _)| text),
        })
    }
}

/// The health of a sidecar.
#[derive(Debug)]
pub struct Health {
    max_silence: Duration,
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    watches: Vec<Arc<WatchHealth>>,
    is_ready: bool,
    /// What is wrong, beyond watches.
    problem: Option<String>,
    hooks: Vec<Value>,
}

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the probe succeeds.
    pub is_ok: bool,
    /// JSON.
    pub body: String,
}

impl Health {
    /// The health of a sidecar whose watches are reopened after `max_silence`.
    pub fn new(max_silence: Duration) -> Arc<Self> {
        let state = Mutex::default();
        Arc::new(Self { max_silence, state })
    }

    /// Follows these selections from now on.
    pub(crate) fn follow(
        &self,
        selections: impl IntoIterator<Item = Selection>,
        now: Instant,
    ) -> Vec<(Selection, Arc<WatchHealth>)> {
        let followed = selections.into_iter().map(|selection| {
            let state = WatchState {
                version: ResourceVersion::default(),
                proven: None,
                heard: now,
                is_listed: false,
                error: None,
            };
            let health = WatchHealth {
                selection: selection.clone(),
                state: Mutex::new(state),
            };
            (selection, Arc::new(health))
        });
        let followed: Vec<_> = followed.collect();
        let watches = followed.iter().map(|(_, health)| Arc::clone(health));
        self.state.lock().watches = watches.collect();
        followed
    }

    pub(crate) fn set_ready(&self) {
        let mut state = self.state.lock();
        state.is_ready = true;
        state.problem = None;
    }

    /// What is wrong, beyond watches.
    pub(crate) fn set_problem(&self, problem: Option<String>) {
        self.state.lock().problem = problem;
    }

    pub(crate) fn set_hooks(&self, hooks: Vec<Value>) {
        self.state.lock().hooks = hooks;
    }

    /// Whether it is ready, or was once.
    pub fn is_ready(&self) -> bool {
        self.state.lock().is_ready
    }

    /// The age of the oldest proof.
    pub(crate) fn proof_age(&self, now: Instant) -> Duration {
        let state = self.state.lock();
        let proofs = state.watches.iter();
        let oldest = proofs.filter_map(|watch| watch.state.lock().proven).min();
        oldest.map_or(Duration::ZERO, |proven| now - proven)
    }

    /// Whether a restart would not help (rule H3). With `max_age`, also whether every proof is as young as that.
    pub fn live(&self, max_age: Option<Duration>, now: Instant) -> Answer {
        let (mut problems, mut status) = (Vec::new(), "ok".to_owned());
        for watch in &self.state.lock().watches {
            let (selection, state) = (&watch.selection, watch.state.lock());
            let silent = now - state.heard;
            if silent >= 2 * self.max_silence {
                let seconds = silent.as_secs();
                problems.push(format!("watch of {selection}: no sign for {seconds} s"));
            }
            let age = state.proven.map(|proven| now - proven);
            if max_age.is_some_and(|max| age.is_none_or(|age| age > max)) {
                problems.push(format!("watch of {selection}: no proof in time"));
            }
            if let Some((_, since)) = &state.error
                && status == "ok"
            {
                status = format!("degraded: api server unreachable since {since}");
            }
        }
        let is_ok = problems.is_empty();
        self.answer(
            if is_ok {
                Ok(status)
            } else {
                Err(problems.join("; "))
            },
            now,
        )
    }

    /// Whether the first sync is complete and written (rule H4).
    pub fn ready(&self, now: Instant) -> Answer {
        let reason = if self.is_ready() {
            Ok("ok".to_owned())
        } else {
            let known = self.missing().or_else(|| self.state.lock().problem.clone());
            let reason = known.unwrap_or_else(|| "the first sync is under way".to_owned());
            Err(format!("not ready: {reason}"))
        };
        self.answer(reason, now)
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

    /// As configmap-reload answers while nothing is wrong.
    pub(crate) fn up(&self) -> Answer {
        let problem = self.state.lock().problem.clone();
        let status = problem.as_deref().unwrap_or("up");
        Answer {
            is_ok: problem.is_none(),
            body: json!({ "status": status }).to_string(),
        }
    }

    /// A watch that has no complete list yet, and its error.
    pub(crate) fn missing(&self) -> Option<String> {
        let state = self.state.lock();
        let missing = state.watches.iter().filter_map(|watch| {
            let state = watch.state.lock();
            let error = state.error.as_ref().map(|(text, _)| text.clone());
            let is_under_way = error.is_none();
            let text = error.unwrap_or_else(|| format!("no list of {} yet", watch.selection));
            (!state.is_listed).then_some((is_under_way, text))
        });
        // An error says more than a list that is under way.
        missing.min().map(|(_, text)| text)
    }

    fn answer(&self, status: Result<String, String>, now: Instant) -> Answer {
        let state = self.state.lock();
        let watches: Vec<_> = state.watches.iter().map(|one| one.to_json(now)).collect();
        let is_ok = status.is_ok();
        let (Ok(status) | Err(status)) = status;
        let body = json!({"status": status, "watches": watches, "hooks": state.hooks});
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
