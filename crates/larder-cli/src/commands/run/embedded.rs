//! The API server in this process that `--manifests` fills.

use std::{path::Path, sync::Arc};

use futures::future::BoxFuture;
use kube::Client;
use larder_agent::config::Config;
use larder_objects::manifest::{HiddenObjects, KeptObjects};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{args::RunArgs, outcome::Failure};

/// An API server in this process, and the directory that fills it.
pub(super) struct Embedded {
    pub(super) client: Client,
    /// What the manifests may hold that have been rejected since the start.
    pub(super) hidden: watch::Receiver<Arc<HiddenObjects>>,
    /// The objects whose newest manifest is rejected.
    pub(super) kept: watch::Receiver<Arc<KeptObjects>>,
    /// The problems of the manifests.
    pub(super) problems: watch::Receiver<Arc<[String]>>,
    /// The manifests whose disks do not answer.
    pub(super) waits: watch::Receiver<Arc<[String]>>,
    /// What is no problem, but may be unexpected.
    pub(super) notes: watch::Receiver<Arc<[String]>>,
    /// Follows the directory, and serves kubectl if it is let in, until the shutdown.
    pub(super) run: BoxFuture<'static, anyhow::Result<()>>,
}

#[cfg(not(feature = "manifests"))]
pub(super) const NONE: &str =
    "this build of larder has no embedded API server, so manifests cannot be served";

#[cfg(not(feature = "manifests"))]
#[expect(clippy::unused_async, reason = "as the one that starts a server")]
pub(super) async fn start(
    _: &Path,
    _: &RunArgs,
    _: &Config,
    _: &CancellationToken,
) -> Result<Embedded, Failure> {
    Err(Failure::unreadable(NONE))
}

/// Starts the server with the Node and the objects of `manifests`. Pods get the address of the settings, unless they
/// have one. With `--kubeconfig-out`, kubectl is let in: the server listens on loopback, over TLS, and the
/// kubeconfig of an administrator is in that file.
///
/// # Errors
///
/// The directory cannot be read, or the kubeconfig cannot be written.
#[cfg(feature = "manifests")]
pub(super) async fn start(
    manifests: &Path,
    args: &RunArgs,
    config: &Config,
    shutdown: &CancellationToken,
) -> Result<Embedded, Failure> {
    use std::net::Ipv4Addr;

    use anyhow::Context as _;
    use futures::FutureExt as _;
    use larder_agent::root_dir::RootDir;
    use larder_apiserver::{ApiServer, Options, Protocol};
    use tracing::info;

    use crate::{kubeconfig_file::KubeconfigFile, runtime::listen};

    // Pods may mount what the controllers of a cluster put into each namespace.
    let server = ApiServer::try_new(Options::default().fill_namespaces(true))
        .context("cannot create the certificates")?;
    server
        .apply(&larder_agent::node::of_this_host(&config.node_name))
        .context("cannot create the Node")?;
    let placement = larder_manifests::Placement {
        node_name: config.node_name.clone(),
        pod_address: args.pod_address.or(config.pod_address),
    };
    let record = config.root_dir.join(RootDir::ACCEPTED);
    let feed =
        larder_manifests::Feed::open(manifests, server.clone(), Some(placement), Some(&record))
            .await
            .map_err(Failure::of_input)?;
    let serving = if let Some(path) = &args.kubeconfig_out {
        let (listener, address) = listen((Ipv4Addr::LOCALHOST, 0).into()).await?;
        // The listener accepts connections already.
        let file = KubeconfigFile::of_admin(path, &server, address)?;
        info!(kubeconfig = %path.display(), %address, "kubectl can use the embedded API server");
        let (server, shutdown) = (server.clone(), shutdown.clone());
        let serving = async move {
            let result = server.serve(listener, Protocol::Tls, shutdown).await;
            drop(file);
            result.context("the embedded API server ended")
        };
        serving.boxed()
    } else {
        std::future::ready(Ok(())).boxed()
    };
    let (hidden, problems, waits) = (feed.hidden_objects(), feed.problems(), feed.waits());
    let (kept, notes) = (feed.kept_objects(), feed.notes());
    let following = shutdown
        .clone()
        .run_until_cancelled_owned(feed.run())
        .map(|_| Ok(()));
    Ok(Embedded {
        client: Client::new(server.service(), "default"),
        hidden,
        kept,
        problems,
        waits,
        notes,
        run: async { futures::try_join!(following, serving).map(drop) }.boxed(),
    })
}
