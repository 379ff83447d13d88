//! The label form: objects by label or name become files in a folder.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use larder_on_change::{Hook, Start};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use smol_str::SmolStr;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    files::{Files, VOLUME},
    follow::{Follower, Progress},
    health::Health,
    hooks::{HookEvent, Hooks, Work},
    metrics::Metrics,
    parts::{self, RunError},
    request::{HOOK, LabelRound, missing_interpreter},
    server::{self, Probed},
    settings::{LabelSettings, Method},
    urls::UrlKeys,
};

/// Longest time for the one list of `METHOD=LIST`.
const LIST_TIMEOUT: Duration = Duration::from_mins(1);
/// Pause before hooks are shown what has changed.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for a round that runs when the sidecar ends (rule B4).
const END: Duration = Duration::from_secs(5);

/// A sidecar of the label form.
pub struct LabelSidecar {
    settings: LabelSettings,
    client: kube::Client,
    hooks: Vec<Hook>,
    health: Arc<Health>,
}

impl fmt::Debug for LabelSidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LabelSidecar")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl LabelSidecar {
    /// A sidecar with these settings, and hooks besides its own.
    pub fn new(settings: LabelSettings, client: kube::Client, hooks: Vec<Hook>) -> Self {
        let health = Health::new(settings.timing.max_silence);
        Self {
            settings,
            client,
            hooks,
            health,
        }
    }

    /// Its health.
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Runs until `shutdown`, or, with `METHOD=LIST`, until everything is listed once.
    ///
    /// # Errors
    ///
    /// `METHOD=LIST` has failed.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RunError> {
        let Self {
            settings,
            client,
            hooks,
            health,
        } = self;
        for warning in &settings.warnings {
            warn!("{warning}");
        }
        if let Some((script, _)) = &settings.script
            && let Some(missing) = missing_interpreter(script)
        {
            warn!(script = %script.display(), missing, "this image cannot run the script");
        }
        let mut registry = Registry::with_prefix("larder_sidecar");
        let metrics = Metrics::register(&mut registry);
        health.register(&mut registry);
        let serving = CancellationToken::new();
        let _serving = serving.clone().drop_guard();
        let mut server = parts::Server::none();
        if let Some((host, port)) = settings.health {
            match server::bind(host, port).await {
                Ok(listener) => {
                    let probed = Probed::Label(Arc::clone(&health));
                    server = parts::Server::start(listener, probed, registry, serving);
                }
                // The port is shared by all containers of the pod (rule H6).
                Err(error) => warn!(port, %error, "cannot listen, running without health"),
            }
        }
        let round = LabelRound::hook(&settings).map(|(hook, round)| (hook, Arc::new(round)));
        let label_round = round.as_ref().map(|(_, round)| Arc::clone(round));
        let own = round.map(|(hook, round)| (hook, Work::Label(round)));
        let others = hooks.into_iter().map(|hook| (hook, Work::Steps));
        let whole_environment = settings.script.is_some();
        let volumes =
            BTreeMap::from([(SmolStr::new_static(VOLUME), settings.files.folder.clone())]);
        let context =
            parts::step_context(&settings.state_dir, volumes, &metrics, whole_environment);
        let hooks = Hooks::new(
            own.into_iter().chain(others).collect(),
            context,
            Arc::clone(&health),
        );
        let files = Files::new(settings.files.clone(), &settings.state_dir, metrics.clone());
        let files = Arc::new(Mutex::new(files));
        let selections = settings.selector.selections();
        let watches = health.follow(selections, Instant::now());
        let follower = Follower::new(
            client,
            watches,
            settings.method,
            settings.timing,
            Arc::clone(&files),
        );
        let urls = settings
            .urls
            .clone()
            .map(|urls| UrlKeys::new(urls, metrics));
        let mut running = Running {
            settings,
            health,
            hooks,
            files,
            follower,
            urls,
            label_round,
            is_synced: false,
            has_written: false,
            observe_at: None,
        };
        let result = running.until(shutdown).await;
        server.stop().await;
        result
    }
}

/// A sidecar that runs.
struct Running {
    settings: LabelSettings,
    health: Arc<Health>,
    hooks: Hooks,
    files: Arc<Mutex<Files>>,
    follower: Follower<Files>,
    urls: Option<UrlKeys>,
    label_round: Option<Arc<LabelRound>>,
    /// The first sync is complete and written.
    is_synced: bool,
    /// The first sync has written or removed anything.
    has_written: bool,
    /// When hooks are shown what has changed.
    observe_at: Option<Instant>,
}

enum Wake {
    Progress(Progress),
    Hook(HookEvent),
    Observe,
    Url,
    Timeout,
    End,
}

impl Running {
    async fn until(&mut self, shutdown: CancellationToken) -> Result<(), RunError> {
        let is_once = self.settings.method == Method::List;
        let deadline = Instant::now() + LIST_TIMEOUT;
        loop {
            self.settle();
            if is_once && self.is_synced {
                return self.last_round(&shutdown).await;
            }
            let waits = is_once && !self.is_synced;
            let observe_at = self.observe_at;
            // Every arm is cancel-safe: what is under way is kept in its part. Objects come last, since a server that never
            // pauses must not hold up the rest.
            let wake = tokio::select! {
                biased;
                () = shutdown.cancelled() => Wake::End,
                event = self.hooks.next() => Wake::Hook(event),
                () = sleep_until(observe_at.unwrap_or(deadline)), if observe_at.is_some() => Wake::Observe,
                () = next_url(self.urls.as_mut(), &self.files) => Wake::Url,
                () = sleep_until(deadline), if waits => Wake::Timeout,
                progress = self.follower.next() => Wake::Progress(progress),
            };
            match wake {
                Wake::Progress(Progress::Failed(failure)) => {
                    error!(error = failure.text, "request failed, will retry");
                    if waits && failure.is_final {
                        return Err(RunError::Sync(failure.text));
                    }
                }
                Wake::Progress(Progress::Changed) | Wake::Url => {}
                Wake::Observe => self.observe(),
                Wake::Hook(event) => self.note(event),
                Wake::Timeout => return Err(RunError::Sync(self.reason())),
                Wake::End => return self.end().await,
            }
        }
    }

    /// Why it is not ready.
    fn reason(&self) -> String {
        let reason = self
            .health
            .missing()
            .or_else(|| self.files.lock().unwritten());
        reason.unwrap_or_else(|| "the first sync takes too long".to_owned())
    }

    /// Follows up on what has changed: fetches, readiness, hooks.
    fn settle(&mut self) {
        let mut files = self.files.lock();
        if let Some(urls) = &mut self.urls {
            urls.add(files.take_fetches());
        }
        let has_changed = files.take_change();
        self.has_written |= has_changed;
        if !self.is_synced {
            let first_urls = self.urls.as_ref().is_none_or(UrlKeys::is_tried);
            if !self.follower.is_complete() || !first_urls {
                return;
            }
            if let Some(reason) = files.unwritten() {
                self.health.set_reason(Some(reason));
                return;
            }
            if !self.follower.is_settled() {
                return;
            }
            self.is_synced = true;
            drop(files);
            self.begin();
            self.health.set_ready();
            info!("first sync complete");
        } else if has_changed {
            // All files are looked at: once for a burst of changes.
            self.observe_at.get_or_insert(Instant::now() + PAUSE);
        }
    }

    /// The first sync is complete: hooks begin (rule N2).
    fn begin(&mut self) {
        let skips = self.settings.skip_init && self.settings.method != Method::List;
        let own = self.label_round.as_ref();
        // The script still runs, as theirs does.
        let scripts = own.filter(|round| self.has_written && round.has_script());
        let has_script = scripts.is_some();
        if let (true, Some(round)) = (skips, scripts) {
            round.skip_first_request();
        }
        let (files, has_written) = (Arc::clone(&self.files), self.has_written);
        self.hooks.begin(|hook| {
            let recorded = files.lock().recorded(&hook.name);
            match recorded {
                _ if skips && hook.name == HOOK => (Start::FirstDelivery, has_script),
                Some(start) => (start, false),
                None => (Start::FirstDelivery, has_written),
            }
        });
        self.observe();
    }

    fn observe(&mut self) {
        self.observe_at = None;
        let (digest, items) = self.files.lock().digest();
        self.hooks.observe(&|_| (digest, items.clone()));
    }

    fn note(&mut self, event: HookEvent) {
        let mut files = self.files.lock();
        match event {
            HookEvent::Begins(name) => files.set_hook(&name, None),
            HookEvent::Succeeded(name, digest) => files.set_hook(&name, Some(digest)),
            HookEvent::Failed => {}
        }
    }

    /// `METHOD=LIST`: one round, whose failure is only logged (rule N5).
    async fn last_round(&mut self, shutdown: &CancellationToken) -> Result<(), RunError> {
        while !self.hooks.is_at_rest() {
            // Both arms are cancel-safe.
            tokio::select! {
                () = shutdown.cancelled() => return self.end().await,
                event = self.hooks.next() => self.note(event),
            }
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), RunError> {
        info!("ending, files stay");
        let deadline = Instant::now() + END;
        while self.hooks.is_running() {
            match timeout_at(deadline, self.hooks.next()).await {
                Ok(HookEvent::Begins(_)) => break,
                Ok(event) => self.note(event),
                // It is repeated after the next start.
                Err(_) => break,
            }
        }
        Ok(())
    }
}

/// Waits for the next fetch that ends, and hands its content over.
async fn next_url(urls: Option<&mut UrlKeys>, files: &Arc<Mutex<Files>>) {
    match urls {
        Some(urls) => urls.next(files).await,
        None => std::future::pending().await,
    }
}
