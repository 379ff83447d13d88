//! The references of a pod, as `refs` and `render` print them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use larder::references;
use larder_objects::{Kind, ObjectKey};
use larder_projection::Need;
use serde::Serialize;
use smol_str::SmolStr;

/// References of one pod, sorted and unique.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct References {
    config_maps: BTreeSet<SmolStr>,
    secrets: BTreeSet<SmolStr>,
}

impl References {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            config_maps: references::config_maps(pod),
            secrets: references::secrets(pod),
        }
    }

    /// Kind and name of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Kind, &SmolStr)> {
        self.config_maps
            .iter()
            .map(|name| (Kind::ConfigMap, name))
            .chain(self.secrets.iter().map(|name| (Kind::Secret, name)))
    }
}

/// Those of what is projected.
impl From<BTreeSet<Need>> for References {
    fn from(needs: BTreeSet<Need>) -> Self {
        let of_kind = |wanted| {
            let objects = needs.iter().filter_map(Need::object);
            objects
                .filter(|(kind, _)| *kind == wanted)
                .map(|(_, name)| name.clone())
                .collect()
        };
        Self {
            config_maps: of_kind(Kind::ConfigMap),
            secrets: of_kind(Kind::Secret),
        }
    }
}

/// The objects that any of `pods` has among its `references`.
pub(crate) fn of_pods<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    references: impl Fn(&Pod) -> References,
) -> BTreeSet<(Kind, ObjectKey)> {
    let mut all = BTreeSet::new();
    for pod in pods {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let references = references(pod);
        let keys = references.iter();
        all.extend(keys.map(|(kind, name)| (kind, ObjectKey::new(namespace, name.clone()))));
    }
    all
}
