//! The agent's configuration, from file and flags.

use std::path::Path;

use larder_agent::{
    checkpoint::ClusterId,
    config::{Config, Flags, Host},
};
use larder_transport::{ClusterSource, Config as Settings, Metrics, RateLimit, Transport};
use rustix::process::geteuid;
use tracing::warn;

use super::root_dir;
use crate::{args::PlaceArgs, outcome::Failure, output};

/// The configuration of the packaged agent.
const PACKAGED: &str = "/etc/larder/agent.yaml";

/// The configuration of an agent that is about to run. Creates the default root directory of an ordinary user.
///
/// # Errors
///
/// The configuration is unreadable or invalid, or another user controls the default root directory.
pub(crate) fn config(place: &PlaceArgs, flags: Flags) -> Result<Config, Failure> {
    let (config, warning) = load_config(place.config.as_deref(), place, flags)?;
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    if root_dir::is_shared_default(&config.root_dir) {
        root_dir::create(&config.root_dir)?;
    }
    Ok(config)
}

/// The configuration of an agent that runs already. For root, that is the packaged one by default.
///
/// # Errors
///
/// The configuration is unreadable or invalid.
pub(crate) fn client_config(place: &PlaceArgs) -> Result<Config, Failure> {
    config_with(place, Flags::default())
}

/// The configuration of an agent that need not run, under `flags`. For root, that is the packaged one by default.
///
/// # Errors
///
/// The configuration is unreadable or invalid.
pub(crate) fn config_with(place: &PlaceArgs, flags: Flags) -> Result<Config, Failure> {
    let is_default = place.config.is_none() && place.root_dir.is_none();
    let packaged = Path::new(PACKAGED);
    let is_packaged = is_default && geteuid().is_root() && packaged.exists();
    let file = place.config.as_deref().or(is_packaged.then_some(packaged));
    let (config, warning) = load_config(file, place, flags)?;
    if let Some(warning) = warning {
        output::note(format_args!("warning: {warning}"));
    }
    Ok(config)
}

/// The API server that `kubeconfig` names, or that of the cluster around this process.
pub(crate) fn origin(kubeconfig: Option<&Path>, context: Option<&str>) -> ClusterSource {
    match kubeconfig {
        Some(path) => ClusterSource::Kubeconfig {
            path: path.to_owned(),
            context: context.map(str::to_owned),
        },
        None => ClusterSource::InCluster,
    }
}

/// The namespace of objects that name none: `given`, or that of the kubeconfig's context, as kubectl has it.
///
/// # Errors
///
/// The kubeconfig is invalid.
pub(crate) fn default_namespace(
    given: Option<&str>,
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<String, Failure> {
    match (given, kubeconfig) {
        (Some(given), _) => Ok(given.to_owned()),
        (None, None) => Ok("default".to_owned()),
        (None, Some(_)) => origin(kubeconfig, context)
            .namespace()
            .map_err(Failure::of_input),
    }
}

/// A client of the API server `source`; the second keeps its connections.
///
/// # Errors
///
/// It cannot be reached, or the kubeconfig is invalid.
pub(crate) async fn connect(source: ClusterSource) -> Result<(kube::Client, Transport), Failure> {
    // A person waits for the command; the API server has limits of its own.
    let settings = Settings::default().rate_limit(RateLimit::Unlimited);
    larder_transport::connect(source, settings, Metrics::default())
        .await
        .map_err(Failure::of_input)
}

/// The cluster that a checkpoint is bound to.
///
/// # Errors
///
/// The kubeconfig, or the certificates that it names, are unreadable or invalid.
pub(crate) fn cluster_id(source: &ClusterSource) -> Result<ClusterId, Failure> {
    let (authority, name) = source.server_identity().map_err(Failure::of_input)?;
    Ok(ClusterId::new(&authority, &name))
}

/// The configuration in `file`, under the flags, and a warning.
///
/// # Errors
///
/// The configuration is unreadable or invalid.
pub(crate) fn load_config(
    file: Option<&Path>,
    place: &PlaceArgs,
    flags: Flags,
) -> Result<(Config, Option<String>), Failure> {
    let flags = Flags {
        root_dir: place.root_dir.clone(),
        ..flags
    };
    Config::load(file, flags, &Host::current()).map_err(Failure::of_input)
}
