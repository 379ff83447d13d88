//! Finds the kubeconfig and the root directory of this machine's kubelet, unless the user names them. The kubeconfig
//! has the identity of the node, whose permissions suffice for larder beside a kubelet (beside-kubelet 10.4).

use std::{
    io,
    path::{Path, PathBuf},
};

/// Root directory of most kubelets.
const ROOT_DIR: &str = "/var/lib/kubelet";

/// Kubeconfigs of kubelets with their root directories, as distributions place them. On EKS and Bottlerocket they name
/// a credential plugin of the host, which a container cannot start.
const KNOWN: [(&str, &str); 8] = [
    // kubeadm.
    ("/etc/kubernetes/kubelet.conf", ROOT_DIR),
    // OpenShift, GKE, AKS, EKS.
    ("/var/lib/kubelet/kubeconfig", ROOT_DIR),
    // Talos.
    ("/etc/kubernetes/kubeconfig-kubelet", ROOT_DIR),
    // Bottlerocket.
    ("/etc/kubernetes/kubelet/kubeconfig", ROOT_DIR),
    ("/var/lib/rancher/k3s/agent/kubelet.kubeconfig", ROOT_DIR),
    ("/var/lib/rancher/rke2/agent/kubelet.kubeconfig", ROOT_DIR),
    ("/var/lib/k0s/kubelet.conf", "/var/lib/k0s/kubelet"),
    (
        "/var/snap/microk8s/current/credentials/kubelet.config",
        "/var/snap/microk8s/common/var/lib/kubelet",
    ),
];

/// The files of a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletFiles {
    /// Its kubeconfig.
    pub kubeconfig: PathBuf,
    /// Its root directory.
    pub root_dir: PathBuf,
}

/// No kubeconfig of a kubelet was found.
#[derive(Debug, thiserror::Error)]
#[error("cannot find the kubelet's kubeconfig, tried {}; name it with --kubeconfig", tried.join(", "))]
pub struct NoKubeconfig {
    /// The paths, those that exist with the reason why they are of no use.
    tried: Vec<String>,
}

impl KubeletFiles {
    /// The files of the kubelet of this machine: those of the first kubeconfig that exists.
    ///
    /// # Errors
    ///
    /// None exists.
    pub fn find() -> Result<Self, NoKubeconfig> {
        Self::find_below(Path::new("/"))
    }

    fn find_below(host: &Path) -> Result<Self, NoKubeconfig> {
        let mut tried = Vec::new();
        for (kubeconfig, root_dir) in KNOWN {
            // Absolute on the host; the links in it are the administrator's.
            let path = host.join(kubeconfig.trim_start_matches('/'));
            match path.metadata() {
                Ok(metadata) if metadata.is_file() => {
                    return Ok(Self {
                        kubeconfig: path,
                        root_dir: host.join(root_dir.trim_start_matches('/')),
                    });
                }
                Ok(_) => tried.push(format!("{kubeconfig} (not a file)")),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tried.push(kubeconfig.to_owned());
                }
                Err(error) => tried.push(format!("{kubeconfig} ({error})")),
            }
        }
        Err(NoKubeconfig { tried })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn first_existing_kubeconfig_is_found_with_its_root_directory() {
        let host = tempfile::tempdir().unwrap();
        let at = |path: &str| host.path().join(path.trim_start_matches('/'));
        // beside-kubelet 10.4, from the last to the first.
        for (kubeconfig, root_dir) in KNOWN.iter().rev() {
            fs::create_dir_all(at(kubeconfig).parent().unwrap()).unwrap();
            fs::write(at(kubeconfig), "").unwrap();
            let found = KubeletFiles::find_below(host.path()).unwrap();
            assert_eq!(found.kubeconfig, at(kubeconfig));
            assert_eq!(found.root_dir, at(root_dir));
        }
    }

    #[test]
    fn error_names_every_path_and_what_is_in_its_place() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir_all(host.path().join("etc/kubernetes/kubelet.conf")).unwrap();
        let error = KubeletFiles::find_below(host.path())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/etc/kubernetes/kubelet.conf (not a file), /var/lib"),
            "{error}"
        );
        for (path, _) in KNOWN {
            assert!(error.contains(path), "{error}");
        }
        assert!(error.ends_with("; name it with --kubeconfig"), "{error}");
    }
}
