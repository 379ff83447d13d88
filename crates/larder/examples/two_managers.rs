//! Two managers: a pod is registered, and what it references can be read.
//!
//! ```sh
//! cargo run -p larder --example two_managers
//! ```
//!
//! A program like `read` depends on larder and tokio alone. The rest here is an API server in memory.
//!
//! ```toml
//! [dependencies]
//! larder = { path = "larder/crates/larder", features = ["latest"] }
//! larder-apiserver = { path = "larder/crates/larder-apiserver" }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use larder::{
    ConfigMapManager, Error, SecretManager, k8s_openapi::api::core::v1::Pod, kube::Client,
};
use larder_apiserver::{ApiServer, Options};
use serde_json::{from_value, json};

async fn read(client: Client, pod: &Pod) -> Result<(), Error> {
    let config_maps = ConfigMapManager::watching(client.clone());
    let secrets = SecretManager::watching(client);
    config_maps.register_pod(pod);
    secrets.register_pod(pod);

    let app = config_maps.get("default", "app").await?;
    let tls = secrets.get("default", "tls").await?;
    let level = &app.data["level"];
    println!("level={level}, keys of tls: {}", tls.data.len());
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // With a cluster: `Client::try_default().await?`.
    let server = ApiServer::new(Options::default());
    server.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"level": "debug"}}))?;
    server.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "stringData": {"key": "s3cret"}}))?;
    let pod: Pod = from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "1"},
        "spec": {
            "containers": [{"name": "web", "envFrom": [{"configMapRef": {"name": "app"}}]}],
            "volumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        },
    }))?;
    read(Client::new(server.service(), "default"), &pod).await?;
    Ok(())
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
