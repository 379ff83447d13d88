//! Permissions of the configuration file (rule S2 of `docs/spec/on-change.md`).
//!
//! The agent runs the commands in the file with its own privileges. So if the agent is root, only root may be able to
//! write the file, replace it, or replace a directory on the path to it.

use std::path::Path;

use larder_files::ownership::{Changers, OwnershipError, resolve};

/// Checks the file and every directory and link on the path to it. If all of them pass, only root can have changed the
/// file since it was read.
///
/// # Errors
///
/// Names the file or directory that another user may write.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let Err(error) = resolve(path, Changers::Root) else {
        return Ok(());
    };
    let problem = match error {
        OwnershipError::Io(error) => format!("{} cannot be examined", error.path.display()),
        OwnershipError::Foreign { path, owner } => {
            format!("{} belongs to user {owner}", path.display())
        }
        OwnershipError::Writable { path, .. } => {
            format!("{} is writable by others", path.display())
        }
    };
    Err(format!(
        "exec hooks need a file that only root can write; {problem}: move it to /etc/larder"
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt as _,
    };

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
        let rejected = |problem: String| {
            let expected = format!(
                "exec hooks need a file that only root can write; {problem}: move it to /etc/larder"
            );
            assert_eq!(check(&file), Err(expected));
        };
        rejected(format!("{} is writable by others", file.display()));
        set_mode(&file, 0o644);
        set_mode(directory.path(), 0o777);
        let path = directory.path().display();
        rejected(format!("{path} is writable by others"));
        set_mode(directory.path(), 0o755);
        std::os::unix::fs::chown(&file, Some(1000), None).unwrap();
        rejected(format!("{} belongs to user 1000", file.display()));
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
        let problem = format!("; {} is writable by others:", open.path().display());
        assert!(check(&link).unwrap_err().contains(&problem));
    }
}
