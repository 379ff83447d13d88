//! What a cluster makes of a pod that is created: its node, its service account, and the fields that are set then.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use larder_objects::{
    manifest::{Manifest, Manifests, SetFields, Workload},
    stable_pod_uid,
};

/// The field that has the index of a pod of an Indexed Job.
const COMPLETION_INDEX: &str = "metadata.labels['batch.kubernetes.io/job-completion-index']";

/// Binds the pods without a node to the only Node, if there is exactly one.
pub(crate) fn bind_to_only_node(manifests: &mut Manifests) {
    let documents = manifests.documents.iter();
    let mut nodes = documents.filter(|one| matches!(one.manifest, Manifest::Node(_)));
    let (Some(only), None) = (nodes.next(), nodes.next()) else {
        return;
    };
    let only = only.object.key().name;
    for document in &mut manifests.documents {
        if let Manifest::Pod(pod) = &mut document.manifest
            && let Some(spec) = &mut pod.spec
        {
            spec.node_name.get_or_insert_with(|| only.to_string());
        }
    }
}

/// Sets the service account of a pod that names none (kubernetes v1.36, `plugin/pkg/admission/serviceaccount`).
pub(super) fn set_service_account(pod: &mut Pod) {
    let name = pod
        .spec
        .get_or_insert_default()
        .service_account_name
        .get_or_insert_default();
    if name.is_empty() {
        "default".clone_into(name);
    }
}

/// The fields of the pod whose values a cluster sets, from those that are set whatever the pod is. A variable that a
/// controller adds is added.
pub(super) fn fields_of(pod: &mut Pod, mut fields: SetFields) -> SetFields {
    if pod.metadata.generate_name.is_some() {
        fields.insert("metadata.name".to_owned(), None);
    }
    if fields.contains_key(COMPLETION_INDEX) {
        add_completion_index(pod);
    }
    if is_uid_made_up(pod) {
        fields.extend(not_before_it_exists());
    }
    fields
}

/// What the generated name of a pod begins with; empty if it is long enough to be cut (kubernetes v1.36,
/// `staging/src/k8s.io/apiserver/pkg/storage/names/generate.go`).
pub(super) fn name_prefix(pod: &Pod, made_by: Option<&Workload>) -> String {
    let own = pod.metadata.generate_name.clone();
    let prefix = own.or_else(|| Some(format!("{}-", made_by?.name)));
    prefix
        .filter(|prefix| prefix.len() <= UNCUT)
        .unwrap_or_default()
}

/// Most bytes that certainly stay of the name of a workload in those of its pods, before what controllers add.
const UNCUT: usize = 32;

/// Whether no API server has given the pod its UID, so it does not exist yet.
fn is_uid_made_up(pod: &Pod) -> bool {
    let metadata = &pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let made_up = stable_pod_uid(&text(&metadata.namespace), &text(&metadata.name));
    metadata.uid.as_deref().is_none_or(|uid| uid == made_up)
}

/// The fields that a pod has only when it exists: the API server sets its UID, the agent of its node the annotations.
pub(super) fn not_before_it_exists() -> [(String, Option<String>); 3] {
    let annotation = |name: &str| format!("metadata.annotations['kubernetes.io/config.{name}']");
    [
        ("metadata.uid".to_owned(), None),
        (annotation("seen"), None),
        (annotation("source"), Some("api".to_owned())),
    ]
}

/// Adds the variable that a pod of an Indexed Job has (kubernetes v1.36, `addCompletionIndexEnvVariables` in
/// `pkg/controller/job/indexed_job_utils.go`): the last one, so no other variable can refer to it.
fn add_completion_index(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        let variables = container.env.get_or_insert_default();
        let name = "JOB_COMPLETION_INDEX";
        if variables.iter().all(|variable| variable.name != name) {
            variables.push(EnvVar {
                name: name.to_owned(),
                value_from: Some(EnvVarSource {
                    field_ref: Some(ObjectFieldSelector {
                        field_path: COMPLETION_INDEX.to_owned(),
                        ..ObjectFieldSelector::default()
                    }),
                    ..EnvVarSource::default()
                }),
                ..EnvVar::default()
            });
        }
    }
}
