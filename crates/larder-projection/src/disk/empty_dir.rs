//! `emptyDir` volumes, which a runtime makes: nothing of larder fills them.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;

use super::layout::{EMPTY_DIR, VOLUMES};

/// Directory of an `emptyDir` volume of the pod whose directory is `pod`, whether there is one or not.
pub fn empty_dir_path(pod: &Path, volume: &str) -> PathBuf {
    pod.join(VOLUMES).join(EMPTY_DIR).join(volume)
}

/// Makes a directory with the mode of an `emptyDir` volume, 0777 by default, and open to `fs_group`: new files inherit
/// that group. Without the right to change its group, the directory keeps the user's.
///
/// # Errors
///
/// The directory cannot be created, or belongs to another user.
pub fn make_empty_dir(
    path: &Path,
    source: &EmptyDirVolumeSource,
    fs_group: Option<u32>,
) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let is_of_group = fs_group.is_some() && chown(path, None, fs_group).is_ok();
    let mode = source.mode.map_or(0o777, i32::cast_unsigned) & 0o1777;
    let mode = if is_of_group { mode | 0o2770 } else { mode };
    fs::set_permissions(path, Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

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
                make_empty_dir(&path, &source, group).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, expected);
            }
        }
    }
}
