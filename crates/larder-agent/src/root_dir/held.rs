//! What an agent holds in its root directory while it runs: the locks and the socket.
//!
//! Invariants:
//! 1. Two agents exclude each other by a lock on the directory itself, which nothing removes. The file [`LOCK`] names the
//!    process, and is the only lock where directories cannot be locked, as on NFS.
//! 2. Whatever removes or replaces the file or the socket, the next repair creates it again.
//! 3. An agent removes only what it has created: at its end, the socket of another one stays.

use std::{
    fs::{self, Permissions},
    future::pending,
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::OptionFuture;
use larder_files::{
    lock::Lock,
    operation_error::{OperationError, failed},
    sys,
};
use rustix::fs::Stat;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
};

use super::{
    error::{OPTION, RootDirError},
    private_dir::{lock_directory, lock_file},
};

/// Locked while an agent uses the directory; holds the agent's process number, for the error message.
pub(super) const LOCK: &str = "agent.lock";
/// The agent's local API, for `larder status`.
pub(super) const SOCKET: &str = "agent.sock";

/// The locks and the socket of an agent. Dropping it releases the locks.
#[derive(Debug)]
pub(super) struct Held {
    /// Without links.
    path: PathBuf,
    directory: Arc<OwnedFd>,
    /// `None` where directories cannot be locked.
    _directory_lock: Option<Lock>,
    lock: Lock,
    socket: SocketState,
    /// The one that was bound last.
    listener: watch::Sender<Option<Arc<UnixListener>>>,
}

/// Where the socket is.
#[derive(Clone, Copy, Debug)]
enum SocketState {
    /// No caller has wanted one.
    Unused,
    /// It could not be created.
    Unbound,
    /// It was created as this file.
    Bound(FileIdentity),
}

/// A file, as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

/// The socket of the agent's local API. It accepts connections at its path even if it could not be created at first, or
/// had to be created again.
#[derive(Clone, Debug)]
pub struct AgentSocket(watch::Receiver<Option<Arc<UnixListener>>>);

impl Held {
    /// Locks the open directory, whose path without links is `path`.
    ///
    /// # Errors
    ///
    /// It is in use, or cannot be locked.
    pub(super) fn lock(directory: &Arc<OwnedFd>, path: &Path) -> Result<Self, RootDirError> {
        Ok(Self {
            _directory_lock: lock_directory(directory, path, LOCK, OPTION)?,
            lock: lock_file(directory, path, LOCK, OPTION)?,
            path: path.to_owned(),
            directory: Arc::clone(directory),
            socket: SocketState::Unused,
            listener: watch::Sender::default(),
        })
    }

    /// The socket, before and after it is bound.
    pub(super) fn socket(&self) -> AgentSocket {
        AgentSocket(self.listener.subscribe())
    }

    /// Binds the socket, with mode 0600. One that is there is removed. If that fails, each repair tries again.
    ///
    /// # Errors
    ///
    /// The earlier socket cannot be removed, or the new one cannot be created. It needs `/proc`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(super) fn bind_socket(&mut self) -> Result<(), OperationError> {
        self.socket = SocketState::Unbound;
        let path = self.path.join(SOCKET);
        self.remove(SOCKET)?;
        // The only way to create a socket relative to a handle.
        let directory = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        let bound = Path::new(&directory).join(SOCKET);
        let listener = UnixListener::bind(&bound).map_err(failed("create socket", &path))?;
        // Created a moment ago, where only this user can replace it.
        fs::set_permissions(&bound, Permissions::from_mode(0o600))
            .map_err(failed("set mode of", &path))?;
        let found = sys::stat_entry(self.directory.as_fd(), SOCKET);
        let file = FileIdentity::from(&found.map_err(failed("examine", &path))?);
        self.listener.send_replace(Some(Arc::new(listener)));
        self.socket = SocketState::Bound(file);
        Ok(())
    }

    /// Creates the lock and the socket again if they are missing or others are in their place. Returns the path of each
    /// that was, and why one could not be.
    pub(super) fn repair(&mut self) -> Vec<Result<PathBuf, RootDirError>> {
        let mut repaired = Vec::new();
        if !self.has_own_lock() {
            let lock = lock_file(&self.directory, &self.path, LOCK, OPTION);
            repaired.push(lock.map(|lock| {
                self.lock = lock;
                self.path.join(LOCK)
            }));
        }
        let is_missing = match self.socket {
            SocketState::Unused => false,
            SocketState::Unbound => true,
            SocketState::Bound(file) => !self.is_at(SOCKET, file),
        };
        if is_missing {
            let bound = self.bind_socket().map(|()| self.path.join(SOCKET));
            repaired.push(bound.map_err(RootDirError::from));
        }
        repaired
    }

    /// Removes the socket, if it is this agent's.
    pub(super) fn remove_socket(&self) -> Result<(), OperationError> {
        match self.socket {
            SocketState::Bound(file) if self.is_at(SOCKET, file) => self.remove(SOCKET),
            _ => Ok(()),
        }
    }

    /// Removes the file of the lock, if it is this agent's.
    pub(super) fn remove_lock(&self) -> Result<(), OperationError> {
        if self.has_own_lock() {
            self.remove(LOCK)?;
        }
        Ok(())
    }

    fn has_own_lock(&self) -> bool {
        sys::stat(&self.lock).is_ok_and(|own| self.is_at(LOCK, FileIdentity::from(&own)))
    }

    /// Whether `name` leads to `file`.
    fn is_at(&self, name: &str, file: FileIdentity) -> bool {
        sys::stat_entry(self.directory.as_fd(), name)
            .is_ok_and(|found| FileIdentity::from(&found) == file)
    }

    /// Removes a file, which may be missing.
    fn remove(&self, name: &str) -> Result<(), OperationError> {
        let removed = sys::remove_file(self.directory.as_fd(), name);
        sys::may_be_missing(removed).map_err(failed("remove", &self.path.join(name)))
    }
}

impl FileIdentity {
    pub(super) fn new(device: u64, inode: u64) -> Self {
        Self { device, inode }
    }
}

impl From<&Stat> for FileIdentity {
    fn from(found: &Stat) -> Self {
        Self::new(found.st_dev, found.st_ino)
    }
}

impl AgentSocket {
    /// The next connection.
    ///
    /// # Errors
    ///
    /// Those of the kernel; the next call may succeed.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no connection is lost.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        let mut current = self.0.clone();
        loop {
            let listener = current.borrow_and_update().clone();
            let accepted = OptionFuture::from(listener.as_ref().map(|listener| listener.accept()));
            // All are cancel-safe. Once the agent has ended, the listener stays the last one.
            tokio::select! {
                biased;
                Ok(()) = current.changed() => {}
                Some(accepted) = accepted => return accepted.map(|(stream, _)| stream),
                else => pending().await,
            }
        }
    }
}
