//! What the API server rejects in a workload besides its pod (kubernetes v1.36, `pkg/apis/apps/validation`,
//! `pkg/apis/batch/validation`, `pkg/apis/core/validation`: `ValidatePodTemplateSpecForRC`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{FieldErrors, field::Field};
use crate::selects;

/// Checks the selector and the restart policy of `workload`, whose pod template is at `template`.
pub(crate) fn workload(workload: &Value, template: &'static str) -> FieldErrors {
    FieldErrors::found(|object| check(object, workload, template))
}

fn check(object: &Field<'_>, workload: &Value, template: &'static str) {
    let field = object.at(template);
    let pointer = template.replace('.', "/");
    let at = |below: &str| workload.pointer(&format!("/{pointer}/{below}"));
    let restart = field.at("spec.restartPolicy");
    let policy = at("spec/restartPolicy")
        .and_then(Value::as_str)
        .filter(|policy| !policy.is_empty())
        .unwrap_or("Always");
    let kind = workload["kind"].as_str().unwrap_or_default();
    if matches!(kind, "Job" | "CronJob") {
        if policy == "Always" {
            restart.required(r#"valid values: "OnFailure", "Never""#);
        }
        // Its selector is made by the API server.
        return;
    }
    if policy != "Always" {
        restart.not_supported(policy, &["Always"]);
    }
    let given = workload.pointer("/spec/selector");
    let selector = if kind == "ReplicationController" {
        // By default, it is the labels.
        LabelSelector {
            match_labels: decoded(given),
            ..LabelSelector::default()
        }
    } else {
        decoded(given).unwrap_or_default()
    };
    let labels = decoded(at("metadata/labels")).unwrap_or_default();
    if selector == LabelSelector::default() && kind != "ReplicationController" {
        object.at("spec.selector").required("");
    } else if !selects(&selector, &labels) {
        field
            .at("metadata.labels")
            .invalid(labels, "`selector` does not match template `labels`");
    }
}

/// What is there, if it has the type.
fn decoded<T: DeserializeOwned>(value: Option<&Value>) -> Option<T> {
    serde_json::from_value(value?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(kind: &str, spec: &Value, expected: &str) {
        let object = json!({"kind": kind, "spec": spec});
        assert_eq!(workload(&object, "spec.template").lines().trim(), expected);
    }

    #[test]
    fn selectors_match_the_labels_of_the_template() {
        let check = |kind: &str, selector: Value, expected: &str| {
            let template = json!({"metadata": {"labels": {"app": "web"}}});
            let spec = json!({"selector": selector, "template": template});
            check(kind, &spec, expected);
        };
        let exists = json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]});
        check("Deployment", json!({"matchLabels": {"app": "web"}}), "");
        check("DaemonSet", exists, "");
        check("ReplicationController", json!({"app": "web"}), "");
        check("ReplicationController", Value::Null, "");
        check("ReplicaSet", Value::Null, "spec.selector: Required value");
        check("ReplicaSet", json!({}), "spec.selector: Required value");
        let other = "spec.template.metadata.labels: Invalid value: {\"app\": \"web\"}: \
            `selector` does not match template `labels`";
        let lacks = json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]});
        check("StatefulSet", json!({"matchLabels": {"app": "api"}}), other);
        check("StatefulSet", lacks, other);
        check("ReplicationController", json!({"app": "api"}), other);
    }

    #[test]
    fn restart_policy_fits_the_kind() {
        let never = json!({"template": {"spec": {"restartPolicy": "Never"}}});
        let default = json!({"template": {"spec": {}}});
        let only_always = "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"";
        let not_always = "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"";
        check("ReplicationController", &never, only_always);
        check("ReplicationController", &default, "");
        check("Job", &never, "");
        check("Job", &default, not_always);
    }
}
