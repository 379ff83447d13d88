//! Where pods come from: each source is a future that reports what it sees until its receiver is gone.
//!
//! Sources know nothing of each other; [`PodMerge`](super::PodMerge) keeps them apart. A source that cannot read says so and keeps
//! quiet about its pods, so that those it named before stay.

mod api;
mod directory;
mod file;
mod http;
mod last_good;

use std::{error::Error, fmt, sync::Arc};

use larder_objects::chain;
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{identity::PodSource, merge::SourcePods};

pub use api::{ApiSource, ApiSourceError};
pub use directory::{DirectoryWatch, Signal, Touch};
pub use file::{FileSource, FileSourceError};
pub use http::{HttpService, HttpSource, HttpSourceError};

/// One report of a source.
#[derive(Debug)]
pub struct SourceReport {
    /// Who reports.
    pub source: PodSource,
    /// What there is to say.
    pub event: SourceEvent,
}

/// What a source has to say.
#[derive(Debug)]
pub enum SourceEvent {
    /// Pods, to be merged.
    Pods(SourcePods),
    /// All that is wrong with the source now, in place of what was wrong before; nothing when all is well again.
    Problems(Vec<SourceProblem>),
}

/// Something that keeps a source from seeing all its pods.
#[derive(Clone, Debug)]
pub struct SourceProblem {
    /// File, URL or server that has it.
    pub subject: String,
    /// What it is.
    pub error: Arc<dyn Error + Send + Sync>,
}

/// Displays as subject and chain of causes, of which some name the subject again.
impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = format!("{}: ", self.subject);
        let causes = chain(&*self.error).replace(&subject, "");
        write!(f, "{subject}{causes}")
    }
}

/// The reporting end of one source. Tells each problem once, not at every attempt.
#[derive(Debug)]
struct Reporter {
    source: PodSource,
    reports: mpsc::Sender<SourceReport>,
    /// The problems told last, as text.
    told: Vec<String>,
}

/// Nobody receives any more, so the source ends.
#[derive(Debug)]
struct Closed;

impl Reporter {
    fn new(source: PodSource, reports: mpsc::Sender<SourceReport>) -> Self {
        Self {
            source,
            reports,
            told: Vec::new(),
        }
    }

    async fn pods(&self, pods: SourcePods) -> Result<(), Closed> {
        self.send(SourceEvent::Pods(pods)).await
    }

    async fn problems(&mut self, problems: Vec<SourceProblem>) -> Result<(), Closed> {
        let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
        if self.told == texts {
            return Ok(());
        }
        self.told = texts;
        self.send(SourceEvent::Problems(problems)).await
    }

    async fn send(&self, event: SourceEvent) -> Result<(), Closed> {
        let source = self.source;
        let report = SourceReport { source, event };
        self.reports.send(report).await.map_err(|_| Closed)
    }
}

/// Runs `work` on a blocking thread and waits for it. Files are read and manifests decoded this way, so that a large or
/// hostile one never keeps the runtime from its other tasks.
async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => unreachable!("a blocking task is not cancelled: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("gives no static pod")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_file_is_named_once() {
        let cause = io::Error::other("m/a.yaml: document 1: no kind");
        let problem = SourceProblem {
            subject: "m/a.yaml".to_owned(),
            error: Arc::new(Outer(cause)),
        };
        let text = "m/a.yaml: gives no static pod: document 1: no kind";
        assert_eq!(problem.to_string(), text);
    }
}
