//! A pod that `larder render` calls ready has all that it needs.

use crate::Desk;

const READY: &str = "ready to start: every reference is met";

/// A StatefulSet whose pods have a claim each.
const CLAIM_TEMPLATE: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: ns}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /d}]}]}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}]
";

/// A pod with this volume.
fn pod(volume: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: p, namespace: ns}}
spec:
  securityContext: {{runAsUser: 1000}}
  containers: [{{name: c, image: i, volumeMounts: [{{name: v, mountPath: /v}}]}}]
  volumes: [{{name: v, {volume}}}]
"
    )
}

fn claim(name: &str) -> String {
    pod(&format!("persistentVolumeClaim: {{claimName: {name}}}"))
}

fn shown(text: &str, flags: &str) -> String {
    let desk = Desk::with([("app.yaml", text)]);
    desk.run(&format!("render -f app.yaml {flags}")).stdout
}

#[test]
fn claims_of_a_stateful_set_are_made_with_its_pods() {
    for text in [
        CLAIM_TEMPLATE,
        &(claim("data-db-2") + "---" + CLAIM_TEMPLATE),
    ] {
        let shown = shown(text, "");
        assert!(
            shown.contains(READY) && !shown.contains("not among"),
            "{shown}"
        );
    }
    for name in ["data-db", "data-db-x", "logs-db-0"] {
        let shown = shown(&(claim(name) + "---" + CLAIM_TEMPLATE), "");
        let words = format!("PersistentVolumeClaim {name} is not among the manifests");
        assert!(shown.contains(&words), "{shown}");
    }
}

#[test]
fn files_of_keys_that_no_document_names_have_a_mode() {
    let shown = shown(
        &pod("secret: {secretName: b, defaultMode: 0400}"),
        "--assume-missing",
    );
    let words = "/v/*: user 1000 cannot read it: mode 0400, user 0, and the pod has no fsGroup";
    assert!(shown.contains(words) && !shown.contains(READY), "{shown}");
}
