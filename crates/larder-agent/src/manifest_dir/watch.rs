//! Events of one directory, from the kernel.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind, RenameMode},
};
use tokio::sync::mpsc;

use super::schedule::Touch;

/// What the kernel said.
#[derive(Debug)]
pub(super) enum Signal {
    /// Somebody touched a file of the directory.
    Touched(PathBuf, Touch),
    /// Events were lost; only reading everything tells.
    Overflow,
    /// The directory itself was removed or renamed: this watch sees nothing more.
    Ended,
}

/// A watch of one directory; ends when dropped.
#[derive(Debug)]
pub(super) struct DirectoryWatch {
    signals: mpsc::UnboundedReceiver<Signal>,
    /// Which directory is watched, whatever its path leads to by now.
    identity: (u64, u64),
    _watcher: RecommendedWatcher,
}

impl DirectoryWatch {
    /// Watches the directory that `path` leads to at this moment.
    pub(super) fn new(path: &Path) -> notify::Result<Self> {
        let (tx, signals) = mpsc::unbounded_channel();
        let directory = path.to_owned();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // The receiver may be gone while the watch's thread winds down.
            if let Some(signal) = signal(event, &directory) {
                let _ = tx.send(signal);
            }
        })?;
        // Identity first: should the path be re-pointed in between, the comparison finds a difference and watches anew.
        let identity = identity(path)?;
        watcher.watch(path, RecursiveMode::NonRecursive)?;
        Ok(Self {
            signals,
            identity,
            _watcher: watcher,
        })
    }

    /// The next signal; `Ended` for ever once the watch is broken. Cancel-safe.
    pub(super) async fn next(&mut self) -> Signal {
        self.signals.recv().await.unwrap_or(Signal::Ended)
    }

    /// Whether `path` still leads to the directory that is watched.
    pub(super) fn is_of(&self, path: &Path) -> bool {
        identity(path).is_ok_and(|identity| identity == self.identity)
    }
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    let metadata = std::fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn signal(event: notify::Result<Event>, directory: &Path) -> Option<Signal> {
    let Ok(event) = event else {
        return Some(Signal::Overflow);
    };
    if event.need_rescan() {
        return Some(Signal::Overflow);
    }
    let touch = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Touch::Settled,
        EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => Touch::Gone,
        // Both halves of a rename have been told before.
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => return None,
        EventKind::Create(_) | EventKind::Modify(_) => Touch::Writing,
        // Among them the traces of our own reading.
        EventKind::Access(_) | EventKind::Any | EventKind::Other => return None,
    };
    let path = event.paths.into_iter().next()?;
    if path != directory {
        return Some(Signal::Touched(path, touch));
    }
    (touch == Touch::Gone).then_some(Signal::Ended)
}
