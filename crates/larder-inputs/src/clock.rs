//! The wall clock, as one value that is passed to all code that reads or compares times. Delays use tokio's clock.
//!
//! The two diverge when the wall clock is set, or when the machine sleeps and tokio's clock with it. Code that waits
//! for a time of day uses `Clock::sleep_until`, which checks the time after every such jump.

use std::{fmt, io, sync::Arc, time::Duration};

use jiff::Timestamp;
use rustix::{
    io::Errno,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tokio::{io::unix::AsyncFd, sync::watch, time::sleep};
use tracing::{info, warn};

/// A wall clock. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Clock {
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    jumps: watch::Sender<()>,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that reads the wall clock"
        )]
        Self::new(Timestamp::now)
    }

    /// A clock that shows the result of `now`.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            now: Arc::new(now),
            jumps: watch::Sender::new(()),
        }
    }

    /// The time of day.
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Notifies waiting tasks that the clock was set.
    pub fn jumped(&self) {
        self.jumps.send_replace(());
    }

    /// Changes with every jump.
    pub fn jumps(&self) -> watch::Receiver<()> {
        self.jumps.subscribe()
    }

    /// Waits until the clock shows `at`, also if it is set meanwhile.
    pub async fn sleep_until(&self, at: Timestamp) {
        let mut jumps = self.jumps();
        loop {
            let left = Duration::try_from(at.duration_since(self.now())).unwrap_or_default();
            if left.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = sleep(left) => {}
                Ok(()) = jumps.changed() => {}
            }
        }
    }

    /// Reports the jumps of the machine's clock. Ends only when dropped.
    pub async fn follow_machine(self) {
        let Err(error) = self.report_jumps().await;
        // Periodic passes still notice the new time.
        warn!(
            error = error.to_string(),
            "failed to watch the clock, noticing jumps late"
        );
        std::future::pending::<()>().await;
    }

    async fn report_jumps(&self) -> io::Result<std::convert::Infallible> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
        // It never expires. The kernel cancels it when the clock is set, and when the machine wakes
        // (timerfd_create(2)).
        let never = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            },
        };
        let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
        timerfd_settime(&timer, flags, &never)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe to call, and an `OwnedFd` is what both ask for"
        )]
        let timer = AsyncFd::new(timer)?;
        loop {
            let mut ready = timer.readable().await?;
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer, &mut [0; 8])?));
            match read {
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => {
                    info!(now = %self.now(), "clock jumped");
                    self.jumped();
                }
                Ok(Err(error)) => return Err(error),
                Ok(Ok(_)) | Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use futures::poll;
    use jiff::SignedDuration;
    use tokio::time::{Instant, advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleeper_wakes_at_the_time_of_day_whatever_the_clock_does() {
        let (start, offset) = (Instant::now(), Arc::new(AtomicI64::new(0)));
        let shift = offset.clone();
        let clock = Clock::new(move || {
            let elapsed = SignedDuration::try_from(start.elapsed()).unwrap();
            Timestamp::UNIX_EPOCH
                + elapsed
                + SignedDuration::from_secs(shift.load(Ordering::Relaxed))
        });
        let set = |seconds: i64| {
            offset.store(seconds, Ordering::Relaxed);
            clock.jumped();
        };
        let hour = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(3600);
        let sleeper = clock.sleep_until(hour);
        tokio::pin!(sleeper);
        assert!(poll!(&mut sleeper).is_pending());
        set(-600);
        advance(Duration::from_secs(3601)).await;
        assert!(poll!(&mut sleeper).is_pending(), "it is ten minutes early");
        set(0);
        assert!(poll!(&mut sleeper).is_ready());
    }

    #[tokio::test]
    async fn the_machine_is_followed_without_an_error() {
        let clock = Clock::system();
        let mut follower = std::pin::pin!(clock.report_jumps());
        // A jump cannot be made without setting the clock of everybody; that the kernel takes the timer can be seen.
        for _ in 0..3 {
            assert!(poll!(&mut follower).is_pending());
            tokio::task::yield_now().await;
        }
    }
}
