//! The volumes as directories: `DIR/NAMESPACE/POD/VOLUME`, each in the layout that a container would find.
//!
//! Files get their modes; owners and groups are left to whoever runs the command. A volume that has an error stays as it is.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use anyhow::Context as _;
use jiff::Timestamp;
use larder_projection::{Payload, disk::AtomicWriter};

use super::rendered::RenderedPod;
use crate::{outcome::Failure, output};

/// Writes all volumes without error below `dir`; `false` if some could not be written, which is reported.
///
/// # Errors
///
/// `dir` itself cannot be made.
pub(super) fn write(dir: &Path, pods: &[RenderedPod<'_>]) -> Result<bool, Failure> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut complete = true;
    for pod in pods {
        let pod_dir = dir.join(pod.namespace()).join(pod.name());
        for (volume, projection) in &pod.volumes {
            let Ok(projection) = projection else { continue };
            // Names of volumes are checked to be single labels, names of pods to be no `..`.
            let path = pod_dir.join(&volume.name);
            if let Err(error) = write_volume(&path, &projection.payload) {
                output::error(error.as_ref());
                complete = false;
            }
        }
    }
    Ok(complete)
}

fn write_volume(path: &Path, payload: &Payload<'_>) -> anyhow::Result<()> {
    // What is below may be secret: others do not get past the pod's directory.
    if let Some(parent) = path.parent() {
        create_private(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("cannot create {}", path.display()));
        }
        _ => {}
    }
    let mut payload = payload.clone();
    for file in payload.values_mut() {
        file.owner = None;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the wall clock is read here, once for each volume"
    )]
    let now = Timestamp::now();
    AtomicWriter::open(path)?.write(&payload, now, &mut fastrand::Rng::new())?;
    Ok(())
}

fn create_private(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
        .with_context(|| format!("cannot create {}", path.display()))
}
