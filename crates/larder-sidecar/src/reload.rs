//! The reload form of configmap-reload: directories that others mount, and webhooks (section 7).
//!
//! Invariants:
//! 1. A webhook is requested when the bytes behind `..data` differ from those of its last request, and never at start.
//! 2. Health is good once the directories are watched and were read: each change from then on is noticed.
//! 3. Each URL has a hook of its own, so none waits for another.

use std::{
    collections::BTreeMap,
    fs, io,
    mem::MaybeUninit,
    net::SocketAddr,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use larder_files::regular_file::read_regular_file;
use larder_objects::PodIdentity;
use larder_on_change::{
    Debounce, DigestKey, HttpCall, HttpTarget, HttpUrl, LeftOut, Past, PodHooks, Retry,
};
use prometheus_client::registry::Registry;
use rustix::{
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
};
use tokio::{io::unix::AsyncFd, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::{
    health::Health,
    hooks::{HookAndRound, Hooks},
    intake::{DeliveredPart, delivered},
    metrics::WebhookMetrics,
    request::{RequestRound, hook},
    server::{Form, Pages, RunError, listen},
    settings::{HttpSettings, RequestSettings, Retries},
    steps::StepContext,
};

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
    let listener = listen(settings.listen).await?;
    let health = Arc::new(Health::default());
    health.set_problem(Some("the directories are not watched yet".to_owned()));
    let mut pages = Pages::new(Form::Reload(settings.telemetry_path.clone()), &health);
    // Those of steps are not theirs.
    pages.registry = Registry::with_prefix("configmap_reload");
    let webhook_metrics = WebhookMetrics::register(&mut pages.registry);
    let urls = settings.webhooks.iter().enumerate();
    let hooks = urls.map(|(number, url)| webhook(number, url, &settings, &webhook_metrics));
    // The request of a webhook does not name the pod.
    let (pod, none) = (PodIdentity::default(), BTreeMap::new());
    let context = StepContext::new(pod, Path::new(""), none, &pages.metrics, false);
    let mut hooks = Hooks::new(hooks.collect(), context, Arc::clone(&health));
    let key = DigestKey::temporary().expect("the system has random numbers");
    hooks.adopt(|_| true, &Past::default(), &key);
    let run = async {
        loop {
            // Before reading, so that no change is missed.
            let watch = watch(&settings.volume_dirs).inspect_err(|error| {
                webhook_metrics.watcher_errors.inc();
                error!(%error, "cannot watch a directory, looking at it from time to time");
            });
            health.comes_to("read the directories");
            let present = content(&settings.volume_dirs, &hooks.adopted, &key);
            hooks.observe(present, &key);
            let problem = "a directory cannot be watched";
            health.set_problem(watch.is_err().then(|| problem.to_owned()));
            // Every arm is cancel-safe.
            loop {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => return Ok(()),
                    () = changed(watch.as_ref().ok()) => break,
                    _ = hooks.next() => {}
                }
            }
        }
    };
    Arc::new(pages).served_during(Some(listener), run).await
}

fn webhook(
    number: usize,
    url: &HttpUrl,
    settings: &ReloadSettings,
    metrics: &WebhookMetrics,
) -> HookAndRound {
    let retries = Retries {
        total: settings.attempts.saturating_sub(1),
        connect: u32::MAX,
        read: u32::MAX,
        factor: 0.0,
    };
    let client = HttpSettings {
        retries,
        ..HttpSettings::default()
    };
    let mut call = HttpCall::post(HttpTarget::Url(url.clone()));
    call.method = settings.method;
    call.expect = vec![(settings.status, settings.status)];
    let round = RequestRound {
        request: Some(RequestSettings { call, client }),
        metrics: Some(metrics.clone()),
        ..RequestRound::default()
    };
    let name = format!("{number}-http");
    let hook = hook(name, Debounce::DEFAULT, Retry::default());
    (hook, Some(Arc::new(round)))
}

/// All files behind `..data`.
fn content(directories: &[PathBuf], hooks: &PodHooks, key: &DigestKey) -> Vec<DeliveredPart> {
    let volumes = directories.iter().filter_map(|directory| {
        let mut files = Vec::new();
        let mut levels = vec![(directory.join("..data"), 0)];
        while let Some((path, depth)) = levels.pop() {
            // A set that is replaced while it is read causes another event.
            for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
                let path = entry.path();
                // Not through a link, which may lead anywhere.
                let is_directory = entry.file_type().is_ok_and(|found| found.is_dir());
                if is_directory && depth < MAX_DEPTH {
                    levels.push((path, depth + 1));
                } else if let Ok(bytes) = read_regular_file(&path, MAX_BYTES) {
                    files.push((path.to_string_lossy().into_owned(), (key.tag(&bytes), None)));
                }
            }
        }
        let (name, left_out) = (directory.to_string_lossy(), LeftOut::default());
        delivered(&name, hooks, files.into_iter(), &left_out)
    });
    volumes.collect()
}

/// Becomes readable when an entry of one of the directories appears or is replaced.
fn watch(directories: &[PathBuf]) -> io::Result<AsyncFd<OwnedFd>> {
    let instance = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let changes = WatchFlags::MOVED_TO | WatchFlags::CREATE;
    let ends = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
    for directory in directories {
        inotify::add_watch(&instance, directory, changes | ends)
            .map_err(|errno| io::Error::other(format!("{}: {errno}", directory.display())))?;
    }
    #[expect(
        deprecated,
        reason = "its successor is unsafe to call, and an `OwnedFd` is what both ask for"
    )]
    AsyncFd::new(instance)
}

/// Waits for a set that was replaced; without a watch, for the next look. Cancel-safe: the owner watches anew after each
/// change.
async fn changed(watch: Option<&AsyncFd<OwnedFd>>) {
    let Some(watch) = watch else {
        return sleep(POLL).await;
    };
    while let Ok(mut ready) = watch.readable().await {
        if is_replaced(watch.get_ref()) {
            break;
        }
        ready.clear_ready();
    }
    info!("directory changed");
}

/// Whether an event concerns `..data` or a directory as a whole. Reads the events; other entries are not its own.
fn is_replaced(watch: &OwnedFd) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    loop {
        match events.next() {
            Ok(event) if event.file_name().is_none_or(|name| name == c"..data") => return true,
            Ok(_) => {}
            Err(errno) => return errno != Errno::AGAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    // sidecar 52
    #[tokio::test]
    async fn other_entries_of_a_directory_are_not_looked_at() {
        let root = tempfile::tempdir().unwrap();
        let watch = watch(&[root.path().to_owned()]).unwrap();
        for name in ["other", "..2026"] {
            fs::write(root.path().join(name), "1").unwrap();
        }
        assert!(!is_replaced(watch.get_ref()));
        symlink("..2026", root.path().join("aside")).unwrap();
        fs::rename(root.path().join("aside"), root.path().join("..data")).unwrap();
        assert!(is_replaced(watch.get_ref()));
        fs::remove_dir_all(root.path()).unwrap();
        assert!(is_replaced(watch.get_ref()), "it is watched anew");
    }
}
