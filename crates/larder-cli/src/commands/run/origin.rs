//! Where the pods of an agent come from: an API server, or one in this process that manifests fill.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use kube::Client;
use larder_agent::{checkpoint::ClusterId, config::Config};
use larder_objects::chain;
use larder_transport::{ClusterSource, Transport, blocking::blocking};
use prometheus_client::registry::Registry;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::embedded::{self, Embedded};
use crate::{
    agent::{self, cluster_id},
    args::RunArgs,
    outcome::Failure,
};

/// Time after which the log says that credentials are awaited.
const SLOW_CREDENTIALS: Duration = Duration::from_millis(500);

/// The API server that the pods come from.
pub(super) struct AgentOrigin {
    pub(super) client: Client,
    /// The cluster that a checkpoint is bound to; `None` without a checkpoint.
    pub(super) cluster: Option<ClusterId>,
    /// The embedded API server, if pods come from manifests.
    pub(super) embedded: Option<Embedded>,
    /// Keeps the connections.
    _transport: Option<Transport>,
}

/// The directory of manifests, unless the pods come from an API server. A flag overrides the file.
pub(super) fn manifests_of<'a>(args: &'a RunArgs, config: &'a Config) -> Option<&'a PathBuf> {
    let of_file = config.manifests.as_ref();
    args.manifests
        .as_ref()
        .or(of_file.filter(|_| args.kubeconfig.is_none()))
}

/// Connects to the API server of a kubeconfig, of the pod that this runs in, or starts one for manifests.
///
/// # Errors
///
/// What says where the API server is cannot be read.
pub(super) async fn origin(
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
    let source = source(args, config);
    let checkpoint = config.checkpoint.as_ref();
    let cluster = if checkpoint.is_some() {
        // Files, which may hang.
        let source = source.clone();
        Some(blocking(move || cluster_id(&source)).await?)
    } else {
        None
    };
    let (client, transport) = connect(source, args, config, registry).await?;
    Ok(AgentOrigin {
        cluster,
        client,
        embedded: None,
        _transport: Some(transport),
    })
}

fn source(args: &RunArgs, config: &Config) -> ClusterSource {
    let kubeconfig = args.kubeconfig.as_ref().or(config.kubeconfig.as_ref());
    agent::origin(kubeconfig.map(PathBuf::as_path), args.context.as_deref())
}

/// Reads a kubeconfig that is named, and its credentials, as [`origin`] does. Sends nothing to the API server. Without one,
/// the pod is known in which the agent will run. `/dev/null` stands for none: where credentials cannot be read, as in a
/// reload under systemd, the configuration is checked alone.
pub(super) async fn check(args: &RunArgs, config: &Config) -> Result<(), Failure> {
    let kubeconfig = args.kubeconfig.as_ref().or(config.kubeconfig.as_ref());
    if kubeconfig.is_none_or(|path| path == Path::new("/dev/null")) {
        return Ok(());
    }
    let mut registry = Registry::default();
    connect(source(args, config), args, config, &mut registry).await?;
    Ok(())
}

async fn connect(
    source: ClusterSource,
    args: &RunArgs,
    config: &Config,
    registry: &mut Registry,
) -> Result<(Client, Transport), Failure> {
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
    connected.map_err(|error| {
        let advice = match args.kubeconfig.as_ref().or(config.kubeconfig.as_ref()) {
            Some(_) => "",
            None => " (without a cluster, use --manifests DIR; from outside a cluster, --kubeconfig FILE)",
        };
        Failure::unreadable(format!("{}{advice}", chain(&error)))
    })
}
