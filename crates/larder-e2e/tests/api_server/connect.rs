//! larder's own transport to a server under test.

use std::path::PathBuf;

use kube::Client;

/// A client with the identity of the kubeconfig, on connections of its own.
pub(crate) async fn connect(kubeconfig: PathBuf) -> Client {
    let source = larder_transport::ClusterSource::Kubeconfig {
        path: kubeconfig,
        context: None,
    };
    let (config, metrics) = (
        larder_transport::Config::default(),
        larder_transport::Metrics::default(),
    );
    let (client, _) = larder_transport::connect(source, config, metrics)
        .await
        .unwrap();
    client
}
