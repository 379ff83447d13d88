//! The label form: objects by label or name become files in a folder.

use std::{collections::BTreeMap, sync::Arc};

use larder_on_change::{Hook, Retry};
use smol_str::SmolStr;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    files::{Files, VOLUME},
    health::Health,
    hooks::{HookAndRound, Hooks},
    index::Index,
    request::{RequestRound, SLOW, hook, missing_interpreter},
    run::{Course, FirstRequest, HOOK, OwnRound, Running},
    server::{Form, Pages, RunError},
    settings::LabelSettings,
    steps::StepContext,
    urls::UrlKeys,
};

/// Runs the label form, with hooks besides its own, until `shutdown`, or, with `once`, until everything is written and
/// one round is over.
///
/// # Errors
///
/// With `once`: not everything was written in time, or a right is missing.
pub async fn run(
    settings: LabelSettings,
    client: kube::Client,
    hooks: Vec<Hook>,
    health: Arc<Health>,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let pages = Arc::new(Pages::new(Form::Label, &health));
    let listener = match &*settings.listen {
        [] => None,
        addresses @ [first, ..] => TcpListener::bind(addresses)
            .await
            .inspect_err(|error| {
                let port = first.port();
                // It is shared by all containers of the pod (rule H6).
                warn!(port, %error, "cannot listen, running without health");
            })
            .ok(),
    };
    // It reads and writes files, while health is served already.
    let run = async {
        start(settings, client, hooks, &pages, &shutdown)
            .until(&shutdown)
            .await
    };
    pages.served_during(listener, run).await
}

fn start(
    settings: LabelSettings,
    client: kube::Client,
    hooks: Vec<Hook>,
    pages: &Pages,
    shutdown: &CancellationToken,
) -> Running {
    pages
        .health
        .comes_to("read the script and the files of an earlier start");
    if let Some((script, _)) = &settings.script
        && let Some(missing) = missing_interpreter(script)
    {
        warn!(script = %script.display(), missing, "this image cannot run the script");
    }
    let metrics = &pages.metrics;
    let own = own_round(&settings, shutdown);
    let round = own.as_ref().and_then(|(_, round)| round.clone());
    let others = hooks.into_iter().map(|hook| (hook, None));
    let hooks = own.into_iter().chain(others).collect();
    let state_dir = &settings.state_dir;
    let folder = settings.files.folder().to_owned();
    let volumes = BTreeMap::from([(SmolStr::new_static(VOLUME), folder)]);
    let has_script = settings.script.is_some();
    let context = StepContext::new(settings.pod, state_dir, volumes, metrics, has_script);
    let mut places = settings.files;
    places.fetch_urls = settings.urls.is_some();
    let selections = settings.selections;
    // Others in this folder have theirs.
    let index = Index::open(state_dir, &(places.folder(), &selections));
    let files = Files::new(places, index, metrics.clone());
    let first = match settings.once {
        None if settings.skip_init => FirstRequest::Skipped,
        _ => FirstRequest::Sent,
    };
    let course = Course {
        once: settings.once,
        // The application may have read those of an earlier start, or of its image.
        had_files: true,
        own_round: round.map(|round| OwnRound { round, first }),
    };
    let mut running = Running::new(
        client,
        course,
        selections,
        settings.timing,
        files,
        Hooks::new(hooks, context, Arc::clone(&pages.health)),
        pages,
    );
    running.urls = UrlKeys::new(settings.urls.unwrap_or_default(), metrics.clone());
    running.intake.lock().takes_again = settings.timing.poll.is_some();
    running
}

/// Script and request; `None` without both.
fn own_round(settings: &LabelSettings, ending: &CancellationToken) -> Option<HookAndRound> {
    let round = RequestRound {
        script: settings.script.clone(),
        request: settings.request.clone(),
        ending: ending.clone(),
        waits_for_credentials: settings.once.is_none(),
        ..RequestRound::default()
    };
    if round.script.is_none() && round.request.is_none() {
        return None;
    }
    let retries = round
        .request
        .as_ref()
        .map_or(0, |request| request.client.retries.total);
    let retry = Retry {
        min: SLOW,
        max: SLOW,
        attempts: u32::from(retries == 0),
    };
    let hook = hook(HOOK.to_owned(), settings.debounce, retry);
    Some((hook, Some(Arc::new(round))))
}
