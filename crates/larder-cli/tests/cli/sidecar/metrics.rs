//! Values of metrics of a sidecar that follows objects.

use std::path::Path;

use serde_json::json;

use super::{
    Sidecar, World,
    application::{Application, reply},
    sidecar,
};
use crate::{Desk, run::until};

/// What a sidecar shows at its first scrape.
pub(crate) fn exposition(kubeconfig: &Path) -> String {
    let desk = Desk::with([]);
    let variables = [
        ("LABEL", "l"),
        ("NAMESPACE", "default"),
        ("FOLDER", "folder"),
    ];
    let mut command = sidecar(&desk, &[]);
    command.env("KUBECONFIG", kubeconfig).envs(variables);
    let sidecar = Sidecar::start(command);
    loop {
        if let Some((_, text)) = sidecar.ask("/metrics") {
            return text;
        }
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_show_files_objects_fetches_and_whether_the_hook_has_succeeded() {
    let world = World::new().await;
    let application = Application::start().await;
    let (found, missing) = (application.url("/found"), application.url("/missing"));
    let data = json!({"k": "1", "found.url": found, "missing.url": missing});
    let object = json!({"metadata": {"name": "a", "labels": {"l": "1"}}, "data": data});
    world.create("ConfigMap", object).await;
    application.answers(|seen| {
        let is_found = seen.line.contains("/found");
        Some(reply(if is_found { 200 } else { 500 }, &[], b""))
    });
    let url = application.url("/reload");
    // Without fast retries, the next attempt follows minutes later, or a change. So does the next fetch.
    let variables = [
        ("LABEL", "l"),
        ("LARDER_URL_CREDENTIALS", "Always"),
        ("REQ_URL", &url),
        ("REQ_RETRY_TOTAL", "0"),
    ];
    let sidecar = Sidecar::start(world.sidecar(&[], &variables));
    let shows = |lines: &[&str]| {
        let text = sidecar.ask("/metrics").map(|(_, text)| text);
        let has = |line: &&str| text.as_ref().is_some_and(|text| text.contains(*line));
        lines.iter().all(has)
    };
    let failed = [
        "larder_sidecar_files 2\n",
        "larder_sidecar_objects{kind=\"ConfigMap\"} 1\n",
        "larder_sidecar_writes_total{outcome=\"written\"} 2\n",
        "larder_sidecar_url_fetches_total{outcome=\"succeeded\"} 1\n",
        "larder_sidecar_url_fetches_total{outcome=\"failed\"} 1\n",
        "larder_sidecar_change_delivery_seconds_count 1\n",
        "larder_sidecar_collisions 0\n",
        "larder_sidecar_on_change_last_failed 1\n",
        "larder_sidecar_on_change_pending 1\n",
        "larder_sidecar_on_change_delay_seconds_count 1\n",
        "larder_sidecar_on_change_last_success_timestamp_seconds 0.0\n",
    ];
    until("a failure", || shows(&failed)).await;
    application.answers(|_| Some(reply(200, &[], b"")));
    world
        .change("ConfigMap", "a", json!({"data": {"k": "2"}}))
        .await;
    let succeeded = [
        "larder_sidecar_writes_total{outcome=\"written\"} 3\n",
        "larder_sidecar_change_delivery_seconds_count 2\n",
        "larder_sidecar_on_change_last_failed 0\n",
        "larder_sidecar_on_change_pending 0\n",
        "larder_sidecar_on_change_delay_seconds_count 2\n",
        "larder_sidecar_on_change_last_success_timestamp_seconds 1",
    ];
    until("a success", || shows(&succeeded)).await;
}

// sidecar 36
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_health_and_metrics_show_a_script_that_fails() {
    let world = World::new().await;
    let application = Application::start().await;
    let object = json!({"metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"k": "1"}});
    world.create("ConfigMap", object).await;
    let (script, log) = (world.path().join("script"), world.path().join("log"));
    std::fs::write(&script, "exit 3").unwrap();
    let url = application.url("/reload");
    // By the first, a request would be repeated at once.
    for (variable, requests) in [(("REQ_URL", &*url), 1), (("LABEL_VALUE", ""), 2)] {
        let variables = [
            ("LABEL", "l"),
            ("SCRIPT", script.to_str().unwrap()),
            variable,
            ("FOLDER", variable.0),
        ];
        let mut command = world.sidecar(&[], &variables);
        command.stderr(std::fs::File::create(&log).unwrap());
        let sidecar = Sidecar::start(command);
        let shows = |path, parts: &[&str]| {
            let text = sidecar.ask(path).map(|(_, text)| text).unwrap_or_default();
            parts.iter().all(|part| text.contains(part))
        };
        let failed = [
            "larder_sidecar_on_change_last_failed 1\n",
            "larder_sidecar_on_change_pending 1\n",
            "larder_sidecar_on_change_last_success_timestamp_seconds 0.0\n",
        ];
        until("the failure", || shows("/metrics", &failed)).await;
        let reason = "\"reason\":\"script failed: exit status 3\"";
        assert!(shows(
            "/healthz",
            &["\"state\":\"Failing\"", "\"failures\":1", reason]
        ));
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(
            text.contains("round failed") && !text.contains("round succeeded"),
            "{text}"
        );
        assert_eq!(application.seen().len(), requests);

        std::fs::write(&script, "exit 0").unwrap();
        let change = json!({"data": {"k": variable.0}});
        world.change("ConfigMap", "a", change).await;
        let idle = ["\"state\":\"Idle\""];
        until("the success", || shows("/healthz", &idle)).await;
        assert!(shows(
            "/metrics",
            &["larder_sidecar_on_change_last_failed 0\n"]
        ));
        std::fs::write(&script, "exit 3").unwrap();
    }
}
