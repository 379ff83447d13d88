//! Handling of single kinds, beyond their metadata.

use k8s_openapi::api::core::v1::{NodeSystemInfo, PodSpec};
use larder_objects::{
    defaults::CERTIFICATE_EXPIRATION_SECS, manifest::fold_string_data, qos_class,
};
use serde_json::{Value, json};

use super::Part;
use crate::{
    json::{decode, set_default},
    resource::{ApiKind, Resource},
};

/// Prepares a new object.
pub(super) fn for_create(resource: &Resource, value: &mut Value, part: Part) {
    match resource.kind {
        ApiKind::Pod => {
            if part != Part::Whole || value["status"].is_null() {
                value["status"] = json!({});
            }
            set_default(&mut value["status"]["phase"], "Pending");
        }
        ApiKind::Secret => fold(value),
        ApiKind::Namespace => {
            value["spec"] = json!({});
            value["status"] = json!({});
        }
        ApiKind::PodCertificateRequest => {
            value["status"] = json!({});
            let seconds = &mut value["spec"]["maxExpirationSeconds"];
            set_default(seconds, CERTIFICATE_EXPIRATION_SECS);
        }
        _ => {}
    }
    complete(resource, value);
}

/// Keeps of `old` what `part` does not write.
pub(super) fn for_update(resource: &Resource, old: &Value, value: &mut Value, part: Part) {
    if resource.kind == ApiKind::Secret {
        fold(value);
    }
    if !resource.has_status {
        complete(resource, value);
        return;
    }
    match part {
        Part::Main => copy(&old["status"], value, "status"),
        Part::Status => {
            let mut new = old.clone();
            copy(&value["status"], &mut new, "status");
            if resource.kind == ApiKind::Pod {
                copy(&old["status"]["qosClass"], &mut new["status"], "qosClass");
            }
            for field in ["labels", "annotations", "finalizers"] {
                copy(&value["metadata"][field], &mut new["metadata"], field);
            }
            *value = new;
        }
        Part::Whole => {
            if value["status"].is_null() {
                copy(&old["status"], value, "status");
            }
        }
    }
    if resource.kind == ApiKind::Namespace {
        copy(&old["spec"], value, "spec");
    }
    complete(resource, value);
}

/// Adds the structures of a status that kube-apiserver always shows, empty ones as well.
fn complete(resource: &Resource, value: &mut Value) {
    match resource.kind {
        ApiKind::Node => {
            let endpoints = &mut value["status"]["daemonEndpoints"];
            set_default(&mut endpoints["kubeletEndpoint"]["Port"], 0);
            let empty = json!(NodeSystemInfo::default());
            for (field, empty) in empty.as_object().into_iter().flatten() {
                set_default(&mut value["status"]["nodeInfo"][field], empty.clone());
            }
        }
        ApiKind::Service => set_default(&mut value["status"]["loadBalancer"], json!({})),
        // Kubernetes 1.36, `pkg/apis/storage/v1/defaults.go`.
        ApiKind::CsiDriver => {
            let spec = &mut value["spec"];
            set_default(&mut spec["attachRequired"], true);
            set_default(&mut spec["fsGroupPolicy"], "ReadWriteOnceWithFSType");
            for field in [
                "podInfoOnMount",
                "requiresRepublish",
                "seLinuxMount",
                "storageCapacity",
            ] {
                set_default(&mut spec[field], false);
            }
            set_default(&mut spec["volumeLifecycleModes"], json!(["Persistent"]));
        }
        _ => {}
    }
}

/// Adds to a complete object what kube-apiserver shows of fields that are not set, because their types in Go know no
/// absence; and the class of service of a pod.
pub(super) fn finish(resource: &Resource, value: &mut Value) {
    let show = |place: &mut Value, fields: &[&str], absent: Value| {
        if let Some(place) = place.as_object_mut() {
            for field in fields {
                place.entry(*field).or_insert_with(|| absent.clone());
            }
        }
    };
    match resource.kind {
        ApiKind::Pod => {
            if value["status"]["qosClass"].is_null()
                && let Ok(spec) = decode::<PodSpec>(&value["spec"])
            {
                value["status"]["qosClass"] = qos_class(&spec).into();
            }
            let conditions = value
                .pointer_mut("/status/conditions")
                .and_then(Value::as_array_mut);
            for condition in conditions.into_iter().flatten() {
                let times = ["lastProbeTime", "lastTransitionTime"];
                show(condition, &times, Value::Null);
            }
        }
        ApiKind::Event => {
            let times = ["eventTime", "firstTimestamp", "lastTimestamp"];
            show(value, &times, Value::Null);
            let reporters = ["reportingComponent", "reportingInstance"];
            show(value, &reporters, "".into());
        }
        ApiKind::PodCertificateRequest => {
            let keys = ["pkixPublicKey", "proofOfPossession"];
            show(&mut value["spec"], &keys, Value::Null);
        }
        _ => {}
    }
}

/// Sets or removes `field`, whichever `from` says.
pub(super) fn copy(from: &Value, to: &mut Value, field: &str) {
    if let Some(to) = to.as_object_mut() {
        match from {
            Value::Null => to.remove(field),
            from => to.insert(field.to_owned(), from.clone()),
        };
    }
}

/// `stringData` is for writing only: it goes into `data`.
fn fold(secret: &mut Value) {
    if let Some(secret) = secret.as_object_mut() {
        // Its fields have been decoded.
        let _ = fold_string_data(secret);
    }
}
