//! What controllers set in the pods that they make of a template (kubernetes v1.36, `pkg/controller`,
//! `pkg/registry/batch/job/strategy.go`).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde_json::{Map, Value};

use super::template;

/// What makes pods of a template. Displays as `Deployment web`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Workload {
    /// `Deployment`
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its own annotations, not those of its pods.
    pub annotations: BTreeMap<String, String>,
    /// What becomes of its pods when their template differs.
    pub rollout: Rollout,
    /// That template, in the form in which two are equal if they make equal pods.
    pub template: Value,
    /// Its fields that the API server never changes, in the same form, each by its path.
    pub fixed: BTreeMap<&'static str, Value>,
    /// Names of the PersistentVolumeClaims that its controller makes for the pod here.
    pub claims: BTreeSet<String>,
}

/// What a controller does with pods whose template differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// It replaces them.
    Replaces,
    /// It makes new ones for each run, and leaves those of a run that has begun.
    NextRun,
    /// It leaves them until they are deleted.
    Leaves,
    /// Its kind is not known here.
    Unknown,
}

/// Kinds of custom resources whose controllers replace pods.
const REPLACING: [(&str, &str); 7] = [
    ("apps.kruise.io", "CloneSet"),
    ("apps.kruise.io", "DaemonSet"),
    ("apps.kruise.io", "StatefulSet"),
    ("apps.openshift.io", "DeploymentConfig"),
    ("argoproj.io", "Rollout"),
    ("serving.knative.dev", "Configuration"),
    ("serving.knative.dev", "Service"),
];

impl Workload {
    /// Of this object, which has the template of its pods at `template`.
    pub(super) fn of(workload: &Value, template: &str) -> Self {
        let template = format!("/{}", template.replace('.', "/"));
        let template = workload.pointer(&template).unwrap_or(&Value::Null);
        let text = |pointer| workload.pointer(pointer).and_then(Value::as_str);
        let text = |pointer| text(pointer).unwrap_or_default().to_owned();
        let annotations = workload
            .pointer("/metadata/annotations")
            .and_then(Value::as_object)
            .into_iter()
            .flat_map(Map::iter)
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        Self {
            kind: text("/kind"),
            name: text("/metadata/name"),
            annotations: annotations.collect(),
            rollout: rollout(workload),
            template: template::compared(template),
            fixed: template::fixed(workload),
            claims: claims(workload).into_values().collect(),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// A StatefulSet with a partition leaves the pods below it, of which the first one stands for all here.
fn rollout(workload: &Value) -> Rollout {
    let field = |pointer| workload.pointer(pointer).unwrap_or(&Value::Null);
    let is_true = |places: &[&'static str]| places.iter().any(|place| *field(place) == true);
    let has_partition = [
        "/spec/updateStrategy/rollingUpdate/partition",
        "/spec/updateStrategy/partition",
    ]
    .into_iter()
    .any(|place| {
        !matches!(field(place), Value::Null) && *field(place) != 0 && *field(place) != "0%"
    });
    let is_paused = is_true(&[
        "/spec/paused",
        "/spec/updateStrategy/paused",
        "/spec/updateStrategy/rollingUpdate/paused",
    ]);
    let version = field("/apiVersion").as_str().unwrap_or_default();
    let kind = field("/kind").as_str().unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let is_known = matches!(group, "" | "apps" | "batch") || REPLACING.contains(&(group, kind));
    match (group, kind) {
        ("batch", "CronJob") => Rollout::NextRun,
        ("batch", "Job")
        | ("apps", "ReplicaSet")
        | ("", "ReplicationController")
        | ("apps.kruise.io", "BroadcastJob") => Rollout::Leaves,
        ("apps.openshift.io", "DeploymentConfig")
            if !has_config_trigger(field("/spec/triggers")) =>
        {
            Rollout::Leaves
        }
        _ if has_partition || is_paused || *field("/spec/updateStrategy/type") == "OnDelete" => {
            Rollout::Leaves
        }
        _ if is_known => Rollout::Replaces,
        _ => Rollout::Unknown,
    }
}

/// Whether a DeploymentConfig with these triggers replaces its pods when their template differs. Without the field, it has
/// that trigger by default.
fn has_config_trigger(triggers: &Value) -> bool {
    let triggers = triggers.as_array().map(Vec::as_slice);
    triggers.is_none_or(|all| all.iter().any(|one| one["type"] == "ConfigChange"))
}

/// Fields of a pod by path, each with the value, or `None` if only a cluster knows it.
pub type SetFields = BTreeMap<String, Option<String>>;

/// The ordinal of the first pod of a StatefulSet.
fn first_ordinal(stateful_set: &Value) -> u64 {
    stateful_set
        .pointer("/spec/ordinals/start")
        .and_then(Value::as_u64)
        .unwrap_or(0)
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

/// The names of the PersistentVolumeClaims that its controller makes for the pod of [`pod_name`], by volume.
pub(super) fn claims(workload: &Value) -> BTreeMap<String, String> {
    let pod = pod_name(workload);
    let pod = pod.as_str().unwrap_or_default();
    let templates = workload.pointer("/spec/volumeClaimTemplates");
    let templates = templates.and_then(Value::as_array).into_iter().flatten();
    let names = templates.filter_map(|claim| claim.pointer("/metadata/name")?.as_str());
    names
        .map(|name| (name.to_owned(), format!("{name}-{pod}")))
        .collect()
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
            let spec = workload
                .pointer(match kind {
                    "Job" => "/spec",
                    _ => "/spec/jobTemplate/spec",
                })
                .unwrap_or(&Value::Null);
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
    for (key, value) in labels {
        fields.insert(format!("metadata.labels['{key}']"), value);
    }
    fields
}
