//! A node with a real kubelet: containerd, the kubelet, and an image made of a static busybox.
//!
//! 1. Everything runs in namespaces of its own ([`isolation`]): a test that is killed leaves no process and no mount.
//! 2. Everything that both processes write is below one folder, which is removed with the node. Directories that they
//!    need elsewhere (`/run`, `/var/lib/kubelet`, `/var/log`) are in memory, and disappear with the namespace.
//! 3. The node's containers are in the host's network: no network is configured.

mod container;
mod containerd;
mod image;
pub(crate) mod isolation;
mod kubelet;
mod larder;
mod remains;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use kube::Client;
use larder_e2e::{Binaries, ScratchDir};

pub(crate) use self::{
    container::Container,
    image::IMAGE,
    kubelet::{Kubelet, KubeletSettings, Strategy},
    larder::{Larder, MountView, build_larder},
};
use self::{containerd::Containerd, isolation::Isolated, remains::Remains};

/// containerd and a kubelet that are the node [`NODE`](larder_e2e::NODE) of an API server; dropped, they end.
#[derive(Debug)]
pub(crate) struct KubeletNode {
    /// The kubelet, which tests stop, pause and start again. Before the runtime, so that it ends first.
    pub(crate) kubelet: Kubelet,
    containerd: Containerd,
    _remains: Remains,
}

impl KubeletNode {
    /// Starts both, the kubelet as the user of `kubeconfig`. Returns when its node is ready.
    ///
    /// # Errors
    ///
    /// A process did not start or ended, with the end of its log.
    pub(crate) async fn start(
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
    pub(crate) fn first_process(&self, container: &Container) -> anyhow::Result<u32> {
        self.containerd.first_process(&container.id)
    }
}

fn write_json(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    fs::write(path, value.to_string())
        .with_context(|| format!("failed to write {}", path.display()))
}
