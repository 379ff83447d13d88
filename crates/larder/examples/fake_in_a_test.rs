//! A fake manager in a unit test of code that uses one: no API server, no waiting.
//!
//! ```sh
//! cargo test -p larder --example fake_in_a_test
//! ```
//!
//! ```toml
//! [dependencies]
//! k8s-openapi = { version = "0.29", features = ["v1_37"] }
//! larder = { path = "larder/crates/larder", features = ["latest"] }
//! larder-objects = { path = "larder/crates/larder-objects" }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use k8s_openapi::api::core::v1::Pod;
use larder::ConfigMapManager;
use larder_objects::{ConfigMap, ObjectMeta};
use serde_json::{from_value, json};

/// The code under test: the log level that a pod's ConfigMap asks for.
async fn log_level(
    config_maps: &ConfigMapManager,
    namespace: &str,
) -> Result<String, larder::Error> {
    let app = config_maps.get(namespace, "app").await?;
    Ok(app
        .data
        .get("level")
        .map_or_else(|| "info".to_owned(), ToString::to_string))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let (config_maps, objects) = ConfigMapManager::fake();
    let pod: Pod = from_value(json!({
        "metadata": {"namespace": "prod", "name": "web", "uid": "1"},
        "spec": {"containers": [{"name": "web", "envFrom": [{"configMapRef": {"name": "app"}}]}]},
    }))?;
    config_maps.register_pod(&pod);

    let missing = log_level(&config_maps, "prod").await;
    println!(
        "without the object: {}",
        missing.expect_err("the object does not exist")
    );

    objects.set(ConfigMap {
        metadata: ObjectMeta {
            namespace: "prod".into(),
            name: "app".into(),
            ..ObjectMeta::default()
        },
        data: [("level", "debug".into())].into(),
        ..ConfigMap::default()
    });
    println!("with it: {}", log_level(&config_maps, "prod").await?);
    Ok(())
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
