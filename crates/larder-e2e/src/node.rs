//! A node with a real kubelet: containerd, the kubelet, and an image made of a static busybox.
//!
//! 1. Everything runs in namespaces of its own ([`isolation`]): a test that is killed leaves no process and no mount.
//! 2. Everything that both processes write is below one folder, which is removed with the node. Directories that they
//!    need elsewhere (`/run`, `/var/lib/kubelet`, `/var/log`) are in memory, and disappear with the namespace.
//! 3. The node's containers are in the host's network: no network is configured.

mod container;
mod containerd;
mod image;
pub mod isolation;
mod kubelet;
mod larder;
mod remains;

use std::{
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use kube::Client;

pub use self::{
    container::Container,
    image::IMAGE,
    kubelet::{Kubelet, KubeletSettings, Strategy},
    larder::{Larder, MountView, build_larder},
};
use self::{containerd::Containerd, isolation::Isolated, remains::Remains};
use crate::ScratchDir;

/// containerd and a kubelet that are the node [`NODE`](crate::NODE) of an API server; dropped, they end.
#[derive(Debug)]
pub struct KubeletNode {
    /// The kubelet, which tests stop, pause and start again. Before the runtime, so that it ends first.
    pub kubelet: Kubelet,
    containerd: Containerd,
    _remains: Remains,
}

impl KubeletNode {
    /// Starts both, the kubelet as the user of `kubeconfig`. Returns when its node is ready.
    ///
    /// # Errors
    ///
    /// A process did not start or ended, with the end of its log.
    pub async fn start(
        _: &Isolated,
        binaries: &Binaries,
        kubeconfig: PathBuf,
        admin: &Client,
        settings: KubeletSettings,
    ) -> anyhow::Result<Self> {
        let folder = ScratchDir::with_prefix("larder-e2e-node-")?;
        let containerd = Containerd::start(&folder.path().join("containerd")).await?;
        let image = image::build(&folder.path().join("image"), &binaries.busybox)?;
        containerd.import(&image)?;
        let mut kubelet = Kubelet::prepare(
            &folder.path().join("kubelet"),
            binaries.kubelet.clone(),
            kubeconfig,
            containerd.socket(),
            settings,
        )?;
        kubelet.start()?;
        kubelet.ready(admin).await?;
        Ok(Self {
            kubelet,
            containerd,
            _remains: Remains(folder),
        })
    }

    /// The process that the runtime names as the first one of a container.
    ///
    /// # Errors
    ///
    /// The runtime has no such container, or does not answer.
    pub fn first_process(&self, container: &Container) -> anyhow::Result<u32> {
        self.containerd.first_process(&container.id)
    }
}

/// The binaries of a node.
#[derive(Clone, Debug)]
pub struct Binaries {
    kubelet: PathBuf,
    busybox: PathBuf,
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
    if content
        .windows(loader.len())
        .take(4096)
        .any(|bytes| bytes == loader)
    {
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

fn write_json(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    fs::write(path, value.to_string())
        .with_context(|| format!("failed to write {}", path.display()))
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
