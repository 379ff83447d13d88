//! Runs synchronous work off the runtime's threads. For the crates of this workspace.

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
