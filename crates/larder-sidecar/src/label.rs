//! The label form: objects by label or name become files in a folder.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use larder_on_change::{Hook, Retry};
use prometheus_client::registry::Registry;
use smol_str::SmolStr;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    files::{Files, VOLUME},
    follow::Follower,
    health::Health,
    hooks::{HookAndRound, Hooks},
    intake::Intake,
    metrics::Metrics,
    request::{RequestRound, missing_interpreter},
    run::{HOOK, Progress, RunError, Running},
    server::{Pages, Server, bind},
    settings::{LabelSettings, Method},
    steps::StepContext,
    urls::UrlKeys,
};

/// Longest time for the one list of `METHOD=LIST`.
const LIST_TIMEOUT: Duration = Duration::from_mins(1);
/// Pause between two attempts when the fast retries are used up.
const SLOW: Duration = Duration::from_mins(5);

/// Runs the label form, with hooks besides its own, until `shutdown`, or, with `METHOD=LIST`, until everything is listed
/// once.
///
/// # Errors
///
/// `METHOD=LIST` has failed.
pub async fn run(
    settings: LabelSettings,
    client: kube::Client,
    hooks: Vec<Hook>,
    health: Arc<Health>,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
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
    let listener = match settings.health {
        Some((host, port)) => bind(host, port)
            .await
            .inspect_err(|error| {
                // The port is shared by all containers of the pod (rule H6).
                warn!(port, %error, "cannot listen, running without health");
            })
            .ok(),
        None => None,
    };
    let pages = Pages::Label(metrics.clone());
    let server = Server::start(listener, pages, &health, registry);
    let mut running = start(settings, client, hooks, health, &metrics);
    let result = running.until(&shutdown).await;
    server.stop().await;
    result
}

fn start(
    settings: LabelSettings,
    client: kube::Client,
    hooks: Vec<Hook>,
    health: Arc<Health>,
    metrics: &Metrics,
) -> Running {
    let own = own_round(&settings);
    let round = own.as_ref().and_then(|(_, round)| round.clone());
    let others = hooks.into_iter().map(|hook| (hook, None));
    let hooks = own.into_iter().chain(others).collect();
    let (state_dir, method) = (&settings.state_dir, settings.method);
    let folder = settings.files.folder.clone();
    let volumes = BTreeMap::from([(SmolStr::new_static(VOLUME), folder)]);
    let context = StepContext::new(state_dir, volumes, metrics, settings.script.is_some());
    let files = Files::new(settings.files, state_dir, metrics.clone());
    let intake = Intake::new(Box::new(files), metrics);
    let (selections, timing) = (settings.selections, settings.timing);
    let urls = settings.urls;
    Running {
        follower: Follower::new(client, selections, method, timing, (&intake, &health)),
        hooks: Hooks::new(hooks, context, Arc::clone(&health)),
        intake,
        health,
        urls: urls.map(|urls| UrlKeys::new(urls, metrics.clone())),
        once: (method == Method::List).then_some(LIST_TIMEOUT),
        had_files: true,
        skipped: round.filter(|_| settings.skip_init && method != Method::List),
        progress: Progress::default(),
    }
}

/// Script and request; `None` without both.
fn own_round(settings: &LabelSettings) -> Option<HookAndRound> {
    let round = RequestRound {
        script: settings.script.clone(),
        request: settings.request.clone(),
        ..RequestRound::default()
    };
    if round.script.is_none() && round.request.is_none() {
        return None;
    }
    let request = round.request.as_ref();
    let retries = request.map_or(0, |request| request.client.retries.total);
    let retry = Retry {
        min: SLOW,
        max: SLOW,
        attempts: u32::from(retries == 0),
    };
    let hook = round.hook(HOOK.to_owned(), settings.debounce, retry);
    Some((hook, Some(Arc::new(round))))
}
