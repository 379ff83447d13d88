//! The threads on which larder looks at containers: whose turn it is, and which of them do not end.
//!
//! A look enters the mount namespace of a container, and mounts there. The kernel may wait for the lock of a directory or
//! file that the container holds: nothing ends such a wait, neither for a thread nor for a process, before the container
//! lets go.
//!
//! Invariants:
//! 1. Two looks have a turn. A turn lasts half a second at most: a look that takes longer goes on beside the others.
//! 2. At most two looks at pods of a namespace wait for a turn at a time, and turns are given in the order of arrival. So
//!    a look waits for at most one turn of each other namespace, however many pods that has.
//! 3. A look that does not end is its pod's alone, which begins no other one: it has no place that another pod lacks. So
//!    a node has no more such threads than pods.
//! 4. When its pod goes, the look is abandoned, and counts in its namespace until its thread has ended. A namespace with
//!    [`ABANDONED`] of them gets no other look, which bounds the threads that one tenant leaves behind. Other namespaces
//!    get theirs.

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
/// Abandoned looks of a namespace after which it gets no other one.
pub(super) const ABANDONED: usize = 32;

/// The looks of a node.
#[derive(Debug)]
pub(super) struct Looks {
    turns: Semaphore,
    namespaces: Mutex<BTreeMap<SmolStr, Weak<NamespaceLooks>>>,
}

/// The looks at the pods of one namespace.
#[derive(Debug)]
struct NamespaceLooks {
    queue: Semaphore,
    /// Those that go on although their pods are gone.
    abandoned: Mutex<usize>,
}

/// A look, for the pod that waits for it or has stopped to wait. Dropped, it is abandoned, unless it has ended.
#[derive(Debug)]
#[must_use = "dropping it abandons the look"]
pub(super) struct StartedLook(Arc<SharedLook>);

#[derive(Debug)]
struct SharedLook {
    state: Mutex<LookState>,
    namespace: Arc<NamespaceLooks>,
}

/// Where a look is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookState {
    /// Its pod knows of it.
    Running,
    /// Its pod is gone, its thread is not.
    Abandoned,
    Ended,
}

/// Why there is no result of a look.
#[derive(Debug)]
pub(super) enum NoResult {
    /// It has not ended in time, and goes on.
    GoesOn(StartedLook),
    /// It was not begun: the namespace of the pod has too many abandoned ones.
    NotBegun,
    /// Its thread could not be started, or has panicked.
    NoThread,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(TURNS),
            namespaces: Mutex::default(),
        }
    }
}

impl Looks {
    /// Runs `work`, a look at a pod of this namespace, on a thread of its own. Waits for its end for `limit` at most.
    ///
    /// # Cancel safety
    ///
    /// Work that has begun goes on alone, and is abandoned.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        namespace: &str,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let of_namespace = self.of_namespace(namespace);
        let queue = of_namespace.queue.acquire().await;
        let turn = (queue, self.turns.acquire().await);
        if *of_namespace.abandoned.lock() >= ABANDONED {
            return Err(NoResult::NotBegun);
        }
        let (done, result) = oneshot::channel();
        let look = Arc::new(SharedLook {
            state: Mutex::new(LookState::Running),
            namespace: Arc::clone(&of_namespace),
        });
        let ended = EndedLook(Arc::clone(&look));
        let look = StartedLook(look);
        start_apart(Box::new(move || {
            let result = work();
            drop(ended);
            // Fails only if the caller no longer waits.
            let _ = done.send(result);
        }));
        let mut result = pin!(result);
        if let Ok(result) = timeout(TURN.min(limit), &mut result).await {
            return result.map_err(|_| NoResult::NoThread);
        }
        drop(turn);
        match timeout(limit.saturating_sub(TURN), result).await {
            Ok(result) => result.map_err(|_| NoResult::NoThread),
            Err(_) => Err(NoResult::GoesOn(look)),
        }
    }

    /// Says so when looks go on although their pods are gone: how many, and of which namespaces.
    pub(super) fn abandoned(&self) -> Option<String> {
        let namespaces = self.namespaces.lock();
        let found: Vec<_> = namespaces
            .iter()
            .filter_map(|(name, looks)| {
                let abandoned = *looks.upgrade()?.abandoned.lock();
                (abandoned > 0).then(|| format!("{abandoned} in namespace {name}"))
            })
            .collect();
        (!found.is_empty()).then(|| {
            format!(
                "looks at mounts of pods that are gone do not end ({}), because the kernel waits for something that their \
                 containers held; a namespace with {ABANDONED} gets no updates of mounts with subPath",
                found.join(", ")
            )
        })
    }

    fn of_namespace(&self, name: &str) -> Arc<NamespaceLooks> {
        let mut all = self.namespaces.lock();
        if let Some(known) = all.get(name).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, known| known.strong_count() > 0);
        let made = Arc::new(NamespaceLooks {
            queue: Semaphore::new(TURNS),
            abandoned: Mutex::default(),
        });
        all.insert(name.into(), Arc::downgrade(&made));
        made
    }
}

impl StartedLook {
    /// Whether its thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        *self.0.state.lock() == LookState::Ended
    }
}

impl Drop for StartedLook {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if *state == LookState::Running {
            *state = LookState::Abandoned;
            *self.0.namespace.abandoned.lock() += 1;
        }
    }
}

/// Ends a look: dropped by its thread, or with work that no thread takes.
struct EndedLook(Arc<SharedLook>);

impl Drop for EndedLook {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.state.lock(), LookState::Ended);
        if before == LookState::Abandoned {
            *self.0.namespace.abandoned.lock() -= 1;
        }
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

    /// A look at a pod of `namespace` that goes on.
    async fn going_on(looks: &Looks, namespace: &str) -> (mpsc::Sender<()>, StartedLook) {
        let (end, work) = hanging();
        match looks.run(namespace, Duration::ZERO, work).await {
            Err(NoResult::GoesOn(look)) => (end, look),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn look_that_never_ends_delays_no_other() {
        let looks = Looks::default();
        let mut hung = Vec::new();
        for _ in 0..3 {
            hung.push(going_on(&looks, "n").await);
        }
        assert_eq!(looks.run("n", MINUTE, || 1).await.unwrap(), 1);
        // Nor does what takes long.
        let end = Arc::new(Barrier::new(3));
        let slow = || {
            let end = Arc::clone(&end);
            looks.run("n", MINUTE, move || end.wait().is_leader())
        };
        let other = async {
            assert_eq!(looks.run("m", MINUTE, || 1).await.unwrap(), 1);
            end.wait();
        };
        let (first, second, ()) = tokio::join!(slow(), slow(), other);
        assert!(first.is_ok() && second.is_ok());
    }

    // Attack: pods whose looks do not end, as many as a node takes, in few namespaces or many.
    #[tokio::test]
    async fn looks_of_pods_that_are_there_take_no_place_of_others() {
        let looks = Looks::default();
        let mut hung = Vec::new();
        for number in 0..300 {
            let namespace = if number < 150 {
                "tenant".to_owned()
            } else {
                number.to_string()
            };
            hung.push(going_on(&looks, &namespace).await);
        }
        for namespace in ["tenant", "200", "other"] {
            assert_eq!(looks.run(namespace, MINUTE, || 1).await.unwrap(), 1);
        }
        assert_eq!(looks.abandoned(), None);
    }

    // Attack: a pod that is deleted and made again, whose looks do not end.
    #[tokio::test]
    async fn looks_of_pods_that_are_gone_are_bounded_in_their_namespace_and_given_back() {
        let looks = Looks::default();
        let mut ends = Vec::new();
        for tenant in 0..6 {
            let tenant = format!("tenant-{tenant}");
            for _ in 0..ABANDONED {
                let (end, look) = going_on(&looks, &tenant).await;
                drop(look);
                ends.push(end);
            }
            let refused = looks.run(&tenant, MINUTE, || ()).await;
            assert!(matches!(refused, Err(NoResult::NotBegun)));
        }
        assert_eq!(looks.run("other", MINUTE, || 1).await.unwrap(), 1);
        let said = looks.abandoned().unwrap();
        assert!(
            said.contains("32 in namespace tenant-0, 32 in namespace tenant-1,"),
            "{said}"
        );
        assert!(!said.contains("other"), "{said}");
        drop(ends);
        // The threads end, at some time.
        while looks.abandoned().is_some() {
            yield_now().await;
        }
        assert_eq!(looks.run("tenant-0", MINUTE, || 1).await.unwrap(), 1);
        // Nothing is kept of a namespace without looks.
        let _ = looks.run("another", MINUTE, || 1).await;
        assert!(looks.namespaces.lock().len() <= 3);
    }

    #[tokio::test]
    async fn look_that_ends_late_is_not_abandoned() {
        let looks = Looks::default();
        let (end, look) = going_on(&looks, "n").await;
        assert!(!look.has_ended());
        drop(end);
        while !look.has_ended() {
            yield_now().await;
        }
        drop(look);
        assert_eq!(looks.abandoned(), None);
        // Nor is one whose caller has its result.
        assert_eq!(looks.run("n", MINUTE, || 1).await.unwrap(), 1);
        assert_eq!(looks.abandoned(), None);
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
