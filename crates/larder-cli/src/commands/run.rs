//! `larder run`: the agent, wired.

mod summary;

use std::{io, net::SocketAddr, path::Path, time::Duration};

use anyhow::Context as _;
use kube::Client;
use larder_agent::{
    agent::{Agent, AgentHandle, PodEnd},
    clock::Clock,
    config::{Config, Flags, Host},
    feed::Feed,
    local_api, node,
    root_dir::RootDir,
};
use larder_apiserver::{ApiServer, Options};
use larder_objects::chain;
use larder_projection::disk::VolumeHost;
use prometheus_client::registry::Registry;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Failure, Outcome};
use crate::{
    args::{PlaceArgs, RunArgs},
    logging, output,
};

/// When at the latest the user is told what is served, even if something is still missing.
const SUMMARY: Duration = Duration::from_millis(1500);
/// Between two looks whether everything is there.
const LOOK: Duration = Duration::from_millis(20);
/// How long the end may take: passes under way are finished.
const END: Duration = Duration::from_secs(10);
/// Threads for work that waits for a disk, a name server or a credential plugin. More of them would not make a disk faster, and each that
/// has ever run keeps an arena of the allocator; without this limit as many start as there are pods.
const BLOCKING_THREADS: usize = 4;

pub(super) fn run(args: RunArgs) -> Result<Outcome, Failure> {
    logging::start(args.log_format);
    let flags = Flags {
        node_name: args.node_name.clone(),
        listen: args.listen,
        change_detection: args.change_detection,
        watch_scope: args.watch_scope,
        ..Flags::default()
    };
    let config = config(&args.place, flags)?;
    // One thread has time enough for all that waits for the network, and memory that it frees is used again for whatever comes next.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(&args, config))
}

/// The configuration of file and flags.
pub(super) fn config(place: &PlaceArgs, flags: Flags) -> Result<Config, Failure> {
    let flags = Flags {
        root_dir: place.root_dir.clone(),
        ..flags
    };
    let (config, warning) = Config::load(place.config.as_deref(), flags, &Host::current())
        .map_err(|error| Failure::unreadable(chain(&error)))?;
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    Ok(config)
}

/// Where the pods come from.
struct Origin {
    client: Client,
    /// The directory behind an embedded API server.
    feed: Option<Feed>,
    /// Keeps the connections.
    _transport: Option<larder_transport::Transport>,
}

async fn serve(args: &RunArgs, config: Config) -> Result<Outcome, Failure> {
    let root = RootDir::lock(&config.root_dir).context("cannot use the root directory")?;
    let volumes = VolumeHost::open(root.path()).context("cannot use the root directory")?;
    let socket = local_api::bind_socket(&root.socket());
    let mut registry = Registry::with_prefix("larder");
    let origin = origin(args, &config, &mut registry).await?;
    let listener = listener(config.listen).await?;
    let pod_end = if origin.feed.is_some() {
        PodEnd::Agent
    } else {
        PodEnd::Elsewhere
    };
    let mut agent = Agent::build(
        config,
        root,
        volumes,
        origin.client,
        pod_end,
        Clock::system(),
        registry,
    )
    .context("cannot use the configuration")?;
    if let Some(feed) = &origin.feed {
        agent = agent.with_gaps(feed.hides());
    }
    let handle = agent.handle();

    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    match socket {
        Ok(socket) => {
            tasks.spawn(told(
                "the local API",
                local_api::serve_unix(
                    socket,
                    local_api::socket_router(handle.clone()),
                    shutdown.clone(),
                ),
            ));
        }
        Err(error) => warn!(
            error = chain(&error),
            "`larder status` and `larder exec` will not reach this agent"
        ),
    }
    if let Some(listener) = listener {
        info!(address = %listener.local_addr()?, "listening");
        tasks.spawn(told(
            "the HTTP API",
            local_api::serve_tcp(
                listener,
                local_api::router(handle.clone()),
                shutdown.clone(),
            ),
        ));
    }
    if let Some(feed) = origin.feed {
        handle.show_problems_of(feed.problems());
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            shutdown.run_until_cancelled(feed.run()).await;
        });
    }
    tasks.spawn(agent.run(shutdown.clone()));
    {
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            shutdown.run_until_cancelled(summarize(handle)).await;
        });
    }

    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let mut signalled = false;
    loop {
        // Every arm is cancel-safe.
        tokio::select! {
            _ = interrupt.recv() => signalled = true,
            _ = terminate.recv() => signalled = true,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
        if signalled {
            break;
        }
    }
    info!("ending, volumes stay");
    shutdown.cancel();
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(END, all).await.is_err() {
        warn!("something is still under way, ending all the same");
    }
    Ok(Outcome::Done)
}

async fn listener(address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    Ok(Some(listener))
}

/// Runs a server; its failure is told, and is no reason to stop serving pods.
async fn told(what: &'static str, server: impl Future<Output = io::Result<()>>) {
    if let Err(error) = server.await {
        warn!(%error, "{what} has failed");
    }
}

async fn origin(
    args: &RunArgs,
    config: &Config,
    registry: &mut Registry,
) -> Result<Origin, Failure> {
    if let Some(manifests) = &args.manifests {
        return embedded(manifests, config).await;
    }
    let source = match &args.kubeconfig {
        Some(path) => larder_transport::Source::Kubeconfig {
            path: path.clone(),
            context: args.context.clone(),
        },
        None => larder_transport::Source::InCluster,
    };
    let settings = larder_transport::Config {
        rate_limit: config.rate_limit,
        ..larder_transport::Config::default()
    };
    let metrics =
        larder_transport::Metrics::register(registry.sub_registry_with_prefix("transport"));
    let connected = larder_transport::connect(source, settings, metrics).await;
    let (client, transport) = connected.map_err(|error| {
        let advice = match args.kubeconfig {
            Some(_) => "",
            None => " (to serve pods without a cluster, give --manifests DIR; to reach one from outside, --kubeconfig FILE)",
        };
        Failure::unreadable(format!("{}{advice}", chain(&error)))
    })?;
    Ok(Origin {
        client,
        feed: None,
        _transport: Some(transport),
    })
}

/// An API server in this process, filled from `manifests`.
async fn embedded(manifests: &Path, config: &Config) -> Result<Origin, Failure> {
    let server = ApiServer::new(Options::default());
    server
        .apply(&node::of_this_host(&config.node_name))
        .context("cannot create the Node")?;
    let feed = Feed::open(manifests, server.clone(), Some(config.node_name.clone()))
        .await
        .map_err(|error| Failure::unreadable(chain(&error)))?;
    Ok(Origin {
        client: Client::new(server.service(), "default"),
        feed: Some(feed),
        _transport: None,
    })
}

/// Tells what is served, as soon as everything is there or will not be soon.
async fn summarize(agent: AgentHandle) {
    let ready = async {
        while !agent.is_ready() {
            sleep(LOOK).await;
        }
    };
    // Either way: what is missing is part of the summary.
    let _ = timeout(SUMMARY, ready).await;
    let text = summary::of(&agent.status(), output::Style::of_stdout());
    // Nobody may be reading, which is no reason to stop.
    let _ = output::results(|out| out.write_all(text.as_bytes()));
}
