//! The mounts with `subPath` of a pod: a container sees their content as of its start (section 7).

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{Pod, Volume};
use larder_projection::{
    Environment, Inputs, Mount, Projection, RuntimeFeatures, containers, environment, mounts,
};

use crate::{
    kubelet_dir::{KubeletDir, SubPathId, VolumeId},
    outdated::{OutdatedMount, SourceObject},
    pod_view::{has_expression, has_sub_path},
};

/// The mounts with `subPath` of a pod, by volume. The environment and the mounts of a container are computed once for
/// all volumes of a look.
#[derive(Debug, Default)]
pub struct SubPathMounts<'a> {
    by_volume: HashMap<&'a str, Vec<(&'a str, Mount<'a>)>>,
}

impl<'a> SubPathMounts<'a> {
    /// The mounts of `volumes`. Containers whose mounts are wrong have not started, and are left out.
    pub fn of(pod: &'a Pod, inputs: &Inputs, volumes: &HashSet<&str>) -> Self {
        let mut found = Self::default();
        for container in containers(pod) {
            let mut entries = container.volume_mounts.iter();
            if !entries.any(|entry| has_sub_path(entry) && volumes.contains(entry.name.as_str())) {
                continue;
            }
            // Other mounts are known even if an object of the environment was not read, or is gone.
            let environment = if has_expression(&container) {
                environment(pod, container, inputs)
            } else {
                Ok(Environment::of_values([]))
            };
            let Ok(environment) = environment else {
                continue;
            };
            let Ok(table) = mounts(pod, container, &environment, RuntimeFeatures::default()) else {
                continue;
            };
            for mount in table {
                let volume: &'a Volume = mount.volume;
                if mount.sub_path.is_some() && volumes.contains(volume.name.as_str()) {
                    found
                        .by_volume
                        .entry(volume.name.as_str())
                        .or_default()
                        .push((container.name, mount));
                }
            }
        }
        found
    }

    /// The mounts of the volume with this name, each with the name of its container.
    pub fn of_volume(&self, name: &str) -> impl Iterator<Item = &(&'a str, Mount<'a>)> {
        self.by_volume.get(name).into_iter().flatten()
    }

    /// The mounts of `volume` through which containers see content that differs from `projection`, which was computed
    /// for it. Mounts that cannot be seen are left out.
    pub fn outdated(
        &self,
        directory: &KubeletDir,
        id: VolumeId<'_>,
        volume: &Volume,
        projection: &Projection<'_>,
    ) -> Vec<OutdatedMount> {
        let outdated = self.of_volume(id.name).filter(|(container, mount)| {
            let id = SubPathId {
                volume: id,
                container,
                index: mount.index,
                sub_path: mount.sub_path.as_deref().unwrap_or_default(),
            };
            directory
                .compare_subpath(&id, volume, projection)
                .is_ok_and(|differences| differences.reason().is_some())
        });
        let origins = projection.origins.values();
        let outdated = outdated.map(|(container, mount)| OutdatedMount {
            container: (*container).into(),
            mount_path: mount.mount_path.clone(),
            objects: origins.clone().filter_map(SourceObject::of).collect(),
        });
        outdated.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mounts_are_found_without_the_objects_of_the_environment() {
        let names: Vec<_> = (0..3).map(|number| format!("v{number}")).collect();
        let volumes: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "configMap": {"name": "app"}}))
            .collect();
        let mounts = |sub_path: &str| -> Vec<_> {
            let mount =
                |name| json!({"name": name, "mountPath": format!("/{name}"), "subPath": sub_path});
            names.iter().map(mount).collect()
        };
        let pod = json!({
            "metadata": {"namespace": "n", "name": "web", "uid": "u"},
            "spec": {"enableServiceLinks": true, "volumes": volumes, "containers": [
                // A comparison of volumes has not read what its variables come from.
                {"name": "a", "image": "i", "volumeMounts": mounts("key"),
                    "envFrom": [{"secretRef": {"name": "unread"}}]},
                {"name": "b", "image": "i", "volumeMounts": mounts("other")},
                {"name": "whole", "image": "i", "volumeMounts": mounts("")},
            ]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let inputs = Inputs {
            services: Some([].into()),
            ..Inputs::default()
        };
        let due = names.iter().map(String::as_str);
        let found = SubPathMounts::of(&pod, &inputs, &due.collect());
        for name in &names {
            let mounts = found.by_volume[name.as_str()].iter();
            let containers: Vec<_> = mounts.map(|(container, _)| *container).collect();
            assert_eq!(containers, ["a", "b"]);
        }
        let found = SubPathMounts::of(&pod, &inputs, &HashSet::new());
        assert_eq!(found.by_volume.len(), 0);
    }
}
