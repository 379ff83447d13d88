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
//! the machine. It has no probes, no lifecycle hooks, no sidecars, no resource limits, and no leases. Logs are not
//! followed, and are no termination message.

mod container;
mod image;
mod node;
mod pod;
mod server;
mod stage;
mod status;
mod websocket;

use std::{
    env, fs::DirBuilder, net::IpAddr, os::unix::fs::DirBuilderExt as _, path::PathBuf,
    process::ExitCode, sync::Arc,
};

use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig};
use larder_agent::{
    agent::Agent,
    config::{Config, Flags, Host},
    root_dir::RootDir,
};
use parking_lot::Mutex;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::{node::Node, server::TlsListener, stage::STAGE};

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
    /// Certificate for logs and exec
    #[arg(long)]
    tls_cert_file: PathBuf,
    /// Key of the certificate
    #[arg(long)]
    tls_private_key_file: PathBuf,
    /// Authority of the API server's certificate as a client
    #[arg(long)]
    client_ca_file: PathBuf,
    /// Common name of that certificate; only this client can read logs and run commands in containers
    #[arg(long, default_value = "kube-apiserver-kubelet-client")]
    client_name: String,
}

fn main() -> anyhow::Result<ExitCode> {
    // Before there are threads: a process with one thread can change its namespaces.
    if env::args_os().nth(1).is_some_and(|word| word == STAGE) {
        return Ok(stage::run());
    }
    let filter = EnvFilter::try_from_env("LARDER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_writer(std::io::stderr);
    log.with_env_filter(filter).init();
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(run(Arguments::parse()))?;
    Ok(ExitCode::SUCCESS)
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let kubeconfig = Kubeconfig::read_from(&arguments.kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    let client = kube::Client::try_from(config)?;
    let flags = Flags {
        root_dir: Some(arguments.root_dir.join("larder")),
        node_name: Some(arguments.node_name.clone()),
        ..Flags::default()
    };
    let (config, _warnings) = Config::load(None, flags, &Host::current())?;
    let root = RootDir::lock(&config.root_dir)?;
    let volumes = root.volumes()?;
    let agent = Agent::builder(config, root, volumes, client.clone()).build()?;

    let directory = arguments.root_dir.join("containers");
    let mut private = DirBuilder::new();
    private.recursive(true).mode(0o700).create(&directory)?;
    let (certificate, key) = (&arguments.tls_cert_file, &arguments.tls_private_key_file);
    let files = [certificate, key, &arguments.client_ca_file];
    let listener = TlsListener::bind(arguments.node_ip, files, &arguments.client_name).await?;
    let port = listener.socket.local_addr()?.port();
    let node = Arc::new(Node {
        client,
        agent: agent.handle(),
        name: arguments.node_name,
        ip: arguments.node_ip,
        images: image::unpack_all(&arguments.images, &arguments.root_dir.join("images"))?,
        directory,
        entries: Mutex::default(),
        commands: TaskTracker::new(),
    });
    node.register(port).await?;
    info!(node = node.name, port, "node is ready");

    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = agent.run(CancellationToken::new()) => ended?,
        ended = server::serve(listener, Arc::clone(&node)) => ended?,
        () = pod::run_all(node) => {}
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}
