//! Change notices of a directory of manifests: the changed files, and the kind of each change.
//!
//! Every reader of such a directory uses it, and polls as well: the kernel sends no notices for network file systems
//! and for the targets of links.
//!
//! Invariants:
//! 1. When the directory is removed or replaced, [`DirectoryWatch::renew`] notices and watches its successor.
//! 2. No event is lost silently: if the kernel's queue or ours overflows, [`Signal::Overflow`] is returned.
//! 3. At most [`QUEUE`] notices wait in memory, however fast files are touched.

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode, ModifyKind, RenameMode},
};
use tokio::sync::mpsc::{self, error::TrySendError};

/// Notices that wait to be received; the kernel's own queue holds 16384.
const QUEUE: usize = 1024;

/// A notice of the kernel.
#[derive(Debug)]
pub enum Signal {
    /// A file of the directory was touched.
    Touched(PathBuf, Touch),
    /// Notices were lost, so the whole directory must be read.
    Overflow,
    /// The directory itself was removed or renamed. No further notices follow.
    Ended,
}

/// An event about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It was created, or its permissions or times have changed. A writer may follow.
    Other,
    /// It was written, and is still open: its writer may continue.
    Writing,
    /// It was closed, or renamed into place: it is complete.
    Settled,
    /// It was removed, or renamed away.
    Gone,
}

/// A watch of one directory, as long as that exists. Ends when dropped.
#[derive(Debug, Default)]
pub struct DirectoryWatch {
    armed: Option<Armed>,
}

#[derive(Debug)]
struct Armed {
    signals: mpsc::Receiver<Signal>,
    /// Whether notices were dropped since the last one was received.
    overflowed: Arc<AtomicBool>,
    /// The directory that is watched, whatever its path leads to by now.
    identity: (u64, u64),
    _watcher: RecommendedWatcher,
}

impl DirectoryWatch {
    /// Watches the directory that `path` leads to now, unless that is watched already. A missing directory is not
    /// watched.
    ///
    /// Call it before reading the directory: a change in between is then read twice rather than missed.
    ///
    /// # Errors
    ///
    /// The system refuses the watch.
    pub fn renew(&mut self, path: &Path) -> io::Result<()> {
        let identity = match identity(path) {
            Ok(identity) => identity,
            Err(error) => {
                self.armed = None;
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                return if is_missing { Ok(()) } else { Err(error) };
            }
        };
        let armed = self.armed.as_ref();
        if armed.is_some_and(|armed| armed.identity == identity) {
            return Ok(());
        }
        self.armed = None;
        let (sender, signals) = mpsc::channel(QUEUE);
        let overflowed = Arc::new(AtomicBool::new(false));
        let (directory, overflow) = (path.to_owned(), Arc::clone(&overflowed));
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if let Some(signal) = signal(event, &directory)
                && let Err(TrySendError::Full(_)) = sender.try_send(signal)
            {
                overflow.store(true, Ordering::SeqCst);
                // Wakes a receiver that has emptied the queue meanwhile. While the queue is full, the receiver finds
                // the flag with the next notice.
                let _ = sender.try_send(Signal::Overflow);
            }
        })
        .map_err(system_error)?;
        // The identity was taken first: if the path is pointed elsewhere in between, the next call finds a difference.
        watcher
            .watch(path, RecursiveMode::NonRecursive)
            .map_err(system_error)?;
        self.armed = Some(Armed {
            signals,
            overflowed,
            identity,
            _watcher: watcher,
        });
        Ok(())
    }

    /// Whether a directory is watched.
    pub fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    /// The next notice. Waits forever while nothing is watched, as after [`Signal::Ended`].
    ///
    /// # Cancel safety
    ///
    /// Safe: no notice is lost.
    pub async fn next(&mut self) -> Signal {
        let Some(armed) = &mut self.armed else {
            return std::future::pending().await;
        };
        match armed.signals.recv().await {
            // Of the dropped notices one may have been the directory's end: `renew` finds out.
            Some(_) if armed.overflowed.swap(false, Ordering::SeqCst) => {
                while armed.signals.try_recv().is_ok() {}
                Signal::Overflow
            }
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
        // Both halves of the rename were reported before.
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => return None,
        EventKind::Create(_) | EventKind::Modify(ModifyKind::Metadata(_)) => Touch::Other,
        EventKind::Modify(_) => Touch::Writing,
        // Among them the traces of our own reads.
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

    /// Receives signals up to a wanted one. Real time: they come from the kernel.
    async fn until(watch: &mut DirectoryWatch, wanted: impl Fn(&Signal) -> bool) {
        let found = async { while !wanted(&watch.next().await) {} };
        timeout(Duration::from_mins(1), found)
            .await
            .expect("the kernel sends a notice");
    }

    #[tokio::test]
    async fn writes_and_removals_are_signaled_reads_are_not() {
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
    async fn a_missing_or_replaced_directory_is_watched_once_renewed() {
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
                // Replaced: the new one sends no notices until the watch is renewed.
                fs::rename(&path, root.path().join("aside")).unwrap();
            } else {
                fs::remove_dir_all(&path).unwrap();
                until(&mut watch, |signal| matches!(signal, Signal::Ended)).await;
                assert!(!watch.is_armed());
            }
        }
    }

    #[tokio::test]
    async fn a_full_queue_becomes_an_overflow() {
        let root = TempDir::new().unwrap();
        let mut watch = DirectoryWatch::default();
        watch.renew(root.path()).unwrap();
        for index in 0..2 * QUEUE {
            fs::write(root.path().join(index.to_string()), "1").unwrap();
        }
        until(&mut watch, |signal| matches!(signal, Signal::Overflow)).await;
        // Later notices arrive as before.
        fs::write(root.path().join("last"), "1").unwrap();
        let is_last =
            |signal: &Signal| matches!(signal, Signal::Touched(path, _) if path.ends_with("last"));
        until(&mut watch, |signal| {
            is_last(signal) || matches!(signal, Signal::Overflow)
        })
        .await;
    }
}
