//! Two managers: a pod is registered, and what it references can be read.
//!
//! ```sh
//! cargo run -p larder --example two_managers
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use k8s_openapi::api::core::v1::Pod;
use larder::{ConfigMapManager, SecretManager};
use larder_apiserver::{ApiServer, Options};
use serde_json::{from_value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // An API server in memory. With a cluster: `kube::Client::try_default().await?`.
    let server = ApiServer::new(Options::default());
    server.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"level": "debug"}}))?;
    server.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "stringData": {"key": "s3cret"}}))?;
    let client = kube::Client::new(server.service(), "default");

    let config_maps = ConfigMapManager::watching(client.clone());
    let secrets = SecretManager::watching(client);
    let pod: Pod = from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "1"},
        "spec": {
            "containers": [{"name": "web", "envFrom": [{"configMapRef": {"name": "app"}}]}],
            "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        },
    }))?;
    config_maps.register_pod(&pod);
    secrets.register_pod(&pod);

    let app = config_maps.get("default", "app").await?;
    let tls = secrets.get("default", "tls").await?;
    println!(
        "level={}, keys of tls: {}",
        app.data["level"],
        tls.data.len()
    );
    Ok(())
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
