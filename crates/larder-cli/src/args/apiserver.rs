//! The arguments of `larder apiserver`.

use std::{net::SocketAddr, path::PathBuf};

use clap::ValueHint;
use larder_agent::config::listen_address;

use super::values::LogFormat;

/// Run the embedded API server over TLS, for tests and for kubectl
///
/// It serves Namespaces, Nodes, Pods, ConfigMaps, Secrets, Services, ServiceAccounts, Events, ClusterTrustBundles,
/// PodCertificateRequests, Leases and CSIDrivers. All objects are in memory, and are lost when the server exits on
/// Ctrl-C or SIGTERM.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder apiserver --kubeconfig-out kubeconfig
  larder apiserver --manifests k8s/ --kubeconfig-out kubeconfig --audit-log audit.jsonl
  kubectl --kubeconfig kubeconfig get pods -A")]
pub(crate) struct ApiserverArgs {
    /// Address and port to listen on; with port 0, a free port is chosen, printed and written to the kubeconfig
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0", value_parser = listen_address)]
    pub(crate) listen: SocketAddr,

    /// Write an administrator's kubeconfig to FILE, atomically, once the server is ready; remove it on exit
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig_out: Option<PathBuf>,

    /// Load the manifests in DIR, and follow their edits
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) manifests: Option<PathBuf>,

    /// Append one JSON object to FILE for each request: time, verb, path, query, user_agent, status
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) audit_log: Option<PathBuf>,

    /// Log format on standard error; LARDER_LOG sets the filter, e.g. debug or larder=trace
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}
