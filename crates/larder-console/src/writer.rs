//! The thread that writes what waits. It alone may block: on a pipe that nothing reads, or a terminal that was stopped.
//!
//! It allocates nothing, so that it keeps no arena of the allocator.

use std::{sync::Arc, thread, time::Duration};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use tokio::time::Instant;

use crate::{
    Stream,
    queue::{Fate, Queue},
};

/// Writes the texts of one queue. There is one for both streams where they are the same file, so that their order stays.
pub(crate) struct Writer {
    state: Mutex<State>,
    /// Notified when a text was taken, and when all of them are written.
    changed: Condvar,
    /// The line for a number of dropped ones.
    gap: fn(u64) -> String,
}

#[derive(Default)]
struct State {
    queue: Queue,
    thread: WriterThread,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum WriterThread {
    /// Texts wait until [`Writer::begin`]: the process must not have a second thread yet.
    #[default]
    NotWanted,
    /// None could be made. The next text tries again.
    Missing,
    Idle,
    Writing,
}

impl Writer {
    pub(crate) fn new(gap: fn(u64) -> String) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            gap,
        })
    }

    /// From now on, what waits is written.
    pub(crate) fn begin(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.thread == WriterThread::NotWanted {
            state.thread = WriterThread::Missing;
            self.run(&mut state);
        }
    }

    pub(crate) fn push(self: &Arc<Self>, stream: Stream, text: Vec<u8>) -> Fate {
        let mut state = self.state.lock();
        let fate = state.queue.push(stream, text);
        self.run(&mut state);
        fate
    }

    /// Waits until everything is written, but not longer than `limit`.
    pub(crate) fn finish(self: &Arc<Self>, limit: Duration) {
        self.begin();
        let end = Instant::now() + limit;
        let mut state = self.state.lock();
        let is_over =
            |state: &State| state.thread != WriterThread::Writing && state.queue.is_empty();
        while !is_over(&state) && state.thread != WriterThread::Missing {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.changed.wait_for(&mut state, left).timed_out() {
                return;
            }
        }
    }

    /// Sees to it that a thread writes. Without one, texts wait, and are dropped beyond the bound.
    fn run(self: &Arc<Self>, state: &mut State) {
        match state.thread {
            WriterThread::NotWanted => {}
            WriterThread::Missing => {
                let own = Arc::clone(self);
                let thread = thread::Builder::new().name("console".to_owned());
                if thread.spawn(move || own.write_all()).is_ok() {
                    state.thread = WriterThread::Idle;
                }
            }
            WriterThread::Idle | WriterThread::Writing => {
                self.changed.notify_all();
            }
        }
    }

    fn write_all(&self) {
        let mut state = self.state.lock();
        loop {
            if state.queue.is_empty() {
                state.thread = WriterThread::Idle;
                self.changed.notify_all();
                self.changed.wait(&mut state);
                continue;
            }
            state.thread = WriterThread::Writing;
            let batch = state.queue.take();
            drop(state);
            for (stream, text) in batch.texts() {
                write(*stream, text);
            }
            if batch.dropped() > 0 {
                write(Stream::Err, (self.gap)(batch.dropped()).as_bytes());
            }
            drop(batch);
            state = self.state.lock();
        }
    }
}

/// Writes a text as a whole. What cannot be written, because the stream is closed, is lost.
pub(crate) fn write(stream: Stream, mut text: &[u8]) {
    while !text.is_empty() {
        // Not through the standard library: a thread that blocks while it holds its lock would stop all others.
        let written = match stream {
            Stream::Out => rustix::io::write(rustix::stdio::stdout(), text),
            Stream::Err => rustix::io::write(rustix::stdio::stderr(), text),
        };
        match written {
            Ok(count) => text = &text[count..],
            Err(Errno::INTR) => {}
            // Another program has made the stream non-blocking.
            Err(Errno::AGAIN) if wait(stream) => {}
            Err(_) => return,
        }
    }
}

/// Waits until `stream` takes something.
fn wait(stream: Stream) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let (out, err) = (rustix::stdio::stdout(), rustix::stdio::stderr());
    let stream = match stream {
        Stream::Out => &out,
        Stream::Err => &err,
    };
    let mut ready = [PollFd::new(stream, PollFlags::OUT)];
    matches!(poll(&mut ready, None), Ok(_) | Err(Errno::INTR))
}
