//! `larder run`: sets up and runs the agent.
//!
//! | module | purpose |
//! | --- | --- |
//! | `beside` | prepares the mode beside a kubelet |
//! | `check` | says what is wrong with configuration and manifests, and starts nothing |
//! | `embedded` | the API server behind `--manifests` |
//! | `http` | serves the HTTP API, and moves it to another address |
//! | `origin` | connects to the API server that the pods come from |
//! | `reload` | applies a changed configuration |
//! | `summary` | prints what is served, and reports what changes |
//! | `systemd` | keeps the service manager informed |

mod beside;
mod check;
mod embedded;
mod http;
mod origin;
mod reload;
mod summary;
mod systemd;

use std::{ffi::OsStr, net::SocketAddr, process::ExitCode, time::Duration};

use anyhow::{Context as _, anyhow};
use clap::{CommandFactory as _, parser::ValueSource};
use futures::{
    FutureExt as _, TryFutureExt as _,
    future::{FusedFuture as _, OptionFuture},
};
use larder_agent::{
    agent::{Agent, AgentHandle, PodDeletion},
    config::{Config, Flags},
    local_api::{self, OwnSocket, Program, StartingApi},
    root_dir::RootDir,
};
use larder_connections::{Acceptor, raise_descriptor_limit};
use larder_objects::chain;
use larder_projection::disk::VolumeHost;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinError,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::JoinMap};
use tracing::{error, info, warn};

use self::{
    origin::{AgentOrigin, manifests_of, origin},
    summary::summarize,
    systemd::ServiceManager,
};
use crate::{
    agent::config,
    args::{Args, RunArgs},
    logging::{self, Log},
    outcome::Failure,
    rendered::project_text,
    runtime::{block_on, stop_signal},
};

/// Name of the one task that may end while the agent runs.
const SUMMARY_TASK: &str = "summary";
/// Time for shutdown: passes under way are finished.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// What runs beside the loop, by name.
type Tasks = JoinMap<&'static str, anyhow::Result<()>>;

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
        let values: Vec<_> = typed.get_raw(id)?.map(OsStr::to_string_lossy).collect();
        Some((flag.get_long()?.to_owned(), values.join(",")))
    });
    flags.collect()
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
    let mut tasks = Tasks::new();
    // They answer before anything is read that may hang.
    let apis = Apis::start(&root, config.listen, &shutdown, &mut tasks).await?;
    let mut registry = Registry::with_prefix("larder");
    let origin = origin(args, &config, &mut registry, &shutdown).await?;
    let program = Program::new(config.clone())
        .flags(typed_flags())
        .log(log.control)
        .projector(project_text)
        .shutdown(shutdown.clone());
    let manifests = manifests_of(args, &config).cloned();
    let agent = agent(args, config, root, volumes, &origin, registry)?;
    let handle = agent.handle();
    apis.agent_is_built(&handle, &program);
    if let Some(embedded) = origin.embedded {
        handle.show_problems_of(embedded.problems);
        handle.show_waits_of(embedded.waits);
        handle.show_notes_of(embedded.notes);
        tasks.spawn("manifest directory", embedded.run);
    }
    let running = agent.run(shutdown.clone());
    tasks.spawn("agent", running.map_err(anyhow::Error::from));
    let summary = summarize(handle.clone(), manifests, log.limit);
    let summary = shutdown.clone().run_until_cancelled_owned(summary);
    tasks.spawn(SUMMARY_TASK, summary.map(|_| Ok(())));

    let run = Run {
        args,
        program,
        handle,
        listeners: apis.listeners,
        manager: ServiceManager::from_env(),
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

/// The local API on its socket and the HTTP API, which answer before there is an agent.
struct Apis {
    socket: StartingApi,
    http: StartingApi,
    /// Moves the HTTP API.
    listeners: mpsc::Sender<Option<TcpListener>>,
}

impl Apis {
    async fn start(
        root: &RootDir,
        address: Option<SocketAddr>,
        shutdown: &CancellationToken,
        tasks: &mut Tasks,
    ) -> anyhow::Result<Self> {
        let (socket, http) = (StartingApi::default(), StartingApi::default());
        if let Err(error) = root.bind_socket() {
            warn!(
                error = chain(&error),
                "`larder status` and `larder exec` do not reach this agent, will retry"
            );
        }
        let acceptor = Acceptor::new(OwnSocket(root.socket()), local_api::socket_limits());
        let server = acceptor.serve(socket.router(), shutdown.clone());
        tasks.spawn("local API", server.map(Ok));
        let listener = http::bind(address).await?;
        let (listeners, moves) = mpsc::channel(1);
        let (router, limits) = (http.router(), local_api::limits());
        let server = http::serve(listener, moves, router, limits, shutdown.clone());
        tasks.spawn("HTTP API", server.map(Ok));
        Ok(Self {
            socket,
            http,
            listeners,
        })
    }

    fn agent_is_built(&self, agent: &AgentHandle, program: &Program) {
        let socket = local_api::socket_router(agent.clone(), program.clone());
        self.socket.agent_is_built(socket);
        let http = local_api::router(agent.clone(), program.clone());
        self.http.agent_is_built(http);
    }
}

/// The agent for the pods of `origin`.
fn agent(
    args: &RunArgs,
    config: Config,
    root: RootDir,
    volumes: VolumeHost,
    origin: &AgentOrigin,
    registry: Registry,
) -> anyhow::Result<Agent> {
    let pod_deletion = if args.end_pods || origin.embedded.is_some() {
        PodDeletion::ByAgent
    } else {
        PodDeletion::External
    };
    if config.checkpoint.is_some() && origin.embedded.is_some() {
        warn!("checkpoint has no effect with manifests: their API server is in this process");
    }
    let mut agent = Agent::builder(config, root, volumes, origin.client.clone())
        .pod_deletion(pod_deletion)
        .registry(registry);
    if let Some(embedded) = &origin.embedded {
        agent = agent
            .hidden_objects(embedded.hidden.clone())
            .kept_objects(embedded.kept.clone());
    }
    if let Some(cluster) = origin.cluster {
        agent = agent.cluster(cluster);
    }
    agent.build().context("cannot use the configuration")
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

/// What a running agent waits for.
enum RunEvent {
    Stop,
    /// SIGHUP came while no reload was under way.
    ReloadRequested,
    Reloaded,
    TaskEnded(&'static str, Result<anyhow::Result<()>, JoinError>),
}

impl Run<'_> {
    /// Returns after a signal to stop, or with the error of a task that has ended. SIGHUP reloads the configuration.
    async fn until_end(&self, tasks: &mut Tasks) -> anyhow::Result<()> {
        let (stop, mut hangup) = (stop_signal()?, signal(SignalKind::hangup())?);
        let follow = self.manager.follow(&self.handle);
        tokio::pin!(follow, stop);
        let mut reload = OptionFuture::default();
        loop {
            // Every arm is cancel-safe.
            let event = tokio::select! {
                () = &mut stop => RunEvent::Stop,
                _ = hangup.recv(), if reload.is_terminated() => RunEvent::ReloadRequested,
                Some(()) = &mut reload => RunEvent::Reloaded,
                never = &mut follow => match never {},
                Some((name, ended)) = tasks.join_next() => RunEvent::TaskEnded(name, ended),
            };
            match event {
                RunEvent::Stop => return Ok(()),
                RunEvent::ReloadRequested => {
                    self.manager.reloading();
                    reload = Some(reload::reload(self).boxed_local().fuse()).into();
                }
                RunEvent::Reloaded => self.manager.reloaded(),
                RunEvent::TaskEnded(SUMMARY_TASK, Ok(Ok(()))) => {}
                RunEvent::TaskEnded(name, Ok(Ok(()))) => {
                    return Err(anyhow!("{name} ended unexpectedly"));
                }
                RunEvent::TaskEnded(_, Ok(Err(error))) => return Err(error),
                // Its text is left out: it may quote data.
                RunEvent::TaskEnded(name, Err(_)) => {
                    return Err(anyhow!("background task {name:?} panicked"));
                }
            }
        }
    }
}
