//! The atomic writer: makes a directory hold exactly one payload, and lets readers see the old set or the new one.
//!
//! The form on disk is that of kubelet 1.36, `pkg/volume/util/atomic_writer.go`:
//!
//! ```text
//! ..2026_03_01_12_00_00.2584286753/             the current set: directories and files
//! ..data -> ..2026_03_01_12_00_00.2584286753
//! a      -> ..data/a                            one link for each first element of a path
//! dir    -> ..data/dir
//! ```
//!
//! # A pass
//!
//! 1. Plan: which directories and links the payload needs. Reject a path that would be file and directory at once.
//! 2. Read `..data`. Only a bare name that begins with `..` is followed; any other target counts as no set.
//! 3. List the volume.
//! 4. Remove leftovers of a crash: `..data_tmp`, and sets that are not current.
//! 5. Compare the current set with the payload: paths, bytes, modes, owners. If they are equal, continue at 10; an
//!    owner alone is corrected in place.
//! 6. Create the directory of the new set, which at first only its owner may enter.
//! 7. Create its directories and files, with their exact modes and owners; then let readers enter.
//! 8. Create the link `..data_tmp` to the new set.
//! 9. Rename it over `..data`. **This is the commit**, and it is atomic.
//! 10. Create or correct the links of the payload in the root.
//! 11. Remove the links in the root that lead to nothing of the payload.
//! 12. Remove the old set.
//!
//! # Failures and crashes
//!
//! A failure in 1 to 3 has touched nothing. One in 6 to 9 removes the new set and `..data_tmp` again: the old set stays
//! (P2). After one in 4, 10, 11 or 12, the other steps are still done. It is reported, and the next pass repairs it:
//! step 4 finds the leftovers, steps 10 and 11 the links. A crash has the same effect, without the report (P3).
//!
//! Nothing is synced. After a power cut a file of a volume on disk may be empty or short; step 5 of the next pass finds
//! that and writes the set again. A tmpfs is empty after a power cut.
//!
//! # Where we differ from the kubelet
//!
//! The kubelet ignores changes of only mode or owner, rejects a path that changes between file and directory, keeps
//! leftovers of crashes forever, fails if a link to be removed is missing, trusts the target of `..data`, and never
//! corrects a link. As with the kubelet, new keys appear at the root, and removed ones disappear, only after the
//! commit: to read a consistent set, resolve `..data` once.
//!
//! Passes in one directory must not overlap; as with the kubelet, the caller ensures that. A pass has a
//! [pause point](larder_files::pause) before each file and entry, so that a large volume gives way to others.

mod compare;
mod pass;
mod plan;

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use larder_files::{beneath, pause, sys};
use rustix::{
    fs::{CWD, FileType},
    io::Errno,
    process::geteuid,
};

use self::{
    compare::{Comparison, compare},
    pass::Pass,
    plan::Plan,
};
use super::{
    directory::Directory,
    error::DiskError,
    ownership::{self, Group},
    tree,
};
use crate::Payload;

/// Link to the current set.
pub(super) const DATA: &str = "..data";
/// Link that is about to replace another one.
const DATA_TMP: &str = "..data_tmp";
/// How often another random number is tried when the name of a new set is taken. The kubelet tries as often.
const NAME_ATTEMPTS: usize = 10_000;
/// Most leftovers, and most stale links, that one pass removes; the next one goes on. The group of a pod may create what it
/// likes in a volume.
const MAX_STRAYS: usize = 10_000;

/// A directory that can be made to hold a payload.
#[derive(Debug)]
pub struct AtomicWriter {
    volume: Directory,
    group: Group,
}

/// The result of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// A new set was published.
    pub swapped: bool,
    /// Something beside the set was not as it should have been: a leftover of a crash, an owner, or, without a new set,
    /// a link.
    pub repaired: bool,
    /// First elements of paths that have no link because a real file or directory has their name (a nested mount point,
    /// for instance). The content is below `..data` only, as with the kubelet.
    pub shadowed: Vec<String>,
    /// Number of files, directories and links that this process was not permitted to give to the user or group asked
    /// for.
    pub not_owned: usize,
}

impl AtomicWriter {
    /// A writer on the existing directory `path`.
    ///
    /// # Errors
    ///
    /// `path` does not exist, or is no directory.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        let volume =
            sys::open_dir(CWD, path).map_err(|errno| DiskError::new("open volume", path, errno))?;
        Ok(Self::new(volume, path.to_owned()))
    }

    /// A writer on a directory that is open for reading and that errors call `path`. The writer moves its position.
    pub fn new(volume: OwnedFd, path: PathBuf) -> Self {
        Self::over(Directory::new(volume, path), Group::default())
    }

    pub(super) fn over(volume: Directory, group: Group) -> Self {
        Self { volume, group }
    }

    /// Gives what is written to `group`, a pod's `fsGroup`, by the kubelet's rules.
    #[must_use]
    pub fn group(mut self, group: Option<u32>) -> Self {
        self.group = Group(group);
        self
    }

    /// Makes the volume hold exactly `payload`: one pass, as the module describes it. `now` names the new set.
    ///
    /// # Errors
    ///
    /// The first step that failed. The old set is still current, unless [`DiskError::is_after_commit`].
    pub fn write(
        &self,
        payload: &Payload<'_>,
        now: Timestamp,
        random: &mut fastrand::Rng,
    ) -> Result<Written, DiskError> {
        Ok(self.write_set(payload, now, random)?.0)
    }

    /// As [`Self::write`]; also returns the name of the set that has the payload.
    pub(super) fn write_set(
        &self,
        payload: &Payload<'_>,
        now: Timestamp,
        random: &mut fastrand::Rng,
    ) -> Result<(Written, String), DiskError> {
        // Step 1
        let plan = Plan::of(payload)?;
        // Step 2
        let current = self.read_current()?;
        // Step 3
        let root = self.list_root(&plan)?;

        let mut pass = Pass {
            writer: self,
            plan: &plan,
            written: Written::default(),
            set: String::new(),
            late: Ok(()),
        };
        // Step 4
        pass.remove_leftovers(&root, current.as_ref());
        // Step 5
        let comparison = match &current {
            Some(set) => compare(&set.dir, &plan, self.group, geteuid().as_raw()),
            None => Comparison::Different,
        };
        let replaced = match (comparison, current) {
            (Comparison::Same { misowned }, Some(set)) => {
                pass.correct_owners(&set, &misowned);
                pass.set = set.name;
                None
            }
            (_, current) => {
                pass.publish(now, random)?;
                pass.written.swapped = true;
                current
            }
        };
        pass.link(&root);
        pass.unlink(&root);
        // Step 12
        if let Some(old) = replaced {
            pass.late("remove old directory", &old.name, |volume| {
                tree::remove_opened(volume, old.name.as_bytes(), old.dir)
            });
        }
        pass.late?;
        Ok((pass.written, pass.set))
    }

    /// Gives a link to `user` and the group, as far as they are requested; returns whether it is theirs now.
    fn own_link(&self, name: &str, user: Option<u32>) -> rustix::io::Result<bool> {
        if user.is_none() && self.group.0.is_none() {
            return Ok(true);
        }
        let found = sys::stat_entry(self.volume.as_fd(), name)?;
        let user = user.filter(|&user| user != found.st_uid);
        let group = self.group.0.filter(|&group| group != found.st_gid);
        if user.is_none() && group.is_none() {
            return Ok(true);
        }
        ownership::permitted(sys::set_entry_owner(self.volume.as_fd(), name, user, group))
    }

    /// Step 2: the set that `..data` leads to, if it leads to one.
    fn read_current(&self) -> Result<Option<Set>, DiskError> {
        let volume = self.volume.as_fd();
        let name = match sys::read_link(volume, DATA).map(CString::into_string) {
            Ok(Ok(target)) if is_reserved(&target) => target,
            Ok(_) | Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.volume.failed("read link", DATA)(errno)),
        };
        match beneath::open_dir(volume, name.as_bytes()) {
            Ok(dir) => Ok(Some(Set { name, dir })),
            // Missing, or something else has its name: there is nothing to keep.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(errno) => Err(self.volume.failed("read link", &name)(errno)),
        }
    }

    /// Step 3.
    fn list_root(&self, plan: &Plan<'_>) -> Result<Root, DiskError> {
        let fails = |errno| DiskError::new("list volume", self.volume.path(), errno);
        // Listed by the pass before, perhaps.
        let mut root = Root::default();
        let volume = self.volume.as_fd();
        let is_ours = |name: &str| sys::is_link_to(volume, DATA, name) != Ok(false);
        let add = |name: &CStr, kind| {
            pause::point();
            root.add(plan, name, kind, is_ours);
        };
        sys::list(self.volume.fd(), add).map_err(fails)?;
        Ok(root)
    }

    /// Step 6: creates a directory for a new set; only its owner may enter.
    fn create_set(&self, now: Timestamp, random: &mut fastrand::Rng) -> Result<Set, DiskError> {
        let volume = self.volume.as_fd();
        let prefix = set_prefix(now);
        let mut attempts = NAME_ATTEMPTS;
        let name = loop {
            let name = format!("{prefix}{}", random.u32(..));
            match sys::make_dir(volume, &*name, 0o700) {
                Ok(()) => break name,
                Err(Errno::EXIST) if attempts > 0 => attempts -= 1,
                Err(errno) => {
                    return Err(self.volume.failed("create directory", &name)(errno));
                }
            }
        };
        match sys::open_dir(volume, &*name) {
            Ok(dir) => Ok(Set { name, dir }),
            Err(errno) => {
                // The error names the failed operation; what cannot be removed now is a leftover of the next pass.
                let _ = sys::remove_dir(volume, &*name);
                Err(self.volume.failed("create directory", &name)(errno))
            }
        }
    }
}

/// A set on disk.
#[derive(Debug)]
struct Set {
    name: String,
    dir: OwnedFd,
}

/// What a pass has to do with in the directory of a volume, but for `..data`. Names that are not UTF-8 belong to other
/// programs.
#[derive(Default)]
struct Root {
    /// `..data_tmp`, and whatever has the name of a set.
    internal: Vec<String>,
    /// What has the name of a planned link.
    planned: BTreeMap<String, FileType>,
    /// Other links of the form of ours.
    stale: Vec<String>,
}

impl Root {
    fn add(
        &mut self,
        plan: &Plan<'_>,
        name: &CStr,
        kind: FileType,
        is_ours: impl FnOnce(&str) -> bool,
    ) {
        let Ok(name) = name.to_str() else { return };
        let strays = if name == DATA_TMP || is_set_name(name) {
            &mut self.internal
        } else if plan.links.contains_key(name) {
            self.planned.insert(name.to_owned(), kind);
            return;
        } else if kind == FileType::Symlink && !name.starts_with("..") && is_ours(name) {
            &mut self.stale
        } else {
            return;
        };
        if strays.len() < MAX_STRAYS {
            strays.push(name.to_owned());
        }
    }
}

/// Whether `..data` may lead to this: a name in the volume that begins with `..`, other than those with a meaning.
fn is_reserved(target: &str) -> bool {
    target.starts_with("..") && !target.contains('/') && !["..", DATA, DATA_TMP].contains(&target)
}

/// The name of a set up to its random number: `..YYYY_MM_DD_HH_MM_SS.`, in UTC.
fn set_prefix(now: Timestamp) -> String {
    now.strftime("..%Y_%m_%d_%H_%M_%S.").to_string()
}

/// Whether `name` has the form that [`set_prefix`] begins.
fn is_set_name(name: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.strip_prefix("..")
        .and_then(|name| name.split_once('.'))
        .is_some_and(|(time, random)| {
            let lengths = time.split('_').map(str::len);
            lengths.eq([4, 2, 2, 2, 2, 2]) && time.split('_').all(digits) && digits(random)
        })
}

#[cfg(test)]
mod tests;
