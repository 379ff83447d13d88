//! Runs synchronous work off the runtime's threads. For the crates of this workspace.

use tokio::sync::Semaphore;

/// Runs `work`, which may wait for a disk, on a blocking thread and waits for its end. A panic of `work` resumes here.
///
/// # Panics
///
/// `work` panics.
///
/// # Cancel safety
///
/// `work` runs to its end even if the future is dropped.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// As [`blocking`], with a permit of `turns`, which `work` holds to its end even if the future is dropped. For work that
/// may take long: blocking threads are few, and without a limit it would take all of them.
///
/// # Panics
///
/// `work` panics, or `turns` is closed.
pub async fn blocking_in_turn<T: Send + 'static>(
    turns: &'static Semaphore,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let turn = turns.acquire().await.expect("it is never closed");
    let work = move || {
        let _turn = turn;
        work()
    };
    blocking(work).await
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn abandoned_work_keeps_its_turn() {
        static TURNS: Semaphore = Semaphore::const_new(1);
        let (release, released) = mpsc::channel::<()>();
        let stuck = blocking_in_turn(&TURNS, move || released.recv());
        assert!(timeout(Duration::ZERO, stuck).await.is_err());
        assert_eq!(TURNS.available_permits(), 0);
        drop(release);
        assert_eq!(blocking_in_turn(&TURNS, || 1).await, 1);
    }
}
