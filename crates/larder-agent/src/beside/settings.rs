//! The settings of the mode.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{self, Path, PathBuf},
};

use larder_kubelet::{kubelet_dir::Mounts, swaps::SwapDetection};
use larder_pods::StoredPod;

/// The annotation with which a pod excludes itself (R8), and its only value.
pub(crate) const POLICY: (&str, &str) = ("larder.dev/refresh-policy", "never");

/// Settings of the mode `Beside`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BesideConfig {
    /// Root directory of the kubelet. `beside.kubeletRootDir`; defaults to `/var/lib/kubelet`.
    pub kubelet_root_dir: PathBuf,
    /// Namespaces whose pods are touched; all if empty. `beside.namespaces`.
    pub namespaces: BTreeSet<String>,
    /// Labels that a pod must have to be touched. `beside.selector`; none by default.
    pub selector: BTreeMap<String, String>,
    /// Whether to touch pods whose volumes differ only in `kube-root-ca.crt` or `openshift-service-ca.crt`, which every
    /// pod of a cluster mounts (R7). `beside.refreshClusterCAs`; off by default.
    pub refresh_cluster_cas: bool,
    /// Whether to post an event when a container needs a restart to see a change. `beside.restartEvents`; off by
    /// default.
    pub restart_events: bool,
    /// Directory of the lock that lets one larder of a node touch. `beside.lockDir`; defaults to `/run/larder`. In a
    /// container, a directory of the host.
    pub lock_dir: PathBuf,
    /// Whether to show only which pods would be touched. `--dry-run`.
    pub dry_run: bool,
    /// Whether volumes in memory are mounts. Tests that may not mount set that they are not.
    pub mounts: Mounts,
    /// How swaps are noticed. Tests with paused time poll.
    pub swaps: SwapDetection,
    /// The processes of the node, as hooks find them. `/proc`; tests have another directory.
    pub processes: PathBuf,
}

/// A directory that larder writes to overlaps with the kubelet's root directory (R1).
#[derive(Debug, thiserror::Error)]
#[error(
    "{} and the kubelet's root directory {} overlap, expected separate directories",
    own.display(),
    kubelet.display()
)]
pub struct OverlapError {
    own: PathBuf,
    kubelet: PathBuf,
}

impl BesideConfig {
    /// The defaults, for the kubelet with this root directory.
    pub fn new(kubelet_root_dir: impl Into<PathBuf>) -> Self {
        Self {
            kubelet_root_dir: kubelet_root_dir.into(),
            namespaces: BTreeSet::new(),
            selector: BTreeMap::new(),
            refresh_cluster_cas: false,
            restart_events: false,
            lock_dir: PathBuf::from("/run/larder"),
            dry_run: false,
            mounts: Mounts::Required,
            swaps: SwapDetection::Inotify,
            processes: PathBuf::from("/proc"),
        }
    }

    /// The kubelet's default root directory.
    pub const KUBELET_ROOT_DIR: &str = "/var/lib/kubelet";

    /// Checks that `root_dir` and the directory of the lock lie outside of the kubelet's root directory and do not
    /// contain it, links resolved. Without this, the agent would write below the kubelet's directory, and Landlock would
    /// let it.
    ///
    /// # Errors
    ///
    /// One of them overlaps with it.
    pub fn check_directories(&self, root_dir: &Path) -> Result<(), OverlapError> {
        let kubelet = resolved(&self.kubelet_root_dir);
        for own in [root_dir, &self.lock_dir] {
            let resolved = resolved(own);
            if resolved.starts_with(&kubelet) || kubelet.starts_with(&resolved) {
                return Err(OverlapError {
                    own: own.to_owned(),
                    kubelet: self.kubelet_root_dir.clone(),
                });
            }
        }
        Ok(())
    }

    /// Whether the lock is in the agent's root directory.
    pub(crate) fn locks_in(&self, root_dir: &Path) -> bool {
        resolved(&self.lock_dir) == resolved(root_dir)
    }

    /// Why a pod is never touched (R8); `None` if it may be touched.
    pub(crate) fn excludes(&self, pod: &StoredPod) -> Option<&'static str> {
        let metadata = &pod.metadata;
        let annotation = metadata
            .annotations
            .as_ref()
            .and_then(|found| found.get(POLICY.0));
        if annotation.is_some_and(|value| value == POLICY.1) {
            return Some("excluded by its annotation larder.dev/refresh-policy");
        }
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        if !self.namespaces.is_empty() && !self.namespaces.contains(namespace) {
            return Some("excluded: its namespace is not in beside.namespaces");
        }
        let labels = metadata.labels.as_ref();
        let has = |(name, value): (&String, &String)| {
            labels.and_then(|labels| labels.get(name)) == Some(value)
        };
        (!self.selector.iter().all(has)).then_some("excluded: beside.selector does not select it")
    }
}

impl Default for BesideConfig {
    fn default() -> Self {
        Self::new(Path::new(Self::KUBELET_ROOT_DIR))
    }
}

/// `path` without links, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let path = path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let resolved = path.ancestors().find_map(|ancestor| {
        let rest = path.strip_prefix(ancestor).ok()?;
        let resolved = ancestor.canonicalize().ok()?;
        // By components: joined with an empty path, it would end in a slash.
        Some(resolved.components().chain(rest.components()).collect())
    });
    resolved.unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use serde_json::json;

    use super::*;

    #[test]
    fn own_directories_that_overlap_with_the_kubelets_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("kubelet/pods")).unwrap();
        symlink(at("kubelet/pods"), at("link")).unwrap();
        let check = |root_dir: &str, lock_dir: &str| {
            let mut config = BesideConfig::new(at("kubelet"));
            config.lock_dir = at(lock_dir);
            config.check_directories(&at(root_dir)).is_ok()
        };
        assert!(check("larder", "lock"));
        assert!(check("kubelet-2/larder", "lock"));
        for (root_dir, lock_dir) in [
            ("kubelet/larder", "lock"),
            ("kubelet", "lock"),
            (".", "lock"),
            ("larder", "kubelet/pods"),
            ("link", "lock"),
            ("larder", "link/not/there/yet"),
        ] {
            assert!(!check(root_dir, lock_dir), "{root_dir} {lock_dir}");
        }
    }

    #[test]
    fn pods_are_excluded_by_annotation_namespace_and_labels() {
        let pod = |namespace: &str, tier: &str, policy: &str| -> StoredPod {
            let pod = json!({"metadata": {
                "namespace": namespace, "name": "web", "labels": {"tier": tier},
                "annotations": {"larder.dev/refresh-policy": policy},
            }});
            serde_json::from_value(pod).unwrap()
        };
        let all = BesideConfig::default();
        assert_eq!(all.excludes(&pod("prod", "web", "always")), None);
        assert!(all.excludes(&pod("prod", "web", "never")).is_some());
        let mut some = BesideConfig::default();
        some.namespaces.insert("prod".to_owned());
        some.selector.insert("tier".to_owned(), "web".to_owned());
        assert_eq!(some.excludes(&pod("prod", "web", "")), None);
        assert!(some.excludes(&pod("dev", "web", "")).is_some());
        assert!(some.excludes(&pod("prod", "db", "")).is_some());
    }
}
