//! What a pod needs to start besides what larder delivers.

use serde_json::{Value, json};

use super::{diff, truth::pod};

const MOUNT: &str = "volumeMounts: [{name: v, mountPath: /v}]";
const CLAIM: &str = "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]";
const SECRET: &str = "volumes: [{name: v, csi: {driver: d, nodePublishSecretRef: {name: login}}}]";
const ACCOUNT: &str = "serviceAccountName: robot\n  automountServiceAccountToken: false";

fn document(kind: &str, name: &str) -> String {
    let spec = match kind {
        "PersistentVolumeClaim" => "spec: {accessModes: [ReadWriteOnce]}\n",
        _ => "",
    };
    format!("---\napiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: ns}}\n{spec}")
}

#[test]
fn removed_or_new_and_unlisted_is_a_condition() {
    for (needs, kind, name, what) in [
        (
            CLAIM,
            "PersistentVolumeClaim",
            "data",
            "PersistentVolumeClaim data",
        ),
        (SECRET, "Secret", "login", "secret login"),
        (ACCOUNT, "ServiceAccount", "robot", "ServiceAccount robot"),
    ] {
        let container = if needs == ACCOUNT { "" } else { MOUNT };
        let reads = pod(container, needs);
        let listed = reads.clone() + &document(kind, name);
        let misspelled = reads.clone() + &document(kind, &format!("{name}s"));
        // The second side decides, if it has it, or no side does.
        for (from, to) in [(&reads, &reads), (&listed, &listed)] {
            let report = diff(from, to);
            assert_eq!(report["pods"], json!([]), "{report:#}");
            assert_eq!(report.get("unknown"), None, "{report:#}");
        }
        let unless = |from: &str, to: &str| -> Value {
            let report = diff(from, to);
            report["pods"][0]["containers"]["c"]["unless"].clone()
        };
        assert_eq!(unless(&listed, &reads), json!([{"what": what}]));
        let hint = format!("{name}s");
        assert_eq!(
            unless(&listed, &misspelled),
            json!([{"what": what, "hint": hint}])
        );
        let other = pod("", "");
        assert_eq!(unless(&other, &reads), json!([{"what": what}]));
        assert_eq!(unless(&other, &listed), Value::Null);
        assert_eq!(unless(&reads, &other), Value::Null);
    }
}

#[test]
fn claims_of_a_stateful_set_are_met() {
    let set = |templates: &str| {
        format!(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: db, namespace: ns}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  volumeClaimTemplates: [{templates}]\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec: {{containers: [{{name: c, image: i}}]}}\n"
        )
    };
    let claim = "{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce]}}";
    let report = diff(&set(""), &set(claim));
    assert_eq!(report["pods"], json!([]), "{report:#}");
}
