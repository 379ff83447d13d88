//! What controllers set in the pods that they make of a template (kubernetes v1.36, `pkg/controller`,
//! `pkg/registry/batch/job/strategy.go`).

use std::collections::BTreeMap;

use serde_json::Value;

/// Fields of a pod by path, each with the value, or `None` if only a cluster knows it.
pub type SetFields = BTreeMap<String, Option<String>>;

/// The ordinal of the first pod of a StatefulSet.
fn first_ordinal(stateful_set: &Value) -> u64 {
    let start = stateful_set.pointer("/spec/ordinals/start");
    start.and_then(Value::as_u64).unwrap_or(0)
}

/// The name of the pod of `workload` that stands for all: of a StatefulSet the first one. The names of others are not known,
/// so theirs is that of the workload.
pub(super) fn pod_name(workload: &Value) -> Value {
    let name = workload.pointer("/metadata/name");
    match name.and_then(Value::as_str) {
        Some(name) if workload["kind"] == "StatefulSet" => {
            format!("{name}-{}", first_ordinal(workload)).into()
        }
        _ => name.cloned().unwrap_or_default(),
    }
}

/// The fields that the controller of `workload` sets, in the pod of [`pod_name`].
pub(super) fn set_fields(workload: &Value) -> SetFields {
    let text = |pointer| workload.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or_default();
    // Of a CronJob, the name is that of the Job.
    let is_generated = kind == "CronJob" || text("/metadata/generateName").is_some();
    let name = text("/metadata/name").filter(|_| !is_generated);
    let mut labels = Vec::new();
    let mut fields = SetFields::from([("metadata.name".to_owned(), None)]);
    match kind {
        "Deployment" => labels.push(("pod-template-hash", None)),
        "DaemonSet" => labels.extend([
            ("controller-revision-hash", None),
            ("pod-template-generation", None),
        ]),
        "StatefulSet" => {
            let first = first_ordinal(workload);
            labels.extend([
                ("apps.kubernetes.io/pod-index", Some(first.to_string())),
                ("controller-revision-hash", None),
                (
                    "statefulset.kubernetes.io/pod-name",
                    pod_name(workload).as_str().map(str::to_owned),
                ),
            ]);
            fields.remove("metadata.name");
        }
        "Job" | "CronJob" => {
            let spec = workload.pointer(match kind {
                "Job" => "/spec",
                _ => "/spec/jobTemplate/spec",
            });
            let spec = spec.unwrap_or(&Value::Null);
            if spec["manualSelector"] != true {
                let name = name.map(str::to_owned);
                labels.extend([
                    ("batch.kubernetes.io/controller-uid", None),
                    ("batch.kubernetes.io/job-name", name.clone()),
                    ("controller-uid", None),
                    ("job-name", name),
                ]);
            }
            if spec["completionMode"] == "Indexed" {
                labels.push(("batch.kubernetes.io/job-completion-index", None));
                let annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
                fields.insert(annotation.to_owned(), None);
            }
        }
        _ => {}
    }
    let labels = labels.into_iter();
    fields.extend(labels.map(|(key, value)| (format!("metadata.labels['{key}']"), value)));
    fields
}
