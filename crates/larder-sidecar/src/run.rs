//! The loop of a sidecar that follows objects: what comes is put into files, and hooks follow.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use larder_on_change::Start;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{
    follow::Follower,
    health::Health,
    hooks::{HookEvent, Hooks},
    intake::{Settled, SharedIntake},
    request::RequestRound,
    urls::UrlKeys,
};

/// The name of the hook of the label form.
pub(crate) const HOOK: &str = "request";
/// Pause before hooks are shown what has changed: all files are looked at, once for a burst of changes.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before something that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Time for a round that runs when the sidecar ends (rule B4).
const END: Duration = Duration::from_secs(5);

/// Why a sidecar has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The first sync of a sidecar that runs once: the reason, and the missing right.
    #[error("{0}")]
    Sync(String),
    /// The address of health and metrics cannot be used.
    #[error("{0}")]
    Listen(String),
}

/// A sidecar that runs.
pub(crate) struct Running {
    pub(crate) intake: SharedIntake,
    pub(crate) follower: Follower,
    pub(crate) hooks: Hooks,
    pub(crate) health: Arc<Health>,
    pub(crate) urls: Option<UrlKeys>,
    /// Everything is written once, within this time.
    pub(crate) once: Option<Duration>,
    /// The application may have read files before this start: its first changes fire hooks.
    pub(crate) had_files: bool,
    /// The round of the label form, if it is to send no request after the first sync.
    pub(crate) skipped: Option<Arc<RequestRound>>,
    pub(crate) progress: Progress,
}

/// How far it has come.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The first sync is complete and written.
    is_synced: bool,
    /// The first sync has written or removed anything.
    has_written: bool,
    /// When hooks are shown what has changed.
    observe_at: Option<Instant>,
}

impl Running {
    /// Runs until `shutdown`, or until everything is written once.
    pub(crate) async fn until(&mut self, shutdown: &CancellationToken) -> Result<(), RunError> {
        let deadline = Instant::now() + self.once.unwrap_or_default();
        loop {
            let settled = self.settle();
            if self.once.is_some() && self.progress.is_synced {
                self.last_round(shutdown).await;
                return Ok(());
            }
            let observe_at = self.progress.observe_at;
            // Every arm is cancel-safe: what is under way is kept in its part. Objects come last, since a server that never
            // pauses must not hold up the rest.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    info!("ending, files stay");
                    self.end().await;
                    return Ok(());
                }
                event = self.hooks.next() => self.note(event),
                () = sleep_until(observe_at.unwrap_or(deadline)), if observe_at.is_some() => self.observe(),
                () = next_fetch(self.urls.as_mut(), &self.intake) => {}
                () = sleep(RETRY), if settled.retries => {}
                () = sleep_until(deadline), if self.once.is_some() => {
                    let reason = self.health.missing().or(settled.unwritten);
                    let reason = reason.unwrap_or_else(|| "the first sync takes too long".into());
                    return Err(RunError::Sync(reason));
                }
                news = self.follower.next() => if let Err(failure) = news {
                    error!(error = failure.text, "request failed, will retry");
                    if self.once.is_some() && failure.is_final {
                        return Err(RunError::Sync(failure.text));
                    }
                },
            }
        }
    }

    /// Follows up on what has changed: files, fetches, readiness, hooks.
    fn settle(&mut self) -> Settled {
        let (settled, fetches) = {
            let mut intake = self.intake.lock();
            (intake.settle(), intake.sink.take_fetches())
        };
        if let Some(urls) = &mut self.urls {
            urls.add(fetches);
        }
        let progress = &mut self.progress;
        if progress.is_synced {
            if settled.is_changed {
                progress.observe_at.get_or_insert(Instant::now() + PAUSE);
            }
            return settled;
        }
        progress.has_written |= settled.is_changed;
        self.health.set_problem(settled.unwritten.clone());
        let is_tried = self.urls.as_ref().is_none_or(UrlKeys::is_tried);
        if self.follower.is_complete() && is_tried && settled.unwritten.is_none() {
            progress.is_synced = true;
            self.begin();
            self.health.set_ready();
            info!("first sync complete");
        }
        settled
    }

    /// The first sync is complete: hooks begin (rule N2).
    fn begin(&mut self) {
        let fires = self.progress.has_written && self.had_files;
        // The script still runs, as theirs does.
        let script = self.skipped.as_ref();
        let script = script.filter(|own| fires && own.script.is_some());
        if let Some(round) = script {
            round.skips_request.store(true, Ordering::Relaxed);
        }
        let (intake, skips, runs_script) = (&self.intake, self.skipped.is_some(), script.is_some());
        self.hooks.begin(|name| {
            let recorded = intake.lock().sink.index().recorded(name);
            match recorded {
                _ if skips && name == HOOK => (Start::FirstDelivery, runs_script),
                Some(start) => (start, false),
                None => (Start::FirstDelivery, fires),
            }
        });
        self.observe();
    }

    fn observe(&mut self) {
        self.progress.observe_at = None;
        let mut intake = self.intake.lock();
        self.hooks.observe(|hook| intake.sink.digest(hook));
    }

    fn note(&self, event: HookEvent) {
        if let Some((name, digest)) = event {
            self.intake.lock().sink.index().set_hook(name, digest);
        }
    }

    /// One round after the only sync, whose failure is only logged (rule N5).
    async fn last_round(&mut self, shutdown: &CancellationToken) {
        while !self.hooks.is_at_rest() {
            // Both arms are cancel-safe.
            tokio::select! {
                () = shutdown.cancelled() => return self.end().await,
                event = self.hooks.next() => self.note(event),
            }
        }
    }

    /// Gives a round that runs some time.
    pub(crate) async fn end(&mut self) {
        let deadline = Instant::now() + END;
        while self.hooks.is_running() {
            match timeout_at(deadline, self.hooks.next()).await {
                // It is repeated after the next start.
                Ok(Some((_, None))) | Err(_) => break,
                Ok(event) => self.note(event),
            }
        }
    }
}

/// Waits for the next fetch that ends, and hands its content over.
async fn next_fetch(urls: Option<&mut UrlKeys>, intake: &SharedIntake) {
    match urls {
        Some(urls) => urls.next(intake).await,
        None => std::future::pending().await,
    }
}
