//! The system calls of the kubelet's atomic writer, one by one, in the order that Kubernetes 1.36 makes them
//! (`pkg/volume/util/atomic_writer.go`; `docs/spec/projection.md`, section 5). It has no cost but the system's: no
//! garbage collector, no poller. The real writer is slower than this.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use larder_projection::Payload;

/// Writes `payload` into the directory `volume`; returns whether it has replaced the set. `number` makes the new name
/// unique.
pub(crate) fn write(volume: &Path, payload: &Payload<'_>, number: usize) -> io::Result<bool> {
    let data = volume.join("..data");
    // Step 2: the current set.
    let old = match fs::read_link(&data) {
        Ok(name) => Some(volume.join(name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let mut stale = BTreeSet::new();
    if let Some(old) = &old {
        // Step 3: the paths that are there, less those that stay.
        fs::symlink_metadata(old)?;
        walk(old, &PathBuf::new(), &mut stale)?;
        for path in payload.keys() {
            for kept in Path::new(path.as_str()).ancestors() {
                stale.remove(kept);
            }
        }
        // Step 4: is it the same?
        if stale.is_empty() && !is_changed(old, payload)? {
            link(volume, payload)?;
            return Ok(false);
        }
    }
    // Step 5: the new set.
    let name = format!("..2026_03_01_12_00_00.{number}");
    let set = volume.join(&name);
    DirBuilder::new().mode(0o700).create(&set)?;
    fs::set_permissions(&set, Permissions::from_mode(0o755))?;
    // Step 6: its files.
    for (path, file) in payload {
        let path = set.join(path.as_str());
        let parent = path.parent().unwrap_or(&set);
        if !fs::metadata(parent).is_ok_and(|parent| parent.is_dir()) {
            fs::create_dir_all(parent)?;
        }
        let mut created = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(file.mode)
            .open(&path)?;
        created.write_all(&file.data)?;
        drop(created);
        fs::set_permissions(&path, Permissions::from_mode(file.mode))?;
    }
    // Steps 8 and 9: the swap.
    let data_tmp = volume.join("..data_tmp");
    symlink(&name, &data_tmp)?;
    fs::rename(&data_tmp, &data)?;
    // Step 10: the links in the root.
    link(volume, payload)?;
    // Step 11: those that lead nowhere now.
    for path in stale.iter().filter(|path| path.components().count() == 1) {
        fs::remove_file(volume.join(path))?;
    }
    // Step 12: the old set.
    if let Some(old) = old {
        fs::remove_dir_all(old)?;
    }
    Ok(true)
}

/// Adds everything below `directory` to `found`; each entry is examined, as by Go's walk.
fn walk(directory: &Path, below: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let below = below.join(entry.file_name());
        if fs::symlink_metadata(entry.path())?.is_dir() {
            walk(&entry.path(), &below, found)?;
        }
        found.insert(below);
    }
    Ok(())
}

/// Whether a file is missing or has other bytes.
fn is_changed(set: &Path, payload: &Payload<'_>) -> io::Result<bool> {
    for (path, file) in payload {
        let path = set.join(path.as_str());
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            found => {
                found?;
            }
        }
        if fs::read(&path)? != *file.data {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates the links that are missing in the root.
fn link(volume: &Path, payload: &Payload<'_>) -> io::Result<()> {
    for path in payload.keys() {
        let first = Path::new(path.as_str()).components().next();
        let first = first.map_or(Path::new(""), |first| Path::new(first.as_os_str()));
        match fs::read_link(volume.join(first)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                symlink(Path::new("..data").join(first), volume.join(first))?;
            }
            _ => {}
        }
    }
    Ok(())
}
