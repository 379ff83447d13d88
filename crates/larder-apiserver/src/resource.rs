//! The kinds that the server knows: names, scope, selectable fields, and decoding of bodies.
//!
//! Invariant: an object that passes [`Resource::canonical`] is of its kind and has known fields only, so every stored
//! object decodes at every client.

use std::sync::LazyLock;

use larder_objects::json_tree;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::json::decode;
use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    api::{
        certificates::v1beta1 as certificates, coordination::v1 as coordination, core::v1 as core,
        storage::v1 as storage,
    },
};

/// A kind of the API that the server stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApiKind {
    /// `Namespace`.
    Namespace,
    /// `Node`.
    Node,
    /// `Pod`.
    Pod,
    /// `ConfigMap`.
    ConfigMap,
    /// `Secret`.
    Secret,
    /// `Service`.
    Service,
    /// `ServiceAccount`.
    ServiceAccount,
    /// `Event` of `v1`.
    Event,
    /// `ClusterTrustBundle`.
    ClusterTrustBundle,
    /// `PodCertificateRequest`.
    PodCertificateRequest,
    /// `Lease`.
    Lease,
    /// `CSIDriver`.
    CsiDriver,
}

/// The server's description of a kind.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) kind: ApiKind,
    /// As it stands in a manifest.
    pub(crate) name: &'static str,
    /// As it stands in a request path.
    pub(crate) plural: &'static str,
    pub(crate) short_names: &'static [&'static str],
    /// API group; empty for the core group.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) namespaced: bool,
    /// Whether there is a `status` that only the subresource of that name writes.
    pub(crate) has_status: bool,
    /// Fields that a field selector may name, besides `metadata.name` and `metadata.namespace`.
    pub(crate) fields: &'static [&'static str],
    canonical: fn(&Value) -> Result<Value, String>,
}

fn canonical<K: DeserializeOwned + Serialize>(value: &Value) -> Result<Value, String> {
    json_tree(&decode::<K>(value)?).map_err(|error| error.to_string())
}

/// Whether objects of a scope are in namespaces.
trait InNamespace {
    const NAMESPACED: bool;
}

impl InNamespace for NamespaceResourceScope {
    const NAMESPACED: bool = true;
}

impl InNamespace for ClusterResourceScope {
    const NAMESPACED: bool = false;
}

/// A kind without status, short names and fields that a selector may name.
const fn of<K>(kind: ApiKind) -> Resource
where
    K: k8s_openapi::Resource<Scope: InNamespace> + DeserializeOwned + Serialize,
{
    Resource {
        kind,
        name: K::KIND,
        plural: K::URL_PATH_SEGMENT,
        short_names: &[],
        group: K::GROUP,
        version: K::VERSION,
        namespaced: K::Scope::NAMESPACED,
        has_status: false,
        fields: &[],
        canonical: canonical::<K>,
    }
}

/// All kinds, in the order of [`ApiKind`].
pub(crate) static RESOURCES: [Resource; 12] = [
    Resource {
        short_names: &["ns"],
        has_status: true,
        fields: &["status.phase"],
        ..of::<core::Namespace>(ApiKind::Namespace)
    },
    Resource {
        short_names: &["no"],
        has_status: true,
        fields: &["spec.unschedulable"],
        ..of::<core::Node>(ApiKind::Node)
    },
    Resource {
        short_names: &["po"],
        has_status: true,
        fields: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ..of::<core::Pod>(ApiKind::Pod)
    },
    Resource {
        short_names: &["cm"],
        ..of::<core::ConfigMap>(ApiKind::ConfigMap)
    },
    Resource {
        fields: &["type"],
        ..of::<core::Secret>(ApiKind::Secret)
    },
    Resource {
        short_names: &["svc"],
        has_status: true,
        fields: &["spec.clusterIP", "spec.type"],
        ..of::<core::Service>(ApiKind::Service)
    },
    Resource {
        short_names: &["sa"],
        ..of::<core::ServiceAccount>(ApiKind::ServiceAccount)
    },
    Resource {
        short_names: &["ev"],
        fields: &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ..of::<core::Event>(ApiKind::Event)
    },
    Resource {
        fields: &["spec.signerName"],
        ..of::<certificates::ClusterTrustBundle>(ApiKind::ClusterTrustBundle)
    },
    Resource {
        has_status: true,
        fields: &["spec.signerName", "spec.podName", "spec.nodeName"],
        ..of::<certificates::PodCertificateRequest>(ApiKind::PodCertificateRequest)
    },
    of::<coordination::Lease>(ApiKind::Lease),
    of::<storage::CSIDriver>(ApiKind::CsiDriver),
];

impl ApiKind {
    pub(crate) fn resource(self) -> &'static Resource {
        &RESOURCES[self as usize]
    }

    /// The first kind that fits.
    pub(crate) fn find(fits: impl Fn(&Resource) -> bool) -> Option<Self> {
        RESOURCES
            .iter()
            .find(|resource| fits(resource))
            .map(|resource| resource.kind)
    }

    /// The kind that a request path calls `plural` in `group` and `version`.
    pub(crate) fn of_path(group: &str, version: &str, plural: &str) -> Option<Self> {
        Self::find(|resource| {
            resource.group == group && resource.version == version && resource.plural == plural
        })
    }

    /// The kind called `name`, whatever its group.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::find(|resource| resource.name == name)
    }

    /// The kind that a manifest calls by `api_version` and `kind`.
    pub fn of_manifest(api_version: &str, kind: &str) -> Option<Self> {
        Self::find(|resource| resource.api_version() == api_version && resource.name == kind)
    }
}

impl Resource {
    /// `v1`, `group/v1`.
    pub(crate) fn api_version(&self) -> String {
        group_version(self.group, self.version)
    }

    /// How the JSON of an object of this kind begins.
    pub(crate) fn opening(&self) -> &'static str {
        static OPENINGS: LazyLock<[String; RESOURCES.len()]> = LazyLock::new(|| {
            RESOURCES.each_ref().map(|resource| {
                let (kind, api_version) = (resource.name, resource.api_version());
                format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#)
            })
        });
        &OPENINGS[self.kind as usize]
    }

    /// The name of one object, as commands take it: `configmap`.
    pub(crate) fn singular(&self) -> String {
        self.name.to_lowercase()
    }

    /// The name that error texts use: `pods`, `widgets.example.com`.
    pub(crate) fn qualified(&self) -> String {
        qualified(self.plural, self.group)
    }

    /// The value of a selectable field in an object of this kind.
    pub(crate) fn selectable<'v>(&self, object: &'v Value, field: &str) -> &'v Value {
        let path = match (self.kind, field) {
            (ApiKind::Event, "source") => "source.component",
            _ => field,
        };
        path.split('.').fold(object, |value, name| &value[name])
    }

    /// Reads `value` as an object of this kind and returns it with known fields only.
    ///
    /// # Errors
    ///
    /// A field has the wrong type. The text quotes no string; for a Secret it names no field either.
    pub(crate) fn canonical(&self, value: &Value) -> Result<Value, String> {
        (self.canonical)(value).map_err(|reason| match self.kind {
            ApiKind::Secret => "a field has the wrong type, or data that is not base64".to_owned(),
            _ => reason,
        })
    }
}

/// A version as objects state it: `v1`, `storage.k8s.io/v1`.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// A kind or a resource with its group, as kube-apiserver names them.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    match group {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (index, resource) in RESOURCES.iter().enumerate() {
            let kind = resource.kind;
            assert_eq!(kind as usize, index);
            let (group, version) = (resource.group, resource.version);
            assert_eq!(
                ApiKind::of_path(group, version, resource.plural),
                Some(kind)
            );
            let api_version = resource.api_version();
            assert_eq!(
                ApiKind::of_manifest(&api_version, resource.name),
                Some(kind)
            );
            assert_eq!(ApiKind::of_name(resource.name), Some(kind));
        }
    }

    #[test]
    fn unknown_fields_are_dropped_and_wrong_types_rejected() {
        let map = ApiKind::ConfigMap.resource();
        let value = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"a": "1"}, "dta": 1});
        let value = map.canonical(&value).unwrap();
        assert_eq!(value["data"]["a"], "1");
        assert!(value.get("dta").is_none());
        assert!(
            map.canonical(&serde_json::json!({"data": {"a": 1}}))
                .is_err()
        );
    }

    #[test]
    fn an_error_about_a_secret_omits_its_value() {
        let value = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {}, "data": {"a": "hunter2!"}});
        let text = ApiKind::Secret.resource().canonical(&value).unwrap_err();
        assert!(!text.contains("hunter2"), "{text}");
    }
}
