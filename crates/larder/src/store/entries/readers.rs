//! The reads that each thread keeps, so that reading the same object again touches no memory that another thread writes
//! to.
//!
//! A thread keeps them for one *generation*: until any object changes. Changes are rare compared with reads, so a
//! thread then forgets everything, instead of checking each object.
//!
//! Invariants:
//! 1. A change begins a new generation before it can be read or is published. So a subscriber that has received it, on
//!    any thread, finds the new generation and then reads nothing older (I3).
//! 2. A thread notes the generation before it reads an object, so a change meanwhile invalidates the kept read.
//! 3. Objects are kept weakly. A thread that no longer reads does not forget either, and the bytes of a Secret must go
//!    with its last reader.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::HashMap;
use larder_objects::ObjectKey;
use thread_local::ThreadLocal;

use super::{HashState, KeyRef};
use crate::metrics::{Tally, TallyCell};

/// The readers of one store; `S` is what they keep of an object.
#[derive(Debug)]
pub(super) struct Readers<S: Send> {
    generation: AtomicU64,
    memories: ThreadLocal<RefCell<Memory<S>>>,
    /// Reads that were answered without waiting.
    pub(super) hits: Tally,
}

/// What one thread keeps. It is passed on to another thread when its own ends.
#[derive(Debug)]
struct Memory<S> {
    generation: u64,
    found: HashMap<ObjectKey, S, HashState>,
    hits: Arc<TallyCell>,
}

impl<S: Send> Default for Readers<S> {
    fn default() -> Self {
        Self {
            generation: AtomicU64::new(0),
            memories: ThreadLocal::new(),
            hits: Tally::default(),
        }
    }
}

impl<S: Send> Readers<S> {
    /// What `take` makes of what this thread keeps, or else of what `look` finds, which is kept.
    #[inline]
    pub(super) fn read<T>(
        &self,
        key: &KeyRef<'_>,
        take: impl Fn(&S) -> Option<T>,
        look: impl FnOnce() -> Option<(ObjectKey, S)>,
    ) -> Option<T> {
        let memory = self.memory();
        // Acquire: pairs with the release of `changed`.
        let generation = self.generation.load(Ordering::Acquire);
        let kept = memory.borrow_mut().recall(generation, key, &take);
        if kept.is_some() {
            return kept;
        }
        let (key, found) = look()?;
        let taken = take(&found)?;
        memory.borrow_mut().keep(key, found);
        Some(taken)
    }

    /// Counts a read that was answered without waiting, but not by [`read`](Self::read).
    pub(super) fn count_hit(&self) {
        self.memory().borrow().hits.count();
    }

    #[inline]
    fn memory(&self) -> &RefCell<Memory<S>> {
        self.memories.get_or(|| {
            RefCell::new(Memory {
                generation: 0,
                found: HashMap::default(),
                hits: self.hits.cell(),
            })
        })
    }

    /// Begins a new generation.
    pub(super) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }
}

impl<S> Memory<S> {
    /// Forgets what is of another generation.
    #[inline]
    fn recall<T>(
        &mut self,
        generation: u64,
        key: &KeyRef<'_>,
        take: impl Fn(&S) -> Option<T>,
    ) -> Option<T> {
        if self.generation == generation {
            let taken = self.found.get(key).and_then(take)?;
            self.hits.count();
            return Some(taken);
        }
        self.found.clear();
        self.generation = generation;
        None
    }

    #[cold]
    fn keep(&mut self, key: ObjectKey, found: S) {
        self.found.insert(key, found);
        self.hits.count();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Arc, Weak},
        thread,
    };

    use parking_lot::Mutex;

    use super::*;

    const KEY: KeyRef<'_> = KeyRef {
        namespace: "n",
        name: "a",
    };

    type Value = Arc<&'static str>;

    /// What is known of one object, and its readers.
    struct TestStore {
        known: Mutex<Value>,
        looked: Mutex<u32>,
        readers: Readers<Weak<&'static str>>,
    }

    impl TestStore {
        fn new(value: &'static str) -> Self {
            Self {
                known: Mutex::new(Arc::new(value)),
                looked: Mutex::new(0),
                readers: Readers::default(),
            }
        }

        fn set(&self, value: &'static str) {
            let mut known = self.known.lock();
            *known = Arc::new(value);
            self.readers.changed();
        }

        /// Reads; `meanwhile` happens after it has looked.
        fn read_while(&self, meanwhile: impl FnOnce()) -> &'static str {
            let look = || {
                *self.looked.lock() += 1;
                let found = Arc::downgrade(&self.known.lock());
                meanwhile();
                Some((ObjectKey::new("n", "a"), found))
            };
            let read = self.readers.read(&KEY, Weak::upgrade, look);
            read.map_or("nothing", |value| *value)
        }

        fn read(&self) -> &'static str {
            self.read_while(|| {})
        }

        fn looked(&self) -> u32 {
            std::mem::take(&mut self.looked.lock())
        }
    }

    #[test]
    fn what_was_read_is_found_again_until_something_changes() {
        let store = TestStore::new("one");
        assert_eq!(
            (store.read(), store.read(), store.looked()),
            ("one", "one", 1)
        );
        store.set("two");
        assert_eq!(
            (store.read(), store.read(), store.looked()),
            ("two", "two", 1)
        );
        assert_eq!(store.readers.hits.sum(), 4);
    }

    #[test]
    fn each_thread_sees_a_published_change() {
        let store = TestStore::new("one");
        assert_eq!(store.read(), "one");
        let other = || {
            assert_eq!(store.read(), "one");
            store.set("two");
            assert_eq!(store.read(), "two");
        };
        thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert_eq!(store.read(), "two");
        assert_eq!(store.looked(), 4);
    }

    #[test]
    fn hits_of_a_thread_outlive_it() {
        let store = TestStore::new("one");
        for _ in 0..2 {
            thread::scope(|scope| scope.spawn(|| store.read()).join().unwrap());
            store.readers.count_hit();
        }
        assert_eq!(store.readers.hits.sum(), 4);
    }

    #[test]
    fn what_changed_while_a_thread_looked_is_looked_up_again() {
        let store = TestStore::new("one");
        // The old object is still in use elsewhere, so that it can be had.
        let old = Arc::clone(&store.known.lock());
        assert_eq!(store.read_while(|| store.set("two")), *old);
        assert_eq!(store.read(), "two");
    }

    #[test]
    fn an_object_is_not_kept_alive_by_its_readers() {
        let store = TestStore::new("one");
        store.read();
        let object = Arc::downgrade(&store.known.lock());
        // Without a word of it.
        *store.known.lock() = Arc::new("two");
        assert!(object.upgrade().is_none());
        assert_eq!(store.read(), "two");
    }
}
