//! The owner of a file, and the access of other users.
//!
//! "Others" are all users except root and the user of this process. Access control lists grant no more than the mode:
//! the group bits limit every entry.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use rustix::{fs::Stat, io::Errno, process::geteuid};

use crate::operation_error::{OperationError, failed};

/// Most links on the way to a path, as Linux has it.
const MAX_LINKS: usize = 40;

/// The user of this process.
pub fn user() -> u32 {
    geteuid().as_raw()
}

/// Owner and permission bits of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// User ID of the owner.
    pub owner: u32,
    /// Permission bits, with the set-ID bits and the sticky bit.
    pub mode: u32,
}

impl From<&Stat> for Ownership {
    fn from(found: &Stat) -> Self {
        Self {
            owner: found.st_uid,
            mode: found.st_mode & 0o7777,
        }
    }
}

impl From<&Metadata> for Ownership {
    fn from(found: &Metadata) -> Self {
        Self {
            owner: found.uid(),
            mode: found.mode() & 0o7777,
        }
    }
}

impl Ownership {
    /// Whether the owner is the user of this process.
    pub fn is_own(self) -> bool {
        self.owner == user()
    }

    /// Whether the owner is root or the user of this process.
    pub fn is_trusted(self) -> bool {
        self.owner == 0 || self.is_own()
    }

    /// Whether the mode lets others than the owner write. The sticky bit does not help: it lets them create entries.
    pub fn is_writable_by_others(self) -> bool {
        self.mode & 0o022 != 0
    }

    /// Whether the mode lets everybody write. The sticky bit does not help.
    pub fn is_writable_by_everybody(self) -> bool {
        self.mode & 0o002 != 0
    }

    /// Whether the mode lets others than the owner do anything.
    pub fn is_open_to_others(self) -> bool {
        self.mode & 0o077 != 0
    }
}

/// Who may be able to change what a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changers {
    /// Root alone.
    Root,
    /// Root and the user of this process. A sticky directory of theirs is accepted: no one else can replace what they
    /// have in it.
    RootAndUser,
}

/// Others may be able to change what a path leads to.
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// A component cannot be examined.
    #[error(transparent)]
    Io(#[from] OperationError),
    /// A component belongs to another user.
    #[error("{} belongs to user {owner}", path.display())]
    Foreign {
        /// The component.
        path: PathBuf,
        /// User ID of its owner.
        owner: u32,
    },
    /// Others may write to a component.
    #[error("{} has mode {mode:04o}, so other users can write to it", path.display())]
    Writable {
        /// The component.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Follows `path` from `/` on, one component and one link at a time. If every component passes, only `changers`
/// can change what the path leads to. Returns the path without links.
///
/// # Errors
///
/// Names the first component that others may change, or that cannot be examined.
pub fn resolve(path: &Path, changers: Changers) -> Result<PathBuf, OwnershipError> {
    let absolute = std::path::absolute(path).map_err(failed("examine", path))?;
    let mut ahead: Vec<OsString> = elements(&absolute).collect();
    let mut reached = PathBuf::from("/");
    let root = fs::symlink_metadata(&reached).map_err(failed("examine", &reached))?;
    check(&reached, &root, changers)?;
    let mut links = 0;
    while let Some(element) = ahead.pop() {
        if element == ".." {
            reached.pop();
            continue;
        }
        let next = reached.join(&element);
        let found = fs::symlink_metadata(&next).map_err(failed("examine", &next))?;
        check(&next, &found, changers)?;
        if !found.is_symlink() {
            reached = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(failed("examine", &next)(Errno::LOOP).into());
        }
        let target = fs::read_link(&next).map_err(failed("examine", &next))?;
        if target.is_absolute() {
            reached = PathBuf::from("/");
        }
        ahead.extend(elements(&target));
    }
    Ok(reached)
}

/// The components of `path` that lead somewhere, the last one first.
fn elements(path: &Path) -> impl Iterator<Item = OsString> {
    let components = path.components().rev();
    let leading =
        components.filter(|one| matches!(one, Component::Normal(_) | Component::ParentDir));
    leading.map(|component| component.as_os_str().to_owned())
}

fn check(path: &Path, found: &Metadata, changers: Changers) -> Result<(), OwnershipError> {
    let ownership = Ownership::from(found);
    let is_accepted = match changers {
        Changers::Root => ownership.owner == 0,
        Changers::RootAndUser => ownership.is_trusted(),
    };
    if !is_accepted {
        return Err(OwnershipError::Foreign {
            path: path.to_owned(),
            owner: ownership.owner,
        });
    }
    let is_sticky = found.is_dir() && ownership.mode & 0o1000 != 0;
    let protects = is_sticky && changers == Changers::RootAndUser;
    // The mode of a link says nothing.
    if ownership.is_writable_by_others() && !found.is_symlink() && !protects {
        return Err(OwnershipError::Writable {
            path: path.to_owned(),
            mode: ownership.mode,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    };

    use tempfile::TempDir;

    use super::*;

    /// A directory that only root can change, all the way up.
    fn private() -> Option<TempDir> {
        if !geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI must run as root");
            return None;
        }
        Some(tempfile::tempdir_in("/run").unwrap())
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn every_directory_and_link_on_the_way_is_checked() {
        let Some(root) = private() else { return };
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::create_dir_all(at("links")).unwrap();
        fs::write(at("a/b/file"), "").unwrap();
        // By way of two links, the first of which passes through a directory that no other path mentions.
        symlink("links/second/b", at("first")).unwrap();
        symlink(at("a"), at("links/second")).unwrap();
        let path = at("first/../b/file");
        let shown = |changers| resolve(&path, changers).map_err(|error| error.to_string());
        assert_eq!(shown(Changers::Root), Ok(at("a/b/file")));

        for (name, mode) in [("links", 0o777), ("a", 0o775), ("a/b/file", 0o602)] {
            let before = fs::metadata(at(name)).unwrap().permissions();
            set_mode(&at(name), mode);
            let expected = format!(
                "{} has mode {mode:04o}, so other users can write to it",
                at(name).display()
            );
            assert_eq!(shown(Changers::Root), Err(expected.clone()));
            assert_eq!(shown(Changers::RootAndUser), Err(expected));
            fs::set_permissions(at(name), before).unwrap();
        }
        for name in ["links", "a/b"] {
            chown(at(name), Some(1000), None).unwrap();
            let expected = format!("{} belongs to user 1000", at(name).display());
            assert_eq!(shown(Changers::RootAndUser), Err(expected));
            chown(at(name), Some(0), None).unwrap();
        }
        // In a sticky directory, others cannot replace a link of root, but one of theirs.
        set_mode(&at("links"), 0o1777);
        assert!(shown(Changers::Root).is_err());
        assert_eq!(shown(Changers::RootAndUser), Ok(at("a/b/file")));
        lchown(at("links/second"), Some(1000), None).unwrap();
        let expected = format!("{} belongs to user 1000", at("links/second").display());
        assert_eq!(shown(Changers::RootAndUser), Err(expected));
    }

    #[test]
    fn links_that_never_end_are_an_error() {
        let root = TempDir::new().unwrap();
        symlink("loop", root.path().join("loop")).unwrap();
        let error = resolve(&root.path().join("loop"), Changers::RootAndUser).unwrap_err();
        assert!(matches!(error, OwnershipError::Io(_)), "{error}");
    }
}
