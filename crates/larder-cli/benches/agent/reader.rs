//! Readers of volumes: each sleeps in the kernel until `..data` is replaced, then reads.

use std::{
    collections::HashMap,
    ffi::CStr,
    fs,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::inotify::{self, CreateFlags, WatchFlags},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};
use tokio::{
    sync::{Mutex, mpsc},
    time::{Instant, timeout},
};

use crate::PATIENCE;

/// Readers of one file in each of some volumes. One thread wakes for all of them; it ends with this value.
pub(crate) struct Readers {
    swaps: Mutex<mpsc::UnboundedReceiver<Swap>>,
    /// The end of a pipe whose other end the thread polls: closing it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A reader has read the new content of its volume.
struct Swap {
    file: PathBuf,
    content: String,
    at: Instant,
}

impl Readers {
    /// Of `files`, given as volume and path in it. The volumes are there already.
    pub(crate) fn start(files: Vec<(PathBuf, &str)>) -> anyhow::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut by_watch = HashMap::new();
        for (volume, file) in files {
            let watch = inotify::add_watch(&inotify, &volume, WatchFlags::MOVED_TO)
                .with_context(|| format!("cannot watch {}", volume.display()))?;
            by_watch.insert(watch, volume.join(file));
        }
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let (sender, swaps) = mpsc::unbounded_channel();
        let thread = thread::spawn(move || read_swaps(&inotify, &stopped, &by_watch, &sender));
        Ok(Self {
            swaps: Mutex::new(swaps),
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// When the reader of `file` had a content with `text` in it.
    pub(crate) async fn read(&self, file: &Path, text: &str) -> anyhow::Result<Instant> {
        let mut swaps = self.swaps.lock().await;
        let read = async {
            loop {
                let swap = swaps.recv().await.context("the readers have ended")?;
                if swap.file == file && swap.content.contains(text) {
                    return Ok(swap.at);
                }
            }
        };
        timeout(PATIENCE, read)
            .await
            .with_context(|| format!("{} does not change", file.display()))?
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been seen as the end of the readers.
            let _ = thread.join();
        }
    }
}

/// Reads the files whose volumes are swapped, until the other end of `stopped` is closed.
fn read_swaps(
    inotify: &OwnedFd,
    stopped: &OwnedFd,
    by_watch: &HashMap<i32, PathBuf>,
    sender: &mpsc::UnboundedSender<Swap>,
) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    loop {
        let event = match events.next() {
            Ok(event) => event,
            Err(Errno::WOULDBLOCK) => {
                let mut waited = [
                    PollFd::new(inotify, PollFlags::IN),
                    PollFd::new(stopped, PollFlags::IN),
                ];
                match poll(&mut waited, None) {
                    Ok(_) if waited[1].revents().is_empty() => continue,
                    Err(Errno::INTR) => continue,
                    _ => return,
                }
            }
            Err(_) => return,
        };
        let swapped = event.file_name().map(CStr::to_bytes) == Some(b"..data");
        let file = by_watch.get(&event.wd()).filter(|_| swapped);
        let Some((file, Ok(content))) = file.map(|file| (file, fs::read_to_string(file))) else {
            continue;
        };
        let (file, at) = (file.clone(), Instant::now());
        if sender.send(Swap { file, content, at }).is_err() {
            return;
        }
    }
}
