//! The kubeconfig that `--kubeconfig-out` writes.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use larder_apiserver::{ApiServer, User};
use tempfile::NamedTempFile;

/// A kubeconfig file that is complete as soon as it exists, and that is removed when the server exits.
pub(crate) struct KubeconfigFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl KubeconfigFile {
    /// Publishes the kubeconfig of an administrator of `server`, which listens at `address`.
    pub(crate) fn of_admin(
        path: &Path,
        server: &ApiServer,
        address: SocketAddr,
    ) -> anyhow::Result<Self> {
        let text = server.kubeconfig(address, User::admin());
        Self::publish(path, &text.context("cannot create a client certificate")?)
    }

    /// Writes the file atomically, by rename. It holds a key, so only its owner may read it.
    pub(crate) fn publish(path: &Path, text: &str) -> anyhow::Result<Self> {
        let what = || format!("cannot write the kubeconfig {}", path.display());
        let parent = path
            .parent()
            .filter(|parent| *parent != Path::new(""))
            .unwrap_or(Path::new("."));
        // Temporary files have mode 0600.
        let mut file = NamedTempFile::new_in(parent).with_context(what)?;
        file.write_all(text.as_bytes()).with_context(what)?;
        let file = file
            .persist(path)
            .map_err(|error| error.error)
            .with_context(what)?;
        let metadata = file.metadata().with_context(what)?;
        Ok(Self {
            path: path.to_owned(),
            file: (metadata.dev(), metadata.ino()),
        })
    }
}

impl Drop for KubeconfigFile {
    /// Removes the file, unless another one has replaced it. The file itself is compared, not read: it may be a pipe by
    /// now.
    fn drop(&mut self) {
        let current = fs::symlink_metadata(&self.path);
        if current.is_ok_and(|current| (current.dev(), current.ino()) == self.file)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "failed to remove kubeconfig, leaving it");
        }
    }
}
