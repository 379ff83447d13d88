//! Facts of the running pod, its node and its cluster that a projection takes as unknown. What is not known of ConfigMaps
//! and Secrets is said for each of them: [`Unavailable::Unknown`](crate::Unavailable).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, ResourceFieldSelector};
use larder_objects::split_subscript;

use crate::{
    NodeFacts, Unknown, UnknownSource,
    downward::{host_ips, pod_ips, quote, raw_pod_ip},
    unknown::Form,
};

/// What a projection takes as unknown, instead of failing or leaving it empty. By default, nothing.
#[derive(Clone, Debug, Default)]
pub struct Assumptions {
    /// Facts about the running pod and its node, unless pod or node have them; also its files of variables, which its
    /// containers write.
    pub facts: bool,
    /// Fields that something in the cluster sets when it makes the pod, by path: the value, or `None` if it is not known.
    pub fields: BTreeMap<String, Option<String>>,
    /// What something in the cluster writes later, such as tokens and certificates, exists.
    pub written_later: bool,
    /// Names and signers of ClusterTrustBundles that do not exist, also if others may.
    pub missing_bundles: BTreeSet<String>,
    /// Services that are not listed may exist: those that are, by namespace and name. `None` if all are listed.
    pub other_services: Option<Arc<BTreeSet<(String, String)>>>,
}

impl Assumptions {
    /// The source of `path` of `pod`, if it is unknown.
    pub(crate) fn field(&self, pod: &Pod, node: Option<&NodeFacts>, path: &str) -> Option<Unknown> {
        let has_node = || {
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.as_deref())
                .is_some_and(|name| !name.is_empty())
        };
        let is_unknown = match path {
            "metadata.labels" => return self.with_lines(path, pod.metadata.labels.as_ref()),
            "metadata.annotations" => {
                return self.with_lines(path, pod.metadata.annotations.as_ref());
            }
            "spec.nodeName" | "spec.host" => self.facts && !has_node(),
            "status.hostIP" | "status.hostIPs" => {
                self.facts && node.is_none() && host_ips(pod, node).is_empty()
            }
            "status.podIP" | "status.podIPs" => {
                self.facts && raw_pod_ip(pod).is_empty() && pod_ips(pod, node).is_empty()
            }
            _ => self.fields.get(path).is_some_and(Option::is_none),
        };
        let form = match path {
            "status.hostIP" | "status.hostIPs" | "status.podIP" | "status.podIPs" => Form::Address,
            _ => Form::Any,
        };
        is_unknown.then(|| Unknown::of(UnknownSource::fact(path, form)))
    }

    /// A number that depends on the node.
    pub(crate) fn resource(&self, pod: &Pod, field: &ResourceFieldSelector) -> Option<Unknown> {
        if !self.facts {
            return None;
        }
        let divisor = field
            .divisor
            .as_ref()
            .map(|divisor| divisor.0.as_str())
            .filter(|divisor| !matches!(*divisor, "" | "0" | "1"));
        let name = field.resource.split_once('.').map_or("", |(_, name)| name);
        let resources = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let limit = resources
            .and_then(|resources| resources.limits.as_ref()?.get(name))
            .map(|limit| format!(" up to the pod's {}", limit.0));
        let divisor = divisor.map(|divisor| format!(" / {divisor}"));
        let detail = divisor.unwrap_or_default() + &limit.unwrap_or_default();
        Some(Unknown::of(UnknownSource::number(
            field.resource.as_str(),
            detail,
        )))
    }

    /// All labels or annotations: the pod's `own`, and those that are set when it is made. `None` if these are known.
    fn with_lines(&self, path: &str, own: Option<&BTreeMap<String, String>>) -> Option<Unknown> {
        if self.fields.is_empty() {
            return None;
        }
        let set = self.fields.iter().filter_map(|(field, value)| {
            let (base, key) = split_subscript(field)?;
            (base == path).then_some((key, value.as_ref()))
        });
        let own = own.into_iter().flatten();
        let mut all: BTreeMap<_, _> = own.map(|(key, value)| (&**key, Some(value))).collect();
        all.extend(set);
        all.values().find(|value| value.is_none())?;
        let lines: Vec<Result<String, Unknown>> = all
            .iter()
            .enumerate()
            .flat_map(|(index, (key, value))| {
                let end = if index == 0 { "" } else { "\n" };
                let unknown = Unknown::of_fact(format!("{path}['{key}']"));
                match value {
                    Some(value) => vec![Ok(format!("{end}{key}={}", quote(value)))],
                    None => vec![Ok(format!("{end}{key}=\"")), Err(unknown), Ok("\"".into())],
                }
            })
            .collect();
        let parts = lines.iter().map(|part| part.as_ref().map(String::as_bytes));
        Some(Unknown::joined(parts))
    }

    /// The value of a field that is set when the pod is made.
    pub(crate) fn set_field(&self, path: &str) -> Option<String> {
        self.fields.get(path).cloned().flatten()
    }

    /// The bundle, the key and the chain of a certificate that something in the cluster issues.
    pub(crate) fn pod_certificate(&self, signer: &str) -> Option<[Unknown; 3]> {
        let files = ["", " key", " chain"];
        let unknown = |file| Unknown::of(UnknownSource::pod_certificate(signer, file));
        self.written_later.then(|| files.map(unknown))
    }
}
