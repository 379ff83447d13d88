//! Containers of charts, with the variables and the probes that these render.

use std::fs;

use serde_json::json;

use super::{Sidecar, World, application::Application};
use crate::run::until;

/// A container, all of whose files are below a directory of its name.
struct Container {
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
    /// The path of `REQ_URL`.
    reload: Option<&'static str>,
    /// Whether it takes Secrets, too.
    secrets: bool,
}

const DASHBOARDS: &str = "/api/admin/provisioning/dashboards/reload";

const CONTAINERS: [Container; 6] = [
    Container {
        name: "grafana",
        variables: &[
            ("METHOD", "WATCH"),
            ("LABEL", "grafana_dashboard"),
            ("FOLDER_ANNOTATION", "grafana_folder"),
            ("RESOURCE", "both"),
            ("REQ_METHOD", "POST"),
            ("REQ_USERNAME", "admin"),
            ("REQ_PASSWORD", "secret"),
        ],
        reload: Some(DASHBOARDS),
        secrets: true,
    },
    Container {
        name: "kube-prometheus-stack",
        variables: &[
            ("METHOD", "WATCH"),
            ("LABEL", "grafana_dashboard"),
            ("LABEL_VALUE", "1"),
            ("NAMESPACE", "ALL"),
            ("RESOURCE", "both"),
            ("REQ_METHOD", "POST"),
            ("REQ_USERNAME", "admin"),
            ("REQ_PASSWORD", "secret"),
        ],
        reload: Some(DASHBOARDS),
        secrets: true,
    },
    Container {
        name: "grafana-native",
        variables: &[
            ("METHOD", "WATCH"),
            ("LABEL", "grafana_dashboard"),
            ("RESOURCE", "both"),
            ("REQ_METHOD", "POST"),
            ("REQ_USERNAME", "admin"),
            ("REQ_PASSWORD", "secret"),
            ("REQ_SKIP_INIT", "true"),
        ],
        reload: Some(DASHBOARDS),
        secrets: true,
    },
    Container {
        name: "loki",
        variables: &[
            ("METHOD", "WATCH"),
            ("LABEL", "loki_rule"),
            ("RESOURCE", "both"),
            ("WATCH_SERVER_TIMEOUT", "60"),
            ("WATCH_CLIENT_TIMEOUT", "60"),
            ("LOG_LEVEL", "INFO"),
        ],
        reload: None,
        secrets: true,
    },
    Container {
        name: "jenkins",
        variables: &[
            ("LABEL", "jenkins-jenkins-config"),
            ("REQ_METHOD", "POST"),
            ("REQ_RETRY_CONNECT", "10"),
        ],
        reload: Some("/reload-configuration-as-code/?casc-reload-token=jenkins-0"),
        secrets: false,
    },
    Container {
        name: "jenkins-sleep",
        variables: &[
            ("LABEL", "jenkins-jenkins-config"),
            ("METHOD", "SLEEP"),
            ("SLEEP_TIME", "1"),
            ("REQ_METHOD", "POST"),
        ],
        reload: Some("/reload-configuration-as-code/?casc-reload-token=jenkins-0"),
        secrets: false,
    },
];

impl Container {
    fn command(&self, world: &World, application: &Application) -> std::process::Command {
        let mut command = world.sidecar(&[], self.variables);
        command.env("FOLDER", world.path().join(self.name));
        command.env(
            "LARDER_STATE_DIR",
            world.path().join("state").join(self.name),
        );
        if let Some(path) = self.reload {
            command.env("REQ_URL", application.url(path));
        }
        command
    }

    /// Waits for the content of `a`, and for `b`, or until this is gone.
    async fn until_files(&self, world: &World, a: &str, has_b: bool) {
        let folder = world.path().join(self.name);
        until(self.name, || {
            let found = fs::read_to_string(folder.join("a.json"));
            let is_b = folder.join("team/b.json").exists();
            found.is_ok_and(|found| found == a) && is_b == (self.secrets && has_b)
        })
        .await;
    }
}

// sidecar 64: of other charts than prometheus, whose program is left out
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_of_charts_run_with_the_image_replaced() {
    let world = World::new().await;
    let labels =
        json!({"grafana_dashboard": "1", "loki_rule": "", "jenkins-jenkins-config": "true"});
    let annotations = json!({"grafana_folder": "team", "k8s-sidecar-target-directory": "team"});
    let map = json!({"metadata": {"name": "a", "labels": labels}, "data": {"a.json": "1"}});
    let secret = json!({
        "metadata": {"name": "b", "labels": labels, "annotations": annotations},
        "stringData": {"b.json": "1"},
    });
    world.create("ConfigMap", map).await;
    world.create("Secret", secret).await;
    // Each application belongs to one pod.
    let mut running = Vec::new();
    for container in &CONTAINERS {
        let application = Application::start().await;
        let list = container
            .command(&world, &application)
            .env("METHOD", "LIST")
            .env_remove("REQ_URL")
            .status();
        assert_eq!(
            list.unwrap().code(),
            Some(0),
            "{} as init container",
            container.name
        );
        container.until_files(&world, "1", true).await;
        // Of two that get one port, the second runs without health.
        let sidecar = Sidecar::start(container.command(&world, &application));
        let mut second = container.command(&world, &application);
        second.env("FOLDER", world.path().join(format!("{}-2", container.name)));
        second.env(
            "LARDER_STATE_DIR",
            world.path().join(format!("state-2/{}", container.name)),
        );
        second.env_remove("REQ_URL");
        sidecar.until_ok("/healthz").await;
        second
            .env("HEALTH_HOST", "127.0.0.1")
            .env("HEALTH_PORT", sidecar.port.to_string());
        let second = Sidecar::start_at(0, second);
        running.push((container, application, sidecar, second));
    }
    for (container, application, ..) in &running {
        // The init container has written everything, so nothing is new to the application.
        assert!(application.seen().is_empty(), "{}", container.name);
    }
    world
        .change("ConfigMap", "a", json!({"data": {"a.json": "2"}}))
        .await;
    world
        .change("Secret", "b", json!({"metadata": {"labels": null}}))
        .await;
    for (container, application, sidecar, mut second) in running {
        container.until_files(&world, "2", false).await;
        let copy = world.path().join(format!("{}-2/a.json", container.name));
        until("the second container", || {
            fs::read_to_string(&copy).is_ok_and(|text| text == "2")
        })
        .await;
        assert_eq!(second.child.try_wait().unwrap(), None);
        assert_eq!(sidecar.ask("/healthz").unwrap().0, "200");
        if let Some(path) = container.reload {
            until("a request", || !application.seen().is_empty()).await;
            let request = application.seen().remove(0);
            assert_eq!(request.line, format!("POST {path} HTTP/1.1"));
            let is_jenkins = container.name.starts_with("jenkins");
            assert_eq!(request.headers.contains_key("authorization"), !is_jenkins);
        }
    }
}
