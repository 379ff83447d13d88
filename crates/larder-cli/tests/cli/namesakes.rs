//! Several workloads of one name: a workload is its kind and name.

use std::fs;

use serde_json::Value;

use crate::{Desk, Run};

fn workload(kind: &str, value: &str) -> String {
    format!(
        "---
apiVersion: apps/v1
kind: {kind}
metadata: {{name: web, namespace: ns}}
spec:
  selector: {{matchLabels: {{a: b}}}}
  template:
    metadata: {{labels: {{a: b}}}}
    spec:
      containers:
      - {{name: c, image: i, env: [{{name: X, value: '{value}'}}], volumeMounts: [{{name: v, mountPath: /v}}]}}
      volumes: [{{name: v, configMap: {{name: {value}}}}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: {value}, namespace: ns}}
data: {{k: '{value}'}}
"
    )
}

/// A Deployment and a DaemonSet.
fn two(deployment: &str, daemon_set: &str) -> String {
    workload("Deployment", deployment) + &workload("DaemonSet", daemon_set)
}

fn json(run: &Run) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run:?}"))
}

#[test]
fn each_has_a_directory_of_its_own() {
    let desk = Desk::with([("app.yaml", &two("one", "other"))]);
    assert_eq!(desk.run("render -f app.yaml --to out").code, 0);
    let file = |pod: &str| fs::read_to_string(desk.path().join(format!("out/ns/{pod}/v/k")));
    assert_eq!(file("Deployment-web").unwrap(), "one");
    assert_eq!(file("DaemonSet-web").unwrap(), "other");
    assert!(file("web").is_err());
    desk.replace("app.yaml", &workload("Deployment", "only"));
    assert_eq!(desk.run("render -f app.yaml --to out").code, 0);
    assert_eq!(file("web").unwrap(), "only");
}

#[test]
fn json_tells_them_apart() {
    let desk = Desk::with([
        ("app.yaml", &two("one", "other")),
        ("next.yaml", &two("two", "others")),
    ]);
    for command in [
        "render -f app.yaml -o json",
        "refs -f app.yaml -o json",
        "diff --from-file app.yaml --to-file next.yaml -o json",
    ] {
        let report = json(&desk.run(command));
        let mut workloads: Vec<_> = report["pods"].as_array().unwrap().iter().collect();
        workloads.sort_by_key(|pod| pod["workload"].as_str());
        let [first, second] = *workloads else {
            panic!("{report:#}")
        };
        assert_eq!(first["workload"], "DaemonSet web", "{report:#}");
        assert_eq!(second["workload"], "Deployment web", "{report:#}");
        assert!(first["uid"].is_null() || first["uid"] != second["uid"]);
    }
    let report = desk.run("diff --from-file app.yaml --to-file next.yaml -o markdown");
    let rows = report.stdout.matches("| `ns/DaemonSet/web` | `c` |");
    assert_eq!(rows.count(), 1, "{}", report.stdout);
    let table = desk.run("refs -f app.yaml").stdout;
    assert!(
        table.contains("DaemonSet/web    ConfigMap   other"),
        "{table}"
    );
}

#[test]
fn shared_change_names_both() {
    let desk = Desk::with([
        ("app.yaml", &two("one", "one")),
        ("next.yaml", &two("two", "two")),
    ]);
    let shown = desk
        .run("diff --from-file app.yaml --to-file next.yaml")
        .stdout;
    let (_, seers) = shown.split_once("seen by").unwrap();
    assert!(
        seers.contains("ns/DaemonSet/web   c") && seers.contains("ns/Deployment/web  c"),
        "{shown}"
    );
}

#[test]
fn pod_of_one_is_chosen_by_its_kind() {
    let desk = Desk::with([("app.yaml", &two("one", "other"))]);
    let names =
        "several workloads are called ns/web: name one, ns/Deployment/web or ns/DaemonSet/web";
    for command in [
        "render -f app.yaml -o env --pod ns/web",
        "exec -f app.yaml --pod ns/web -- true",
    ] {
        let run = desk.run(command);
        assert!(run.code != 0 && run.stdout.is_empty(), "{run:?}");
        assert!(run.stderr.contains(names), "{run:?}");
    }
    let run = desk.run("exec -f app.yaml -- true");
    let names = "such as ns/Deployment/web, ns/DaemonSet/web";
    assert!(run.code == 125 && run.stderr.contains(names), "{run:?}");
    for (kind, value) in [("daemonset", "X=other\n"), ("Deployment", "X=one\n")] {
        let run = desk.run(&format!("render -f app.yaml -o env --pod ns/{kind}/web"));
        assert_eq!((run.code, &*run.stdout), (0, value), "{run:?}");
    }
    let run = desk.run("render -f app.yaml --pod ns/job/web");
    assert!(
        run.stderr.contains("no pod ns/job/web in the manifests"),
        "{run:?}"
    );
    let run = desk.run("exec -f app.yaml --pod ns/daemonset/web -- printenv X");
    assert!(run.stdout == "other\n" || run.code == 125, "{run:?}");
}

#[test]
fn agent_makes_one_pod_of_a_name() {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("manifests")).unwrap();
    fs::write(desk.path().join("manifests/app.yaml"), two("one", "other")).unwrap();
    let run = desk.run("run --check --manifests manifests");
    let problem = "the pod ns/web is already made from Deployment web in";
    assert!(run.code == 1, "{run:?}");
    assert!((run.stdout + &run.stderr).contains(problem));
}
