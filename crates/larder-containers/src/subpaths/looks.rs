//! The threads on which larder looks at containers: whose turn it is, and which of them do not end.
//!
//! A look enters the mount namespace of a container. There the kernel may wait for a lock that the container holds, or
//! for an automount on its root. Nothing ends such a thread before the kernel goes on.
//!
//! Invariants:
//! 1. Two looks have a turn. A turn lasts half a second at most: a look that takes longer goes on beside the others.
//! 2. At most two looks at pods of a namespace wait for a turn at a time, and turns are given in the order of arrival. So
//!    a look waits for at most one turn of each other namespace, however many pods that has.
//! 3. A look has one of the places of its pod's namespace until its thread has ended, even if its pod is gone by then.
//!    Who has used up these places gets no other look; the pods of other namespaces do.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};

use crate::namespaces::start_apart;

/// Looks that have a turn.
const TURNS: usize = 2;
/// Longest turn.
const TURN: Duration = Duration::from_millis(500);
/// Looks at the pods of one namespace that may be under way.
pub(super) const OF_NAMESPACE: usize = 8;
/// Looks of all namespaces that may be under way: each takes a thread.
pub(super) const OF_NODE: usize = 128;

/// The looks of a node.
#[derive(Debug)]
pub(super) struct Looks {
    turns: Semaphore,
    places: Arc<Semaphore>,
    namespaces: Mutex<BTreeMap<SmolStr, Weak<NamespaceLooks>>>,
}

/// The looks at the pods of one namespace.
#[derive(Debug)]
struct NamespaceLooks {
    queue: Semaphore,
    places: Arc<Semaphore>,
}

/// Why there is no result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoResult {
    /// It has not ended in time, and goes on.
    GoesOn,
    /// It was not begun: the namespace of the pod has used up its places.
    NoPlaceOfNamespace,
    /// It was not begun: all places of the node are used up.
    NoPlaceOfNode,
    /// Its thread could not be started, or has panicked.
    NoThread,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(TURNS),
            places: Arc::new(Semaphore::new(OF_NODE)),
            namespaces: Mutex::default(),
        }
    }
}

impl Looks {
    /// Runs `work`, a look at a pod of this namespace, on a thread of its own. Waits for its end for `limit` at most.
    ///
    /// # Cancel safety
    ///
    /// Work that has begun goes on alone.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        namespace: &str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let of_namespace = self.of_namespace(namespace);
        let queue = of_namespace.queue.acquire().await;
        let turn = (queue, self.turns.acquire().await);
        let own_place = Arc::clone(&of_namespace.places).try_acquire_owned();
        let own_place = own_place.map_err(|_| NoResult::NoPlaceOfNamespace)?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| NoResult::NoPlaceOfNode)?;
        let (done, result) = oneshot::channel();
        let held = (Arc::clone(&of_namespace), own_place, place);
        start_apart(Box::new(move || {
            let _held = held;
            // Fails only if the caller no longer waits.
            let _ = done.send(work());
        }));
        let mut result = pin!(result);
        if let Ok(result) = timeout(TURN.min(limit), &mut result).await {
            return result.map_err(|_| NoResult::NoThread);
        }
        drop(turn);
        let result = timeout(limit.saturating_sub(TURN), result).await;
        result
            .map_err(|_| NoResult::GoesOn)?
            .map_err(|_| NoResult::NoThread)
    }

    fn of_namespace(&self, name: &str) -> Arc<NamespaceLooks> {
        let mut all = self.namespaces.lock();
        if let Some(known) = all.get(name).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let made = Arc::new(NamespaceLooks {
            queue: Semaphore::new(TURNS),
            places: Arc::new(Semaphore::new(OF_NAMESPACE)),
        });
        all.insert(name.into(), Arc::downgrade(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use tokio::task::{JoinSet, yield_now};

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// Work that does not end before the sender is dropped.
    fn hanging() -> (mpsc::Sender<()>, impl FnOnce() + Send + 'static) {
        let (end, wait) = mpsc::channel();
        (end, move || wait.recv().unwrap_or_default())
    }

    #[tokio::test]
    async fn look_that_never_ends_delays_no_other() {
        let looks = Looks::default();
        let mut ends = Vec::new();
        for _ in 0..3 {
            let (end, work) = hanging();
            ends.push(end);
            let looked = looks.run("n", Duration::from_millis(10), work).await;
            assert_eq!(looked, Err(NoResult::GoesOn));
        }
        assert_eq!(looks.run("n", MINUTE, || 1).await, Ok(1));
        // Nor does what takes long.
        let end = Arc::new(Barrier::new(3));
        let slow = || {
            let end = Arc::clone(&end);
            looks.run("n", MINUTE, move || end.wait().is_leader())
        };
        let other = async {
            assert_eq!(looks.run("m", MINUTE, || 1).await, Ok(1));
            end.wait();
        };
        let (first, second, ()) = tokio::join!(slow(), slow(), other);
        assert!(first.is_ok() && second.is_ok());
    }

    #[tokio::test]
    async fn looks_that_never_end_use_up_the_places_of_their_namespace_only_and_give_them_back() {
        let looks = Looks::default();
        let mut ends = Vec::new();
        // As many pods as it likes, one after the other.
        for number in 0..3 * OF_NAMESPACE {
            let (end, work) = hanging();
            ends.push(end);
            let looked = looks.run("tenant", Duration::from_millis(1), work).await;
            let expected = if number < OF_NAMESPACE {
                NoResult::GoesOn
            } else {
                NoResult::NoPlaceOfNamespace
            };
            assert_eq!(looked, Err(expected), "{number}");
        }
        assert_eq!(looks.run("other", MINUTE, || 1).await, Ok(1));
        drop(ends);
        // The threads end, at some time.
        while looks.places.available_permits() < OF_NODE {
            yield_now().await;
        }
        assert_eq!(looks.run("tenant", MINUTE, || 1).await, Ok(1));
        // Nothing is kept of a namespace without looks.
        let _ = looks.run("other", MINUTE, || 1).await;
        assert!(looks.namespaces.lock().len() <= 2);
    }

    #[tokio::test]
    async fn all_looks_of_the_node_have_a_bound() {
        let looks = Looks::default();
        let mut ends = Vec::new();
        for number in 0..OF_NODE {
            let (end, work) = hanging();
            ends.push(end);
            let tenant = (number / OF_NAMESPACE).to_string();
            let looked = looks.run(&tenant, Duration::ZERO, work).await;
            assert_eq!(looked, Err(NoResult::GoesOn), "{number}");
        }
        let looked = looks.run("other", MINUTE, || ()).await;
        assert_eq!(looked, Err(NoResult::NoPlaceOfNode));
    }

    #[tokio::test]
    async fn turns_go_round_the_namespaces() {
        let looks = Arc::new(Looks::default());
        let began = Arc::new(Mutex::new(Vec::new()));
        let (hold, until_dropped) = mpsc::channel::<()>();
        let until_dropped = Arc::new(Mutex::new(until_dropped));
        let mut waiting = JoinSet::new();
        let names = [vec!["tenant"; 20], vec!["a", "b"]].concat();
        for name in names {
            let (began, until_dropped) = (Arc::clone(&began), Arc::clone(&until_dropped));
            let work = move || {
                began.lock().push(name);
                let _ = until_dropped.lock().recv();
            };
            let looks = Arc::clone(&looks);
            waiting.spawn(async move { looks.run(name, MINUTE, work).await });
            // They arrive in this order.
            yield_now().await;
        }
        drop(hold);
        while let Some(looked) = waiting.join_next().await {
            looked.unwrap().unwrap();
        }
        let began = began.lock();
        let turn = |name| began.iter().position(|began| *began == name).unwrap();
        assert!(turn("a") < 6 && turn("b") < 6, "{began:?}");
    }
}
