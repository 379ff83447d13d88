//! The reload form of configmap-reload: directories that somebody else mounts, and webhooks (section 7).
//!
//! Invariants:
//! 1. A webhook is asked when the bytes behind `..data` differ from those that it was last told of, and never at start.
//! 2. Each URL has a hook of its own, so none waits for another.

use std::{
    collections::BTreeMap,
    fs, io,
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use larder_files::regular_file::read_regular_file;
use larder_on_change::{
    Action, ContentDigest, Debounce, DigestKey, Digester, Hook, HttpCall, HttpTarget, HttpTls,
    HttpUrl, Items, OnFailure, Paths, Retry, Start, Timing,
};
use prometheus_client::registry::Registry;
use rustix::{
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};
use tokio::{io::unix::AsyncFd, net::TcpListener, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    health::{Answer, Health},
    hooks::{Hooks, Work},
    metrics::{Metrics, WebhookMetrics},
    parts::{self, RunError},
    server::Probed,
    webhook::Webhook,
};

/// Time from the last event to the webhooks (rule V1).
const QUIET: Debounce = Debounce {
    min: Duration::from_millis(100),
    max: Duration::from_secs(2),
};
/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at a directory that cannot be watched.
const POLL: Duration = Duration::from_secs(5);
/// The longest file that is read.
const MAX_BYTES: u64 = 16 << 20;
/// Levels of directories that are read.
const MAX_DEPTH: usize = 8;

/// The settings of the reload form.
#[derive(Clone, Debug)]
pub struct ReloadSettings {
    /// The directories.
    pub volume_dirs: Vec<PathBuf>,
    /// The webhooks.
    pub webhooks: Vec<HttpUrl>,
    /// `GET`, `POST` or `PUT`.
    pub method: &'static str,
    /// The status that counts as success.
    pub status: u16,
    /// Attempts in quick succession; none is left to slower ones.
    pub attempts: u32,
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// The path of metrics.
    pub telemetry_path: String,
}

/// Asks webhooks when the directories change, until `shutdown`.
///
/// # Errors
///
/// The address cannot be used.
pub async fn run(settings: ReloadSettings, shutdown: CancellationToken) -> Result<(), RunError> {
    let mut registry = Registry::with_prefix("configmap_reload");
    let metrics = WebhookMetrics::register(&mut registry);
    let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
        RunError::Directory(format!("cannot listen on {}: {error}", settings.listen))
    })?;
    let is_watching = Arc::new(AtomicBool::new(true));
    let watching = Arc::clone(&is_watching);
    let answer = move || {
        let is_ok = watching.load(Ordering::Relaxed);
        let status = if is_ok {
            "up"
        } else {
            "a directory cannot be watched"
        };
        Answer {
            is_ok,
            body: serde_json::json!({ "status": status }).to_string(),
        }
    };
    let probed = Probed::Reload(Arc::new(answer), settings.telemetry_path.clone());
    let server = parts::Server::start(listener, probed, registry, CancellationToken::new());
    let hooks = settings.webhooks.iter().enumerate().map(|(number, url)| {
        let webhook = Webhook {
            url: url.clone(),
            attempts: settings.attempts,
            status: settings.status,
            metrics: metrics.clone(),
        };
        (
            hook(number, url, &settings),
            Work::Webhook(Arc::new(webhook)),
        )
    });
    let health = Health::new(crate::settings::MAX_SILENCE);
    let surroundings =
        parts::step_context(Path::new(""), BTreeMap::new(), &Metrics::default(), false);
    let mut hooks = Hooks::new(hooks.collect(), surroundings, health);
    let key = DigestKey::temporary().map_err(|error| RunError::Directory(error.to_string()))?;
    let mut watch = DirectoryWatch::default();
    hooks.begin(|_| (Start::FirstDelivery, false));
    loop {
        // Before reading, so that no change is missed.
        let watched = watch.renew(&settings.volume_dirs);
        if let Err(error) = &watched {
            let was = is_watching.swap(false, Ordering::Relaxed);
            metrics.watcher_error();
            if was {
                error!(%error, "cannot watch a directory, looking at it from time to time");
            }
        } else {
            is_watching.store(true, Ordering::Relaxed);
        }
        let content = content(&settings.volume_dirs, &key);
        hooks.observe(&|_| content.clone());
        let is_watched = watched.is_ok();
        // Every arm is cancel-safe.
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    server.stop().await;
                    return Ok(());
                }
                () = watch.changed(), if is_watched => break,
                () = sleep(POLL), if !is_watched => break,
                _ = hooks.next() => {}
            }
        }
    }
}

fn hook(number: usize, url: &HttpUrl, settings: &ReloadSettings) -> Hook {
    let call = HttpCall {
        target: HttpTarget::Url(url.clone()),
        method: settings.method,
        headers: Vec::new(),
        body: String::new(),
        expect: vec![(settings.status, settings.status)],
        auth: None,
        tls: HttpTls::default(),
    };
    Hook {
        name: format!("{number}-http"),
        volumes: None,
        paths: Paths::default(),
        environment: false,
        container: None,
        steps: vec![Action::Http(call)],
        timing: Timing {
            debounce: QUIET,
            splay: Duration::ZERO,
            timeout: Some(TIMEOUT),
            retry: Retry::default(),
        },
        on_failure: OnFailure::Retry,
        initial: false,
    }
}

/// The digest of all files behind `..data`.
fn content(directories: &[PathBuf], key: &DigestKey) -> (ContentDigest, Items) {
    let mut digester = Digester::new(key);
    for directory in directories {
        let mut levels = vec![(directory.join("..data"), 0)];
        while let Some((path, depth)) = levels.pop() {
            // A set that is replaced while it is read causes another event.
            for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() && depth < MAX_DEPTH {
                    levels.push((path, depth + 1));
                } else if let Ok(bytes) = read_regular_file(&path, MAX_BYTES) {
                    let (volume, name) = (directory.to_string_lossy(), path.to_string_lossy());
                    digester.file(&volume, &name, &bytes);
                }
            }
        }
    }
    digester.finish_with_items()
}

/// Notices of directories in which `..data` is replaced.
#[derive(Debug, Default)]
struct DirectoryWatch {
    instance: Option<AsyncFd<OwnedFd>>,
}

impl DirectoryWatch {
    /// Watches what the paths lead to now.
    fn renew(&mut self, directories: &[PathBuf]) -> io::Result<()> {
        let instance = if let Some(instance) = self.instance.take() {
            instance
        } else {
            let instance = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            #[expect(
                deprecated,
                reason = "its successor is unsafe to call, and an `OwnedFd` is what both ask for"
            )]
            AsyncFd::new(instance)?
        };
        let events = WatchFlags::MOVED_TO
            | WatchFlags::CREATE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        for directory in directories {
            inotify::add_watch(&instance, directory, events).map_err(|errno| {
                io::Error::new(
                    io::Error::from(errno).kind(),
                    format!("{}: {errno}", directory.display()),
                )
            })?;
        }
        self.instance = Some(instance);
        Ok(())
    }

    /// Waits until something has happened. Cancel-safe: what was read is said at once.
    async fn changed(&mut self) {
        let Some(instance) = &self.instance else {
            return;
        };
        loop {
            let Ok(mut ready) = instance.readable().await else {
                return;
            };
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut has_any = false;
            let mut reader = inotify::Reader::new(instance.get_ref(), &mut buffer);
            loop {
                match reader.next() {
                    Ok(_) => has_any = true,
                    Err(Errno::AGAIN) => break,
                    Err(errno) => {
                        warn!(error = %errno, "cannot read notices of the kernel");
                        break;
                    }
                }
            }
            ready.clear_ready();
            if has_any {
                info!("directory changed");
                return;
            }
        }
    }
}
