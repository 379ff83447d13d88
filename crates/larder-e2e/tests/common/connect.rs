//! larder's own transport to a server under test.

use std::path::PathBuf;

use kube::Client;
use larder::transport;

/// A client for whoever the kubeconfig is, on connections of its own.
pub(crate) async fn connect(kubeconfig: PathBuf) -> Client {
    let source = transport::Source::Kubeconfig {
        path: kubeconfig,
        context: None,
    };
    let (config, metrics) = (transport::Config::default(), transport::Metrics::default());
    let (client, _) = transport::connect(source, config, metrics).await.unwrap();
    client
}
