//! Trust in the root directory of an agent.
//!
//! A user that may write to that directory chooses what `larder exec` runs. So the directory, and the socket in it,
//! must belong to root or to this user, and other users must not be able to write to them.

use std::{
    fs::{self, DirBuilder},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use larder_agent::config::Host;
use larder_files::ownership::{self, Ownership};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, fstat, open, statat},
    io::Errno,
};

/// A root directory that only root and this user can change, held open.
#[derive(Debug)]
pub(super) struct TrustedDir {
    /// Without links.
    pub(super) path: PathBuf,
    directory: OwnedFd,
}

impl TrustedDir {
    /// Opens the root directory `path`.
    ///
    /// # Errors
    ///
    /// It cannot be opened, or another user may write to it.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let mut flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A link that the user names is the user's choice; a link in a directory that everybody may write to is not.
        flags.set(OFlags::NOFOLLOW, is_shared_default(path));
        let directory = match open(path, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                bail!("cannot trust {}: expected a directory", path.display())
            }
            opened => opened.map_err(io::Error::from)?,
        };
        let found = fstat(&directory).map_err(io::Error::from)?;
        check(path, Ownership::from(&found))?;
        let path = fs::read_link(in_proc(&directory)).context("cannot read /proc/self/fd")?;
        Ok(Self { path, directory })
    }

    /// A path of the socket `name` that other users cannot redirect.
    ///
    /// # Errors
    ///
    /// There is no such socket, or another user may write to it.
    pub(super) fn socket(&self, name: &str) -> anyhow::Result<PathBuf> {
        let found =
            statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        let path = self.path.join(name);
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            bail!("cannot trust {}: expected a socket", path.display());
        }
        check(&path, Ownership::from(&found))?;
        // Not by its own path: a parent directory may belong to another user. This path is short, too, as socket
        // addresses must be.
        Ok(in_proc(&self.directory).join(name))
    }
}

fn in_proc(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Checks that only root and this user can write to `path`.
fn check(path: &Path, found: Ownership) -> anyhow::Result<()> {
    let path = path.display();
    let Ownership { owner, mode, .. } = found;
    if !found.is_trusted() {
        let trusted = trusted_users();
        bail!("cannot trust {path}: it belongs to user {owner}, expected {trusted}");
    }
    if found.is_writable_by_others() {
        bail!("cannot trust {path}: other users may write to it (mode {mode:04o})");
    }
    Ok(())
}

/// The users that may own the directory, for messages.
pub(super) fn trusted_users() -> String {
    match ownership::user() {
        0 => "root".to_owned(),
        user => format!("root or user {user}"),
    }
}

/// Whether `path` is the default of an ordinary user. It may be in `/tmp`, where another user can be first to create
/// it.
pub(super) fn is_shared_default(path: &Path) -> bool {
    let host = Host::current();
    host.uid != 0 && path == host.default_root_dir()
}

/// Creates a default root directory that no other user can enter, or checks the one that exists.
///
/// # Errors
///
/// It cannot be created, or another user controls it.
pub(super) fn create(path: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return created.with_context(|| format!("cannot create {}", path.display())),
    }
    TrustedDir::open(path).map(drop)
}
