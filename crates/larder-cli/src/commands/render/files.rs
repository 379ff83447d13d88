//! The volumes as directories: `DIR/NAMESPACE/POD/VOLUME`, or `DIR/NAMESPACE/KIND-NAME/VOLUME` where several workloads have
//! the name, each in the layout that a container finds.
//!
//! Files get their modes; all belong to the user that runs the command. A volume with an error keeps its last content.
//!
//! Invariant: below `DIR` no link is followed, and nothing is written to a directory of another user. Volumes hold
//! Secrets, and `DIR` may be in a directory that others can write to.

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use anyhow::{Context as _, bail};
use larder_files::{
    ownership::{self, Ownership},
    sys,
};
use larder_projection::{Payload, disk::AtomicWriter};
use rustix::io::Errno;

use crate::{outcome::Failure, output, rendered::RenderedPod};

/// Mode of the directories of namespaces and pods: their content may be secret.
const PRIVATE: u32 = 0o750;
/// Mode of volumes, as the kubelet creates them.
const VOLUME: u32 = 0o755;

/// Writes all volumes without errors below `dir`; returns `false` if some could not be written, which is reported.
///
/// # Errors
///
/// `dir` itself cannot be created or opened.
pub(super) fn write(dir: &Path, pods: &[RenderedPod<'_>]) -> Result<bool, Failure> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let root = sys::open_root(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    let mut complete = true;
    for pod in pods {
        // No pod has a name with the capital letters of a kind.
        let directory = pod.label.replace('/', "-");
        for (volume, projection) in pod.volumes.values() {
            let Ok(projection) = projection else { continue };
            let names = [pod.namespace(), &directory, &volume.name];
            if let Err(error) = write_volume(&root, dir, names, &projection.payload) {
                output::error(error.as_ref());
                complete = false;
            }
        }
    }
    Ok(complete)
}

fn write_volume(
    root: &OwnedFd,
    dir: &Path,
    [namespace, pod, volume]: [&str; 3],
    payload: &Payload<'_>,
) -> anyhow::Result<()> {
    let path = dir.join(namespace);
    let directory = enter(root.as_fd(), namespace, PRIVATE, &path)?;
    let path = path.join(pod);
    let directory = enter(directory.as_fd(), pod, PRIVATE, &path)?;
    let path = path.join(volume);
    let directory = enter(directory.as_fd(), volume, VOLUME, &path)?;
    let mut payload = payload.clone();
    for file in payload.values_mut() {
        file.owner = None;
    }
    let (now, random) = (output::now(), &mut fastrand::Rng::new());
    let writer = AtomicWriter::new(directory, path.clone());
    let written = writer.write(&payload, now, random)?;
    if let Some(name) = written.shadowed.first() {
        let path = path.join(name);
        bail!("cannot write {}: something else is there", path.display());
    }
    Ok(())
}

/// Opens the directory `name` of `parent`, which errors call `path`, and creates it if it is missing.
fn enter(parent: BorrowedFd<'_>, name: &str, mode: u32, path: &Path) -> anyhow::Result<OwnedFd> {
    // Names of objects are validated: this is a single component, and not `..`.
    match sys::make_dir(parent, name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        created => created.with_context(|| format!("cannot create {}", path.display()))?,
    }
    let opened = match sys::open_dir(parent, name) {
        Err(Errno::LOOP | Errno::NOTDIR) => {
            bail!("cannot write to {}: expected a directory", path.display())
        }
        opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
    };
    let found = sys::stat(&opened).with_context(|| format!("cannot examine {}", path.display()))?;
    if !Ownership::from(&found).is_own() {
        let (path, owner, user) = (path.display(), found.st_uid, ownership::user());
        bail!("cannot write to {path}: it belongs to user {owner}, expected user {user}");
    }
    Ok(opened)
}
