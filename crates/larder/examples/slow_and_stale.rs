//! A test of code that uses a manager, on an API server that is slow, falls behind, and fails: delays, stale copies,
//! outages. For code that needs none of these, `fake_in_a_test` is simpler.
//!
//! ```sh
//! cargo test -p larder --example slow_and_stale
//! ```
//!
//! ```toml
//! [dependencies]
//! k8s-openapi = { version = "0.29", features = ["v1_37"] }
//! kube = { version = "5", default-features = false, features = ["client"] }
//! larder = { path = "larder/crates/larder", features = ["latest"] }
//! larder-apiserver = { path = "larder/crates/larder-apiserver", features = ["faults"] }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "test-util", "time"] }
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use larder::ConfigMapManager;
use larder_apiserver::{ApiServer, Fault, Options, Verb};
use serde_json::{Value, from_value, json};
use tokio::time::{Instant, sleep};

/// The server runs no task, and time is paused: it passes at once where all wait for it.
#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = ApiServer::new(Options::default());
    server.apply(&config_map("info"))?;
    let config_maps = ConfigMapManager::watching(kube::Client::new(server.service(), "default"));
    let pod: Pod = from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "1"},
        "spec": {"containers": [{"name": "web", "envFrom": [{"configMapRef": {"name": "app"}}]}]},
    }))?;

    // Slow: the first answer takes half a second.
    let delay = Duration::from_millis(500);
    let slow = Fault::on(Verb::Watch).times(1).delay(delay);
    server.faults().inject(slow);
    let start = Instant::now();
    let registered = config_maps.registered(&pod);
    assert_eq!(level(&*registered.get("app").await?), "info");
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());

    // Stale: the object has changed, and its watch does not say so yet. Readers get the old copy, as from a cache that
    // lags behind.
    let paused = server.faults().pause_delivery();
    server.apply(&config_map("debug"))?;
    assert_eq!(level(&*registered.get("app").await?), "info");
    drop(paused);
    while level(&*registered.get("app").await?) != "debug" {
        sleep(Duration::from_millis(1)).await;
    }

    // Away: what was read stays readable.
    server.faults().inject(Fault::on_any().status(503));
    server.faults().cut_watches();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(level(&*registered.get("app").await?), "debug");
    println!("slow, stale and away: each as the test expects");
    Ok(())
}

fn config_map(level: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "default", "name": "app"}, "data": {"level": level},
    })
}

fn level(object: &larder::ConfigMap) -> String {
    object
        .data
        .get("level")
        .map(ToString::to_string)
        .unwrap_or_default()
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
