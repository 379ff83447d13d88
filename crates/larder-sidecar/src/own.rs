//! The own form: named objects as volumes (section 3), followed or, with `--once`, written once.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use larder_on_change::{Hook, Start};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{
    clock,
    follow::{Follower, Progress},
    health::Health,
    hooks::{HookEvent, Hooks, Work},
    index::{Index, Known},
    metrics::Metrics,
    parts::{self, RunError},
    server::Probed,
    settings::{Method, WatchTiming},
    volumes::{OwnVolume, Volumes, clear},
};

/// Time between two lists while a required object is missing, with `--once`.
const POLL: Duration = Duration::from_secs(1);
/// Time for a round that runs when the sidecar ends (rule B4).
const END: Duration = Duration::from_secs(5);
/// Pause before a volume that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The settings of the own form.
#[derive(Clone, Debug)]
pub struct OwnSettings {
    /// The directories.
    pub volumes: Vec<OwnVolume>,
    /// The hooks.
    pub hooks: Vec<Hook>,
    /// Write everything once, within this time.
    pub once: Option<Duration>,
    /// Silence after which a watch is opened anew.
    pub max_silence: Duration,
    /// Where health and metrics are served.
    pub listen: Option<SocketAddr>,
    /// Directory of the records of hooks.
    pub state_dir: PathBuf,
}

/// A sidecar of the own form.
pub struct OwnSidecar {
    settings: OwnSettings,
    client: kube::Client,
    health: Arc<Health>,
}

impl fmt::Debug for OwnSidecar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSidecar")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl OwnSidecar {
    /// A sidecar with these settings.
    pub fn new(settings: OwnSettings, client: kube::Client) -> Self {
        let health = Health::new(settings.max_silence);
        Self {
            settings,
            client,
            health,
        }
    }

    /// Its health.
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Runs until `shutdown`, or, with `once`, until everything is written. `reloads` brings other volumes and hooks.
    ///
    /// # Errors
    ///
    /// With `once`: not everything was written in time, or a right is missing. Otherwise the address cannot be used.
    pub async fn run(
        mut self,
        mut reloads: mpsc::Receiver<OwnSettings>,
        shutdown: CancellationToken,
    ) -> Result<(), RunError> {
        let mut registry = Registry::with_prefix("larder_sidecar");
        let metrics = Metrics::register(&mut registry);
        self.health.register(&mut registry);
        let mut server = parts::Server::none();
        if let Some(address) = self.settings.listen {
            let listener = TcpListener::bind(address).await.map_err(|error| {
                RunError::Directory(format!("cannot listen on {address}: {error}"))
            })?;
            let probed = Probed::Own(Arc::clone(&self.health));
            server = parts::Server::start(listener, probed, registry, CancellationToken::new());
        }
        let result = loop {
            let mut running = Running::new(&self, &metrics);
            // Both arms are cancel-safe: what is dropped is begun anew.
            let next = tokio::select! {
                biased;
                ended = running.until(&shutdown) => break ended,
                Some(next) = reloads.recv() => next,
            };
            running.end().await;
            let is_wanted = |path: &Path| next.volumes.iter().any(|volume| volume.path == path);
            for volume in &self.settings.volumes {
                if !is_wanted(&volume.path) {
                    clear(&volume.path, clock::now());
                }
            }
            info!("settings reloaded");
            self.settings = next;
        };
        server.stop().await;
        result
    }
}

struct Running {
    once: Option<Duration>,
    health: Arc<Health>,
    hooks: Hooks,
    volumes: Arc<Mutex<Volumes>>,
    follower: Follower<Volumes>,
    index: Index,
    known: Known,
    /// A volume had a set before the start.
    had_sets: bool,
    is_synced: bool,
}

enum Wake {
    Progress(Progress),
    Hook(HookEvent),
    Retry,
    Timeout,
    End,
}

impl Running {
    fn new(sidecar: &OwnSidecar, metrics: &Metrics) -> Self {
        let settings = &sidecar.settings;
        let first = settings.volumes.first();
        let place = first.map(|volume| volume.path.clone()).unwrap_or_default();
        let (index, known) = Index::open(&settings.state_dir, &place);
        let volumes = Volumes::new(
            settings.volumes.clone(),
            index.key().clone(),
            metrics.clone(),
        );
        let had_sets = volumes.has_sets();
        let watches = sidecar.health.follow(volumes.selections(), Instant::now());
        let volumes = Arc::new(Mutex::new(volumes));
        let method = match settings.once {
            Some(_) => Method::Sleep(POLL),
            None => Method::Watch,
        };
        let timing = WatchTiming {
            max_silence: settings.max_silence,
            ..WatchTiming::default()
        };
        let (client, sink) = (sidecar.client.clone(), Arc::clone(&volumes));
        let named = settings.volumes.iter();
        let places = named.map(|volume| (volume.name.clone(), volume.path.clone()));
        let places: BTreeMap<_, _> = places.collect();
        let context = parts::step_context(&settings.state_dir, places, metrics, false);
        let hooks = settings.hooks.iter().cloned();
        let hooks = hooks.map(|hook| (hook, Work::Steps)).collect();
        Self {
            once: settings.once,
            health: Arc::clone(&sidecar.health),
            hooks: Hooks::new(hooks, context, Arc::clone(&sidecar.health)),
            volumes,
            follower: Follower::new(client, watches, method, timing, sink),
            index,
            known,
            had_sets,
            is_synced: false,
        }
    }

    async fn until(&mut self, shutdown: &CancellationToken) -> Result<(), RunError> {
        let deadline = Instant::now() + self.once.unwrap_or_default();
        loop {
            let unwritten = self.settle();
            let has_failed = self.volumes.lock().has_failed();
            let is_waiting = self.once.is_some() && !self.is_synced;
            if self.once.is_some() && self.is_synced {
                return Ok(());
            }
            // Every arm is cancel-safe: what is under way is kept in its part. Objects come last, since a server that never
            // pauses must not hold up the rest.
            let wake = tokio::select! {
                biased;
                () = shutdown.cancelled() => Wake::End,
                event = self.hooks.next() => Wake::Hook(event),
                () = sleep(RETRY), if has_failed => Wake::Retry,
                () = sleep_until(deadline), if is_waiting => Wake::Timeout,
                progress = self.follower.next() => Wake::Progress(progress),
            };
            match wake {
                Wake::Progress(Progress::Failed(failure)) => {
                    error!(error = failure.text, "request failed, will retry");
                    if is_waiting && failure.is_final {
                        return Err(RunError::Sync(failure.text));
                    }
                }
                Wake::Progress(Progress::Changed) | Wake::Retry => {}
                Wake::Hook(event) => self.note(event),
                Wake::Timeout => {
                    let reason = self.health.missing().or(unwritten);
                    return Err(RunError::Sync(reason.unwrap_or_default()));
                }
                Wake::End => {
                    info!("ending, volumes stay");
                    self.end().await;
                    return Ok(());
                }
            }
        }
    }

    /// Writes what is due, and follows up. Returns why something was never written.
    fn settle(&mut self) -> Option<String> {
        let mut volumes = self.volumes.lock();
        volumes.write(clock::now());
        let unwritten = volumes.unwritten();
        let has_changed = volumes.take_change();
        drop(volumes);
        if !self.is_synced {
            self.health.set_reason(unwritten.clone());
            if unwritten.is_some() || !self.follower.is_complete() {
                return unwritten;
            }
            self.is_synced = true;
            let (known, had_sets) = (&self.known, self.had_sets);
            self.hooks.begin(|hook| match known.hooks.get(&hook.name) {
                Some(digest) => (digest.map_or(Start::Uncertain, Start::Notified), false),
                // A set of an earlier start, and no record: the application may have read anything.
                None => (Start::FirstDelivery, had_sets && has_changed),
            });
            self.health.set_ready();
            info!("first sync complete");
        }
        if has_changed {
            let volumes = self.volumes.lock();
            self.hooks.observe(&|hook| volumes.digest(hook));
        }
        None
    }

    fn note(&mut self, event: HookEvent) {
        let (name, digest) = match event {
            HookEvent::Begins(name) => (name, None),
            HookEvent::Succeeded(name, digest) => (name, Some(digest)),
            HookEvent::Failed => return,
        };
        self.index.set_hook(&name, digest);
        self.known.hooks.insert(name, digest);
        self.index.compact(&self.known);
    }

    /// Gives a round that runs some time.
    async fn end(&mut self) {
        let deadline = Instant::now() + END;
        while self.hooks.is_running() {
            match timeout_at(deadline, self.hooks.next()).await {
                // It is repeated after the next start.
                Ok(HookEvent::Begins(_)) | Err(_) => break,
                Ok(event) => self.note(event),
            }
        }
    }
}
