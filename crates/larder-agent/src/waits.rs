//! Work of the agent itself that waits for a disk: a look at its root directory, a write of the checkpoint. The status of a
//! pod says what the work on its volumes waits for.
//!
//! Invariant: work that has not ended after a second is shown, with its start, until it ends or is dropped.

use std::{collections::BTreeMap, fmt, pin::pin, sync::Arc, time::Duration};

use jiff::Timestamp;
use larder_inputs::clock::Clock;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

/// Time after which work is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// Time after which a look at the root directory that has not ended is no health.
const MAX_LOOK: Duration = Duration::from_secs(30);

/// Work of the agent itself. There is one of each at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OwnWork {
    /// A look at the root directory.
    RootLook,
    /// Opening, reading or writing the checkpoint.
    Checkpoint,
}

/// The work that waits. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Waits {
    clock: Clock,
    waiting: Arc<Mutex<BTreeMap<OwnWork, WaitStart>>>,
}

/// When the work began.
#[derive(Clone, Copy, Debug)]
struct WaitStart {
    wall: Timestamp,
    at: Instant,
}

impl fmt::Display for OwnWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RootLook => "the root directory",
            Self::Checkpoint => "the checkpoint",
        })
    }
}

impl Waits {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            waiting: Arc::default(),
        }
    }

    /// The result of `task`, which is shown while it waits.
    pub(crate) async fn shown<T>(&self, work: OwnWork, task: impl Future<Output = T>) -> T {
        let since = WaitStart {
            wall: self.clock.now(),
            at: Instant::now(),
        };
        let mut task = pin!(task);
        if let Ok(done) = timeout(SHOWN_AFTER, &mut task).await {
            return done;
        }
        self.waiting.lock().insert(work, since);
        let _shown = ShownWait { waits: self, work };
        task.await
    }

    /// Each wait as text.
    pub(crate) fn texts(&self) -> Vec<String> {
        let waiting = self.waiting.lock();
        let waiting = waiting.iter();
        waiting.map(|(work, since)| since.text(*work)).collect()
    }

    /// The wait that is no health: nothing is delivered while the root directory does not answer.
    pub(crate) fn problem(&self) -> Option<String> {
        let waiting = self.waiting.lock();
        let look = waiting.get(&OwnWork::RootLook)?;
        (look.at.elapsed() >= MAX_LOOK).then(|| look.text(OwnWork::RootLook))
    }
}

impl WaitStart {
    fn text(self, work: OwnWork) -> String {
        format!("{work} waits for its disk since {:.0}", self.wall)
    }
}

/// Shows a wait until it is dropped.
struct ShownWait<'a> {
    waits: &'a Waits,
    work: OwnWork,
}

impl Drop for ShownWait<'_> {
    fn drop(&mut self) {
        self.waits.waiting.lock().remove(&self.work);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::{sync::oneshot, time::advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_is_shown_from_one_second_after_its_start_to_its_end() {
        let waits = Waits::new(Clock::new(|| Timestamp::UNIX_EPOCH));
        assert_eq!(waits.shown(OwnWork::RootLook, async { 1 }).await, 1);
        let (end, ended) = oneshot::channel::<u8>();
        let mut look = waits.shown(OwnWork::RootLook, ended).boxed();
        assert!(futures::poll!(&mut look).is_pending());
        assert!(waits.texts().is_empty());
        advance(SHOWN_AFTER).await;
        assert!(futures::poll!(&mut look).is_pending());
        let text = "the root directory waits for its disk since 1970-01-01T00:00:00Z";
        assert_eq!(waits.texts(), [text]);
        assert_eq!(waits.problem(), None);
        advance(MAX_LOOK).await;
        assert_eq!(waits.problem().as_deref(), Some(text));
        end.send(2).unwrap();
        assert_eq!(look.await, Ok(2));
        assert!(waits.texts().is_empty() && waits.problem().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_dropped_is_not_shown() {
        let waits = Waits::new(Clock::new(|| Timestamp::UNIX_EPOCH));
        let mut write = waits
            .shown(OwnWork::Checkpoint, std::future::pending::<()>())
            .boxed();
        assert!(futures::poll!(&mut write).is_pending());
        advance(SHOWN_AFTER).await;
        assert!(futures::poll!(&mut write).is_pending());
        assert_eq!(waits.texts().len(), 1);
        // However long it takes, the agent works.
        advance(MAX_LOOK).await;
        assert_eq!(waits.problem(), None);
        drop(write);
        assert!(waits.texts().is_empty());
    }
}
