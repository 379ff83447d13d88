//! One search at a time, for all rounds that wait for one.
//!
//! A search looks at every process of the machine. Pods determine how many of their hooks fail and are retried. Without
//! bounds, they would determine the CPU time of searches.
//!
//! Invariants:
//! 1. A round does not use a search that began before the round asked: the search may have passed the container
//!    already.
//! 2. Searches take at most a quarter of one processor, and after a quiet time at most a second more.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Mutex,
    task::spawn_blocking,
    time::{Instant, sleep},
};

/// A search is paid for by this many times as much time as it took.
const PRICE: u32 = 4;
/// Most time that may be owed when a search begins: that of searches that have taken a second.
const CREDIT: Duration = Duration::from_secs(PRICE as u64);

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
    /// When all searches are paid for.
    paid_at: Option<Instant>,
}

impl<T> Default for SharedSearch<T> {
    fn default() -> Self {
        let (number, found, paid_at) = (0, None, None);
        Self {
            begun: AtomicU64::new(0),
            last: Arc::new(Mutex::new(LastSearch {
                number,
                found,
                paid_at,
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
        if let Some(paid_at) = last.paid_at {
            sleep(paid_at.saturating_duration_since(Instant::now() + CREDIT)).await;
        }
        last.found = None;
        last.number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let searched = spawn_blocking(move || {
            let began = Instant::now();
            let found = search().map(Arc::new);
            let paid_at = last.paid_at.map_or(began, |paid_at| paid_at.max(began));
            last.paid_at = Some(paid_at + began.elapsed() * PRICE);
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

    #[tokio::test(start_paused = true)]
    async fn searches_take_a_quarter_of_the_time_and_a_second_more_after_a_quiet_time() {
        let (shared, start) = (SharedSearch::default(), Instant::now());
        let mut begun = Vec::new();
        for quiet in [0, 0, 0, 0, 0, 0, 60_000, 0, 0, 0] {
            sleep(Duration::from_millis(quiet)).await;
            let (starts, started) = tokio::sync::oneshot::channel();
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let search = shared.run(move || {
                starts.send(Instant::now()).unwrap();
                wait.recv().unwrap();
                Ok(())
            });
            let end = async {
                begun.push((started.await.unwrap() - start).as_millis());
                tokio::time::advance(Duration::from_millis(500)).await;
                go.send(()).unwrap();
            };
            tokio::join!(search, end).0.unwrap();
        }
        let first = [0, 500, 1000, 2000, 4000, 6000];
        let later = [66_500, 67_000, 67_500, 68_500];
        assert_eq!(begun, [&first[..], &later].concat());
    }
}
