//! The agent inside another program: it serves the pods of a node until it is told to stop.
//!
//! ```sh
//! cargo run -p larder-agent --example embed_agent
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, fs, time::Duration};

use larder_agent::{
    agent::Agent,
    config::{Config, Flags, Host},
    root_dir::RootDir,
};
use larder_apiserver::{ApiServer, Options};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // An API server in memory. With a cluster: `kube::Client::try_default().await?`.
    let server = ApiServer::new(Options::default());
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "vm-1"}}))?;
    server.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}, "data": {"level": "debug"}}))?;
    server.apply(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": "vm-1",
            "containers": [{"name": "web", "image": "web:1"}],
            "volumes": [{"name": "config", "configMap": {"name": "app"}}],
        },
    }))?;
    let client = kube::Client::new(server.service(), "default");

    let directory = tempfile::tempdir()?;
    let flags = Flags {
        root_dir: Some(directory.path().join("root")),
        node_name: Some("vm-1".to_owned()),
        ..Flags::default()
    };
    let (config, _warnings) = Config::load(None, flags, &Host::current())?;
    let root = RootDir::lock(&config.root_dir)?;
    let volumes = root.volumes()?;
    let agent = Agent::builder(config, root, volumes, client).build()?;

    let (handle, shutdown) = (agent.handle(), CancellationToken::new());
    let file = directory
        .path()
        .join("root/pods/1/volumes/kubernetes.io~configmap/config/level");
    let stop = shutdown.clone();
    let watch = async {
        while !file.exists() {
            sleep(Duration::from_millis(5)).await;
        }
        println!(
            "ready: {}, level is {}",
            handle.is_ready(),
            fs::read_to_string(&file)?
        );
        stop.cancel();
        Ok::<_, std::io::Error>(())
    };
    let (ended, watched) = tokio::join!(agent.run(shutdown), watch);
    ended?;
    Ok(watched?)
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
