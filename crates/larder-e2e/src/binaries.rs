//! What a node with a real kubelet needs of this machine.

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};

/// The binaries of a node.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The kubelet.
    pub kubelet: PathBuf,
    /// A static busybox.
    pub busybox: PathBuf,
}

/// Something that a node needs is missing on this machine.
#[derive(Debug)]
pub struct UnmetRequirement {
    /// What is missing.
    pub missing: anyhow::Error,
    /// The user has named a kubelet, so a test must not pass without it.
    pub is_requested: bool,
}

impl Binaries {
    /// Finds them. The kubelet is `kubelet` in the folder that `KUBEBUILDER_ASSETS` names, or the file that
    /// `LARDER_KUBELET` names.
    ///
    /// # Errors
    ///
    /// A binary is missing; the error names it.
    pub fn find() -> Result<Self, UnmetRequirement> {
        Self::find_with(&|name| std::env::var_os(name))
    }

    fn find_with(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, UnmetRequirement> {
        Self::all(variable).map_err(|missing| UnmetRequirement {
            missing,
            is_requested: variable("LARDER_KUBELET").is_some(),
        })
    }

    fn all(variable: &dyn Fn(&str) -> Option<OsString>) -> anyhow::Result<Self> {
        let Some(assets) = variable("KUBEBUILDER_ASSETS") else {
            bail!("KUBEBUILDER_ASSETS names no folder with kube-apiserver, etcd and kubelet");
        };
        let path = variable("PATH").unwrap_or_default();
        let in_path = |name| in_path(&path, name);
        let assets = PathBuf::from(assets);
        for name in ["kube-apiserver", "etcd"] {
            if !assets.join(name).is_file() {
                bail!("{} has no {name}", assets.display());
            }
        }
        let kubelet =
            variable("LARDER_KUBELET").map_or_else(|| assets.join("kubelet"), PathBuf::from);
        if !kubelet.is_file() {
            bail!("there is no kubelet at {}", kubelet.display());
        }
        for name in [
            "containerd",
            "ctr",
            "runc",
            "unshare",
            "mount",
            "tar",
            "sha256sum",
        ] {
            in_path(name)?;
        }
        let busybox = in_path("busybox")?;
        check_static(&busybox)?;
        if !rustix::process::geteuid().is_root() {
            bail!("a kubelet needs root");
        }
        Ok(Self { kubelet, busybox })
    }
}

/// Checks that it runs in an empty root: it names no interpreter.
fn check_static(busybox: &Path) -> anyhow::Result<()> {
    let content = fs::read(busybox)?;
    let loader = b"/ld-";
    let mut windows = content.windows(loader.len()).take(4096);
    if windows.any(|bytes| bytes == loader) {
        bail!("{} is linked dynamically", busybox.display());
    }
    Ok(())
}

fn in_path(path: &OsStr, name: &str) -> anyhow::Result<PathBuf> {
    std::env::split_paths(path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("there is no {name} in PATH"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_kubelet_must_not_be_skipped_when_containerd_is_missing() {
        let assets = tempfile::tempdir().unwrap();
        for name in ["kube-apiserver", "etcd", "kubelet"] {
            fs::write(assets.path().join(name), "").unwrap();
        }
        let kubelet = assets.path().join("kubelet").into_os_string();
        for named in [None, Some(kubelet)] {
            let variable = |name: &str| match name {
                "KUBEBUILDER_ASSETS" | "PATH" => Some(assets.path().as_os_str().to_owned()),
                "LARDER_KUBELET" => named.clone(),
                _ => None,
            };
            let unmet = Binaries::find_with(&variable).unwrap_err();
            assert_eq!(unmet.missing.to_string(), "there is no containerd in PATH");
            assert_eq!(unmet.is_requested, named.is_some());
        }
    }
}
