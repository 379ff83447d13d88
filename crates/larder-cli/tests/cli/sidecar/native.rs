//! A native sidecar: the application starts only when the startup probe of the sidecar has succeeded.

use super::{Sidecar, World, application::Application};
use crate::run::until;
use larder_e2e::reserved_port;
use serde_json::json;

// sidecar 49
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn application_that_waits_for_the_startup_probe_gets_its_request() {
    let world = World::new().await;
    let object = json!({"metadata": {"name": "app", "labels": {"l": "1"}}, "data": {"k": "1"}});
    world.create("ConfigMap", object).await;
    let [label, own, listen] = [(); 3].map(|()| reserved_port().unwrap());
    let url = format!("http://127.0.0.1:{label}/reload");
    let variables = [
        ("LABEL", "l"),
        ("REQ_URL", &url),
        ("REQ_RETRY_TOTAL", "100"),
        ("REQ_RETRY_CONNECT", "100"),
        ("REQ_RETRY_BACKOFF_FACTOR", "0.01"),
    ];
    let labeled = Sidecar::start(world.sidecar(&[], &variables));
    let hook = format!("http:{own}/reload");
    let address = format!("127.0.0.1:{listen}");
    let args = ["--config-map", "default/app:volume", "--listen", &address];
    let flags = ["--kubeconfig", &world.kubeconfig, "--on-change", &hook];
    let flags = [&args[..], &flags, &["--state-dir", "state-2"]].concat();
    let mapped = Sidecar::start_at(listen, world.sidecar(&flags, &[]));
    for (sidecar, port) in [(labeled, label), (mapped, own)] {
        sidecar.until_ok("/readyz").await;
        let application = Application::start_at(port).await;
        // A hook of the own form is for changes.
        let change = json!({"data": {"k": port.to_string()}});
        world.change("ConfigMap", "app", change).await;
        until("the request", || !application.seen().is_empty()).await;
        assert_eq!(sidecar.ask("/healthz").unwrap().0, "200");
    }
}
