//! Sources of pods. Each is a future that reports its pods until the receiver is dropped.
//!
//! Sources do not know each other; [`PodMerge`](super::PodMerge) keeps their pods apart. A source that cannot read
//! reports a problem and no pods, so that the pods reported before stay.

mod api;
#[cfg(feature = "static-sources")]
mod directory;
#[cfg(feature = "static-sources")]
mod file;
#[cfg(feature = "static-sources")]
mod http;
#[cfg(feature = "static-sources")]
mod known_pod;
#[cfg(feature = "static-sources")]
mod last_good;

use std::{error::Error, fmt, sync::Arc};

use larder_objects::chain;
use tokio::{sync::mpsc, time::Instant};

use super::{
    identity::{FullName, PodSource},
    merge::SourcePods,
};

pub use api::{ApiSource, ApiSourceError};
#[cfg(feature = "static-sources")]
pub use directory::{DirectoryWatch, Signal, Touch};
#[cfg(feature = "static-sources")]
pub use file::{FileSource, FileSourceError};
#[cfg(feature = "static-sources")]
pub use http::{HttpService, HttpSource, HttpSourceError};

/// One report of a source.
#[derive(Debug)]
pub struct SourceReport {
    /// The reporting source.
    pub source: PodSource,
    /// The report.
    pub event: SourceEvent,
}

/// The content of a report.
#[derive(Debug)]
pub enum SourceEvent {
    /// Pods, to be merged.
    Pods(SourcePods),
    /// All current problems of the source. They replace those reported before; empty when all are solved.
    Problems(Vec<SourceProblem>),
}

/// A problem that keeps a source from seeing all its pods.
#[derive(Clone, Debug)]
pub struct SourceProblem {
    /// File, URL or server with the problem.
    pub subject: String,
    /// The problem.
    pub error: Arc<dyn Error + Send + Sync>,
    /// The pods of which an earlier version stays because of it.
    pub kept: Vec<FullName>,
    /// When those were last known to be the newest, or else when the problem was found.
    pub since: Instant,
}

impl SourceProblem {
    /// A problem that was found now, and that keeps no pod.
    pub(crate) fn new(subject: impl Into<String>, error: Arc<dyn Error + Send + Sync>) -> Self {
        Self {
            subject: subject.into(),
            error,
            kept: Vec::new(),
            since: Instant::now(),
        }
    }

    /// An earlier version of these pods stays because of it.
    pub(crate) fn keeping(self, kept: impl IntoIterator<Item = FullName>) -> Self {
        Self {
            kept: kept.into_iter().collect(),
            ..self
        }
    }
}

/// Displays as subject and chain of causes. Causes that repeat the subject are shortened.
impl fmt::Display for SourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = format!("{}: ", self.subject);
        let causes = chain(&*self.error);
        // Only a whole part of the chain: the subject `API server` also ends other texts.
        let causes = causes
            .strip_prefix(&subject)
            .unwrap_or(&causes)
            .replace(&format!(": {subject}"), ": ");
        write!(f, "{subject}{causes}")
    }
}

/// The reporting end of one source. Reports each problem once, not at every attempt.
#[derive(Debug)]
struct Reporter {
    source: PodSource,
    reports: mpsc::Sender<SourceReport>,
    /// The problems reported last, as text, with the pods that they keep.
    reported: Vec<(String, Vec<FullName>)>,
}

/// The receiver was dropped, so the source ends.
#[derive(Debug)]
struct Closed;

impl Reporter {
    fn new(source: PodSource, reports: mpsc::Sender<SourceReport>) -> Self {
        Self {
            source,
            reports,
            reported: Vec::new(),
        }
    }

    async fn pods(&self, pods: SourcePods) -> Result<(), Closed> {
        self.send(SourceEvent::Pods(pods)).await
    }

    async fn problems(&mut self, problems: Vec<SourceProblem>) -> Result<(), Closed> {
        let shown = problems.iter();
        let shown = shown.map(|problem| (problem.to_string(), problem.kept.clone()));
        let shown: Vec<_> = shown.collect();
        if self.reported == shown {
            return Ok(());
        }
        self.reported = shown;
        self.send(SourceEvent::Problems(problems)).await
    }

    async fn send(&self, event: SourceEvent) -> Result<(), Closed> {
        let source = self.source;
        let report = SourceReport { source, event };
        self.reports.send(report).await.map_err(|_| Closed)
    }
}

/// Does `work` until it ends, or the receiver of `reports` is dropped: that ends a wait or a silent watch too.
async fn until_closed<T>(reports: &mpsc::Sender<SourceReport>, work: impl Future<Output = T>) {
    tokio::select! {
        biased;
        _ = work => {}
        () = reports.closed() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("invalid static pod")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_problem_names_its_subject_once() {
        let cause = io::Error::other("m/a.yaml: document 1: no kind");
        let problem = SourceProblem::new("m/a.yaml", Arc::new(Outer(cause)));
        let text = "m/a.yaml: invalid static pod: document 1: no kind";
        assert_eq!(problem.to_string(), text);
    }

    #[test]
    fn a_cause_that_ends_with_the_subject_stays_whole() {
        let text = "cannot talk to the API server: refused";
        let problem = SourceProblem::new("API server", Arc::new(io::Error::other(text)));
        assert_eq!(problem.to_string(), format!("API server: {text}"));
    }
}
