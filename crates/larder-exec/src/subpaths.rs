//! Mounts by subPath that follow their volume.
//!
//! A file is mounted directly: it stays readable while it is mounted, even after a newer set has replaced it. A
//! directory would lose its files with its set. So a copy is mounted, which stays for one more update: a lookup that
//! entered the copy before it was replaced still finds its files.

use std::{
    collections::BTreeMap,
    fs, io, mem,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, chown},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use larder_console as console;
use larder_containers::subpaths::{FileId, Stage, replace_at};
use larder_projection::disk::bind_subpath;
use tempfile::tempdir_in;

use crate::start::MountedVolume;

/// How often a directory is copied again if its set is removed meanwhile.
const COPIES: u32 = 10;

/// The mounts by subPath of a command.
pub(crate) struct SubPaths {
    /// In the private tmpfs.
    root: PathBuf,
    /// By the position of the mount in the container.
    mounted: BTreeMap<usize, Mounted>,
    /// Whether it was printed why a mount keeps its content.
    is_noted: bool,
    stage: Stage,
}

/// What is mounted.
struct Mounted {
    /// In the volume.
    source: FileId,
    /// In the command's view: the same, or a copy.
    shown: FileId,
    /// The copies of a directory, the older one first.
    copies: Vec<PathBuf>,
}

impl SubPaths {
    /// The copies are in the private tmpfs `staging`.
    pub(crate) fn new(staging: &Path) -> Self {
        Self {
            root: staging.join("follow"),
            mounted: BTreeMap::new(),
            is_noted: false,
            stage: Stage::default(),
        }
    }

    /// The mount to make at the start, in place of `source`.
    ///
    /// # Errors
    ///
    /// A directory cannot be copied.
    pub(crate) fn first(&mut self, mount: &MountedVolume, source: PathBuf) -> io::Result<PathBuf> {
        let id = FileId::of(&source)?;
        let (path, copies) = if id.is_dir() {
            let copy = copy(&self.root.join("copies"), &source)?;
            (copy.clone(), vec![copy])
        } else {
            (source, Vec::new())
        };
        let mounted = Mounted {
            source: id,
            shown: FileId::of(&path)?,
            copies,
        };
        self.mounted.insert(mount.index, mounted);
        Ok(path)
    }

    /// Replaces the mounts whose source in the directory `volume` has changed. A mount that cannot be replaced keeps
    /// its content; the reason is printed once.
    pub(crate) fn update(&mut self, mount: &MountedVolume, volume: &Path, mounts: &OwnedFd) {
        if let Err(error) = self.try_update(mount, volume, mounts)
            && !mem::replace(&mut self.is_noted, true)
        {
            let what = format!("{} keeps its content until a restart", mount.target);
            console::error(error.context(what).as_ref());
        }
    }

    fn try_update(
        &mut self,
        mount: &MountedVolume,
        volume: &Path,
        mounts: &OwnedFd,
    ) -> anyhow::Result<()> {
        let folder = self.root.join("copies");
        // A mount that only the next start has.
        let Some(mounted) = self.mounted.get_mut(&mount.index) else {
            return Ok(());
        };
        let path = mount.sub_path.as_deref().unwrap_or_default();
        let targets = self.root.join("targets");
        fs::create_dir_all(&targets)?;
        let name = mount.index.to_string();
        let mut tries = 0;
        let (source, new, copy) = loop {
            let Some(source) = bind_subpath(volume, path, &targets, &name, None)? else {
                bail!("volume {} has no {path} anymore", mount.volume);
            };
            let new = FileId::of(&source)?;
            if new == mounted.source {
                return Ok(());
            }
            if new.is_dir() != mounted.source.is_dir() {
                bail!("{path} of volume {} is of another type now", mount.volume);
            }
            if !new.is_dir() {
                break (source, new, None);
            }
            match copy(&folder, &source) {
                Ok(copy) => break (source, new, Some(copy)),
                // An agent has swapped the volume meanwhile.
                Err(_) if tries < COPIES => tries += 1,
                Err(error) => return Err(error).context("cannot copy the directory"),
            }
        };
        let path = copy.as_ref().unwrap_or(&source);
        let shown = FileId::of(path)?;
        let target = Path::new(&mount.target);
        replace_at(&self.stage, mounts.as_fd(), target, mounted.shown, path)?;
        mounted.source = new;
        mounted.shown = shown;
        if let Some(copy) = copy {
            mounted.copies.push(copy);
            if mounted.copies.len() > 2 {
                // It is mounted nowhere anymore.
                let _ = fs::remove_dir_all(mounted.copies.remove(0));
            }
        }
        Ok(())
    }
}

/// Copies a directory of a volume into `folder`, with modes and owners.
fn copy(folder: &Path, source: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let copy = tempdir_in(folder)?;
    copy_directory(source, copy.path())?;
    Ok(copy.keep())
}

/// Copies a directory into an empty one.
fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copy = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir(&copy)?;
            copy_directory(&entry.path(), &copy)?;
        } else {
            fs::copy(entry.path(), &copy)?;
            keep_owner(&entry.path(), &copy)?;
        }
    }
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    keep_owner(from, to)
}

/// Gives the copy the owner of the original, and its mode again, from which a new owner may take bits.
fn keep_owner(original: &Path, copy: &Path) -> io::Result<()> {
    let metadata = fs::metadata(original)?;
    // In a user namespace, files of other users than the only one keep that one.
    let _ = chown(copy, Some(metadata.uid()), Some(metadata.gid()));
    fs::set_permissions(copy, metadata.permissions())
}
