//! The root directory: used by one agent at a time, and writable by its user only.
//!
//! Invariants:
//! 1. The directory belongs to this process's user or to root, and no group and no other user can write to it.
//! 2. It is opened once. The lock, the socket and the volumes are reached through that handle, even if the path later
//!    leads elsewhere.
//! 3. No link below the directory is followed.
//!
//! | module | purpose |
//! | --- | --- |
//! | `error` | why it cannot be used |
//! | `private_dir` | a directory that others cannot write to, and a locked file in it |
//! | `held` | what a running agent has in it: locks and socket |
//! | `place` | whether its path still leads to it |
//! | `mounts` | whether containers see what is mounted in it |

mod error;
mod held;
mod mounts;
mod place;
mod private_dir;

use std::{
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use larder_checkpoint::CheckpointDir;
use larder_files::{
    operation_error::{OperationError, failed},
    sys,
};
use larder_pods::PodSource;
use larder_projection::disk::{Memory, VolumeHost};
use parking_lot::Mutex;

pub use self::{error::RootDirError, held::AgentSocket};
use self::{
    error::{BOOT, OPTION},
    held::{Held, LOCK, SOCKET},
};
pub(crate) use self::{
    place::{Place, RootLook, RootLooked, RootProblems},
    private_dir::{lock_directory, lock_file, open_private},
};

/// The sealed copies for a start while the API server is unreachable.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// What the kernel calls the present boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Longest wait, at the end, for a look at the directory: the disk may have stopped to answer.
const LAST_LOOK: Duration = Duration::from_millis(100);

/// A root directory that this agent uses alone until the value is dropped.
#[derive(Debug)]
#[must_use = "dropping it lets another agent in"]
pub struct RootDir {
    path: PathBuf,
    directory: Arc<OwnedFd>,
    at_end: AtEnd,
    /// `None` once it is given up.
    held: Arc<Mutex<Option<Held>>>,
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

impl RootDir {
    /// Copies of the last good manifests of static pods, by source.
    pub(crate) const MANIFESTS: &str = "static-pods";
    /// What has been accepted of a directory of manifests.
    pub const ACCEPTED: &str = "manifests.json";

    /// Creates the directory if missing and locks it. Its mode is 0711: a service of the machine passes it on the way to
    /// the volumes of a pod whose `fsGroup` it is in.
    ///
    /// # Errors
    ///
    /// The directory cannot be created, belongs to another user, is writable by others, or is in use.
    pub fn lock(path: &Path) -> Result<Self, RootDirError> {
        let is_new = !path.exists();
        let (path, directory) = open_private(path, OPTION)?;
        let directory = Arc::new(directory);
        let held = Held::lock(&directory, &path)?;
        Ok(Self {
            path,
            directory,
            at_end: AtEnd::Socket { is_new },
            held: Arc::new(Mutex::new(Some(held))),
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
            file.write_all(boot.as_bytes())
                .map_err(failed("write", &path))?;
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

    /// The socket of the agent's local API. It accepts nothing before it is [bound](Self::bind_socket).
    pub fn socket(&self) -> AgentSocket {
        let held = self.held.lock();
        held.as_ref()
            .expect("it is held until it is dropped")
            .socket()
    }

    /// Creates the socket, with mode 0600. A socket of an earlier agent is removed. If it cannot be created, a running agent
    /// tries again.
    ///
    /// # Errors
    ///
    /// The earlier socket cannot be removed, or the new one cannot be created. It needs `/proc`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn bind_socket(&self) -> Result<(), RootDirError> {
        let mut held = self.held.lock();
        let held = held.as_mut().expect("it is held until it is dropped");
        Ok(held.bind_socket()?)
    }

    /// What looks at the directory while the agent runs.
    pub(crate) fn looking(&self) -> RootLook {
        RootLook {
            path: self.path.clone(),
            directory: self.directory(),
            held: Arc::clone(&self.held),
        }
    }
}

/// An agent that has stopped leaves no socket, and one whose start has failed leaves nothing.
impl Drop for RootDir {
    fn drop(&mut self) {
        let held = self.held.try_lock_for(LAST_LOOK);
        let Some(held) = held.and_then(|mut held| held.take()) else {
            return;
        };
        let (is_new, is_discarded) = match self.at_end {
            AtEnd::Nothing => return,
            AtEnd::Socket { is_new } => (is_new, false),
            AtEnd::Everything => (true, true),
        };
        // What cannot be removed is replaced by the next start.
        let _ = held.remove_socket();
        let is_own = |name: &String| [LOCK, BOOT].contains(&name.as_str());
        let is_unused = sys::names(&self.directory).is_ok_and(|names| names.iter().all(is_own));
        if is_unused || is_discarded {
            let _ = self.remove(BOOT);
            let _ = held.remove_lock();
        }
        if is_unused && is_new && self.looking().is_at_path() {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// The socket of an agent with the root directory `path`, whether or not one runs.
pub fn socket(path: &Path) -> PathBuf {
    path.join(SOCKET)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::{
            fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
            net::UnixStream,
        },
    };

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn bound(root: &RootDir) -> AgentSocket {
        root.bind_socket().unwrap();
        root.socket()
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
        let listener = bound(&root);
        drop((listener, root));
        assert!(!path.exists());
        // A directory of the user stays, and so does the lock beside what was served.
        fs::create_dir(&path).unwrap();
        drop(RootDir::lock(&path).unwrap());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        assert!(RootDir::lock_used(&path).unwrap().is_none());
        let root = RootDir::lock(&path).unwrap();
        let listener = bound(&root);
        fs::create_dir(path.join("pods")).unwrap();
        drop((listener, root));
        assert!(path.join(LOCK).exists() && !path.join(SOCKET).exists());
        assert!(RootDir::lock_used(&path).unwrap().is_some());
    }

    #[test]
    fn a_second_agent_is_rejected_also_when_the_lock_was_removed() {
        let temp = tempfile::tempdir().unwrap();
        let first = RootDir::lock(temp.path()).unwrap();
        let lock = temp.path().join(LOCK);
        fs::remove_file(&lock).unwrap();
        let in_use = || RootDir::lock(temp.path()).unwrap_err();
        assert!(matches!(in_use(), RootDirError::InUse { .. }));
        // The second one has left nothing. The next look creates the file again.
        assert!(!lock.exists());
        let looked = first.looking().look();
        assert_eq!(looked.place, Place::AtPath);
        assert!(matches!(&*looked.repaired, [Ok(path)] if *path == first.path.join(LOCK)));
        let process = format!("(process {})", std::process::id());
        assert!(in_use().to_string().contains(&process));
        assert!(first.looking().look().repaired.is_empty());
        drop(first);
        drop(RootDir::lock(temp.path()).unwrap());
    }

    #[tokio::test]
    async fn a_socket_that_was_removed_is_created_again() {
        let temp = tempfile::tempdir().unwrap();
        let root = RootDir::lock(temp.path()).unwrap();
        let socket = bound(&root);
        let path = temp.path().join(SOCKET);
        for _ in 0..3 {
            fs::remove_file(&path).unwrap();
            // It already waits for connections.
            let mut accepted = std::pin::pin!(socket.accept());
            assert!(futures::poll!(&mut accepted).is_pending());
            let repaired = root.looking().look().repaired;
            assert!(matches!(&*repaired, [Ok(_)]), "{repaired:?}");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            let client = UnixStream::connect(&path).unwrap();
            accepted.await.unwrap();
            drop(client);
        }
        drop(root);
        assert!(!path.exists());
        // The listener stays what it is.
        assert!(futures::poll!(std::pin::pin!(socket.accept())).is_pending());
    }

    #[tokio::test]
    async fn a_socket_that_cannot_be_created_is_tried_again() {
        let temp = tempfile::tempdir().unwrap();
        let root = RootDir::lock(temp.path()).unwrap();
        // No caller has wanted a socket.
        assert!(root.looking().look().repaired.is_empty());
        let path = temp.path().join(SOCKET);
        fs::create_dir(&path).unwrap();
        root.bind_socket().unwrap_err();
        let socket = root.socket();
        let mut accepted = std::pin::pin!(socket.accept());
        assert!(futures::poll!(&mut accepted).is_pending());
        assert!(matches!(&*root.looking().look().repaired, [Err(_)]));
        fs::remove_dir(&path).unwrap();
        assert!(matches!(&*root.looking().look().repaired, [Ok(_)]));
        let _client = UnixStream::connect(&path).unwrap();
        accepted.await.unwrap();
    }

    #[tokio::test]
    async fn an_agent_that_ends_leaves_the_socket_and_the_lock_of_another_one() {
        let temp = tempfile::tempdir().unwrap();
        let root = RootDir::lock(temp.path()).unwrap();
        let socket = bound(&root);
        for name in [SOCKET, LOCK] {
            fs::remove_file(temp.path().join(name)).unwrap();
        }
        let other = std::os::unix::net::UnixListener::bind(temp.path().join(SOCKET)).unwrap();
        fs::write(temp.path().join(LOCK), "1").unwrap();
        drop((socket, root));
        UnixStream::connect(temp.path().join(SOCKET)).unwrap();
        other.accept().unwrap();
        assert!(temp.path().join(LOCK).exists());
    }

    #[test]
    fn a_directory_is_at_its_path_moved_or_removed() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        let root = RootDir::lock(&at("root")).unwrap();
        let place = || root.looking().look().place;
        assert_eq!(place(), Place::AtPath);
        fs::rename(at("root"), at("moved")).unwrap();
        let displaced = |why: &str| {
            let path = root.path.display();
            Place::Displaced(format!(
                "the root directory {path} was moved, and {why} is at its path"
            ))
        };
        assert_eq!(place(), displaced("nothing"));
        fs::create_dir(at("root")).unwrap();
        assert_eq!(place(), displaced("something else"));
        fs::remove_dir(at("root")).unwrap();
        fs::rename(at("moved"), at("root")).unwrap();
        assert_eq!(place(), Place::AtPath);
        fs::remove_dir_all(at("root")).unwrap();
        assert_eq!(place(), Place::Removed);
        // Another one's directory stays.
        fs::create_dir(at("root")).unwrap();
        assert_eq!(place(), Place::Removed);
        drop(root);
        assert!(at("root").exists());
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
            root.bind_socket().unwrap();
            let found = fs::metadata(moved.join(SOCKET)).unwrap();
            assert_eq!(found.mode() & 0o777, 0o600);
            UnixStream::connect(moved.join(SOCKET)).unwrap();
        }
        let victim = fs::read_to_string(temp.path().join("victim").join(SOCKET)).unwrap();
        assert_eq!(victim, "precious");
    }
}
