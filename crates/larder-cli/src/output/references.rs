//! The references of a pod, as `refs` and `render` print them.

use k8s_openapi::api::core::v1::Pod;
use larder::references;
use serde::Serialize;

/// References of one pod, sorted and unique.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct References {
    config_maps: Vec<String>,
    secrets: Vec<String>,
}

impl References {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            config_maps: references::config_maps(pod)
                .into_iter()
                .map(String::from)
                .collect(),
            secrets: references::secrets(pod)
                .into_iter()
                .map(String::from)
                .collect(),
        }
    }

    /// Kind and name of each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let maps = self
            .config_maps
            .iter()
            .map(|name| ("ConfigMap", name.as_str()));
        maps.chain(self.secrets.iter().map(|name| ("Secret", name.as_str())))
    }
}
