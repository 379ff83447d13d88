//! Commands of a store for its task.

use std::{ops::ControlFlow, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::WatchEntry;
use crate::store::Entry;

/// What happened to an object. Objects are named by the number of their entry.
#[derive(Debug)]
pub(crate) enum Command<K> {
    /// An object got its first reference.
    Added(Arc<Entry<WatchEntry<K>>>),
    /// An object that fails got one reference more.
    Referenced(u64),
    /// A reader waits for the object.
    ReadPending(u64),
    /// The object lost its last reference.
    Removed(u64),
}

/// A queue of commands. Its owner waits for `arrived` and looks at each.
#[derive(Debug)]
pub(crate) struct Commands<K> {
    queue: Mutex<CommandQueue<K>>,
    pub(crate) arrived: Notify,
}

#[derive(Debug)]
struct CommandQueue<K> {
    commands: Vec<Command<K>>,
    /// There will be no more.
    closed: bool,
}

impl<K> Default for Commands<K> {
    fn default() -> Self {
        let queue = CommandQueue {
            commands: Vec::new(),
            closed: false,
        };
        Self {
            queue: Mutex::new(queue),
            arrived: Notify::new(),
        }
    }
}

impl<K> Commands<K> {
    pub(crate) fn send(&self, command: Command<K>) {
        self.queue.lock().commands.push(command);
        self.arrived.notify_one();
    }

    /// Has the owner stop everything, after the commands that were sent before.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Takes the commands that have arrived, in their order. Breaks when there will be no more.
    pub(crate) fn take(&self) -> (Vec<Command<K>>, ControlFlow<()>) {
        let mut queue = self.queue.lock();
        let flow = if queue.closed {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        };
        (std::mem::take(&mut queue.commands), flow)
    }
}
