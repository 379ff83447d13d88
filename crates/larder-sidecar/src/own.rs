//! The own form: named objects as volumes (section 3), followed or, with `--once`, written once.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, future::OptionFuture};
use larder_objects::PodIdentity;
use larder_on_change::Hook;
use larder_watch::RequestTiming;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    health::Health,
    hooks::Hooks,
    run::{Course, Running},
    server::{Form, Pages, RunError, listen},
    steps::StepContext,
    volumes::{OwnVolume, Volumes},
};

/// Time between two lists while a required object is missing, with `--once`.
const POLL: Duration = Duration::from_secs(1);

/// The settings of the own form. Times count as a year at most.
#[derive(Clone, Debug)]
pub struct OwnSettings {
    /// The directories, as [`join_volumes`](crate::join_volumes) returns them.
    pub volumes: Vec<OwnVolume>,
    /// The hooks.
    pub hooks: Vec<Hook>,
    /// Write everything once, within this time.
    pub once: Option<Duration>,
    /// A watch is reopened after this time without a sign of life, in general [`MAX_SILENCE`](crate::MAX_SILENCE).
    pub max_silence: Duration,
    /// Where health and metrics are served.
    pub listen: Option<SocketAddr>,
    /// The pod of this process, for hooks.
    pub pod: PodIdentity,
    /// Directory of the records of hooks.
    pub state_dir: PathBuf,
}

/// Runs the own form until `shutdown`, or, with `once`, until everything is written. At each of `hangups`, all objects
/// are read again, and compared with what is in place.
///
/// # Errors
///
/// With `once`: not everything was written in time, or a right is missing. Otherwise the address cannot be used.
pub async fn run(
    settings: OwnSettings,
    client: kube::Client,
    health: Arc<Health>,
    mut hangups: impl Stream<Item = ()> + Unpin,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let pages = Arc::new(Pages::new(Form::Own, &health));
    let listener = OptionFuture::from(settings.listen.map(listen))
        .await
        .transpose()?;
    let run = async {
        loop {
            let mut running = start(&settings, client.clone(), &pages);
            // Both arms are cancel-safe: what is dropped starts over.
            tokio::select! {
                biased;
                ended = running.until(&shutdown) => return ended,
                Some(()) = hangups.next() => {}
            }
            running.end().await;
            info!("comparing everything");
        }
    };
    pages.served_during(listener, run).await
}

fn start(settings: &OwnSettings, client: kube::Client, pages: &Pages) -> Running {
    let state_dir = &settings.state_dir;
    let metrics = &pages.metrics;
    let volumes = Volumes::new(settings.volumes.clone(), state_dir, metrics.clone());
    let timing = RequestTiming {
        poll: settings.once.map(|_| POLL),
        max_silence: Some(settings.max_silence),
        ..RequestTiming::default()
    };
    let selections = volumes.selections();
    let places = settings
        .volumes
        .iter()
        .map(|volume| (volume.name.clone(), volume.path.clone()));
    let pod = settings.pod.clone();
    let context = StepContext::new(pod, state_dir, places.collect(), metrics, false);
    // An init container has no application yet.
    let hooks = settings
        .hooks
        .iter()
        .filter(|_| settings.once.is_none())
        .map(|hook| (hook.clone(), None))
        .collect();
    let hooks = Hooks::new(hooks, context, Arc::clone(&pages.health));
    let course = Course {
        once: settings.once,
        had_files: settings.volumes.iter().any(OwnVolume::has_set),
        own_round: None,
    };
    Running::new(client, course, selections, timing, volumes, hooks, pages)
}
