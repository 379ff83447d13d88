//! The root directory of an agent: the files of its pods, and what a reboot leaves.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Mode and content of files by their path.
pub type Files = BTreeMap<PathBuf, (u32, Vec<u8>)>;

/// All files of the pods that readers see, by their path below the root directory `root`. A file that is removed
/// meanwhile is left out.
pub fn pod_files(root: &Path) -> Files {
    let mut found = Files::new();
    collect(root, &root.join("pods"), &mut found);
    found
}

fn collect(root: &Path, directory: &Path, found: &mut Files) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        // The sets have other names each time; the links to them are followed.
        let name = path.file_name().unwrap_or_default();
        if name.as_encoded_bytes().starts_with(b"..20") {
            continue;
        }
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            collect(root, &path, found);
        } else if let Ok(content) = fs::read(&path) {
            let path = path.strip_prefix(root).unwrap_or(&path).to_owned();
            found.insert(path, (metadata.permissions().mode(), content));
        }
    }
}

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
