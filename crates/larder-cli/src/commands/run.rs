//! `larder run`: sets up and runs the agent.
//!
//! | module | purpose |
//! | --- | --- |
//! | `beside` | prepares the mode beside a kubelet |
//! | `check` | says what is wrong with configuration and manifests, and starts nothing |
//! | `embedded` | the API server behind `--manifests` |
//! | `http` | serves the HTTP API, and moves it to another address |
//! | `reload` | applies a changed configuration |
//! | `summary` | prints what is served |
//! | `systemd` | keeps the service manager informed |

mod beside;
mod check;
mod embedded;
mod http;
mod reload;
mod summary;
mod systemd;

use std::{ffi::OsStr, path::PathBuf, pin::pin, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow};
use clap::{CommandFactory as _, parser::ValueSource};
use futures::{
    FutureExt as _, TryFutureExt as _,
    future::{FusedFuture as _, OptionFuture},
};
use kube::Client;
use larder_agent::{
    agent::{Agent, AgentHandle, PodDeletion},
    checkpoint::ClusterId,
    config::{Config, Flags},
    local_api::{self, OwnSocket, Program, StartingApi},
    root_dir::RootDir,
    status::AgentOverview,
};
use larder_connections::{Acceptor, raise_descriptor_limit};
use larder_console::{Format, Stream};
use larder_objects::chain;
use larder_projection::disk::VolumeHost;
use larder_transport::blocking::blocking;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::JoinMap};
use tracing::{error, info, warn};

use self::{embedded::Embedded, systemd::ServiceManager};
use crate::{
    agent::{self, cluster_id, config},
    args::{Args, RunArgs},
    logging::{self, Log, limit::LineLimit},
    outcome::Failure,
    output::{self, live},
    rendered::project_text,
    runtime::{block_on, stop_signal},
};

/// Time after which the summary is printed, even if something is still missing.
const SUMMARY: Duration = Duration::from_millis(1500);
/// Time between two reports of a first pass that takes longer.
const PROGRESS: Duration = Duration::from_secs(5);
/// Time between two checks whether everything is delivered.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Pause before changes of pods are printed, in which more of them may come.
const SETTLE: Duration = Duration::from_millis(100);
/// Name of the one task that may end while the agent runs.
const SUMMARY_TASK: &str = "summary";
/// Time after which the log says that credentials are awaited.
const SLOW_CREDENTIALS: Duration = Duration::from_millis(500);
/// Time for shutdown: passes under way are finished.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    if args.check {
        return Ok(check::run(&args));
    }
    let log = logging::start(args.log_format);
    let mut config = config(&args.place, flags(&args))?;
    beside::find_kubelet(&args, &mut config)?;
    beside::protect(&config)?;
    let limit = log.limit.clone();
    block_on(limit.reporting(serve(&args, config, log)))
}

/// The flags that override the configuration file.
fn flags(args: &RunArgs) -> Flags {
    Flags {
        node_name: args.node_name.clone(),
        listen: args.listen,
        change_detection: args.change_detection,
        watch_scope: args.watch_scope,
        beside_kubelet: args.beside_kubelet,
        kubelet_root_dir: args.kubelet_root_dir.clone(),
        dry_run: args.dry_run,
        ..Flags::default()
    }
}

/// The flags as typed, for `/flagz`, and defaults; of switches only those that are set. None of them is a credential.
fn typed_flags() -> Vec<(String, String)> {
    let mut parser = Args::command();
    let matches = parser.get_matches_mut();
    let (name, typed) = matches.subcommand().expect("this is a subcommand");
    let command = parser.find_subcommand(name).expect("it was parsed");
    let flags = command.get_arguments().filter_map(|flag| {
        let (id, is_switch) = (flag.get_id().as_str(), !flag.get_action().takes_values());
        if is_switch && typed.value_source(id) == Some(ValueSource::DefaultValue) {
            return None;
        }
        let values = typed.get_raw(id)?.map(OsStr::to_string_lossy);
        let values: Vec<_> = values.collect();
        Some((flag.get_long()?.to_owned(), values.join(",")))
    });
    flags.collect()
}

/// The API server that the pods come from.
struct AgentOrigin {
    client: Client,
    /// The cluster that a checkpoint is bound to; `None` without a checkpoint.
    cluster: Option<ClusterId>,
    /// The embedded API server, if pods come from manifests.
    embedded: Option<Embedded>,
    /// Keeps the connections.
    _transport: Option<larder_transport::Transport>,
}

async fn serve(args: &RunArgs, config: Config, log: Log) -> Result<ExitCode, Failure> {
    raise_descriptor_limit();
    let root = RootDir::lock(&config.root_dir).context("cannot use the root directory")?;
    let volumes = match config.beside {
        // The kubelet's are elsewhere, and nothing is mounted.
        Some(_) => VolumeHost::open(root.path()).map_err(anyhow::Error::from),
        None => root.volumes().map_err(anyhow::Error::from),
    };
    let volumes = volumes.context("cannot use the root directory")?;
    let shutdown = CancellationToken::new();
    let mut tasks = JoinMap::new();
    // They answer before anything is read that may hang.
    let (socket_api, http_api) = (StartingApi::default(), StartingApi::default());
    match root.bind_socket() {
        Ok(socket) => {
            let acceptor = Acceptor::new(OwnSocket(socket), local_api::socket_limits());
            let server = acceptor.serve(socket_api.router(), shutdown.clone());
            tasks.spawn("local API", server.map(Ok));
        }
        Err(error) => warn!(
            error = chain(&error),
            "`larder status` and `larder exec` will not reach this agent"
        ),
    }
    let listener = http::bind(config.listen).await?;
    let (listeners, moves) = mpsc::channel(1);
    let (router, limits) = (http_api.router(), local_api::limits());
    let server = http::serve(listener, moves, router, limits, shutdown.clone());
    tasks.spawn("HTTP API", server.map(Ok));

    let mut registry = Registry::with_prefix("larder");
    let origin = origin(args, &config, &mut registry, &shutdown).await?;
    let program = Program::new(config.clone())
        .flags(typed_flags())
        .log(log.control)
        .projector(project_text)
        .shutdown(shutdown.clone());
    let pod_deletion = if args.end_pods || origin.embedded.is_some() {
        PodDeletion::ByAgent
    } else {
        PodDeletion::External
    };
    let manifests = manifests_of(args, &config).cloned();
    let has_checkpoint = config.checkpoint.is_some();
    let mut agent = Agent::builder(config, root, volumes, origin.client)
        .pod_deletion(pod_deletion)
        .registry(registry);
    if let Some(embedded) = &origin.embedded {
        agent = agent.hidden_objects(embedded.hidden.clone());
        if has_checkpoint {
            warn!("checkpoint has no effect with manifests: their API server is in this process");
        }
    }
    if let Some(cluster) = origin.cluster {
        agent = agent.cluster(cluster);
    }
    let agent = agent.build().context("cannot use the configuration")?;
    let handle = agent.handle();
    socket_api.agent_is_built(local_api::socket_router(handle.clone(), program.clone()));
    http_api.agent_is_built(local_api::router(handle.clone(), program.clone()));

    if let Some(embedded) = origin.embedded {
        handle.show_problems_of(embedded.problems);
        handle.show_notes_of(embedded.notes);
        tasks.spawn("manifest directory", embedded.run);
    }
    tasks.spawn(
        "agent",
        agent.run(shutdown.clone()).map_err(anyhow::Error::from),
    );
    let summary = summarize(handle.clone(), manifests, log.limit);
    let summary = shutdown.clone().run_until_cancelled_owned(summary);
    tasks.spawn(SUMMARY_TASK, summary.map(|_| Ok(())));
    let manager = ServiceManager::from_env();

    let run = Run {
        args,
        program,
        handle,
        listeners,
        manager,
    };
    let result = run.until_end(&mut tasks).await;
    run.manager.stopping();
    match &result {
        Ok(()) => info!("shutting down, volumes stay in place"),
        Err(error) => error!(error = %format_args!("{error:#}"), "agent failed, shutting down"),
    }
    shutdown.cancel();
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
        warn!("tasks still running at the shutdown deadline, exiting anyway");
    }
    result?;
    Ok(ExitCode::SUCCESS)
}

/// A running agent and its surroundings.
struct Run<'a> {
    args: &'a RunArgs,
    program: Program,
    handle: AgentHandle,
    /// Moves the HTTP API.
    listeners: mpsc::Sender<Option<TcpListener>>,
    manager: ServiceManager,
}

impl Run<'_> {
    /// Returns after a signal to stop, or with the error of a task that has ended. SIGHUP reloads the configuration.
    async fn until_end(
        &self,
        tasks: &mut JoinMap<&'static str, anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let (stop, mut hangup) = (stop_signal()?, signal(SignalKind::hangup())?);
        let follow = self.manager.follow(&self.handle);
        tokio::pin!(follow, stop);
        let mut reload = OptionFuture::default();
        // Every arm is cancel-safe; `follow` never ends.
        loop {
            tokio::select! {
                () = &mut stop => return Ok(()),
                _ = hangup.recv(), if reload.is_terminated() => {
                    self.manager.reloading();
                    reload = Some(reload::reload(self).boxed_local().fuse()).into();
                }
                Some(()) = &mut reload => self.manager.reloaded(),
                () = &mut follow => {}
                Some((name, ended)) = tasks.join_next() => match ended {
                    Ok(Ok(())) if name == SUMMARY_TASK => {}
                    Ok(Ok(())) => return Err(anyhow!("{name} ended unexpectedly")),
                    Ok(Err(error)) => return Err(error),
                    // Its text is left out: it may quote data.
                    Err(_) => return Err(anyhow!("background task {name:?} panicked")),
                },
            }
        }
    }
}

/// The directory of manifests, unless the pods come from an API server. A flag overrides the file.
fn manifests_of<'a>(args: &'a RunArgs, config: &'a Config) -> Option<&'a PathBuf> {
    let of_file = config.manifests.as_ref();
    let flag = args.manifests.as_ref();
    flag.or(of_file.filter(|_| args.kubeconfig.is_none()))
}

async fn origin(
    args: &RunArgs,
    config: &Config,
    registry: &mut Registry,
    shutdown: &CancellationToken,
) -> Result<AgentOrigin, Failure> {
    if let Some(manifests) = manifests_of(args, config) {
        let started = embedded::start(manifests, args, config, shutdown).await?;
        return Ok(AgentOrigin {
            cluster: None,
            client: started.client.clone(),
            embedded: Some(started),
            _transport: None,
        });
    }
    let kubeconfig = args.kubeconfig.as_ref().or(config.kubeconfig.as_ref());
    let source = agent::origin(kubeconfig.map(PathBuf::as_path), args.context.as_deref());
    let checkpoint = config.checkpoint.as_ref();
    let cluster = if checkpoint.is_some() {
        // Files, which may hang.
        let source = source.clone();
        Some(blocking(move || cluster_id(&source)).await?)
    } else {
        None
    };
    let settings = larder_transport::Config::default().rate_limit(config.rate_limit);
    let metrics =
        larder_transport::Metrics::register(registry.sub_registry_with_prefix("transport"));
    let mut connected = pin!(larder_transport::connect(source, settings, metrics));
    let connected = if let Ok(connected) = timeout(SLOW_CREDENTIALS, &mut connected).await {
        connected
    } else {
        info!("waiting for the credentials of the API server");
        connected.await
    };
    let (client, transport) = connected.map_err(|error| {
        let advice = match kubeconfig {
            Some(_) => "",
            None => " (without a cluster, use --manifests DIR; from outside a cluster, --kubeconfig FILE)",
        };
        Failure::unreadable(format!("{}{advice}", chain(&error)))
    })?;
    Ok(AgentOrigin {
        cluster,
        client,
        embedded: None,
        _transport: Some(transport),
    })
}

/// Waits for the first pass over all pods, for this time at the longest. Returns whether it is done.
async fn is_ready_within(agent: &AgentHandle, limit: Duration) -> bool {
    let ready = async {
        while !agent.is_ready() {
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(limit, ready).await.is_ok()
}

/// Prints what is served, once everything is delivered or the wait is over. Then reports progress until the first pass
/// over all pods is done. After it, redraws what is served on a terminal that can show it as a whole; elsewhere, reports
/// each pod that comes, goes or waits.
async fn summarize(agent: AgentHandle, manifests: Option<PathBuf>, limit: LineLimit) {
    // In both cases: the summary shows what is missing.
    let mut is_ready = is_ready_within(&agent, SUMMARY).await;
    let mut changes = agent.pod_changes();
    let style = output::Style::of_stdout();
    let whole = |overview: &AgentOverview| {
        summary::of(overview, agent.pod_statuses(), manifests.as_deref(), style)
    };
    let mut shown = agent.overview();
    let text = whole(&shown);
    let display = if larder_console::format() == Format::Json {
        Display::Json
    } else if live::fits(&text) {
        Display::Live
    } else {
        // One that the terminal cannot hold would lose lines.
        Display::Lines
    };
    match display {
        Display::Live => live::draw(text),
        Display::Lines => print(text),
        Display::Json => {
            larder_console::report(summary::headline(&shown, output::Style::PLAIN));
            summary::news(&[], &shown.pods, &limit)
                .iter()
                .for_each(summary::PodNews::report);
        }
    }
    while !is_ready {
        let overview = agent.overview();
        let waiting_for = overview.silent_sources.join(", ");
        let (tried, pods) = (overview.tried(), overview.pods.len());
        info!(waiting_for, tried, pods, "first pass under way");
        is_ready = is_ready_within(&agent, PROGRESS).await;
        if is_ready {
            info!("first pass done");
        }
    }
    while changes.changed().await.is_ok() {
        // Changes that belong together are one line.
        sleep(SETTLE).await;
        changes.mark_unchanged();
        let overview = agent.overview();
        let news = || summary::news(&shown.pods, &overview.pods, &limit);
        match display {
            Display::Live => live::draw(whole(&overview)),
            Display::Lines => print(news().iter().map(|news| news.line(style)).collect()),
            Display::Json => news().iter().for_each(summary::PodNews::report),
        }
        shown = overview;
    }
}

/// How what is served is shown.
#[derive(Clone, Copy)]
enum Display {
    /// As a whole, redrawn in place.
    Live,
    /// As a whole once, then by a line for each pod that comes, goes or waits.
    Lines,
    /// By a line for each pod, as those of the log.
    Json,
}

fn print(text: String) {
    // If it is dropped, its lines are counted.
    let _ = larder_console::write(Stream::Out, text.into_bytes());
}
