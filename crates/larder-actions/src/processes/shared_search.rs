//! One search at a time, for all rounds that wait for one.
//!
//! A search looks at every process of the machine. Pods determine how many of their hooks fail and are retried. Without
//! bounds, they would determine the CPU time of searches.
//!
//! Invariants:
//! 1. A round does not use a search that began before the round asked: the search may have passed the container
//!    already.
//! 2. Searches take at most a quarter of one processor.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    sync::Mutex,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

/// Time between two searches, as a multiple of what the first took.
const PAUSE: u32 = 3;

/// Searches with the result `T`.
#[derive(Debug)]
pub(super) struct SharedSearch<T> {
    /// The number of searches that have begun.
    begun: AtomicU64,
    last: Arc<Mutex<LastSearch<T>>>,
}

#[derive(Debug)]
struct LastSearch<T> {
    number: u64,
    found: Option<Arc<T>>,
    next_at: Option<Instant>,
}

impl<T> Default for SharedSearch<T> {
    fn default() -> Self {
        let (number, found, next_at) = (0, None, None);
        Self {
            begun: AtomicU64::new(0),
            last: Arc::new(Mutex::new(LastSearch {
                number,
                found,
                next_at,
            })),
        }
    }
}

impl<T: Send + Sync + 'static> SharedSearch<T> {
    /// The result of the next search that begins, which this caller or another one runs.
    ///
    /// # Errors
    ///
    /// Those of `search`.
    ///
    /// # Cancel safety
    ///
    /// A search that has begun goes on, and none begins beside it.
    pub(super) async fn run(
        &self,
        search: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<Arc<T>> {
        let asked = self.begun.load(Ordering::Relaxed);
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(found) = last.found.as_ref().filter(|_| last.number > asked) {
            return Ok(Arc::clone(found));
        }
        if let Some(next_at) = last.next_at {
            sleep_until(next_at).await;
        }
        last.found = None;
        last.number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let searched = spawn_blocking(move || {
            let began = Instant::now();
            let found = search().map(Arc::new);
            let now = Instant::now();
            last.next_at = Some(now + (now - began) * PAUSE);
            last.found = found.as_ref().ok().cloned();
            found
        });
        searched
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// Five pods with sixteen hooks each, all of which wait for a container that does not run.
    #[tokio::test]
    async fn failing_hooks_share_one_search_at_a_time() {
        let (searches, running) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let shared = Arc::new(SharedSearch::default());
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(parking_lot::Mutex::new(wait));
        let search = || {
            let (searches, running) = (Arc::clone(&searches), Arc::clone(&running));
            let wait = Arc::clone(&wait);
            move || {
                assert_eq!(
                    running.fetch_add(1, Ordering::SeqCst),
                    0,
                    "two searches at a time"
                );
                wait.lock().recv().unwrap();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(searches.fetch_add(1, Ordering::SeqCst))
            }
        };
        let mut first = Box::pin(shared.run(search()));
        assert!(is_pending(&mut first).await);
        let mut others: Vec<_> = (0..79).map(|_| Box::pin(shared.run(search()))).collect();
        for other in &mut others {
            assert!(is_pending(other).await);
        }
        go.send(()).unwrap();
        assert_eq!(*first.await.unwrap(), 0);
        go.send(()).unwrap();
        for other in others {
            // Not the first one's, which had begun before they asked.
            assert_eq!(*other.await.unwrap(), 1);
        }
        assert_eq!(searches.load(Ordering::SeqCst), 2);
    }

    /// Polls once; whether it is still pending.
    async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending())
        })
        .await
    }

    #[tokio::test]
    async fn search_that_its_round_gives_up_goes_on_alone() {
        let shared = SharedSearch::default();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut given_up = Box::pin(shared.run(move || {
            wait.recv().unwrap();
            Ok(1)
        }));
        assert!(is_pending(&mut given_up).await);
        drop(given_up);
        let mut next = Box::pin(shared.run(|| Ok(2)));
        assert!(is_pending(&mut next).await);
        go.send(()).unwrap();
        assert_eq!(*next.await.unwrap(), 2);
    }
}
