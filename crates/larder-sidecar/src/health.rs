//! Health that can be believed (rules H1 to H7).
//!
//! A watch is *confirmed* by an event, a bookmark, a complete list, or an answer that opens it. Readiness is reached once,
//! and stays. During an outage of the API server health is good, since a restart would not help, and says `degraded`.
//!
//! Objects are followed and written on one thread, which a disk may hold up; health is asked on another one. A *turn* is
//! what the first thread does without a pause. Under way for long, it waits for a disk, and health says for what and
//! since when.

use std::{future::poll_fn, pin::pin, time::Duration};

use jiff::Timestamp;
use larder_objects::ResourceVersion;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{clock, selection::Selection};

/// A watch is reopened after this time without a sign of life.
pub const MAX_SILENCE: Duration = Duration::from_mins(2);

/// A turn that takes longer is shown.
const LONG_TURN: Duration = Duration::from_secs(1);
/// A turn that takes longer is no health.
const MAX_TURN: Duration = Duration::from_secs(30);

/// The health of one watch.
#[derive(Debug)]
struct WatchHealth {
    selection: Selection,
    version: ResourceVersion,
    /// The last proof.
    confirmed: Option<Instant>,
    /// The last proof or finished attempt, or the start.
    heard: Instant,
    is_listed: bool,
    /// The last error, and since when there has been no proof between errors.
    error: Option<(String, Timestamp)>,
}

impl WatchHealth {
    fn to_json(&self, now: Instant) -> Value {
        let selection = &self.selection;
        json!({
            "kind": selection.kind.as_str(),
            "namespace": selection.namespace,
            "name": selection.name,
            "selector": selection.labels,
            "version": self.version.as_str(),
            "confirmedAgeSeconds": self.confirmed.map(|confirmed| (now - confirmed).as_secs()),
            "error": self.error.as_ref().map(|(text, _)| text),
        })
    }
}

/// The health of a sidecar.
#[derive(Debug, Default)]
pub struct Health(Mutex<HealthState>);

#[derive(Debug, Default)]
struct HealthState {
    watches: Vec<WatchHealth>,
    /// Watches are reopened after this time without a sign of life.
    max_silence: Duration,
    is_ready: bool,
    /// What is wrong, beyond watches.
    problem: Option<String>,
    hooks: Vec<Value>,
    turn: Option<Turn>,
}

/// What is under way.
#[derive(Debug)]
struct Turn {
    began: Instant,
    since: Timestamp,
    step: String,
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
    /// Follows these selections from now on. They are numbered, and their watches are reopened after `max_silence`.
    pub(crate) fn follow(&self, selections: &[Selection], max_silence: Option<Duration>) {
        let watches = selections.iter().map(|selection| WatchHealth {
            selection: selection.clone(),
            version: ResourceVersion::default(),
            confirmed: None,
            heard: Instant::now(),
            is_listed: false,
            error: None,
        });
        let mut state = self.0.lock();
        state.watches = watches.collect();
        state.max_silence = max_silence.unwrap_or(MAX_SILENCE);
    }

    fn change(&self, watch: usize, change: impl FnOnce(&mut WatchHealth)) {
        if let Some(watch) = self.0.lock().watches.get_mut(watch) {
            watch.heard = Instant::now();
            change(watch);
        }
    }

    pub(crate) fn confirmed(&self, watch: usize, version: Option<&ResourceVersion>) {
        self.change(watch, |watch| {
            watch.confirmed = Some(watch.heard);
            watch.error = None;
            watch.version = version.unwrap_or(&watch.version).clone();
        });
    }

    pub(crate) fn listed(&self, watch: usize) {
        self.change(watch, |watch| watch.is_listed = true);
    }

    pub(crate) fn failed(&self, watch: usize, text: &str) {
        self.change(watch, |watch| {
            let since = watch.error.take().map(|(_, since)| since);
            watch.error = Some((text.to_owned(), since.unwrap_or_else(clock::now)));
        });
    }

    pub(crate) fn set_ready(&self) {
        let mut state = self.0.lock();
        state.is_ready = true;
        state.problem = None;
    }

    /// What is wrong, beyond watches.
    pub(crate) fn set_problem(&self, problem: Option<String>) {
        self.0.lock().problem = problem;
    }

    pub(crate) fn set_hooks(&self, hooks: Vec<Value>) {
        self.0.lock().hooks = hooks;
    }

    /// Whether it is ready, or was once.
    pub fn is_ready(&self) -> bool {
        self.0.lock().is_ready
    }

    /// The age of the oldest proof.
    pub(crate) fn proof_age(&self, now: Instant) -> Duration {
        let state = self.0.lock();
        let confirmed = state.watches.iter().filter_map(|watch| watch.confirmed);
        confirmed
            .min()
            .map_or(Duration::ZERO, |confirmed| now - confirmed)
    }

    /// Whether a restart would not help (rule H3). With `max_age`, also whether every proof is as young as that.
    pub fn live(&self, max_age: Option<Duration>, now: Instant) -> Answer {
        let state = self.0.lock();
        let (mut problems, mut status) = (Vec::new(), "ok".to_owned());
        for watch in &state.watches {
            let selection = &watch.selection;
            let silent = now - watch.heard;
            if silent >= 2 * state.max_silence {
                let seconds = silent.as_secs();
                problems.push(format!("watch of {selection}: no sign for {seconds} s"));
            }
            let age = watch.confirmed.map(|confirmed| now - confirmed);
            if max_age.is_some_and(|max| age.is_none_or(|age| age > max)) {
                problems.push(format!("watch of {selection}: not confirmed in time"));
            }
            if let (Some((_, since)), "ok") = (&watch.error, &*status) {
                status = format!("degraded: api server unreachable since {since}");
            }
        }
        problems.extend(state.stuck(now));
        let is_ok = problems.is_empty();
        if !is_ok {
            status = problems.join("; ");
        }
        state.answer(is_ok, &status, now)
    }

    /// Whether the first sync is complete and written (rule H4).
    pub fn ready(&self, now: Instant) -> Answer {
        let missing = self.missing();
        let state = self.0.lock();
        let stuck = state.stuck(now);
        let known = missing.as_deref().or(state.problem.as_deref());
        let known = stuck.as_deref().or(known);
        let reason = known.unwrap_or("the first sync is under way");
        let is_ready = state.is_ready && stuck.is_none();
        let status = if is_ready {
            "ok"
        } else {
            &format!("not ready: {reason}")
        };
        state.answer(is_ready, status, now)
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
    pub(crate) fn up(&self, now: Instant) -> Answer {
        let state = self.0.lock();
        let problem = state.problem.clone().or_else(|| state.stuck(now));
        let status = problem.as_deref().unwrap_or("up");
        Answer {
            is_ok: problem.is_none(),
            body: json!({ "status": status }).to_string(),
        }
    }

    /// A watch that has no complete list yet, and its error.
    pub(crate) fn missing(&self) -> Option<String> {
        let state = self.0.lock();
        let missing = state.watches.iter().filter(|watch| !watch.is_listed);
        let texts = missing.map(|watch| match &watch.error {
            Some((error, _)) => (false, error.clone()),
            None => (true, format!("no list of {} yet", watch.selection)),
        });
        // An error says more than a list that is under way.
        texts.min().map(|(_, text)| text)
    }
}

/// Runs `work`, and notes its turns.
pub(crate) async fn attended<T>(health: &Health, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let turns = poll_fn(|context| {
        health.0.lock().turn = Some(Turn {
            began: Instant::now(),
            since: clock::now(),
            step: "its next step".to_owned(),
        });
        let polled = work.as_mut().poll(context);
        health.0.lock().turn = None;
        polled
    });
    turns.await
}

impl Health {
    /// The present turn comes to this step, which may wait for a disk.
    pub(crate) fn comes_to(&self, step: impl Into<String>) {
        if let Some(turn) = &mut self.0.lock().turn {
            turn.step = step.into();
        }
    }

    /// What a disk holds up since when, if that is long.
    pub fn waits_for(&self, now: Instant) -> Option<String> {
        let (_, text) = self.0.lock().held_up(now)?;
        Some(text)
    }
}

impl HealthState {
    /// How long the present turn takes, if that is long, and what it waits for.
    fn held_up(&self, now: Instant) -> Option<(Duration, String)> {
        let turn = self.turn.as_ref()?;
        let taken = now - turn.began;
        let text = || format!("waits for a disk since {}: {}", turn.since, turn.step);
        (taken > LONG_TURN).then(|| (taken, text()))
    }

    /// Why a turn that is under way is no health.
    fn stuck(&self, now: Instant) -> Option<String> {
        let (taken, text) = self.held_up(now)?;
        (taken > MAX_TURN).then_some(text)
    }

    fn answer(&self, is_ok: bool, status: &str, now: Instant) -> Answer {
        let watches: Vec<_> = self.watches.iter().map(|one| one.to_json(now)).collect();
        let mut body = json!({"status": status, "watches": watches, "hooks": self.hooks});
        if let Some((_, text)) = self.held_up(now) {
            body["waiting"] = text.into();
        }
        Answer {
            is_ok,
            body: body.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_objects::Kind;
    use tokio::time::advance;

    use super::*;

    const SILENCE: Duration = Duration::from_mins(2);

    fn followed() -> Health {
        let health = Health::default();
        let selection = Selection {
            kind: Kind::ConfigMap,
            namespace: Some("n".into()),
            name: None,
            labels: Some("l".to_owned()),
        };
        health.follow(&[selection], Some(SILENCE));
        health
    }

    // sidecar 41
    #[tokio::test(start_paused = true)]
    async fn outage_is_degraded_and_fails_only_for_who_asks_for_the_age() {
        let health = followed();
        health.confirmed(0, None);
        health.listed(0);
        health.set_ready();
        advance(Duration::from_mins(10)).await;
        let now = Instant::now();
        health.failed(0, "cannot watch configmaps in namespace n: no route");
        let live = health.live(None, now);
        assert!(live.is_ok);
        assert!(live.body.contains("degraded: api server unreachable since"));
        assert!(
            live.body.contains("no route") && live.body.contains(r#""confirmedAgeSeconds":600"#)
        );
        assert!(health.ready(now).is_ok);
        assert!(!health.live(Some(Duration::from_mins(1)), now).is_ok);
        health.confirmed(0, None);
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
        let health = followed();
        let start = Instant::now();
        health.listed(0);
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

    #[tokio::test(start_paused = true)]
    async fn disk_that_holds_a_turn_up_is_named_and_no_health_after_a_while() {
        let health = followed();
        health.confirmed(0, None);
        health.listed(0);
        health.set_ready();
        attended(&health, async {
            health.comes_to("write /d/k");
            let (now, sec) = (Instant::now(), Duration::from_secs(1));
            assert_eq!(health.waits_for(now + sec), None);
            let soon = health.live(None, now + 2 * sec);
            assert!(
                soon.is_ok && soon.body.contains("waits for a disk since"),
                "{soon:?}"
            );
            for late in [
                health.live(None, now + 31 * sec),
                health.ready(now + 31 * sec),
                health.up(now + 31 * sec),
            ] {
                assert!(
                    !late.is_ok && late.body.contains(": write /d/k"),
                    "{late:?}"
                );
            }
        })
        .await;
        let later = Instant::now() + Duration::from_mins(1);
        assert!(health.live(None, later).is_ok && health.ready(later).is_ok);
        assert!(!health.live(None, later).body.contains("waiting"));
    }

    // sidecar 43
    #[tokio::test(start_paused = true)]
    async fn before_the_first_sync_the_missing_right_is_named() {
        let health = followed();
        let now = Instant::now();
        assert!(!health.live_and_ready(None, now).is_ok);
        health.failed(0, "cannot list configmaps in namespace n: forbidden");
        let ready = health.ready(now);
        assert!(!ready.is_ok && ready.body.contains("cannot list configmaps in namespace n"));
        assert!(health.live(None, now).is_ok);
    }
}
