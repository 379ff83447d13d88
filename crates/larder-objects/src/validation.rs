//! The API server's validation.
//!
//! Source: Kubernetes 1.36, `pkg/apis/core/validation/validation.go`; the texts are the server's, except that fields of
//! list items always have their index here. Complete for the fields that identity, volumes and environment depend on
//! (metadata, ConfigMap, Secret, ClusterTrustBundle, and of a pod its volumes, and its containers' names, environment,
//! mounts, ports and resources). Fields that only a scheduler or a kubelet reads, such as affinity and probes, are not
//! checked.
//!
//! Invariants:
//! 1. All errors are found, not only the first.
//! 2. An error never carries a value of a ConfigMap or a Secret.

mod certificates;
mod environment;
mod error;
mod field;
mod names;
mod object;
mod pod;
mod ports;
mod resources;
mod volume_types;
mod volumes;
mod workload;

pub use self::{
    certificates::{cluster_trust_bundle, cluster_trust_bundle_update, is_signer_name},
    error::{FieldError, FieldErrorKind, FieldErrors},
    names::{
        is_config_map_key, is_environment_name, is_label, is_label_value, is_qualified_name,
        is_subdomain, qualified_name_problems,
    },
    object::{
        MAX_OBJECT_BYTES, Scope, config_map, config_map_update, metadata, namespace, node, secret,
        secret_update, service, service_account,
    },
    pod::pod,
    volumes::{certificate_secs, token_secs_problem},
};
pub(crate) use workload::workload;
