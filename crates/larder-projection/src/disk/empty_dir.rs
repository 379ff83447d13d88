//! `emptyDir` volumes, which the program that runs the containers makes. They are removed with their pod.

use std::{
    fs::{self, Permissions},
    io,
    os::{
        fd::AsFd as _,
        unix::fs::{PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use rustix::io::Errno;

use super::{
    DiskError,
    directory::Directory,
    layout::{EMPTY_DIR, PLUGIN, PRIVATE, VOLUMES, element},
    subpath::make_directories,
    tmpfs,
};
use crate::VolumePath;

/// Directory of an `emptyDir` volume of the pod whose directory is `pod`, whether there is one or not.
pub fn empty_dir_path(pod: &Path, volume: &str) -> PathBuf {
    pod.join(VOLUMES).join(EMPTY_DIR).join(volume)
}

/// Makes the directory of an `emptyDir` volume of the pod whose directory is `pod`, which must be there. For the rest, see
/// [`make_empty_dir`].
///
/// # Errors
///
/// As [`make_empty_dir`], or there is no such pod.
pub fn share_empty_dir(
    pod: &Path,
    volume: &str,
    source: &EmptyDirVolumeSource,
    fs_group: Option<u32>,
    mount_points: &[VolumePath],
) -> Result<PathBuf, DiskError> {
    let volumes = Directory::open(pod)?.ensure(VOLUMES, PRIVATE)?;
    volumes.ensure(EMPTY_DIR, PLUGIN)?.make(element(volume)?)?;
    let path = empty_dir_path(pod, volume);
    make_empty_dir(&path, source, fs_group, mount_points)?;
    Ok(path)
}

/// Removes all `emptyDir` volumes of a pod.
pub(super) fn remove_empty_dirs(pod: &Directory) -> Result<(), DiskError> {
    let Some(plugin) = pod.descendant(&[VOLUMES, EMPTY_DIR])? else {
        return Ok(());
    };
    for name in plugin.directories()? {
        tmpfs::unmount(plugin.as_fd(), &name).map_err(plugin.failed("unmount", &name))?;
        plugin.remove(&name)?;
    }
    Ok(())
}

/// Makes a directory with the mode of an `emptyDir` volume, 0777 by default, and open to `fs_group`: new files inherit
/// that group. Without the right to change its group, the directory keeps the user's. `mount_points` are the directories
/// in it that other volumes are mounted on (kubelet 1.36, `pkg/volume/emptydir/empty_dir.go`).
///
/// # Errors
///
/// The directory cannot be created, or belongs to another user; what a container has put there is in the way of a mount
/// point, or would lead it out of the volume.
pub fn make_empty_dir(
    path: &Path,
    source: &EmptyDirVolumeSource,
    fs_group: Option<u32>,
    mount_points: &[VolumePath],
) -> Result<(), DiskError> {
    make_root(path, source, fs_group).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        DiskError::new("make", path, errno)
    })?;
    let directory = Directory::open(path)?;
    for point in mount_points {
        make_directories(&directory, point.as_str(), 0o755)?;
    }
    Ok(())
}

fn make_root(path: &Path, source: &EmptyDirVolumeSource, fs_group: Option<u32>) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let is_of_group = fs_group.is_some() && chown(path, None, fs_group).is_ok();
    let mode = source.mode.map_or(0o777, i32::cast_unsigned) & 0o1777;
    let mode = if is_of_group { mode | 0o2770 } else { mode };
    fs::set_permissions(path, Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn mode_is_as_stated_and_open_to_the_group() {
        // projection 79
        let directory = tempfile::tempdir().unwrap();
        let own_group = fs::metadata(directory.path()).unwrap().gid();
        for (mode, group, expected) in [
            (None, None, 0o777),
            (None, Some(own_group), 0o2777),
            (Some(0o1755), None, 0o1755),
            (Some(0o1700), Some(own_group), 0o3770),
        ] {
            let path = empty_dir_path(directory.path(), &format!("{mode:?}{group:?}"));
            let source = EmptyDirVolumeSource {
                mode,
                ..EmptyDirVolumeSource::default()
            };
            // The second call is that of a restart.
            for _ in 0..2 {
                make_empty_dir(&path, &source, group, &[]).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, expected);
            }
        }
    }

    #[test]
    fn mount_points_of_other_volumes_are_made_inside_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let (path, outside) = (root.path().join("volume"), root.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        let points = [VolumePath::parse("a/b").unwrap()];
        let make = || make_empty_dir(&path, &EmptyDirVolumeSource::default(), None, &points);
        make().unwrap();
        assert_eq!(
            fs::metadata(path.join("a/b")).unwrap().mode() & 0o7777,
            0o755
        );
        make().unwrap();
        // A container has replaced a directory.
        fs::remove_dir_all(path.join("a")).unwrap();
        symlink(&outside, path.join("a")).unwrap();
        make().unwrap_err();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
