//! The template of a workload's pods as its controller compares it: two that are equal here make equal pods. And what else
//! of a workload is compared: the fields that cannot change.
//!
//! The form is what the API server stores (kubernetes v1.36, `EqualIgnoreHash` in
//! `pkg/controller/deployment/util/deployment_util.go`). Zero values count as absent, except in `OPTIONAL` fields, and so
//! do empty lists and maps. Defaults are filled in, and each quantity has one form.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use crate::{canonical_quantity, defaults};

/// Fields that map names to quantities.
const AMOUNTS: [&str; 3] = ["limits", "overhead", "requests"];
/// Fields that map names to texts, which may be empty.
const TEXTS: [&str; 6] = [
    "annotations",
    "labels",
    "matchLabels",
    "nodeSelector",
    "userAnnotations",
    "volumeAttributes",
];

/// Fields whose zero value differs from an absent field: pointers in `staging/src/k8s.io/api/core/v1/types.go`.
const OPTIONAL: [&str; 47] = [
    "activeDeadlineSeconds",
    "allowPrivilegeEscalation",
    "apiGroup",
    "automountServiceAccountToken",
    "defaultMode",
    "enableServiceLinks",
    "expirationSeconds",
    "fsGroup",
    "fsGroupChangePolicy",
    "gmsaCredentialSpec",
    "gmsaCredentialSpecName",
    "hostProcess",
    "hostUsers",
    "hostnameOverride",
    "initiatorName",
    "localhostProfile",
    "lun",
    "maxExpirationSeconds",
    "minDomains",
    "mode",
    "mountPropagation",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
    "optional",
    "preemptionPolicy",
    "priority",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "recursiveReadOnly",
    "resourceClaimName",
    "resourceClaimTemplateName",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "runAsUserName",
    "runtimeClassName",
    "seLinuxChangePolicy",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "sizeLimit",
    "stopSignal",
    "storageClassName",
    "supplementalGroupsPolicy",
    "terminationGracePeriodSeconds",
    "tolerationSeconds",
    "volumeMode",
];

/// The same, of fields whose name is another one's too: where they are, and their names.
const OPTIONAL_IN: [(&str, &[&str]); 8] = [
    ("azureDisk", &["cachingMode", "fsType", "kind", "readOnly"]),
    ("clusterTrustBundle", &["name", "signerName"]),
    ("containers", &["restartPolicy"]),
    ("csi", &["fsType", "readOnly"]),
    ("grpc", &["service"]),
    ("hostPath", &["type"]),
    ("initContainers", &["restartPolicy"]),
    ("options", &["value"]),
];

/// The form of a template that is compared.
pub(super) fn compared(template: &Value) -> Value {
    let mut template = template.clone();
    drop_absent("", &mut template);
    let Ok(mut typed) = serde_json::from_value::<PodTemplateSpec>(template.clone()) else {
        // It is rejected, or of a kind whose pods have more fields.
        return template;
    };
    let spec = typed.spec.get_or_insert_default();
    defaults::pod_template(spec);
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let metadata = typed.metadata.unwrap_or_default();
    let mut compared = json!({
        "labels": metadata.labels,
        "annotations": metadata.annotations,
        "spec": spec,
    });
    drop_absent("", &mut compared);
    compared
}

/// The fields of a workload that the API server never changes (kubernetes v1.36, `ValidateDeploymentUpdate`,
/// `ValidateStatefulSetUpdate` and `ValidateJobUpdate`, each in the validation of its API), by path.
pub(super) fn fixed(workload: &Value) -> BTreeMap<&'static str, Value> {
    const SELECTOR: &str = "spec.selector";
    const TEMPLATE: &str = "spec.template";
    let version = workload["apiVersion"].as_str().unwrap_or_default();
    let fields: &[&str] = match (version, workload["kind"].as_str().unwrap_or_default()) {
        ("apps/v1", "Deployment" | "DaemonSet" | "ReplicaSet") => &[SELECTOR],
        ("apps/v1", "StatefulSet") => &[
            SELECTOR,
            "spec.podManagementPolicy",
            "spec.serviceName",
            CLAIMS,
        ],
        ("batch/v1", "Job") => &[SELECTOR, TEMPLATE],
        _ => &[],
    };
    let field = |path: &&'static str| {
        let pointer = format!("/{}", path.replace('.', "/"));
        let mut value = workload.pointer(&pointer).cloned().unwrap_or_default();
        match *path {
            TEMPLATE => value = compared(&value),
            CLAIMS => value.as_array_mut().into_iter().flatten().for_each(claim),
            // The default.
            _ if value == "OrderedReady" => value = Value::Null,
            _ => {}
        }
        drop_absent("", &mut value);
        let is_default = value == "" || value == json!([]);
        (*path, if is_default { Value::Null } else { value })
    };
    fields.iter().map(field).collect()
}

const CLAIMS: &str = "spec.volumeClaimTemplates";

/// Leaves of a claim's template what its author decides, and not what the API server adds.
fn claim(template: &mut Value) {
    let spec = &template["spec"];
    *template = json!({
        "name": template["metadata"]["name"],
        "accessModes": spec["accessModes"],
        "resources": spec["resources"],
        "storageClassName": spec["storageClassName"],
    });
}

/// Drops what is as good as absent, and gives quantities their one form. `parent` is the field that has `value`, or the
/// list of it.
fn drop_absent(parent: &str, value: &mut Value) {
    match value {
        Value::Object(amounts) if AMOUNTS.contains(&parent) => {
            amounts.values_mut().for_each(canonical);
        }
        Value::Object(_) if TEXTS.contains(&parent) => {}
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                drop_absent(name, value);
                if matches!(name.as_str(), "sizeLimit" | "divisor") {
                    canonical(value);
                }
            }
            fields.retain(|name, value| !is_absent(parent, name, value));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| drop_absent(parent, item)),
        _ => {}
    }
}

fn is_absent(parent: &str, name: &str, value: &Value) -> bool {
    let is_optional = || {
        let mut others = OPTIONAL_IN.iter();
        OPTIONAL.contains(&name)
            || others.any(|(place, names)| *place == parent && names.contains(&name))
    };
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => {
            fields.is_empty() && (AMOUNTS.contains(&name) || TEXTS.contains(&name))
        }
        zero => (*zero == false || *zero == 0 || *zero == "") && !is_optional(),
    }
}

/// Texts that are no quantities stay.
fn canonical(value: &mut Value) {
    if let Some(form) = value
        .as_str()
        .and_then(|text| canonical_quantity(text).ok())
    {
        *value = form.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a controller replaces pods when `change` is made to a template.
    fn differs(change: impl Fn(&mut Value)) -> bool {
        let template = json!({
            "metadata": {"labels": {"a": "web"}},
            "spec": {
                "containers": [{
                    "name": "c", "image": "app:1", "resources": {"limits": {"memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"port": 80}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                }],
                "volumes": [
                    {"name": "v", "configMap": {"name": "m"}},
                    {"name": "w", "emptyDir": {}},
                    {"name": "n", "nfs": {"server": "s", "path": "/"}},
                    {"name": "d", "csi": {"driver": "d"}},
                ],
            },
        });
        let mut changed = template.clone();
        change(&mut changed);
        compared(&template) != compared(&changed)
    }

    fn set(place: &'static str, value: Value) -> impl Fn(&mut Value) {
        move |template| {
            let (parent, field) = place.rsplit_once('/').unwrap();
            template.pointer_mut(parent).unwrap()[field] = value.clone();
        }
    }

    #[test]
    fn what_the_api_server_drops_or_fills_in_is_no_difference() {
        for (place, value) in [
            ("/spec/hostNetwork", json!(false)),
            ("/spec/hostPID", json!(false)),
            ("/spec/hostname", json!("")),
            ("/spec/nodeSelector", json!({})),
            ("/spec/overhead", json!({})),
            ("/spec/tolerations", json!([])),
            ("/spec/priorityClassName", json!("")),
            ("/spec/restartPolicy", json!("Always")),
            ("/spec/restartPolicy", json!("")),
            ("/spec/terminationGracePeriodSeconds", json!(30)),
            ("/spec/securityContext", json!({})),
            ("/spec/serviceAccount", json!(null)),
            ("/spec/containers/0/tty", json!(false)),
            ("/spec/containers/0/workingDir", json!("")),
            ("/spec/containers/0/imagePullPolicy", json!("")),
            ("/spec/containers/0/env", json!([])),
            (
                "/spec/containers/0/resources/limits/memory",
                json!("1024Mi"),
            ),
            ("/spec/containers/0/resources/requests", json!({})),
            (
                "/spec/containers/0/livenessProbe/initialDelaySeconds",
                json!(0),
            ),
            (
                "/spec/containers/0/livenessProbe/successThreshold",
                json!(0),
            ),
            ("/spec/containers/0/livenessProbe/httpGet/host", json!("")),
            ("/spec/containers/0/volumeMounts/0/readOnly", json!(false)),
            ("/spec/containers/0/volumeMounts/0/subPath", json!("")),
            ("/spec/volumes/0/configMap/defaultMode", json!(420)),
            ("/spec/volumes/1/emptyDir/medium", json!("")),
            ("/spec/volumes/2/nfs/readOnly", json!(false)),
            ("/metadata/annotations", json!({})),
        ] {
            assert!(!differs(set(place, value.clone())), "{place}: {value}");
        }
    }

    #[test]
    fn what_the_api_server_stores_is_a_difference() {
        for (place, value) in [
            ("/spec/enableServiceLinks", json!(true)),
            ("/spec/shareProcessNamespace", json!(false)),
            ("/spec/automountServiceAccountToken", json!(false)),
            ("/spec/activeDeadlineSeconds", json!(0)),
            ("/spec/containers/0/securityContext", json!({})),
            (
                "/spec/containers/0/resources/requests",
                json!({"memory": "1Gi"}),
            ),
            ("/spec/containers/0/ports", json!([{"containerPort": 80}])),
            ("/spec/volumes/0/configMap/optional", json!(false)),
            ("/spec/volumes/1/emptyDir/sizeLimit", json!("0")),
            ("/spec/volumes/3/csi/readOnly", json!(false)),
            ("/metadata/annotations", json!({"checksum": ""})),
            ("/metadata/labels/a", json!("1000m")),
        ] {
            assert!(differs(set(place, value.clone())), "{place}: {value}");
        }
        let text = |text: &str| compared(&json!({"metadata": {"annotations": {"a": text}}}));
        assert_ne!(text("1"), text("1000m"));
    }
}
