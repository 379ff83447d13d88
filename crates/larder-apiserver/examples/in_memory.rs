//! A kube client and an API server in one process, without sockets: create, watch, patch.
//!
//! Run it with `cargo run -p larder-apiserver --example in_memory`.
//!
//! ```toml
//! [dependencies]
//! futures = "0.3"
//! k8s-openapi = { version = "0.29", features = ["v1_37"] }
//! kube = { version = "5", default-features = false, features = ["client"] }
//! larder-apiserver = { path = "larder/crates/larder-apiserver" }
//! serde_json = "1"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use larder_apiserver::{ApiServer, Options};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = ApiServer::new(Options::default());
    let maps: Api<ConfigMap> = Api::default_namespaced(Client::new(server.service(), "default"));

    let map = serde_json::from_value(
        json!({"metadata": {"name": "settings"}, "data": {"color": "blue"}}),
    )?;
    let map = maps.create(&PostParams::default(), &map).await?;
    let version = map.metadata.resource_version.unwrap_or_default();
    println!("created settings");

    let watch = WatchParams::default().fields("metadata.name=settings");
    let mut events = maps.watch(&watch, &version).await?.boxed();
    let patch = Patch::Merge(json!({"data": {"color": "red"}}));
    maps.patch("settings", &PatchParams::default(), &patch)
        .await?;

    // The server runs no task: reading the watch drives it.
    match events.try_next().await? {
        Some(WatchEvent::Modified(map)) => {
            println!("changed to {:?}", map.data.unwrap_or_default()["color"]);
        }
        other => return Err(format!("expected a change, got {other:?}").into()),
    }
    Ok(())
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
