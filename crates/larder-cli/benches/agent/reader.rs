//! Readers of volumes: each sleeps in the kernel until `..data` is replaced, then reads.

use std::{
    collections::HashMap,
    ffi::CStr,
    fs,
    mem::MaybeUninit,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Context as _;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::{
    sync::{Mutex, mpsc},
    time::{Instant, timeout},
};

use crate::PATIENCE;

/// Readers of one file in each of some volumes.
pub(crate) struct Readers {
    swaps: Mutex<mpsc::UnboundedReceiver<Swap>>,
}

/// A reader has read what its volume was replaced with.
struct Swap {
    file: PathBuf,
    content: String,
    at: Instant,
}

impl Readers {
    /// Of `files`, given as volume and path in it. The volumes are there already.
    pub(crate) fn start(files: Vec<(PathBuf, &str)>) -> anyhow::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC)?;
        let mut by_watch = HashMap::new();
        for (volume, file) in files {
            let watch = inotify::add_watch(&inotify, &volume, WatchFlags::MOVED_TO)
                .with_context(|| format!("cannot watch {}", volume.display()))?;
            by_watch.insert(watch, volume.join(file));
        }
        let (sender, swaps) = mpsc::unbounded_channel();
        // It ends with the first swap after the receiver, or with the process.
        thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(inotify, &mut buffer);
            while let Ok(event) = events.next() {
                let swapped = event.file_name().map(CStr::to_bytes) == Some(b"..data");
                let file = by_watch.get(&event.wd()).filter(|_| swapped);
                let Some((file, Ok(content))) = file.map(|file| (file, fs::read_to_string(file)))
                else {
                    continue;
                };
                let (file, at) = (file.clone(), Instant::now());
                if sender.send(Swap { file, content, at }).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            swaps: Mutex::new(swaps),
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
