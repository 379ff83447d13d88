//! Renders one pod offline: its environment, and a volume on disk.
//!
//! ```sh
//! cargo run -p larder-projection --example render_pod
//! ```
//!
//! ```toml
//! [dependencies]
//! jiff = "0.2"
//! k8s-openapi = { version = "0.29", features = ["v1_37"] }
//! larder-objects = { path = "larder/crates/larder-objects" }
//! larder-projection = { path = "larder/crates/larder-projection" }
//! serde_json = "1"
//! tempfile = "3"
//! ```

#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::{error::Error, fs, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use larder_objects::{ConfigMap, Object};
use larder_projection::{
    Inputs, VolumeKind, containers,
    disk::{PodVolume, VolumeHost},
    environment, project,
};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "demo", "uid": "u1"},
        "spec": {
            // What the API server fills in (`enableServiceLinks`, `defaultMode`) must be there.
            "enableServiceLinks": true,
            "containers": [{
                "name": "app",
                "env": [{"name": "GREETING", "value": "$(word), world"}],
                "envFrom": [{"configMapRef": {"name": "settings"}}],
                "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "settings", "defaultMode": 0o644}}],
        },
    }))?;
    let settings =
        r#"{"metadata": {"name": "settings"}, "data": {"word": "hello", "color": "blue"}}"#;
    let settings = ConfigMap::from_json(settings.as_bytes())?;

    // All that the pod refers to. An object that is missing here is an error, not an empty volume.
    let mut inputs = Inputs {
        services: Some(Arc::new([])),
        ..Inputs::default()
    };
    inputs
        .config_maps
        .insert("settings".to_owned(), Ok(Arc::new(settings)));

    for container in containers(&pod) {
        for (name, variable) in environment(&pod, container, &inputs)?.iter() {
            let value = String::from_utf8_lossy(&variable.value);
            println!("{}: {name}={value}", container.name);
        }
    }

    let root = tempfile::tempdir()?;
    let host = VolumeHost::open_without_mounts(root.path())?;
    let now = Timestamp::UNIX_EPOCH;
    for volume in pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
    {
        let projection = project(&pod, volume, &inputs)?;
        let target = PodVolume::new("u1", &volume.name, VolumeKind::ConfigMap);
        let path = host.set_up(&target, &projection.payload, now)?.path;
        for file in projection.payload.keys() {
            let content = fs::read_to_string(path.join(file.as_str()))?;
            println!("{}/{file}: {content}", volume.name);
        }
    }
    Ok(())
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
