//! The volumes as directories: `DIR/NAMESPACE/POD/VOLUME`, each in the layout that a container finds.
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
use larder_projection::{Payload, disk::AtomicWriter};
use rustix::{
    fs::{Mode, OFlags, fstat, mkdirat, open, openat},
    io::Errno,
    process::geteuid,
};

use crate::{outcome::Failure, output, rendered::RenderedPod};

/// Mode of the directories of namespaces and pods: their content may be secret.
const PRIVATE: Mode = Mode::from_raw_mode(0o750);
/// Mode of volumes, as the kubelet creates them.
const VOLUME: Mode = Mode::from_raw_mode(0o755);
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Writes all volumes without errors below `dir`; returns `false` if some could not be written, which is reported.
///
/// # Errors
///
/// `dir` itself cannot be created or opened.
pub(super) fn write(dir: &Path, pods: &[RenderedPod<'_>]) -> Result<bool, Failure> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let root = open(dir, DIRECTORY, Mode::empty())
        .with_context(|| format!("cannot open {}", dir.display()))?;
    let mut complete = true;
    for pod in pods {
        for (volume, projection) in pod.volumes.values() {
            let Ok(projection) = projection else { continue };
            let names = [pod.namespace(), pod.name(), &volume.name];
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
    AtomicWriter::new(directory, path).write(&payload, now, random)?;
    Ok(())
}

/// Opens the directory `name` of `parent`, which errors call `path`, and creates it if it is missing.
fn enter(parent: BorrowedFd<'_>, name: &str, mode: Mode, path: &Path) -> anyhow::Result<OwnedFd> {
    // Names of objects are validated: this is a single component, and not `..`.
    match mkdirat(parent, name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        created => created.with_context(|| format!("cannot create {}", path.display()))?,
    }
    let opened = match openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => {
            bail!("cannot write to {}: expected a directory", path.display())
        }
        opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
    };
    let found = fstat(&opened).with_context(|| format!("cannot examine {}", path.display()))?;
    let (owner, user) = (found.st_uid, geteuid().as_raw());
    if owner != user {
        let path = path.display();
        bail!("cannot write to {path}: it belongs to user {owner}, expected user {user}");
    }
    Ok(opened)
}
