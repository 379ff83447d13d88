//! Permissions of the configuration file (rule S2 of `docs/spec/on-change.md`).
//!
//! The agent runs the commands in the file with its own privileges. So if the agent is root, only root may be able to
//! write the file, replace it, or replace a directory on the path to it.

use std::{
    fs::{self, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Checks the file and every directory on the path to it, before and after links are resolved. If all of them pass,
/// only root can have changed the file since it was read.
///
/// # Errors
///
/// Names the file or directory that another user may write.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let unknown = |path: &Path| format!("cannot examine {}", path.display());
    let file = fs::metadata(path).map_err(|_| unknown(path))?;
    check_one(&file, "the file")?;
    let absolute = std::path::absolute(path).map_err(|_| unknown(path))?;
    let resolved = fs::canonicalize(path).map_err(|_| unknown(path))?;
    for directory in directories(&absolute).chain(directories(&resolved)) {
        let found = fs::metadata(&directory).map_err(|_| unknown(&directory))?;
        check_one(&found, &format!("the directory {}", directory.display()))?;
    }
    Ok(())
}

fn directories(path: &Path) -> impl Iterator<Item = PathBuf> {
    path.ancestors().skip(1).map(Path::to_owned)
}

fn check_one(found: &Metadata, what: &str) -> Result<(), String> {
    let mode = found.mode() & 0o7777;
    if found.uid() != 0 {
        return Err(format!("{what} belongs to user {}", found.uid()));
    }
    if mode & 0o022 != 0 {
        return Err(format!(
            "others than root may write {what} (mode {mode:04o})"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    /// A directory of root that only root can write, all the way up.
    fn private() -> Option<tempfile::TempDir> {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI must run as root");
            return None;
        }
        Some(tempfile::tempdir_in("/run").unwrap())
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    // on-change 8
    #[test]
    fn file_or_directory_that_others_may_write_is_rejected() {
        let Some(directory) = private() else { return };
        let file = directory.path().join("agent.yaml");
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o644);
        assert_eq!(check(&file), Ok(()));
        set_mode(&file, 0o664);
        let expected = "others than root may write the file (mode 0664)";
        assert_eq!(check(&file).unwrap_err(), expected);
        set_mode(&file, 0o644);
        set_mode(directory.path(), 0o777);
        let expected = format!(
            "others than root may write the directory {} (mode 0777)",
            directory.path().display()
        );
        assert_eq!(check(&file).unwrap_err(), expected);
        set_mode(directory.path(), 0o755);
        std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
        assert_eq!(check(&file).unwrap_err(), "the file belongs to user 1000");
    }

    // on-change 8
    #[test]
    fn link_in_a_directory_of_others_is_rejected() {
        let Some(directory) = private() else { return };
        let file = directory.path().join("agent.yaml");
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o644);
        let open = tempfile::tempdir_in("/run").unwrap();
        set_mode(open.path(), 0o777);
        let link = open.path().join("agent.yaml");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(check(&link).unwrap_err().contains("(mode 0777)"));
    }
}
