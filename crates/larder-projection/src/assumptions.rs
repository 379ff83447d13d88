//! Facts of the running pod, its node and its cluster that a projection takes as unknown. What is not known of ConfigMaps
//! and Secrets is said for each of them: [`Unavailable::Unknown`](crate::Unavailable).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{
    Pod, PodCertificateProjection, ResourceFieldSelector, ResourceRequirements,
};
use larder_objects::{manifest::Recipe, split_subscript};

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
    /// Fields whose values are made up here, as there is no cluster that sets them.
    pub made_up: BTreeSet<String>,
    /// What the name begins with that something in the cluster gives the pod; empty if that is not known.
    pub name_prefix: String,
    /// The template that its controller makes the pod of, from which labels come that have its hash.
    pub template: Recipe,
    /// What something in the cluster writes later, such as tokens and certificates, exists.
    pub written_later: bool,
    /// Names and signers of ClusterTrustBundles that do not exist, also if others may.
    pub missing_bundles: BTreeSet<String>,
    /// Services that are not listed may exist: those that are, by namespace and name. `None` if all are listed.
    pub other_services: Option<Arc<BTreeSet<(String, String)>>>,
}

/// The labels in which controllers write what they compute from the template of a pod.
const TEMPLATE_HASHES: [&str; 2] = ["pod-template-hash", "controller-revision-hash"];

const LABELS: &str = "metadata.labels";

fn is_template_hash(path: &str) -> bool {
    let label = split_subscript(path).filter(|(base, _)| *base == LABELS);
    label.is_some_and(|(_, label)| TEMPLATE_HASHES.contains(&label))
}

/// The node that the pod is said to run on.
fn stated_node(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

impl Assumptions {
    /// What is known to make what is at `path`: facts of two pods are two if it differs.
    fn recipe(&self, pod: &Pod, path: &str) -> Recipe {
        let spec = pod.spec.as_ref();
        let is_of_host = spec.is_some_and(|spec| spec.host_network == Some(true));
        match path {
            "status.hostIP" | "status.hostIPs" => Recipe::new(stated_node(pod)),
            "status.podIP" | "status.podIPs" if is_of_host => {
                Recipe::new(["host ", stated_node(pod)].concat())
            }
            _ if is_template_hash(path) => self.template.clone(),
            _ => Recipe::default(),
        }
    }

    /// The source of `path` of `pod`, if it is unknown.
    pub(crate) fn field(&self, pod: &Pod, node: Option<&NodeFacts>, path: &str) -> Option<Unknown> {
        let has_node = || {
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.as_deref())
                .is_some_and(|name| !name.is_empty())
        };
        let is_unknown = match path {
            LABELS => return self.with_lines(pod, path, pod.metadata.labels.as_ref()),
            "metadata.annotations" => {
                return self.with_lines(pod, path, pod.metadata.annotations.as_ref());
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
            "metadata.name" | "metadata.uid" | "spec.nodeName" | "spec.host" => Form::Name,
            _ if split_subscript(path).is_some_and(|(base, _)| base == LABELS) => Form::Name,
            _ => Form::Any,
        };
        let prefix = match path {
            "metadata.name" => &*self.name_prefix,
            _ => "",
        };
        let source = || {
            let fact = UnknownSource::fact(path, form).beginning_with(prefix);
            fact.made_by(self.recipe(pod, path))
        };
        is_unknown.then(|| Unknown::of(source()))
    }

    /// A number that depends on the node; for a variable also on the resources `of_pod`.
    pub(crate) fn resource(
        &self,
        pod: &Pod,
        of_pod: Option<&ResourceRequirements>,
        field: &ResourceFieldSelector,
    ) -> Option<Unknown> {
        if !self.facts {
            return None;
        }
        let divisor = field
            .divisor
            .as_ref()
            .map(|divisor| divisor.0.as_str())
            .filter(|divisor| !matches!(*divisor, "" | "0" | "1"));
        let name = field.resource.split_once('.').map_or("", |(_, name)| name);
        let limit = of_pod
            .and_then(|resources| resources.limits.as_ref()?.get(name))
            .map(|limit| format!(" up to the pod's {}", limit.0));
        let divisor = divisor.map(|divisor| format!(" / {divisor}"));
        let detail = divisor.unwrap_or_default() + &limit.unwrap_or_default();
        let number = UnknownSource::number(field.resource.as_str(), detail);
        Some(Unknown::of(number.made_by(Recipe::new(stated_node(pod)))))
    }

    /// All labels or annotations: the pod's `own`, and those that are set when it is made. `None` if these are known.
    fn with_lines(
        &self,
        pod: &Pod,
        path: &str,
        own: Option<&BTreeMap<String, String>>,
    ) -> Option<Unknown> {
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
                let field = format!("{path}['{key}']");
                let recipe = self.recipe(pod, &field);
                let form = if path == LABELS {
                    Form::Name
                } else {
                    Form::Any
                };
                let unknown = Unknown::of(UnknownSource::fact(field, form).made_by(recipe));
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

    /// The bundle, the key and the chain of a certificate that something in the cluster issues to the pod's account.
    pub(crate) fn pod_certificate(
        &self,
        pod: &Pod,
        source: &PodCertificateProjection,
    ) -> Option<[Unknown; 3]> {
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        let made_by = [account.unwrap_or_default(), " ", &source.key_type].concat();
        let unknown = |file| {
            let source = UnknownSource::pod_certificate(&source.signer_name, file);
            Unknown::of(source.made_by(Recipe::new(made_by.as_str())))
        };
        self.written_later
            .then(|| ["", " key", " chain"].map(unknown))
    }
}
