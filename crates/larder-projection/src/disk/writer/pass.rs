//! A pass of the [`AtomicWriter`] from step 4 on: all that changes something on disk.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use jiff::Timestamp;
use larder_files::{beneath, pause, sys};
use rustix::fs::FileType;

use super::{AtomicWriter, DATA, DATA_TMP, Root, Set, Written, compare::Misowned, plan::Plan};
use crate::{
    File,
    disk::{
        error::DiskError,
        ownership::{self, Group},
        tree,
    },
};

/// A pass from step 4 on.
pub(super) struct Pass<'p> {
    pub(super) writer: &'p AtomicWriter,
    pub(super) plan: &'p Plan<'p>,
    pub(super) written: Written,
    /// The name of the set that has the payload.
    pub(super) set: String,
    /// The first failure of a step that keeps no other from being done.
    pub(super) late: Result<(), DiskError>,
}

impl Pass<'_> {
    /// Does something whose failure is reported only after all the rest has been done.
    pub(super) fn late<T>(
        &mut self,
        operation: &'static str,
        name: &str,
        action: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<T>,
    ) -> Option<T> {
        match action(self.writer.volume.as_fd()) {
            Ok(value) => Some(value),
            Err(errno) => {
                if self.late.is_ok() {
                    self.late = Err(self.writer.volume.failed_late(operation, name)(errno));
                }
                None
            }
        }
    }

    /// Step 4. Before the new set is written: leftovers may be what fills the disk.
    pub(super) fn remove_leftovers(&mut self, root: &Root, current: Option<&Set>) {
        let is_current = |name: &str| current.is_some_and(|current| current.name == name);
        for name in root.internal.iter().filter(|name| !is_current(name)) {
            pause::point();
            let removed = self.late("remove leftover", name, |volume| {
                tree::remove(volume, name.as_bytes())
            });
            self.written.repaired |= removed.is_some();
        }
    }

    /// The end of step 5: gives the files that have another owner than they should to the right one.
    pub(super) fn correct_owners(&mut self, set: &Set, misowned: &[Misowned<'_>]) {
        for file in misowned {
            pause::point();
            let name = format!("{}/{}", set.name, file.path);
            let corrected = self.late("set owner of", &name, |_| file.correct(&set.dir));
            self.written.repaired |= corrected == Some(true);
            self.written.not_owned += usize::from(corrected == Some(false));
        }
    }

    /// Steps 6 to 9. On failure, what they have created is removed again.
    pub(super) fn publish(
        &mut self,
        now: Timestamp,
        random: &mut fastrand::Rng,
    ) -> Result<(), DiskError> {
        let writer = self.writer;
        let volume = writer.volume.as_fd();
        // Step 6
        let set = writer.create_set(now, random)?;
        let published = self.fill(&set).and_then(|()| {
            // Step 8
            let failed = writer.volume.failed("create link", DATA_TMP);
            sys::link(&*set.name, volume, DATA_TMP).map_err(&failed)?;
            let owned = writer.own_link(DATA_TMP, None).map_err(&failed)?;
            self.written.not_owned += usize::from(!owned);
            // Step 9
            sys::rename(volume, DATA_TMP, DATA).map_err(writer.volume.failed("replace link", DATA))
        });
        if published.is_err() {
            // The error names the failed operation; what cannot be removed now is a leftover of the next pass.
            let _ = sys::remove_file(volume, DATA_TMP);
            let _ = tree::remove_dir_all(volume, set.name.as_bytes());
        }
        self.set = set.name;
        published
    }

    /// Step 7.
    fn fill(&mut self, set: &Set) -> Result<(), DiskError> {
        let writer = self.writer;
        let failed = |operation, path: &str| {
            let name = format!("{}/{path}", set.name);
            move |errno| writer.volume.failed(operation, &name)(errno)
        };
        let mut not_owned = 0;
        let mut parents = Parents {
            set: set.dir.as_fd(),
            last: None,
        };
        for directory in &self.plan.directories {
            pause::point();
            let owned = parents
                .create(directory, writer.group)
                .map_err(failed("create directory", directory))?;
            not_owned += usize::from(!owned);
        }
        let mut exact = None;
        for (path, file) in self.plan.payload {
            pause::point();
            let split = path.as_str().rsplit_once('/');
            let directory = split.map(|(directory, _)| directory);
            let mut is_exact = exact == Some((directory, file.mode));
            let owned = parents
                .of(path.as_str())
                .and_then(|(dir, name)| write_file(dir, name, file, writer.group, &mut is_exact))
                .map_err(failed("write file", path.as_str()))?;
            exact = is_exact.then_some((directory, file.mode));
            not_owned += usize::from(!owned);
        }
        let owned = ownership::settle(&set.dir, None, writer.group, writer.group.directory_mode())
            .map_err(writer.volume.failed("set mode of", &set.name))?;
        self.written.not_owned += not_owned + usize::from(!owned);
        Ok(())
    }

    /// Step 10.
    pub(super) fn link(&mut self, root: &Root) {
        let writer = self.writer;
        for (&name, &owner) in &self.plan.links {
            pause::point();
            let exists = match root.planned.get(name) {
                None => false,
                Some(FileType::Symlink) => true,
                Some(_) => {
                    self.written.shadowed.push(name.to_owned());
                    continue;
                }
            };
            let changed = self.late("create link", name, |volume| {
                ensure_link(volume, name, exists)
            });
            self.note_repair(changed);
            let owned = self.late("create link", name, |_| writer.own_link(name, owner));
            self.written.not_owned += usize::from(owned == Some(false));
        }
    }

    /// Step 11.
    pub(super) fn unlink(&mut self, root: &Root) {
        for name in &root.stale {
            pause::point();
            let removed = self.late("remove link", name, |volume| remove_link(volume, name));
            self.note_repair(removed);
        }
    }

    /// Changes of links go with a new set; alone, they are repairs.
    fn note_repair(&mut self, changed: Option<bool>) {
        self.written.repaired |= changed == Some(true) && !self.written.swapped;
    }
}

/// The directories of a new set, of which the one used last stays open.
struct Parents<'s> {
    set: BorrowedFd<'s>,
    last: Option<(&'s str, OwnedFd)>,
}

impl<'s> Parents<'s> {
    /// Creates `directory`, whose parent exists; returns whether it got its owner.
    fn create(&mut self, directory: &'s str, group: Group) -> rustix::io::Result<bool> {
        let (parent, name) = self.of(directory)?;
        sys::make_dir(parent, name, 0o700)?;
        let created = sys::open_dir(parent, name)?;
        let owned = ownership::settle(&created, None, group, group.directory_mode())?;
        self.last = Some((directory, created));
        Ok(owned)
    }

    /// The directory that holds `path`, and its name there.
    fn of(&mut self, path: &'s str) -> rustix::io::Result<(BorrowedFd<'_>, &'s str)> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            return Ok((self.set, path));
        };
        let opened = match self.last.take() {
            Some((last, opened)) if last == parent => opened,
            _ => beneath::open_dir(self.set, parent.as_bytes())?,
        };
        let (_, opened) = self.last.insert((parent, opened));
        Ok((OwnedFd::as_fd(opened), name))
    }
}

/// Creates a file with its content; returns whether it got its owner.
///
/// `is_exact` says that the file before, in the same directory and with the same mode, was created as requested. Then
/// so is this one, unless it needs an owner: umask and directory decide that.
fn write_file(
    dir: BorrowedFd<'_>,
    name: &str,
    file: &File<'_>,
    group: Group,
    is_exact: &mut bool,
) -> rustix::io::Result<bool> {
    let mode = group.file_mode(file.mode);
    let created = sys::create_file(dir, name, mode)?;
    sys::write(&created, &file.data)?;
    if file.owner.is_some() || group.0.is_some() {
        *is_exact = false;
        return ownership::settle(&created, file.owner, group, mode);
    }
    if !*is_exact {
        *is_exact = sys::stat(&created)?.st_mode & 0o7777 == mode;
        if !*is_exact {
            sys::set_mode(&created, mode)?;
        }
    }
    Ok(true)
}

/// Makes `name` a link to its path in the current set; returns whether it was none. `exists` says that it is some link.
fn ensure_link(volume: BorrowedFd<'_>, name: &str, exists: bool) -> rustix::io::Result<bool> {
    if exists && sys::is_link_to(volume, DATA, name)? {
        return Ok(false);
    }
    let target = format!("{DATA}/{name}");
    if exists {
        sys::link(&*target, volume, DATA_TMP)?;
        sys::rename(volume, DATA_TMP, name)?;
    } else {
        sys::link(&*target, volume, name)?;
    }
    Ok(true)
}

/// Removes the link `name` if it is one of ours; returns whether it was.
fn remove_link(volume: BorrowedFd<'_>, name: &str) -> rustix::io::Result<bool> {
    let is_ours = sys::is_link_to(volume, DATA, name)?;
    if is_ours {
        sys::remove_file(volume, name)?;
    }
    Ok(is_ours)
}
