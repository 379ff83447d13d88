//! Defaults and validation of `larder_objects`, and the rules for changes in an update.

use std::collections::HashSet;

use k8s_openapi::{
    api::{
        certificates::v1beta1::ClusterTrustBundle,
        core::v1::{Namespace, Node, Pod, Service, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use larder_objects::{
    ConfigMap, Secret, defaults, json_tree,
    validation::{self, FieldErrors, Scope},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::name;
use crate::{
    json::{self, items, text},
    resource::{ApiKind, Resource},
    status::{ApiError, Cause},
};

/// The annotation of mirror pods; its value does not matter.
const MIRROR: &str = "/metadata/annotations/kubernetes.io~1config.mirror";
/// [`MIRROR`], as errors name it.
const MIRROR_FIELD: &str = "metadata.annotations[kubernetes.io/config.mirror]";

/// Fills defaults into `value`, and checks it; `old` is what it replaces.
///
/// # Errors
///
/// 422 with all wrong fields. No value of a ConfigMap or Secret is in it.
pub(super) fn apply(
    resource: &Resource,
    old: Option<&Value>,
    value: &mut Value,
) -> Result<(), ApiError> {
    let mut causes = Vec::new();
    let errors = check(resource.kind, old, value, &mut causes)?;
    causes.extend(errors.iter().map(|error| Cause {
        reason: error.kind.reason(),
        message: error.body(),
        field: error.field.to_string(),
    }));
    if causes.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid(resource.name, name(value), causes))
    }
}

/// The rules of each kind: what `larder_objects` finds, and in `causes` what only a server knows.
fn check(
    kind: ApiKind,
    old: Option<&Value>,
    value: &mut Value,
    causes: &mut Vec<Cause>,
) -> Result<FieldErrors, ApiError> {
    match kind {
        ApiKind::Namespace => typed::<Namespace>(value, defaults::namespace, validation::namespace),
        ApiKind::Node => typed::<Node>(value, defaults::node, validation::node),
        ApiKind::Pod => check_pod(old, value, causes),
        ApiKind::ConfigMap => check_config_map(old, value),
        ApiKind::Secret => check_secret(old, value, causes),
        ApiKind::Service => typed::<Service>(value, defaults::service, validation::service),
        ApiKind::ServiceAccount => {
            typed::<ServiceAccount>(value, |_| {}, validation::service_account)
        }
        ApiKind::Event => {
            check_event(value, causes);
            metadata(value)
        }
        ApiKind::ClusterTrustBundle => {
            let new: ClusterTrustBundle = parse(value)?;
            Ok(match old {
                Some(old) => validation::cluster_trust_bundle_update(&new, &parse(old)?),
                None => validation::cluster_trust_bundle(&new),
            })
        }
        // Their specs and answers are a signer's to check, and none runs here.
        ApiKind::PodCertificateRequest => metadata(value),
        ApiKind::Lease => {
            check_lease(value, causes);
            metadata(value)
        }
        ApiKind::CsiDriver => Ok(validation::metadata(
            &parse(&value["metadata"])?,
            Scope::Cluster,
        )),
    }
}

fn check_pod(
    old: Option<&Value>,
    value: &mut Value,
    causes: &mut Vec<Cause>,
) -> Result<FieldErrors, ApiError> {
    if let Some(old) = old {
        check_pod_update(old, value, causes);
    }
    if value.pointer(MIRROR).is_some() && text(value, "/spec/nodeName").is_empty() {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        causes.push(Cause::invalid(MIRROR_FIELD, why));
    }
    typed::<Pod>(value, defaults::pod, validation::pod)
}

fn check_config_map(old: Option<&Value>, value: &Value) -> Result<FieldErrors, ApiError> {
    let new: ConfigMap = decode(value)?;
    let errors = metadata(value)?.and(validation::config_map(&new));
    Ok(match old {
        Some(old) => errors.and(validation::config_map_update(&new, &decode(old)?)),
        None => errors,
    })
}

fn check_secret(
    old: Option<&Value>,
    value: &mut Value,
    causes: &mut Vec<Cause>,
) -> Result<FieldErrors, ApiError> {
    if text(value, "/type").is_empty() {
        value["type"] = "Opaque".into();
    }
    let new: Secret = decode(value)?;
    let account = "/metadata/annotations/kubernetes.io~1service-account.name";
    if new.type_ == "kubernetes.io/service-account-token" && text(value, account).is_empty() {
        let field = "metadata.annotations[kubernetes.io/service-account.name]";
        causes.push(Cause::required(field, ""));
    }
    let errors = metadata(value)?.and(validation::secret(&new));
    Ok(match old {
        Some(old) => errors.and(validation::secret_update(&new, &decode(old)?)),
        None => errors,
    })
}

/// An object of cluster scope has its events in the default namespace, any other in its own.
fn check_event(event: &Value, causes: &mut Vec<Cause>) {
    let of = text(event, "/metadata/namespace");
    let held = text(event, "/involvedObject/namespace");
    if of != held && !(held.is_empty() && of == "default") {
        let why = format!("{held:?}: does not match event.namespace");
        causes.push(Cause::invalid("involvedObject.namespace", &why));
    }
}

/// Defaults and checks `value` as a `K`.
fn typed<K: DeserializeOwned + Serialize>(
    value: &mut Value,
    default: fn(&mut K),
    check: fn(&K) -> FieldErrors,
) -> Result<FieldErrors, ApiError> {
    let mut object: K = parse(value)?;
    default(&mut object);
    let errors = check(&object);
    *value = json_tree(&object).map_err(|_| unreadable())?;
    Ok(errors)
}

fn parse<K: DeserializeOwned>(value: &Value) -> Result<K, ApiError> {
    json::decode(value).map_err(|_| unreadable())
}

fn decode<K: larder_objects::Object>(value: &Value) -> Result<K, ApiError> {
    let json = serde_json::to_vec(value).map_err(|_| unreadable())?;
    K::from_json(&json).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// The decoder has let the object through, so this names no field.
fn unreadable() -> ApiError {
    ApiError::bad_request("the object cannot be read as its kind")
}

fn metadata(value: &Value) -> Result<FieldErrors, ApiError> {
    let metadata: ObjectMeta = parse(&value["metadata"])?;
    Ok(validation::metadata(&metadata, Scope::Namespaced))
}

/// Kubernetes 1.36, `pkg/apis/coordination/validation/validation.go`; coordinated leader election is not checked.
fn check_lease(lease: &Value, causes: &mut Vec<Cause>) {
    for (field, least, why) in [
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ] {
        if let Some(given) = lease["spec"][field].as_i64().filter(|&given| given < least) {
            let (field, why) = (format!("spec.{field}"), format!("{given}: {why}"));
            causes.push(Cause::invalid(&field, why));
        }
    }
}

/// An update may change a pod's images and deadline, and add tolerations. It cannot turn a pod into a mirror pod or
/// back.
fn check_pod_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if old.pointer(MIRROR) != new.pointer(MIRROR) {
        let why = "may not be added, changed or removed";
        causes.push(Cause::invalid(MIRROR_FIELD, why));
    }
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for containers in ["containers", "initContainers"] {
            for container in spec[containers].as_array_mut().into_iter().flatten() {
                container["image"].take();
            }
        }
        for field in [
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
            "ephemeralContainers",
        ] {
            spec[field].take();
        }
        spec
    };
    let mut defaulted = new.clone();
    let readable = typed::<Pod>(&mut defaulted, defaults::pod, |_| FieldErrors::default()).is_ok();
    if readable && fixed(old) != fixed(&defaulted) {
        causes.push(Cause::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,\
                      `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
                      tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
    let new: HashSet<_> = items(&defaulted, "/spec/tolerations").collect();
    if !items(old, "/spec/tolerations").all(|toleration| new.contains(toleration)) {
        let why = "existing tolerations may not be changed or removed";
        causes.push(Cause::invalid("spec.tolerations", why));
    }
}
