//! Pods of one's own source, as a virtual kubelet has them: their objects come from the API server through the
//! managers, their volumes go to disk. What is missing fails as in the kubelet. No agent runs.
//!
//! ```sh
//! cargo run -p larder-agent --example own_pods
//! ```
//!
//! ```toml
//! [dependencies]
//! jiff = "0.2"
//! k8s-openapi = { version = "0.29", features = ["v1_37"] }
//! kube = { version = "5", default-features = false, features = ["client"] }
//! larder = { path = "larder/crates/larder", features = ["latest", "projection"] }
//! larder-apiserver = { path = "larder/crates/larder-apiserver" }
//! larder-objects = { path = "larder/crates/larder-objects" }
//! larder-projection = { path = "larder/crates/larder-projection" }
//! serde_json = "1"
//! tempfile = "3"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, fs, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder::ConfigMapManager;
use larder_apiserver::{ApiServer, Options};
use larder_objects::references;
use larder_projection::{
    Inputs, Unavailable, VolumeKind, containers,
    disk::{PodVolume, VolumeHost},
    environment, project,
};
use serde_json::{from_value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // An API server in memory. With a cluster: `kube::Client::try_default().await?`.
    let server = ApiServer::new(Options::default());
    server.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"LEVEL": "debug"}}))?;
    let config_maps = ConfigMapManager::watching(kube::Client::new(server.service(), "default"));

    // Wherever the pod comes from: a provider hands it over.
    let pod: Pod = from_value(json!({
        "metadata": {"namespace": "default", "name": "web", "uid": "1"},
        "spec": {
            "enableServiceLinks": false,
            "containers": [
                {"name": "web", "envFrom": [{"configMapRef": {"name": "app"}}]},
                {"name": "old", "envFrom": [{"configMapRef": {"name": "gone"}}]},
            ],
            "volumes": [{"name": "config", "configMap": {"name": "app", "defaultMode": 0o644}}],
        },
    }))?;

    // The registration ends when the guard is dropped, and with it the watches.
    let registered = config_maps.registered(&pod);
    let mut inputs = Inputs {
        services: Some(Arc::new([])),
        ..Inputs::default()
    };
    for name in references::config_maps(&pod) {
        // A missing object is an input too: only the projection knows where it is optional.
        let object = registered.get(&name).await.map_err(Unavailable::from);
        inputs.config_maps.insert(name.to_string(), object);
    }

    for container in containers(&pod) {
        match environment(&pod, container, &inputs) {
            Ok(variables) => {
                for (name, variable) in variables.iter() {
                    let value = String::from_utf8_lossy(&variable.value);
                    println!("{}: {name}={value}", container.name);
                }
            }
            // The reason of `CreateContainerConfigError`: configmap "gone" not found.
            Err(error) => println!("{}: cannot start: {error}", container.name),
        }
    }
    let root = tempfile::tempdir()?;
    let host = VolumeHost::open_without_mounts(root.path())?;
    for volume in pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
    {
        let projection = project(&pod, volume, &inputs)?;
        let target = PodVolume::new("1", &volume.name, VolumeKind::ConfigMap);
        let path = host
            .set_up(&target, &projection.payload, Timestamp::UNIX_EPOCH)?
            .path;
        println!(
            "{}/LEVEL: {}",
            volume.name,
            fs::read_to_string(path.join("LEVEL"))?
        );
    }
    Ok(())
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
