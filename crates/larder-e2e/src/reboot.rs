//! What a reboot leaves of an agent's root directory.

use std::{fs, path::Path};

/// Empties the root directory `root` but for the checkpoint: as a reboot does if all else is in memory.
///
/// # Panics
///
/// Something in it cannot be removed.
pub fn reboot(root: &Path) {
    for entry in fs::read_dir(root).expect("the root directory can be listed") {
        let entry = entry.expect("the root directory can be listed");
        if entry.file_name() == "checkpoint" {
            continue;
        }
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_directory {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
        removed.expect("what is in it can be removed");
    }
}
