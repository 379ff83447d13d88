//! The downward API: fields of the pod and resources of its containers, as text.
//!
//! Kubelet 1.36, `pkg/fieldpath/fieldpath.go` and `pkg/kubelet/kubelet_pods.go`. Variables and volumes accept different
//! paths and have different error messages; the API server rejects most invalid paths first.

mod quote;
mod resources;

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::api::core::v1::Pod;
use larder_objects::{split_subscript, validation::qualified_name_problems};

use crate::{ContainerView, NodeFacts};

pub use quote::quote;
pub use resources::ResourceError;
pub(crate) use resources::{variable_resource, volume_resource};

/// Why a field of the pod has no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FieldRefError {
    /// The path belongs to another version of the API than `v1`.
    #[error("unsupported pod version: {0}")]
    Version(String),
    /// No variable may have this path.
    #[error("field label not supported: {0}")]
    Label(String),
    /// No variable may have a subscript after this path.
    #[error("field label does not support subscript: {0}")]
    LabelSubscript(String),
    /// No file may have this path, or the field exists and has no text.
    #[error("unsupported fieldPath: {0}")]
    Path(String),
    /// No file may have a subscript after this path.
    #[error("fieldPath {} does not support subscript", quote(.0))]
    PathSubscript(String),
    /// The subscript cannot be a key of labels or annotations.
    #[error("invalid key subscript in {path}: {reasons}")]
    Subscript {
        /// The whole path.
        path: String,
        /// All that is wrong, joined by `;`.
        reasons: String,
    },
    /// Neither the node nor the pod's status has an address of the host.
    #[error("host IP unknown; known addresses: []")]
    HostIp,
}

/// The text of `path` as the value of a variable.
pub(crate) fn variable_field(
    pod: &Pod,
    node: Option<&NodeFacts>,
    version: Option<&str>,
    path: &str,
) -> Result<String, FieldRefError> {
    if version.is_some_and(|version| version != "v1") {
        return Err(FieldRefError::Version(
            version.unwrap_or_default().to_owned(),
        ));
    }
    if let Some((base, _)) = split_subscript(path) {
        return match base {
            "metadata.labels" | "metadata.annotations" => volume_field(pod, path),
            _ => Err(FieldRefError::LabelSubscript(path.to_owned())),
        };
    }
    let spec = pod.spec.as_ref();
    Ok(match path {
        "spec.nodeName" | "spec.host" => spec
            .and_then(|spec| spec.node_name.clone())
            .unwrap_or_default(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.hostIP" => host_ips(pod, node)
            .first()
            .ok_or(FieldRefError::HostIp)?
            .to_string(),
        "status.hostIPs" => {
            let ips = host_ips(pod, node);
            if ips.is_empty() {
                return Err(FieldRefError::HostIp);
            }
            join(&ips)
        }
        "status.podIP" => match pod_ips(pod, node).first() {
            Some(ip) => ip.to_string(),
            None => raw_pod_ip(pod).to_owned(),
        },
        "status.podIPs" => join(&pod_ips(pod, node)),
        "metadata.name"
        | "metadata.namespace"
        | "metadata.uid"
        | "metadata.labels"
        | "metadata.annotations" => volume_field(pod, path)?,
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            return Err(FieldRefError::Path(path.to_owned()));
        }
        _ => return Err(FieldRefError::Label(path.to_owned())),
    })
}

/// The first address that variables of `container` read and that is not known yet, as the path of its field.
///
/// [`environment`](crate::environment()) makes it an empty value, or an error if it is the node's. The kubelet starts a
/// container only when the pod has its addresses; an agent that delivers an environment earlier waits for them.
pub fn unknown_address<'a>(
    pod: &Pod,
    container: ContainerView<'a>,
    node: Option<&NodeFacts>,
) -> Option<&'a str> {
    let fields = container
        .env
        .iter()
        .filter_map(|variable| variable.value_from.as_ref()?.field_ref.as_ref());
    let mut paths = fields.map(|field| field.field_path.as_str());
    paths.find(|path| match *path {
        "status.hostIP" | "status.hostIPs" => host_ips(pod, node).is_empty(),
        "status.podIP" | "status.podIPs" => {
            raw_pod_ip(pod).is_empty() && pod_ips(pod, node).is_empty()
        }
        _ => false,
    })
}

/// The text of `path` as the content of a file.
pub(crate) fn volume_field(pod: &Pod, path: &str) -> Result<String, FieldRefError> {
    let metadata = &pod.metadata;
    let (labels, annotations) = (&metadata.labels, &metadata.annotations);
    if let Some((base, key)) = split_subscript(path) {
        let (map, problems) = match base {
            "metadata.labels" => (labels, qualified_name_problems(key)),
            // Checked in lower case, looked up as it is written.
            "metadata.annotations" => (annotations, qualified_name_problems(&key.to_lowercase())),
            _ => return Err(FieldRefError::PathSubscript(path.to_owned())),
        };
        if !problems.is_empty() {
            return Err(FieldRefError::Subscript {
                path: path.to_owned(),
                reasons: problems.join(";"),
            });
        }
        let value = map.as_ref().and_then(|map| map.get(key));
        return Ok(value.cloned().unwrap_or_default());
    }
    let lines = |map: &Option<BTreeMap<String, String>>| {
        let lines: Vec<_> = map
            .iter()
            .flatten()
            .map(|(key, value)| format!("{key}={}", quote(value)))
            .collect();
        lines.join("\n")
    };
    Ok(match path {
        "metadata.name" => metadata.name.clone().unwrap_or_default(),
        "metadata.namespace" => metadata.namespace.clone().unwrap_or_default(),
        "metadata.uid" => metadata.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(labels),
        "metadata.annotations" => lines(annotations),
        _ => return Err(FieldRefError::Path(path.to_owned())),
    })
}

/// The node's first address and the first one of the other family.
///
/// Without facts about the node, as when rendering offline, the pod's status is used.
pub(crate) fn host_ips(pod: &Pod, node: Option<&NodeFacts>) -> Vec<IpAddr> {
    let Some(node) = node else {
        let status = pod.status.as_ref();
        let listed = status
            .and_then(|status| status.host_ips.as_deref())
            .unwrap_or_default()
            .iter()
            .map(|ip| ip.ip.as_str());
        let single = status.and_then(|status| status.host_ip.as_deref());
        return one_per_family(single.into_iter().chain(listed).filter_map(parse_ip));
    };
    one_per_family(node.addresses.iter().copied())
}

/// The pod's addresses: at most one of each family, the node's preferred family first; unparsable ones are dropped. A
/// pod in the network of the node has the node's before its status has any.
pub(crate) fn pod_ips(pod: &Pod, node: Option<&NodeFacts>) -> Vec<IpAddr> {
    let status = pod.status.as_ref();
    let listed = status.and_then(|status| status.pod_ips.as_deref());
    let has_host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let mut ips = match listed {
        None | Some([]) if has_host_network && raw_pod_ip(pod).is_empty() => host_ips(pod, node),
        None | Some([]) => one_per_family(parse_ip(raw_pod_ip(pod)).into_iter()),
        Some(listed) => one_per_family(listed.iter().filter_map(|ip| parse_ip(&ip.ip))),
    };
    let prefers_v6 = node
        .and_then(|node| node.addresses.first())
        .is_some_and(IpAddr::is_ipv6);
    ips.sort_by_key(|ip| ip.is_ipv6() != prefers_v6);
    ips
}

pub(crate) fn raw_pod_ip(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.pod_ip.as_deref())
        .unwrap_or_default()
}

/// Parses an address; one of IPv4 in IPv6 form counts, and is shown, as IPv4.
fn parse_ip(text: &str) -> Option<IpAddr> {
    text.parse().ok().map(|ip: IpAddr| ip.to_canonical())
}

fn one_per_family(ips: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut kept: Vec<IpAddr> = Vec::with_capacity(2);
    for ip in ips {
        if kept.iter().all(|other| other.is_ipv4() != ip.is_ipv4()) {
            kept.push(ip);
        }
    }
    kept
}

fn join(ips: &[IpAddr]) -> String {
    let texts: Vec<_> = ips.iter().map(IpAddr::to_string).collect();
    texts.join(",")
}
