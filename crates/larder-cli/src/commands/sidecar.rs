//! `larder sidecar` and `larder-sidecar`: chooses the form, sets up and runs a sidecar.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use futures::{StreamExt as _, future::ready, stream};
use larder_files::regular_file::read_regular_text;
use larder_objects::chain;
use larder_on_change::{Hook, HttpUrl, PodOutline, parse};
use larder_sidecar::{
    OwnSettings, ReloadSettings, RunError, check, check_hook, join_volumes, run_label as label,
    run_own as own, run_reload as reload,
};
use larder_transport::ClusterSource;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::{
    agent,
    args::{
        LogFormat, ReloadArgs, SidecarArgs,
        sidecar::{ProbedState, configuration, variables},
    },
    logging,
    outcome::Failure,
    runtime::{block_on, stop_signal},
};

/// Longest time for a probe.
const PROBE: Duration = Duration::from_secs(10);
/// The port of k8s-sidecar.
const HEALTH_PORT: u16 = 8080;
/// The longest file of `--config`.
const MAX_CONFIG: u64 = 1 << 20;

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
    let is_own = !args.objects.0.is_empty() || args.config.is_some();
    let is_reload = !args.reload.volume_dir.is_empty();
    let mut label_variables = variables::MARKS.to_vec();
    label_variables.retain(|name| std::env::var_os(name).is_some());
    match (is_own, is_reload) {
        (true, true) => {
            let text = "--volume-dir: another form than --config-map, --secret and --config";
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
    let run = until_signal(|shutdown| reload(settings, shutdown));
    block_on(log.limit.reporting(run))
}

fn run_own(args: &SidecarArgs, ignored: &[&str]) -> Result<ExitCode, Failure> {
    let settings = own_settings(args).map_err(Failure::unreadable)?;
    let log = logging::start(args.log_format);
    warn_of(ignored);
    let run = async {
        let source = agent::origin(args.kubeconfig.as_deref(), args.context.as_deref());
        let (client, _transport) = agent::connect(source).await?;
        let mut hangup = signal(SignalKind::hangup()).context("cannot take signals")?;
        let hangups = stream::poll_fn(|context| hangup.poll_recv(context));
        let reloads = hangups.filter_map(|()| {
            let settings = own_settings(args).inspect_err(|error| {
                error!(error, "configuration not usable, keeping the last one");
            });
            ready(settings.ok())
        });
        let run = |shutdown| own(settings, client, Arc::default(), reloads, shutdown);
        until_signal(run).await
    };
    block_on(log.limit.reporting(run))
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
    });
    let read = read.map_err(|errors| Failure::unreadable(errors.join("; ")))?;
    let hooks = hooks(args).map_err(Failure::unreadable)?;
    let limit = logging::start_sidecar(&read.log);
    let run = async {
        let source = match read.kubeconfig.as_deref() {
            None if read.skip_tls_verify => ClusterSource::InClusterUnverified,
            kubeconfig => agent::origin(kubeconfig, None),
        };
        let (client, _transport) = agent::connect(source).await?;
        for warning in &read.warnings {
            warn!("{warning}");
        }
        let run = |shutdown| label(read.settings, client, hooks, Arc::default(), shutdown);
        until_signal(run).await
    };
    block_on(limit.reporting(run))
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
    let mut all_hooks = hooks(args)?;
    for (kind, value) in &args.objects.0 {
        let volume = configuration::volume(*kind, value, namespace);
        all.push(volume.map_err(|error| format!("{kind} {value}: {error}"))?);
    }
    if let Some(path) = &args.config {
        let place = |error: String| format!("--config {}: {error}", path.display());
        let text = read_regular_text(path, MAX_CONFIG).map_err(|error| place(chain(&error)))?;
        let (volumes, hooks) = configuration::read(&text, namespace).map_err(place)?;
        all.extend(volumes);
        all_hooks.extend(hooks);
        check_hooks(&all_hooks)?;
    }
    Ok(OwnSettings {
        volumes: join_volumes(all)?,
        hooks: all_hooks,
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
    let urls = args.webhook_url.iter().map(|url| HttpUrl::parse(url));
    let urls: Result<_, _> = urls.collect();
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
    check_hooks(&hooks)?;
    Ok(hooks)
}

fn check_hooks(hooks: &[Hook]) -> Result<(), String> {
    for hook in hooks {
        check_hook(hook).map_err(|problem| format!("hook {}: {problem}", hook.name))?;
    }
    parse::check_together(hooks).map_err(|error| error.to_string())
}

/// Runs a sidecar until SIGTERM or SIGINT.
async fn until_signal<F>(run: impl FnOnce(CancellationToken) -> F) -> Result<ExitCode, Failure>
where
    F: Future<Output = Result<(), RunError>>,
{
    let (shutdown, stop) = (CancellationToken::new(), stop_signal()?);
    let run = run(shutdown.clone());
    let mut waiting = JoinSet::new();
    waiting.spawn(async move {
        stop.await;
        shutdown.cancel();
    });
    run.await.map_err(|error| anyhow!(error))?;
    Ok(ExitCode::SUCCESS)
}

fn probe(state: ProbedState, address: Option<SocketAddr>) -> Result<ExitCode, Failure> {
    let port = std::env::var("HEALTH_PORT").ok();
    let port = port.and_then(|port| port.parse().ok());
    let port = port.unwrap_or(HEALTH_PORT);
    let address = address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], port)));
    let path = match state {
        ProbedState::Live => "/livez",
        ProbedState::Ready => "/readyz",
    };
    check(address, path, PROBE).map_err(|reason| anyhow!(reason))?;
    Ok(ExitCode::SUCCESS)
}
