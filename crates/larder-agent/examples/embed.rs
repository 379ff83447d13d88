//! The agent inside another program: it serves the volumes of a node's pods, and the program looks at its state.
//!
//! ```sh
//! cargo run -p larder-agent --example embed
//! ```
//!
//! ```toml
//! [dependencies]
//! kube = { version = "5", default-features = false, features = ["client"] }
//! larder-agent = { path = "larder/crates/larder-agent" }
//! larder-apiserver = { path = "larder/crates/larder-apiserver" }
//! larder-projection = { path = "larder/crates/larder-projection" }
//! serde_json = "1"
//! tempfile = "3"
//! tokio = { version = "1", features = ["macros", "rt", "time"] }
//! tokio-util = "0.7"
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, fs, path::Path, time::Duration};

use kube::Client;
use larder_agent::{
    agent::Agent,
    config::{Config, Flags, Host},
    root_dir::RootDir,
};
use larder_apiserver::{ApiServer, Options};
use larder_projection::disk::VolumeHost;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // An API server in memory. With a cluster: `kube::Client::try_default().await?`.
    let server = ApiServer::new(Options::default());
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "here"}}))?;
    server.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"LEVEL": "debug"}}))?;
    server.apply(
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
            "nodeName": "here",
            // As on a kubelet, a volume that no container mounts is not set up.
        "containers": [{"name": "web", "image": "web:1", "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}]}],
            "volumes": [{"name": "config", "configMap": {"name": "app"}}],
        }}),
    )?;

    let directory = tempfile::tempdir()?;
    let flags = Flags {
        root_dir: Some(directory.path().to_owned()),
        node_name: Some("here".to_owned()),
        ..Flags::default()
    };
    let (config, _warnings) = Config::load(None, flags, &Host::current())?;
    let root = RootDir::lock(&config.root_dir)?;
    // With the right to mount, `root.volumes()` keeps Secrets in memory.
    let host = VolumeHost::open_without_mounts(root.path())?;
    let client = Client::new(server.service(), "default");
    let agent = Agent::builder(config, root, host, client).build()?;

    let (handle, shutdown) = (agent.handle(), CancellationToken::new());
    let program = async {
        while !handle.is_ready() {
            sleep(Duration::from_millis(10)).await;
        }
        let mut files = Vec::new();
        for pod in handle.status().pods {
            println!("{}/{}: {:?}", pod.namespace, pod.name, pod.delivery.phase);
            for volume in pod.volumes {
                let file = Path::new(&volume.path).join("LEVEL");
                files.push((volume.name, fs::read_to_string(file)));
            }
        }
        shutdown.cancel();
        files
    };
    // The agent ends by itself only when something is wrong with it.
    let (ended, files) = tokio::join!(agent.run(shutdown.clone()), program);
    for (volume, level) in files {
        println!("{volume}/LEVEL: {}", level?);
    }
    Ok(ended?)
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
