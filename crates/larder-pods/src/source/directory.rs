//! The system's word on a directory of manifests: which of its files somebody touches, and how.
//!
//! For everything that follows such a directory. Who does looks at it from time to time as well: of a network file system, or of
//! the target of a link, the system tells nothing.
//!
//! Invariants:
//! 1. A directory that goes, or that another one replaces, is noticed, and [`DirectoryWatch::renew`] watches what is there then.
//! 2. No word is lost without a word: when the system cannot keep up, [`Signal::Overflow`] says so.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind, RenameMode},
};
use tokio::sync::mpsc;

/// What the system said.
#[derive(Debug)]
pub enum Signal {
    /// Somebody touched a file of the directory.
    Touched(PathBuf, Touch),
    /// Words were lost; only a look at everything tells.
    Overflow,
    /// The directory itself was removed or renamed: nothing more is heard of it.
    Ended,
}

/// What somebody did to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Wrote or created it, and may go on.
    Writing,
    /// Closed it, or renamed it into place: it is whole.
    Settled,
    /// Removed it, or renamed it away.
    Gone,
}

/// A watch of one directory, as long as that is there; ends when dropped.
#[derive(Debug, Default)]
pub struct DirectoryWatch {
    armed: Option<Armed>,
}

#[derive(Debug)]
struct Armed {
    signals: mpsc::UnboundedReceiver<Signal>,
    /// Which directory is watched, whatever its path leads to by now.
    identity: (u64, u64),
    _watcher: RecommendedWatcher,
}

impl DirectoryWatch {
    /// Watches the directory that `path` leads to now, unless that is watched already. One that is missing is not watched.
    ///
    /// To be called before the directory is read: what changes in between is then read twice, rather than never.
    ///
    /// # Errors
    ///
    /// The system does not watch it.
    pub fn renew(&mut self, path: &Path) -> io::Result<()> {
        let identity = match identity(path) {
            Ok(identity) => identity,
            Err(error) => {
                self.armed = None;
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                return if is_missing { Ok(()) } else { Err(error) };
            }
        };
        if self
            .armed
            .as_ref()
            .is_some_and(|armed| armed.identity == identity)
        {
            return Ok(());
        }
        self.armed = None;
        let (sender, signals) = mpsc::unbounded_channel();
        let directory = path.to_owned();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // The receiver may be gone while the watch's thread winds down.
            if let Some(signal) = signal(event, &directory) {
                let _ = sender.send(signal);
            }
        })
        .map_err(system_error)?;
        // The identity was taken first: should the path be re-pointed in between, the next comparison finds a difference.
        watcher
            .watch(path, RecursiveMode::NonRecursive)
            .map_err(system_error)?;
        self.armed = Some(Armed {
            signals,
            identity,
            _watcher: watcher,
        });
        Ok(())
    }

    /// Whether a directory is watched.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// The next signal. Waits for ever while nothing is watched, as after [`Signal::Ended`].
    ///
    /// # Cancel safety
    ///
    /// Safe: no signal is lost.
    pub async fn next(&mut self) -> Signal {
        let Some(armed) = &mut self.armed else {
            return std::future::pending().await;
        };
        match armed.signals.recv().await {
            Some(signal @ (Signal::Touched(..) | Signal::Overflow)) => signal,
            Some(Signal::Ended) | None => {
                self.armed = None;
                Signal::Ended
            }
        }
    }
}

/// The system's reason behind an error of the `notify` crate.
fn system_error(error: notify::Error) -> io::Error {
    match error.kind {
        notify::ErrorKind::Io(error) => error,
        // Of inotify: too many watches.
        kind => io::Error::other(notify::Error::new(kind)),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
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

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tempfile::TempDir;
    use tokio::time::timeout;

    use super::*;

    /// Signals up to one that is wanted. Real time: they come from the system.
    async fn until(watch: &mut DirectoryWatch, wanted: impl Fn(&Signal) -> bool) {
        let found = async { while !wanted(&watch.next().await) {} };
        timeout(Duration::from_mins(1), found)
            .await
            .expect("the system tells");
    }

    #[tokio::test]
    async fn what_is_done_to_files_is_told_and_reading_is_not() {
        let root = TempDir::new().unwrap();
        let mut watch = DirectoryWatch::default();
        watch.renew(root.path()).unwrap();
        let file = root.path().join("a");
        let is = |touch| {
            let file = file.clone();
            move |signal: &Signal| matches!(signal, Signal::Touched(path, found) if (path, *found) == (&file, touch))
        };
        fs::write(&file, "1").unwrap();
        until(&mut watch, is(Touch::Settled)).await;
        fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let next = timeout(Duration::from_mins(1), watch.next()).await.unwrap();
        assert!(is(Touch::Gone)(&next), "{next:?}");
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_or_replaced_is_watched_when_it_is_there() {
        let root = TempDir::new().unwrap();
        let path = root.path().join("m");
        let mut watch = DirectoryWatch::default();
        watch.renew(&path).unwrap();
        assert!(!watch.is_armed());
        for round in 0..2 {
            fs::create_dir(&path).unwrap();
            watch.renew(&path).unwrap();
            watch.renew(&path).unwrap();
            assert!(watch.is_armed());
            fs::write(path.join("a"), "1").unwrap();
            until(&mut watch, |signal| matches!(signal, Signal::Touched(..))).await;
            if round == 0 {
                // Replaced behind its back: nothing is heard of the new one until the watch is renewed.
                fs::rename(&path, root.path().join("aside")).unwrap();
            } else {
                fs::remove_dir_all(&path).unwrap();
                until(&mut watch, |signal| matches!(signal, Signal::Ended)).await;
                assert!(!watch.is_armed());
            }
        }
    }
}
