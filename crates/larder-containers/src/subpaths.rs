//! Mounts with `subPath` that follow their volume in running containers ([rules](../../../docs/spec/subpath.md)).
//!
//! | module | purpose |
//! | --- | --- |
//! | `find` | which mounts of a namespace show something of the pod's volumes; pure |
//! | `reason` | why a mount keeps its content |
//! | `source` | the new content: the present set of the volume |
//! | `replace` | the system calls |
//! | `walk` | where a path of the specification leads in the container |
//! | `look` | one look at one container |
//! | `looks` | the threads of looks, and whose turn it is |
//! | `node` | what the pods of a node share |
//! | `updates` | which mounts are looked at, when again, and what is said of each |

mod find;
mod look;
mod looks;
mod node;
mod reason;
mod replace;
mod source;
#[cfg(test)]
mod tests;
mod updates;
mod walk;

use std::{os::fd::BorrowedFd, path::Path};

use self::replace::{Inside, OTHER_MOUNT, deadline, open_source};
pub use self::{
    find::WantedMount,
    node::SubPathNode,
    reason::NotReplaced,
    replace::{FileId, Stage},
    updates::{MountState, MountStatus, PodSubPaths},
};

/// The annotation of a pod that asks for updates, if it is `"true"`.
pub const ANNOTATION: &str = "larder.dev/subpath-updates";

/// Replaces the mount on `target` in the mount namespace `mounts`, which shows the file `old`, by the file or directory
/// `source`. It keeps what may not be done there. Links on the way to `target` are followed.
///
/// # Errors
///
/// The old mount stays visible.
pub fn replace_at(
    stage: &Stage,
    mounts: BorrowedFd<'_>,
    target: &Path,
    old: FileId,
    source: &Path,
) -> Result<(), NotReplaced> {
    let until = deadline();
    let record = Inside::run(mounts, until, |inside| match inside.mount_at(target)? {
        (record, file) if file == old => Ok(record),
        _ => Err(OTHER_MOUNT),
    })?;
    let new = stage.mount_of(&open_source(source)?, record.flags)?;
    Inside::run(mounts, until, |inside| inside.replace(&record, &new, false))?;
    Ok(())
}
