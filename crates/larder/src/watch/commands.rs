//! What the store tells the tasks that watch for it.

use std::{ops::ControlFlow, sync::Arc};

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::{Notify, oneshot};

use crate::store::{Entry, watching::Cell};

/// What happened to an object. Objects are named by the number of their cell.
#[derive(Debug)]
pub(crate) enum Command<K> {
    /// An object got its first reference.
    Added(Arc<Entry<Cell<K>>>),
    /// An object that fails got one reference more.
    Referenced(u64),
    /// A reader waits for the object.
    Wanted(u64),
    /// The object lost its last reference.
    Removed(u64),
    /// Another one is to watch the objects of this namespace. They are given back as the commands that it has to be told.
    GiveBack(SmolStr, oneshot::Sender<Vec<Command<K>>>),
}

/// A queue of commands. Its owner waits for `arrived` and looks at each.
#[derive(Debug)]
pub(crate) struct Commands<K> {
    queue: Mutex<Queue<K>>,
    pub(crate) arrived: Notify,
}

#[derive(Debug)]
struct Queue<K> {
    commands: Vec<Command<K>>,
    /// There will be no more.
    closed: bool,
}

impl<K> Default for Commands<K> {
    fn default() -> Self {
        let queue = Queue {
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

    /// Tells the owner to stop everything, when it has looked at what was sent before.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.arrived.notify_one();
    }

    /// Takes the commands that have arrived, in their order. Breaks when there will be no more.
    pub(crate) fn each(&self, mut look: impl FnMut(Command<K>)) -> ControlFlow<()> {
        let mut queue = self.queue.lock();
        let (commands, closed) = (std::mem::take(&mut queue.commands), queue.closed);
        drop(queue);
        commands.into_iter().for_each(&mut look);
        if closed {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
