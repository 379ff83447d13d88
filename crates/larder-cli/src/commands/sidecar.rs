//! `larder sidecar` and `larder-sidecar`: chooses the form, sets up and runs a sidecar.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, anyhow};
use futures::stream;
use larder_on_change::{Hook, HttpUrl, PodOutline};
use larder_sidecar::{
    Health, OwnSettings, ReloadSettings, check, check_hook, join_volumes, run_label as label,
    run_own as own, run_reload as reload,
};
use larder_transport::ClusterSource;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    agent,
    args::{
        LogFormat, ReloadArgs, SidecarArgs,
        sidecar::{ProbedState, variables, volume_flags},
    },
    logging::{self, LineLimit},
    outcome::Failure,
    runtime::{block_on, stop_signal},
};

/// Time for the end of a sidecar (rule B4), and more of it for rounds of hooks.
const END: Duration = Duration::from_millis(1500);
const END_OF_HOOKS: Duration = Duration::from_secs(5);
/// Longest time for a probe.
const PROBE: Duration = Duration::from_secs(10);
/// The port of k8s-sidecar.
const HEALTH_PORT: u16 = 8080;

const FORMS: &str = "nothing to do: give one of three forms: volumes, as --config-map app:/etc/app; the variables of \
    k8s-sidecar, as LABEL=grafana_dashboard FOLDER=/tmp/dashboards; or --volume-dir DIR --webhook-url URL";

/// Runs the form that flags and variables choose.
///
/// # Errors
///
/// The sidecar stopped early.
pub(crate) fn run(args: &SidecarArgs) -> Result<ExitCode, Failure> {
    if let Some(state) = args.check {
        return probe(state, args.address);
    }
    let is_own = !args.objects.0.is_empty();
    let is_reload = !args.reload.volume_dir.is_empty();
    let mut label_variables = variables::MARKS.to_vec();
    label_variables.retain(|name| std::env::var_os(name).is_some());
    match (is_own, is_reload) {
        (true, true) => {
            let text = "--volume-dir: another form than --config-map and --secret";
            Err(Failure::unreadable(text))
        }
        (false, false) if label_variables.is_empty() => Err(Failure::unreadable(FORMS)),
        (false, false) => run_label(args),
        (true, false) => run_own(args, &label_variables),
        (false, true) => run_reload(&args.reload, args.log_format, &label_variables),
    }
}

/// Runs the reload form, which is all that configmap-reload does.
///
/// # Errors
///
/// The sidecar stopped early.
pub(crate) fn run_reload(
    args: &ReloadArgs,
    log: LogFormat,
    ignored: &[&str],
) -> Result<ExitCode, Failure> {
    let settings = reload_settings(args).map_err(Failure::unreadable)?;
    let log = logging::start(log);
    warn_of(ignored);
    until_signal(&log.limit, &Health::default(), async move |shutdown| {
        Ok(reload(settings, shutdown)
            .await
            .map_err(anyhow::Error::from)?)
    })
}

fn run_own(args: &SidecarArgs, ignored: &[&str]) -> Result<ExitCode, Failure> {
    let settings = own_settings(args).map_err(Failure::unreadable)?;
    let log = logging::start(args.log_format);
    warn_of(ignored);
    let source = agent::origin(args.kubeconfig.as_deref(), args.context.as_deref());
    let health = Arc::<Health>::default();
    let shown = Arc::clone(&health);
    until_signal(&log.limit, &health, async move |shutdown| {
        let (client, _transport) = agent::connect(source).await?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot take signals")?;
        let hangups = stream::poll_fn(|context| hangup.poll_recv(context));
        let ended = own(settings, client, shown, hangups, shutdown).await;
        Ok(ended.map_err(anyhow::Error::from)?)
    })
}

fn run_label(args: &SidecarArgs) -> Result<ExitCode, Failure> {
    let read = variables::LabelVariables::read(|name| {
        // The flags of k8s-sidecar come before its variables.
        let flag = match name {
            "REQ_USERNAME_FILE" => args.req_username_file.clone(),
            "REQ_PASSWORD_FILE" => args.req_password_file.clone(),
            _ => None,
        };
        flag.or_else(|| std::env::var(name).ok())
    })
    .map_err(|errors| Failure::unreadable(errors.join("; ")))?;
    let hooks = hooks(args).map_err(Failure::unreadable)?;
    let limit = logging::start_sidecar(&read.log);
    let source = match read.kubeconfig.as_deref() {
        None if read.skip_tls_verify => ClusterSource::InClusterUnverified,
        kubeconfig => agent::origin(kubeconfig, None),
    };
    let health = Arc::<Health>::default();
    let shown = Arc::clone(&health);
    until_signal(&limit, &health, async move |shutdown| {
        let (client, _transport) = agent::connect(source).await?;
        for warning in &read.warnings {
            warn!("{warning}");
        }
        let ended = label(read.settings, client, hooks, shown, shutdown).await;
        Ok(ended.map_err(anyhow::Error::from)?)
    })
}

fn warn_of(ignored: &[&str]) {
    if !ignored.is_empty() {
        let variables = ignored.join(", ");
        warn!(
            variables,
            "flags choose another form, variables of the label form are ignored"
        );
    }
}

fn own_settings(args: &SidecarArgs) -> Result<OwnSettings, String> {
    let variable = |name: &str| std::env::var(name).ok();
    let pod = variables::own_pod(variable);
    let own = Some(&*pod.namespace).filter(|own| !own.is_empty());
    let namespace = args.namespace.as_deref().or(own);
    let mut all = Vec::new();
    for (kind, value) in &args.objects.0 {
        let volume = volume_flags::volume(*kind, value, namespace);
        all.push(volume.map_err(|error| format!("{kind} {value}: {error}"))?);
    }
    Ok(OwnSettings {
        volumes: join_volumes(all)?,
        hooks: hooks(args)?,
        once: args.once.then_some(args.once_timeout),
        max_silence: args.max_silence,
        listen: args.listen,
        state_dir: variables::state_dir(args.state_dir.clone(), variable("TMPDIR")),
        pod,
    })
}

fn reload_settings(args: &ReloadArgs) -> Result<ReloadSettings, String> {
    if args.volume_dir.is_empty() {
        return Err("--volume-dir is required".to_owned());
    }
    if args.webhook_url.is_empty() {
        return Err("--webhook-url is required".to_owned());
    }
    let urls: Result<_, _> = args
        .webhook_url
        .iter()
        .map(|url| HttpUrl::parse(url))
        .collect();
    let mut methods = ["GET", "POST", "PUT"].into_iter();
    let method = methods.find(|method| args.webhook_method.eq_ignore_ascii_case(method));
    Ok(ReloadSettings {
        volume_dirs: args.volume_dir.clone(),
        webhooks: urls.map_err(|error| format!("--webhook-url: {error}"))?,
        method: method.ok_or("--webhook-method: expected GET, POST or PUT")?,
        status: args.webhook_status_code,
        attempts: u32::try_from(args.webhook_retries).unwrap_or_default(),
        listen: args.listen_address,
        telemetry_path: args.telemetry_path.clone(),
    })
}

/// The hooks of `--on-change`.
fn hooks(args: &SidecarArgs) -> Result<Vec<Hook>, String> {
    let hooks = args.on_change.hooks(&PodOutline::default())?;
    for hook in &hooks {
        check_hook(hook).map_err(|problem| format!("hook {}: {problem}", hook.name))?;
    }
    Ok(hooks)
}

/// Runs a sidecar until SIGTERM or SIGINT: on a thread of its own, which a disk may hold up. This one takes the signals,
/// and ends the process whatever the other one waits for.
fn until_signal<F>(
    limit: &LineLimit,
    health: &Health,
    follow: impl FnOnce(CancellationToken) -> F + Send + 'static,
) -> Result<ExitCode, Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let run = async {
        let shutdown = CancellationToken::new();
        let stop = stop_signal()?;
        let (ends, mut ended) = oneshot::channel();
        let stopped = shutdown.clone();
        let work = move || {
            let result = block_on(follow(stopped));
            // The receiver is gone if this took too long.
            let _ = ends.send(result);
        };
        thread::Builder::new()
            .name("sidecar".to_owned())
            .spawn(work)
            .context("cannot start a thread")?;
        tokio::select! {
            biased;
            result = &mut ended => return finished(result),
            () = stop => shutdown.cancel(),
        }
        if let Ok(result) = timeout(END, &mut ended).await {
            return finished(result);
        }
        if let Some(reason) = health.waits_for(Instant::now()) {
            warn!(reason, "ending, although a disk does not answer");
            return Ok(ExitCode::SUCCESS);
        }
        match timeout(END_OF_HOOKS, ended).await {
            Ok(result) => finished(result),
            Err(_) => Ok(ExitCode::SUCCESS),
        }
    };
    block_on::<_, Failure>(limit.reporting(run))
}

/// The result of the thread; it has none if it panicked, which was reported.
fn finished(
    result: Result<Result<(), Failure>, oneshot::error::RecvError>,
) -> Result<ExitCode, Failure> {
    result.context("the sidecar's thread has panicked")??;
    Ok(ExitCode::SUCCESS)
}

fn probe(state: ProbedState, address: Option<SocketAddr>) -> Result<ExitCode, Failure> {
    let port = std::env::var("HEALTH_PORT")
        .ok()
        .and_then(|port| port.parse().ok())
        .unwrap_or(HEALTH_PORT);
    let address = address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], port)));
    let path = match state {
        ProbedState::Live => "/livez",
        ProbedState::Ready => "/readyz",
    };
    check(address, path, PROBE).map_err(|reason| anyhow!(reason))?;
    Ok(ExitCode::SUCCESS)
}
