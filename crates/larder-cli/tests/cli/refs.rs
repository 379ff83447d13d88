//! `larder refs`.

use expect_test::expect;
use serde_json::{Value, json};

use crate::Desk;

const APP: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  imagePullSecrets: [{name: pull}]
  containers:
  - name: web
    image: i
    envFrom: [{configMapRef: {name: b}}, {configMapRef: {name: a, optional: true}}, {configMapRef: {name: b}}]
---
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec: {containers: [{name: c, image: i}]}
";

#[test]
fn table_has_a_line_for_each_reference() {
    let run = Desk::with([("app.yaml", APP)]).run("refs -f app.yaml");
    assert_eq!(run.code, 0, "{run:?}");
    expect![[r#"
        NAMESPACE   POD     KIND        NAME
        prod        web     ConfigMap   a
        prod        web     ConfigMap   b
        prod        web     Secret      pull
        default     plain   <none>
    "#]]
    .assert_eq(&run.stdout);
}

#[test]
fn json_is_sorted_and_unique() {
    let run = Desk::with([("app.yaml", APP)]).run("refs -f app.yaml -n dev -o json");
    assert_eq!((run.code, &*run.stderr), (0, ""));
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let expected = json!({"pods": [
        {"namespace": "prod", "name": "web", "references": {"configMaps": ["a", "b"], "secrets": ["pull"]}},
        {"namespace": "dev", "name": "plain", "references": {"configMaps": [], "secrets": []}},
    ]});
    assert_eq!(report, expected);
}
