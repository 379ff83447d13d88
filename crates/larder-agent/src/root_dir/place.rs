//! Where the root directory is, as a running agent sees it.
//!
//! The agent reads and writes through its open directory, wherever that is moved. Everybody else goes by the path, so
//! what is delivered is in place only while the path leads to that directory.

use std::{
    fs, io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::PathBuf,
    sync::Arc,
};

use jiff::Timestamp;
use larder_files::sys;
use parking_lot::Mutex;

use super::{
    error::RootDirError,
    held::{FileIdentity, Held},
};

/// Where the open directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At its path.
    AtPath,
    /// Elsewhere: how that is known, with the path.
    Displaced(String),
    /// Not known: why, with the path.
    Unknown(String),
    /// Nowhere: it was removed, and never comes back.
    Removed,
}

/// What is wrong with the root directory of a running agent; nothing by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct RootProblems {
    /// Why the directory is not at its path, and since when.
    pub(crate) displaced: Option<(Timestamp, String)>,
    /// Why that is not known, or why the lock or the socket cannot be created again.
    pub(crate) others: Vec<String>,
}

/// Looks at the root directory of a running agent.
#[derive(Clone, Debug)]
pub(crate) struct RootLook {
    pub(super) path: PathBuf,
    pub(super) directory: Arc<std::os::fd::OwnedFd>,
    pub(super) held: Arc<Mutex<Option<Held>>>,
}

/// The result of a look.
#[derive(Debug)]
pub(crate) struct RootLooked {
    pub(crate) place: Place,
    /// The agent's files that were created again, or why they could not be.
    pub(crate) repaired: Vec<Result<PathBuf, RootDirError>>,
}

impl RootLook {
    /// Looks where the directory is, and creates again what is missing of the agent's own files. Waits for the disk.
    pub(crate) fn look(&self) -> RootLooked {
        let place = self.place();
        let repaired = match place {
            Place::Removed => Vec::new(),
            Place::AtPath | Place::Displaced(_) | Place::Unknown(_) => {
                let mut held = self.held.lock();
                held.as_mut().map(Held::repair).unwrap_or_default()
            }
        };
        RootLooked { place, repaired }
    }

    fn place(&self) -> Place {
        let path = self.path.display();
        let displaced = |what: &str| {
            let why = format!("the root directory {path} was moved, and {what} is at its path");
            Place::Displaced(why)
        };
        let unknown = |error: &dyn std::fmt::Display| {
            Place::Unknown(format!(
                "the root directory {path} cannot be examined: {error}"
            ))
        };
        let own = match sys::stat(self.directory.as_fd()) {
            Ok(own) if own.st_nlink == 0 => return Place::Removed,
            Ok(own) => FileIdentity::from(&own),
            Err(errno) => return unknown(&errno),
        };
        match fs::metadata(&self.path) {
            Ok(found) if FileIdentity::new(found.dev(), found.ino()) == own => Place::AtPath,
            Ok(_) => displaced("something else"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => displaced("nothing"),
            Err(error) => unknown(&error),
        }
    }

    /// Whether the path leads to the open directory.
    pub(super) fn is_at_path(&self) -> bool {
        self.place() == Place::AtPath
    }
}

impl RootProblems {
    /// All of it, as problems of the agent.
    pub(crate) fn texts(&self) -> impl Iterator<Item = String> {
        self.displaced
            .iter()
            .map(|(_, why)| why)
            .chain(&self.others)
            .cloned()
    }
}
