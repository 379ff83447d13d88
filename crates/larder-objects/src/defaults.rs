//! The API server's defaults, for objects that never passed one.
//!
//! Source: Kubernetes 1.36, `pkg/apis/core/v1/defaults.go` and the conversions beside it. Applying them twice changes
//! nothing. What admission plugins add (service account, tolerations, priority, the API access volume) is not here.

mod pod;

use k8s_openapi::{
    api::core::v1::{
        ClientIPConfig, Namespace, NamespaceSpec, NamespaceStatus, Node, Service,
        SessionAffinityConfig,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

pub use self::pod::{pod, pod_template};
use crate::Secret;

/// Mode of the files of a volume whose `defaultMode` is not set.
pub const VOLUME_MODE: i32 = 0o644;
/// `serviceAccountToken.expirationSeconds` that is not set.
pub const TOKEN_EXPIRATION_SECS: i64 = 3600;
/// `podCertificate.maxExpirationSeconds` that is not set.
pub const CERTIFICATE_EXPIRATION_SECS: i32 = 86_400;

/// Fills the defaults of a Secret.
pub fn secret(secret: &mut Secret) {
    if secret.type_.is_empty() {
        secret.type_ = "Opaque".into();
    }
}

/// Fills the defaults of a Service. An address is not among them: the API server allocates it.
pub fn service(service: &mut Service) {
    let spec = service.spec.get_or_insert_default();
    let affinity = spec
        .session_affinity
        .get_or_insert_with(|| "None".to_owned());
    if affinity == "None" {
        spec.session_affinity_config = None;
    } else if affinity == "ClientIP" {
        let config: &mut SessionAffinityConfig =
            spec.session_affinity_config.get_or_insert_default();
        let client: &mut ClientIPConfig = config.client_ip.get_or_insert_default();
        client.timeout_seconds.get_or_insert(10_800);
    }
    let type_ = spec.type_.get_or_insert_with(|| "ClusterIP".to_owned());
    for port in spec.ports.iter_mut().flatten() {
        set(&mut port.protocol, "TCP");
        let unset = match &port.target_port {
            None | Some(IntOrString::Int(0)) => true,
            Some(IntOrString::String(name)) => name.is_empty(),
            Some(IntOrString::Int(_)) => false,
        };
        if unset {
            port.target_port = Some(IntOrString::Int(port.port));
        }
    }
    let exposed = matches!(&**type_, "NodePort" | "LoadBalancer");
    if exposed {
        set(&mut spec.external_traffic_policy, "Cluster");
    }
    if exposed || *type_ == "ClusterIP" {
        set(&mut spec.internal_traffic_policy, "Cluster");
    }
    if *type_ == "LoadBalancer" {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
    }
}

/// Fills the defaults of a Namespace, its finalizer and phase included.
pub fn namespace(namespace: &mut Namespace) {
    if let Some(name) = &namespace.metadata.name {
        namespace
            .metadata
            .labels
            .get_or_insert_default()
            .insert("kubernetes.io/metadata.name".to_owned(), name.clone());
    }
    let spec: &mut NamespaceSpec = namespace.spec.get_or_insert_default();
    let finalizers = spec.finalizers.get_or_insert_default();
    if finalizers.is_empty() {
        finalizers.push("kubernetes".to_owned());
    }
    let status: &mut NamespaceStatus = namespace.status.get_or_insert_default();
    set(&mut status.phase, "Active");
}

/// Fills a field that is not set.
fn set(field: &mut Option<String>, default: &str) {
    field.get_or_insert_with(|| default.to_owned());
}

/// Fills the defaults of a Node: what it can allocate is what it has.
pub fn node(node: &mut Node) {
    if let Some(status) = &mut node.status
        && status.allocatable.is_none()
    {
        status.allocatable.clone_from(&status.capacity);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn a_service_gets_type_affinity_protocol_and_target() {
        let mut given: Service = from_value(json!({
            "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}, {"port": 81, "targetPort": "http"}]},
        }))
        .unwrap();
        service(&mut given);
        let expected = json!({
            "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ports": [
                {"port": 80, "protocol": "TCP", "targetPort": 80},
                {"port": 81, "protocol": "TCP", "targetPort": "http"},
            ],
        });
        assert_eq!(to_value(&given.spec).unwrap(), expected);
        let once = given.clone();
        service(&mut given);
        assert_eq!(given, once);
    }

    #[test]
    fn a_load_balancer_is_exposed_and_an_external_name_is_not() {
        let with_type = |type_: &str| {
            let mut given: Service =
                from_value(json!({"spec": {"type": type_, "sessionAffinity": "ClientIP"}}))
                    .unwrap();
            service(&mut given);
            given.spec.unwrap()
        };
        let balancer = with_type("LoadBalancer");
        assert_eq!(balancer.external_traffic_policy.as_deref(), Some("Cluster"));
        assert_eq!(balancer.allocate_load_balancer_node_ports, Some(true));
        let client = balancer.session_affinity_config.unwrap().client_ip.unwrap();
        assert_eq!(client.timeout_seconds, Some(10_800));
        let external = with_type("ExternalName");
        assert_eq!(external.internal_traffic_policy, None);
        assert_eq!(external.external_traffic_policy, None);
    }

    #[test]
    fn a_namespace_is_active_and_carries_its_name() {
        let mut given: Namespace = from_value(json!({"metadata": {"name": "n"}})).unwrap();
        namespace(&mut given);
        let expected = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "n", "labels": {"kubernetes.io/metadata.name": "n"}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"},
        });
        assert_eq!(to_value(&given).unwrap(), expected);
    }

    #[test]
    fn a_node_allocates_what_it_has() {
        let mut given: Node = from_value(json!({"status": {"capacity": {"cpu": "2"}}})).unwrap();
        node(&mut given);
        let status = given.status.unwrap();
        assert_eq!(status.allocatable, status.capacity);
    }

    #[test]
    fn a_secret_is_opaque() {
        let mut given = Secret::default();
        secret(&mut given);
        assert_eq!(given.type_, "Opaque");
    }
}
