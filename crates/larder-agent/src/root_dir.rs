//! The root directory: used by one agent at a time, and writable by its user only.
//!
//! Invariants:
//! 1. The directory belongs to this process's user or to root, and no group and no other user can write to it.
//! 2. It is opened once. The lock, the socket and the volumes are reached through that handle, even if the path later
//!    leads elsewhere.
//! 3. No link below the directory is followed.

mod mounts;

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use larder_checkpoint::CheckpointDir;
use larder_files::{
    lock::Lock,
    operation_error::{OperationError, failed},
    ownership::{Ownership, user},
    sys,
};
use larder_pods::PodSource;
use larder_projection::disk::{DiskError, Memory, VolumeHost};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use tokio::net::UnixListener;

/// With which the user chooses the directory.
const OPTION: &str = "--root-dir";
/// Locked while an agent uses the directory; holds the agent's process number, for the error message.
const LOCK: &str = "agent.lock";
/// The agent's local API, for `larder status`.
const SOCKET: &str = "agent.sock";
/// The sealed copies for a start while the API server is unreachable.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// The boot in which an agent has mounted something here.
const BOOT: &str = "boot";
/// What the kernel calls the present boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A root directory that this agent uses alone until the value is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets another agent in"]
pub struct RootDir {
    path: PathBuf,
    directory: Arc<OwnedFd>,
    at_end: AtEnd,
    _lock: Lock,
}

/// What is removed when a root directory is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtEnd {
    /// The socket; also the lock if nothing else is there, and then the directory if this agent has created it.
    Socket { is_new: bool },
    /// Nothing: no agent has used it now.
    Nothing,
    /// Socket, lock, and the directory unless others have files in it.
    Everything,
}

/// The root directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RootDirError {
    /// A step of the preparation failed.
    #[error(transparent)]
    Io(#[from] OperationError),
    /// Another user could put files in the agent's way, or the lock file is not one that an agent has created.
    #[error("{} {problem}, or choose another directory with {option}", path.display())]
    Unsafe {
        /// The root directory, or a file of the agent in it.
        path: PathBuf,
        /// Owner, mode, and what to do.
        problem: String,
        /// With which the user chooses the directory.
        option: &'static str,
    },
    /// The volumes cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Containers would see empty directories where Secrets are.
    #[error(
        "cannot keep Secrets in {}: containers do not see what this process mounts there. Make the mount shared \
         (`mountPropagation: Bidirectional`, `rshared`), run in the machine's mount namespace, choose a directory in \
         memory with {OPTION}, or take away CAP_SYS_ADMIN", path.display()
    )]
    HiddenMounts {
        /// The root directory.
        path: PathBuf,
    },
    /// Containers would keep a file system that is never updated.
    #[error(
        "cannot update {}: an earlier agent has mounted a tmpfs there, which this process does not see. Bind the root \
         directory with all mounts in it (`rbind`, `HostToContainer` or `Bidirectional`), or run where the earlier \
         agent did; if it was unmounted since, remove the file {BOOT} in the root directory", volume.display()
    )]
    UnseenMounts {
        /// The volume.
        volume: PathBuf,
    },
    /// Two agents would overwrite each other's volumes.
    #[error("{} is in use by another larder agent{holder}; stop it, or choose another directory with {option}", path.display())]
    InUse {
        /// The root directory.
        path: PathBuf,
        /// The other agent's process, if known: ` (process 42)`.
        holder: String,
        /// With which the user chooses the directory.
        option: &'static str,
    },
}

impl RootDir {
    /// Copies of the last good manifests of static pods, by source.
    pub(crate) const MANIFESTS: &str = "static-pods";

    /// Creates the directory if missing and locks it. Its mode is 0711: a service of the machine passes it on the way to
    /// the volumes of a pod whose `fsGroup` it is in.
    ///
    /// # Errors
    ///
    /// The directory cannot be created, belongs to another user, is writable by others, or is in use.
    pub fn lock(path: &Path) -> Result<Self, RootDirError> {
        let is_new = !path.exists();
        let (path, directory) = open_private(path, OPTION)?;
        let lock = lock_file(&directory, &path, LOCK, OPTION)?;
        Ok(Self {
            path,
            directory: Arc::new(directory),
            at_end: AtEnd::Socket { is_new },
            _lock: lock,
        })
    }

    /// Locks a directory that an agent has used; `None` if none has. Creates nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::lock`].
    pub fn lock_used(path: &Path) -> Result<Option<Self>, RootDirError> {
        match fs::symlink_metadata(path.join(LOCK)) {
            Ok(_) => {
                let mut root = Self::lock(path)?;
                root.at_end = AtEnd::Nothing;
                Ok(Some(root))
            }
            Err(error)
                if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory]
                    .contains(&error.kind()) =>
            {
                Ok(None)
            }
            Err(error) => Err(failed("examine", &path.join(LOCK))(error).into()),
        }
    }

    /// Removes the lock, and the directory unless others have files in it.
    pub(crate) fn discard(mut self) {
        self.at_end = AtEnd::Everything;
    }

    /// The directory, absolute and without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory.
    pub(crate) fn directory(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.directory)
    }

    /// The volumes in it. Secrets are in a tmpfs of each volume where this process may mount and containers see it;
    /// otherwise in directories.
    ///
    /// # Errors
    ///
    /// As [`VolumeHost::open_at`]; or this process may mount, but containers would not see it, and the directory is on
    /// a disk; or it does not see what an earlier agent has mounted, and would hide that.
    pub fn volumes(&self) -> Result<VolumeHost, RootDirError> {
        let mut host = VolumeHost::open_at(&self.directory, &self.path, true)?;
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
        if self.mounted_in().is_some_and(|mounted| mounted == boot)
            && let Some(volume) = host.unseen_memory()?
        {
            return Err(RootDirError::UnseenMounts { volume });
        }
        let path = self.path.join(BOOT);
        self.remove(BOOT)?;
        if let Memory::Directory { .. } = host.memory() {
            return Ok(host);
        }
        let are_seen = mounts::are_seen(&self.directory);
        if are_seen.map_err(failed("find the mount of", &self.path))? {
            let file = sys::create_file(self.directory.as_fd(), BOOT, 0o640);
            let mut file = File::from(file.map_err(failed("create", &path))?);
            let written = file.write_all(boot.as_bytes());
            written.map_err(failed("write", &path))?;
            return Ok(host);
        }
        host = VolumeHost::open_at(&self.directory, &self.path, false)?;
        match host.memory() {
            Memory::Directory { in_memory: true } => Ok(host),
            _ => Err(RootDirError::HiddenMounts {
                path: self.path.clone(),
            }),
        }
    }

    /// Removes a file, which may be missing.
    fn remove(&self, name: &str) -> Result<(), OperationError> {
        let removed = sys::remove_file(self.directory.as_fd(), name);
        sys::may_be_missing(removed).map_err(failed("remove", &self.path.join(name)))
    }

    /// The boot in which the last agent may have mounted something here.
    fn mounted_in(&self) -> Option<String> {
        let file = sys::open_file(self.directory.as_fd(), BOOT).ok()?;
        let mut text = String::new();
        File::from(file).take(64).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// The directory for the last good manifests of a source of static pods.
    pub fn manifests(&self, source: PodSource) -> PathBuf {
        self.path.join(Self::MANIFESTS).join(source.as_str())
    }

    /// The default directory of the checkpoint.
    pub(crate) fn checkpoint(&self) -> CheckpointDir {
        CheckpointDir::in_open(self.directory(), self.path.join(CHECKPOINT))
    }

    /// Opens the socket of the agent's local API, with mode 0600. A socket of an earlier agent is removed.
    ///
    /// # Errors
    ///
    /// The earlier socket cannot be removed, or the new one cannot be created. It needs `/proc`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn bind_socket(&self) -> Result<UnixListener, RootDirError> {
        let path = socket(&self.path);
        self.remove(SOCKET)?;
        // The only way to create a socket relative to a handle.
        let directory = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        let bound = Path::new(&directory).join(SOCKET);
        let listener = UnixListener::bind(&bound).map_err(failed("create socket", &path))?;
        // Created a moment ago, where only this user can replace it.
        fs::set_permissions(&bound, Permissions::from_mode(0o600))
            .map_err(failed("set mode of", &path))?;
        Ok(listener)
    }
}

/// An agent that has stopped leaves no socket, and one whose start has failed leaves nothing.
impl Drop for RootDir {
    fn drop(&mut self) {
        let (is_new, is_discarded) = match self.at_end {
            AtEnd::Nothing => return,
            AtEnd::Socket { is_new } => (is_new, false),
            AtEnd::Everything => (true, true),
        };
        // What cannot be removed is replaced by the next start.
        let _ = self.remove(SOCKET);
        let is_own = |name: &String| [LOCK, BOOT].contains(&name.as_str());
        let is_unused = sys::names(&self.directory).is_ok_and(|names| names.iter().all(is_own));
        if is_unused || is_discarded {
            let _ = self.remove(BOOT);
            let _ = self.remove(LOCK);
        }
        if is_unused && is_new {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The socket of an agent with the root directory `path`, whether or not one runs.
pub fn socket(path: &Path) -> PathBuf {
    path.join(SOCKET)
}

/// Opens the directory `path`, created if missing (mode 0711), and returns it with its absolute path without links.
/// Errors name `option`, with which the user chooses it.
///
/// # Errors
///
/// The directory cannot be created, belongs to another user, or is writable by others.
pub(crate) fn open_private(
    path: &Path,
    option: &'static str,
) -> Result<(PathBuf, OwnedFd), RootDirError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(path)
        .map_err(failed("create", path))?;
    // In a directory such as /tmp, any user can create a link to a directory of ours.
    let named = fs::symlink_metadata(path).map_err(failed("examine", path))?;
    check_owner(path, Ownership::from(&named), option)?;
    // The absolute path is what links and mount tables need.
    let path = fs::canonicalize(path).map_err(failed("resolve", path))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&path, flags, Mode::empty()).map_err(failed("open", &path))?;
    let found = rustix::fs::fstat(&directory).map_err(failed("examine", &path))?;
    // The sticky bit does not help: others could create files in the agent's way.
    let ownership = Ownership::from(&found);
    check_owner(&path, ownership, option)?;
    if ownership.is_writable_by_others() {
        let Ownership { owner, mode } = ownership;
        return Err(RootDirError::Unsafe {
            path,
            problem: format!(
                "of user {owner} has mode {mode:04o}, so other users can write to it; run `chmod go-w` on it"
            ),
            option,
        });
    }
    Ok((path, directory))
}

/// Opens and locks the file `name` of `directory`, whose path is `root`, and writes the number of this process to it.
///
/// # Errors
///
/// The file cannot be used, is not one that an agent has created, or is locked.
pub(crate) fn lock_file(
    directory: &OwnedFd,
    root: &Path,
    name: &str,
    option: &'static str,
) -> Result<Lock, RootDirError> {
    let path = root.join(name);
    // A pipe must not make the agent wait.
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let not_a_lock = |Ownership { owner, mode }| RootDirError::Unsafe {
        path: path.clone(),
        problem: format!(
            "of user {owner} (mode {mode:04o}) is not a file that an agent has created; remove it"
        ),
        option,
    };
    let opened = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o640));
    let mut file = match opened {
        Ok(fd) => File::from(fd),
        Err(errno) => {
            let found = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
            return Err(match found {
                Ok(found) if errno == Errno::LOOP => not_a_lock(Ownership::from(&found)),
                _ => failed("open", &path)(errno).into(),
            });
        }
    };
    let found = file.metadata().map_err(failed("examine", &path))?;
    if !found.is_file() || found.nlink() > 1 {
        return Err(not_a_lock(Ownership::from(&found)));
    }
    check_owner(&path, Ownership::from(&found), option)?;
    let lock = match Lock::try_file(file.as_fd()) {
        Ok(lock) => lock,
        Err(Errno::WOULDBLOCK) => {
            let mut process = String::new();
            // The error message names the process if it can be read.
            let _ = (&file).take(32).read_to_string(&mut process);
            let holder = match process.trim() {
                "" => String::new(),
                process => format!(" (process {process})"),
            };
            let path = root.to_owned();
            return Err(RootDirError::InUse {
                path,
                holder,
                option,
            });
        }
        Err(errno) => return Err(failed("lock", &path)(errno).into()),
    };
    // The agent that held the lock has removed it at its end.
    if file.metadata().is_ok_and(|found| found.nlink() == 0) {
        return lock_file(directory, root, name, option);
    }
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(failed("write", &path))?;
    Ok(lock)
}

fn check_owner(path: &Path, found: Ownership, option: &'static str) -> Result<(), RootDirError> {
    if found.is_trusted() {
        return Ok(());
    }
    Err(RootDirError::Unsafe {
        path: path.to_owned(),
        problem: format!(
            "belongs to user {} (mode {:04o}), expected user {} or root; change its owner",
            found.owner,
            found.mode,
            user()
        ),
        option,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_second_agent_is_rejected_until_the_first_exits() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("new/root");
        let first = RootDir::lock(&path).unwrap();
        let error = RootDir::lock(&path).unwrap_err();
        let process = format!("(process {})", std::process::id());
        assert!(matches!(error, RootDirError::InUse { .. }), "{error}");
        assert!(error.to_string().contains(&process), "{error}");
        drop(first);
        drop(RootDir::lock(&path).unwrap());
    }

    #[tokio::test]
    async fn a_start_that_fails_leaves_nothing_and_a_stop_no_socket() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("root");
        let root = RootDir::lock(&path).unwrap();
        let listener = root.bind_socket().unwrap();
        drop((listener, root));
        assert!(!path.exists());
        // A directory of the user stays, and so does the lock beside what was served.
        fs::create_dir(&path).unwrap();
        drop(RootDir::lock(&path).unwrap());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        assert!(RootDir::lock_used(&path).unwrap().is_none());
        let root = RootDir::lock(&path).unwrap();
        let listener = root.bind_socket().unwrap();
        fs::create_dir(path.join("pods")).unwrap();
        drop((listener, root));
        assert!(path.join(LOCK).exists() && !path.join(SOCKET).exists());
        assert!(RootDir::lock_used(&path).unwrap().is_some());
    }

    #[test]
    fn a_file_in_the_way_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        fs::write(&path, "").unwrap();
        let error = RootDir::lock(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot create {}", path.display())
        );
    }

    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let victim = temp.path().join("victim");
        for target in ["../victim", "../missing"] {
            fs::write(&victim, "precious").unwrap();
            let root = temp.path().join("root");
            fs::create_dir(&root).unwrap();
            symlink(target, root.join(LOCK)).unwrap();
            let error = RootDir::lock(&root).unwrap_err();
            assert!(matches!(error, RootDirError::Unsafe { .. }), "{error}");
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
            assert!(!temp.path().join("missing").exists());
            fs::remove_dir_all(&root).unwrap();
        }
    }

    #[test]
    fn a_hard_link_in_place_of_the_lock_is_not_written() {
        let temp = tempfile::tempdir().unwrap();
        let victim = temp.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let root = temp.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::hard_link(&victim, root.join(LOCK)).unwrap();
        let error = RootDir::lock(&root).unwrap_err();
        assert!(matches!(error, RootDirError::Unsafe { .. }), "{error}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn a_root_directory_writable_by_others_is_rejected() {
        let temp = tempfile::tempdir().unwrap();
        for mode in [0o777, 0o1777, 0o770, 0o702, 0o2775] {
            set_mode(temp.path(), mode);
            let error = RootDir::lock(temp.path()).unwrap_err().to_string();
            let path = fs::canonicalize(temp.path()).unwrap();
            let user = rustix::process::geteuid().as_raw();
            let expected = format!(
                "{} of user {user} has mode {mode:04o}, so other users can write to it; run `chmod go-w` on it, or choose another \
                 directory with --root-dir",
                path.display()
            );
            assert_eq!(error, expected);
        }
        set_mode(temp.path(), 0o755);
        drop(RootDir::lock(temp.path()).unwrap());
    }

    #[test]
    fn a_root_directory_of_another_user_is_rejected() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI must run as root");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        chown(temp.path(), Some(65534), None).unwrap();
        set_mode(temp.path(), 0o700);
        let error = RootDir::lock(temp.path()).unwrap_err().to_string();
        let expected = format!(
            "{} belongs to user 65534 (mode 0700), expected user 0 or root; change its owner, or choose another directory with \
             --root-dir",
            temp.path().display()
        );
        assert_eq!(error, expected);

        // A link of another user, to a directory of this one.
        chown(temp.path(), Some(0), None).unwrap();
        let link = temp.path().join("link");
        symlink(".", &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        let error = RootDir::lock(&link).unwrap_err();
        assert!(matches!(error, RootDirError::Unsafe { .. }), "{error}");

        // A lock file of another user.
        fs::write(temp.path().join(LOCK), "").unwrap();
        chown(temp.path().join(LOCK), Some(65534), None).unwrap();
        let error = RootDir::lock(temp.path()).unwrap_err();
        assert!(matches!(error, RootDirError::Unsafe { .. }), "{error}");
    }

    #[tokio::test]
    async fn the_socket_is_private_and_stays_in_the_locked_directory() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("root");
        let root = RootDir::lock(&path).unwrap();
        // The path leads elsewhere by now.
        let moved = temp.path().join("moved");
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(temp.path().join("victim")).unwrap();
        fs::write(temp.path().join("victim").join(SOCKET), "precious").unwrap();
        symlink("victim", &path).unwrap();
        for _ in 0..2 {
            let _listener = root.bind_socket().unwrap();
            let found = fs::metadata(moved.join(SOCKET)).unwrap();
            assert_eq!(found.mode() & 0o777, 0o600);
            std::os::unix::net::UnixStream::connect(moved.join(SOCKET)).unwrap();
        }
        let victim = fs::read_to_string(temp.path().join("victim").join(SOCKET)).unwrap();
        assert_eq!(victim, "precious");
    }
}
