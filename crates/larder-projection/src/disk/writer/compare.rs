//! Compares the set on disk with a payload.
//!
//! Runs for each event of an object, and nearly always finds no change. So it makes as few system calls as possible,
//! reads no file whose size differs, and stops at the first difference.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use larder_files::{beneath, pause, sys};
use rustix::{
    fs::{FileType, Stat},
    io::Result,
};
use zeroize::Zeroizing;

use super::plan::Plan;
use crate::{
    File,
    disk::ownership::{self, Group, PERMISSIONS},
};

/// At most so much of a file is in memory at a time.
const CHUNK_BYTES: usize = 64 * 1024;

pub(super) enum Comparison<'p> {
    /// Something is missing, too much, or other than it should be.
    Different,
    /// Same paths, types, modes and bytes.
    Same {
        /// The files with a wrong owner.
        misowned: Vec<Misowned<'p>>,
    },
}

/// A file with a wrong owner.
pub(super) struct Misowned<'p> {
    /// Within the set.
    pub(super) path: &'p str,
    user: Option<u32>,
    group: Option<u32>,
}

impl Misowned<'_> {
    /// Gives the file to its owner; returns whether that was permitted.
    pub(super) fn correct(&self, set: &OwnedFd) -> Result<bool> {
        let parent;
        let (dir, name) = match self.path.rsplit_once('/') {
            None => (set.as_fd(), self.path),
            Some((directory, name)) => {
                parent = beneath::open_dir(set.as_fd(), directory.as_bytes())?;
                (parent.as_fd(), name)
            }
        };
        ownership::permitted(sys::set_entry_owner(dir, name, self.user, self.group))
    }
}

/// Compares `set` with the plan. Files without owner belong to `own_user`.
///
/// A file that cannot be read is different, because writing it again heals it. That includes a file without the owner's
/// read bit when this process has no privilege to read it all the same.
pub(super) fn compare<'p>(
    set: &OwnedFd,
    plan: &Plan<'p>,
    group: Group,
    own_user: u32,
) -> Comparison<'p> {
    let largest = plan.payload.values().map(|file| file.data.len()).max();
    let mut walk = Walk {
        plan,
        group,
        own_user,
        buffer: Zeroizing::new(vec![0; largest.unwrap_or(0).min(CHUNK_BYTES)]),
        misowned: Vec::new(),
    };
    match walk.set(set) {
        Ok(true) => Comparison::Same {
            misowned: walk.misowned,
        },
        Ok(false) | Err(_) => Comparison::Different,
    }
}

struct Walk<'w, 'p> {
    plan: &'w Plan<'p>,
    group: Group,
    own_user: u32,
    /// Holds bytes of Secrets.
    buffer: Zeroizing<Vec<u8>>,
    misowned: Vec<Misowned<'p>>,
}

impl<'p> Walk<'_, 'p> {
    /// Whether the set is the same.
    fn set(&mut self, set: &OwnedFd) -> Result<bool> {
        let mut files = self.directory(set, "")?;
        // A directory comes right after its parent, or after a sibling's contents: then it is opened from the top.
        let mut last: Option<(&str, OwnedFd)> = None;
        for &directory in &self.plan.directories {
            let below = last.as_ref().and_then(|(parent, opened)| {
                let name = directory.strip_prefix(parent)?.strip_prefix('/')?;
                Some((opened.as_fd(), name))
            });
            let (parent, name) = below.unwrap_or((set.as_fd(), directory));
            let opened = beneath::open_dir(parent, name.as_bytes())?;
            files = match (files, self.directory(&opened, directory)?) {
                (Some(files), Some(more)) => Some(files + more),
                _ => return Ok(false),
            };
            last = Some((directory, opened));
        }
        // The directories are all there, or one could not have been opened.
        Ok(files == Some(self.plan.payload.len()))
    }

    /// The number of files in `directory`, whose path in the set is `path`, if all that it holds is as it should be.
    fn directory(&mut self, directory: &OwnedFd, path: &str) -> Result<Option<usize>> {
        let mode = sys::stat(directory)?.st_mode & PERMISSIONS;
        if mode != self.group.directory_mode() & PERMISSIONS {
            return Ok(None);
        }
        let plan = self.plan;
        let mut files = Vec::new();
        let mut strangers = false;
        let mut below = String::new();
        sys::list(directory, |name, kind| {
            pause::point();
            let Ok(name) = name.to_str() else {
                strangers = true;
                return;
            };
            below.clear();
            if !path.is_empty() {
                below.push_str(path);
                below.push('/');
            }
            below.push_str(name);
            match kind {
                FileType::Directory => strangers |= !plan.directories.contains(below.as_str()),
                FileType::RegularFile => match plan.payload.get_key_value(below.as_str()) {
                    Some((path, file)) => files.push((path.as_str(), file)),
                    None => strangers = true,
                },
                _ => strangers = true,
            }
        })?;
        if strangers {
            return Ok(None);
        }
        for &(path, file) in &files {
            pause::point();
            if !self.file(directory.as_fd(), path, file)? {
                return Ok(None);
            }
        }
        Ok(Some(files.len()))
    }

    /// Whether the file that lies at `path` of the set, in `directory`, is as `file` asks for; its owner is only noted.
    fn file(&mut self, directory: BorrowedFd<'_>, path: &'p str, file: &File<'_>) -> Result<bool> {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        let opened = sys::open_file(directory, name)?;
        let found = sys::stat(&opened)?;
        if !self.has_shape(&found, file) || !self.has_bytes(&opened, &file.data)? {
            return Ok(false);
        }
        let user = file.owner.unwrap_or(self.own_user);
        let user = (user != found.st_uid).then_some(user);
        let group = self.group.0.filter(|&group| group != found.st_gid);
        if user.is_some() || group.is_some() {
            self.misowned.push(Misowned { path, user, group });
        }
        Ok(true)
    }

    fn has_shape(&self, found: &Stat, file: &File<'_>) -> bool {
        FileType::from_raw_mode(found.st_mode).is_file()
            && found.st_mode & 0o7777 == self.group.file_mode(file.mode)
            && usize::try_from(found.st_size) == Ok(file.data.len())
    }

    fn has_bytes(&mut self, file: &OwnedFd, expected: &[u8]) -> Result<bool> {
        for expected in expected.chunks(CHUNK_BYTES) {
            let chunk = &mut self.buffer[..expected.len()];
            if sys::read(file, chunk)? != expected.len() || chunk != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
