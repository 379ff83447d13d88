//! Change events: a subscriber learns of every change of a referenced object, with the new state ready to be read.
//!
//! ```sh
//! cargo run -p larder --example change_events
//! ```
//!
//! ```toml
//! [dependencies]
//! k8s-openapi = { version = "0.29", features = ["v1_37"] }
//! kube = { version = "5", default-features = false, features = ["client"] }
//! larder = { path = "larder/crates/larder", features = ["latest"] }
//! larder-apiserver = { path = "larder/crates/larder-apiserver" }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use k8s_openapi::api::core::v1::Pod;
use larder::{ChangeKind, ConfigMapManager};
use larder_apiserver::{ApiServer, Options};
use serde_json::{Value, from_value, json};

fn config_map(level: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"level": level}})
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // An API server in memory. With a cluster: `kube::Client::try_default().await?`.
    let server = ApiServer::new(Options::default());
    server.apply(&config_map("info"))?;
    let config_maps = ConfigMapManager::watching(kube::Client::new(server.service(), "default"));
    let pod: Pod = from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "1"},
        "spec": {"containers": [{"name": "web", "envFrom": [{"configMapRef": {"name": "app"}}]}]},
    }))?;

    let mut changes = config_maps.subscribe();
    config_maps.register_pod(&pod);
    for level in ["info", "debug", "trace"] {
        server.apply(&config_map(level))?;
        while let Some(change) = changes.next().await {
            let ChangeKind::Updated = change.kind else {
                println!("{}: {:?}", change.key, change.kind);
                continue;
            };
            let app = config_maps
                .get(&change.key.namespace, &change.key.name)
                .await?;
            println!("{}: level is {}", change.key, app.data["level"]);
            if app.data["level"] == *level {
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
