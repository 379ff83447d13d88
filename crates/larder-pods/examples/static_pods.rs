//! The pods of a node, from a directory of manifests and an API server: served, mirrored, retired.
//!
//! ```sh
//! cargo run -p larder-pods --example static_pods
//! ```
//!
//! ```toml
//! [dependencies]
//! jiff = "0.2"
//! k8s-openapi = { version = "0.29", features = ["v1_37"] }
//! kube = { version = "5", default-features = false, features = ["client"] }
//! larder-apiserver = { path = "larder/crates/larder-apiserver" }
//! larder-pods = { path = "larder/crates/larder-pods" }
//! serde_json = "1"
//! tempfile = "3"
//! tokio = { version = "1", features = ["macros", "rt", "sync", "time"] }
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, fs, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use larder_apiserver::{ApiServer, Options};
use larder_pods::{
    FullName, PodAction, PodLoop, PodManager, PodMerge, PodSource, ResolvedPodUid,
    mirror::MirrorClient,
    source::{ApiSource, FileSource},
    static_pod::{ApiReferences, StaticPods},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::{JoinSet, yield_now},
};

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: web, image: nginx}]}
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // An API server in memory. With a cluster: `kube::Client::try_default().await?`.
    let server = ApiServer::new(Options::default());
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}))?;
    let client = Client::new(server.service(), "default");
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let manifests = tempfile::tempdir()?;
    let manifest = manifests.path().join("web.yaml");
    fs::write(&manifest, WEB)?;

    // The loop waits for these sources, so that no pod is retired because it was not reported yet.
    let merge = PodMerge::new([PodSource::Api, PodSource::File]);
    let mut pods = PodLoop::new(merge, PodManager::default());
    let mut tasks = JoinSet::new();
    let (reports, mut received) = mpsc::channel(16);
    let static_pods = StaticPods::new("n1", ApiReferences::Refuse);
    let period = Duration::from_secs(20);
    let file = FileSource::new(manifests.path(), period, static_pods);
    tasks.spawn(ApiSource::new(client.clone(), "n1").run(reports.clone()));
    tasks.spawn(file.run(reports));
    tasks.spawn(pods.mirror_pods(MirrorClient::new(client, "n1")).run());

    let mut retiring = None;
    'node: loop {
        // A node waits for both with `select!`.
        let actions = match retiring.take() {
            Some(uid) => pods.volumes_gone(&uid, now()),
            None => match received.recv().await {
                Some(report) => pods.report(report, now()),
                None => break,
            },
        };
        for action in actions {
            match action {
                PodAction::Serve(pod) => {
                    // Register the pod with the managers of `larder`, write its volumes, start its containers.
                    println!("serve {}", FullName::of(&pod.metadata));
                    while api.get_opt("web-n1").await?.is_none() {
                        yield_now().await;
                    }
                    fs::remove_file(&manifest)?;
                }
                PodAction::Retire(pod) => {
                    // Stop the containers, then remove the volumes. The mirror pod stays until they are gone.
                    println!("retire {}", FullName::of(&pod.metadata));
                    retiring = Some(ResolvedPodUid::of(&pod.metadata));
                }
                PodAction::Unregister(uid) => {
                    println!("unregister {}", pods.pods().pod_by_uid(&uid).is_none());
                }
                PodAction::Hold(pod, because) => {
                    println!("hold {}: {because:?}", FullName::of(&pod.metadata));
                }
                PodAction::Forget(_) => break 'node,
                PodAction::Delete(pod) => println!("delete {}", FullName::of(&pod.metadata)),
                PodAction::Reject(duplicate) => println!("{duplicate}"),
                PodAction::ApiStateChanged(_) => println!("its mirror pod is there, or gone"),
                PodAction::Problems(source, problems) => {
                    for problem in problems {
                        println!("{source}: {problem}");
                    }
                }
            }
        }
    }
    while api.get_opt("web-n1").await?.is_some() {
        yield_now().await;
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the clock"
)]
fn now() -> Timestamp {
    Timestamp::now()
}

#[test]
fn example_runs() {
    main().expect("the example succeeds");
}
