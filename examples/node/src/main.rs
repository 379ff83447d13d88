//! A node agent in one process: larder delivers ConfigMaps and Secrets, this crate runs the containers.
//!
//! ```text
//! API server ──► larder-agent: pods, managers, projection, writer ──► volumes and env.json on disk
//!     ▲                 │ status of each part                               │
//!     │                 ▼                                                   ▼ mounts
//!     └── status ── pod: one worker for each pod ── container ──► stage ──► process in namespaces
//!                                                       ▲
//!     logs, exec ────────────────────────────────── server (HTTPS)
//! ```
//!
//! An author of a virtual kubelet replaces `container`, `stage` and `image`, and keeps the order of steps in `pod`:
//! addresses first, then each container as soon as its own parts are delivered. `docs/api.md` has the rules.
//!
//! It is an example, and no sandbox: containers are processes of root in namespaces of their own, with the network of
//! the machine. It has no probes, no lifecycle hooks, no sidecars, no resource limits, and no leases.

mod container;
mod image;
mod node;
mod pod;
mod registry;
mod server;
mod stage;
mod status;
mod websocket;

use std::{
    env, fs,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig};
use larder_agent::{
    agent::Agent,
    config::{Config, Flags, Host},
    root_dir::RootDir,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::{node::Node, registry::Registry, server::Server};

/// Runs the pods of one node as processes.
#[derive(Debug, Parser)]
struct Arguments {
    /// Kubeconfig of the node's identity, system:node:NAME
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Name of the node
    #[arg(long)]
    node_name: String,
    /// Address of the node, which its pods have too
    #[arg(long, default_value = "127.0.0.1")]
    node_ip: IpAddr,
    /// Directory for volumes, images and logs
    #[arg(long)]
    root_dir: PathBuf,
    /// Directory of image archives, as docker save writes them; busybox.tar is the image of any registry/busybox:TAG
    #[arg(long)]
    images: PathBuf,
    /// Address and port for logs and exec
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Certificate for logs and exec; without it, neither is served
    #[arg(long, requires_all = ["tls_private_key_file", "client_ca_file"])]
    tls_cert_file: Option<PathBuf>,
    /// Key of the certificate
    #[arg(long)]
    tls_private_key_file: Option<PathBuf>,
    /// Authority of the API server's certificate as a client. Each of its clients can run commands in containers
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    // Before there are threads: a process with one thread can change its namespaces.
    if env::args_os()
        .nth(1)
        .is_some_and(|word| word == stage::STAGE)
    {
        return Ok(stage::run());
    }
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_env("LARDER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.with_env_filter(filter).init();
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    runtime.block_on(run(arguments))?;
    Ok(ExitCode::SUCCESS)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let file = &arguments.kubeconfig;
    let kubeconfig =
        Kubeconfig::read_from(file).with_context(|| format!("cannot read {}", file.display()))?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let client = kube::Client::try_from(config)?;

    let images = image::unpack_all(&arguments.images, &arguments.root_dir.join("images"))?;
    let containers = arguments.root_dir.join("containers");
    fs::create_dir_all(&containers)
        .with_context(|| format!("cannot create {}", containers.display()))?;

    let flags = Flags {
        root_dir: Some(arguments.root_dir.join("larder")),
        node_name: Some(arguments.node_name.clone()),
        ..Flags::default()
    };
    let (config, _warnings) = Config::load(None, flags, &Host::current())?;
    let root = RootDir::lock(&config.root_dir)?;
    let volumes = root.volumes()?;
    let agent = Agent::builder(config, root, volumes, client.clone()).build()?;

    let registry = Arc::new(Registry::default());
    let tls = [
        &arguments.tls_cert_file,
        &arguments.tls_private_key_file,
        &arguments.client_ca_file,
    ];
    let tls = tls.map(|file| file.as_deref());
    let server = Server::bind(arguments.listen, tls, Arc::clone(&registry)).await?;
    let node = Arc::new(Node {
        client,
        agent: agent.handle(),
        name: arguments.node_name,
        ip: arguments.node_ip,
        images,
        containers,
        registry,
    });
    node.register(server.port()).await?;
    info!(node = node.name, port = server.port(), "node is ready");

    let shutdown = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = agent.run(shutdown.clone()) => Ok(ended?),
        () = pod::run_all(node) => Ok(()),
        () = server.run() => Ok(()),
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
