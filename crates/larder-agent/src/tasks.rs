//! The background tasks of the agent, each under a name.
//!
//! Invariant: every task is joined. A task that ends while the agent runs is an error that names it, so no task dies
//! silently.

use std::future::pending;

use futures::FutureExt as _;
use tokio::task::JoinError;
use tokio_util::task::JoinMap;

/// A background task ended although the agent still runs. What it watched or kept up to date would go stale unnoticed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// It returned.
    #[error("background task {name:?} ended unexpectedly")]
    Ended {
        /// Of the task.
        name: &'static str,
    },
    /// It panicked. The text of the panic is left out: it may quote data.
    #[error("background task {name:?} panicked")]
    Panicked {
        /// Of the task.
        name: &'static str,
    },
    /// It found that the agent cannot go on.
    #[error("{reason}")]
    Failed {
        /// Why, and what to do.
        reason: String,
    },
}

impl TaskError {
    /// The task `name` ended with `result`.
    pub(crate) fn new<T>(name: &'static str, result: &Result<T, JoinError>) -> Self {
        if result.as_ref().is_err_and(JoinError::is_panic) {
            Self::Panicked { name }
        } else {
            Self::Ended { name }
        }
    }
}

/// Tasks that run as long as the agent does. Dropping them ends them.
#[derive(Debug, Default)]
pub(crate) struct Tasks(JoinMap<&'static str, Option<TaskError>>);

impl Tasks {
    /// Starts `task`, whose end is an error. Names are unique.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.start(name, task.map(|()| None));
    }

    /// As [`Self::spawn`], for a task that ends only when the agent cannot go on.
    pub(crate) fn spawn_until_failure(
        &mut self,
        name: &'static str,
        task: impl Future<Output = TaskError> + Send + 'static,
    ) {
        self.start(name, task.map(Some));
    }

    fn start(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Option<TaskError>> + Send + 'static,
    ) {
        debug_assert!(!self.0.contains_key(name), "two tasks are called {name}");
        // In a box: a task of some kilobytes that is moved by value takes several times its size on the caller's stack.
        self.0.spawn(name, Box::pin(task));
    }

    /// Waits until a task ends. Cancel-safe.
    pub(crate) async fn failure(&mut self) -> TaskError {
        match self.0.join_next().await {
            Some((_, Ok(Some(error)))) => error,
            Some((name, result)) => TaskError::new(name, &result),
            None => pending().await,
        }
    }

    /// Ends all tasks and waits for them.
    pub(crate) async fn shutdown(&mut self) {
        self.0.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_a_task_is_reported_with_its_name() {
        let mut tasks = Tasks::default();
        tasks.spawn("facts", pending());
        tasks.spawn("pod source", async {});
        let error = tasks.failure().await;
        assert_eq!(
            error.to_string(),
            r#"background task "pod source" ended unexpectedly"#
        );
    }

    #[tokio::test]
    async fn a_panic_is_reported_without_its_text() {
        let mut tasks = Tasks::default();
        tasks.spawn("events", async { panic!("hunter2") });
        let error = tasks.failure().await;
        assert_eq!(error.to_string(), r#"background task "events" panicked"#);
    }
}
