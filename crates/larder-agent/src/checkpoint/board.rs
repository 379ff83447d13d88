//! Status and metrics of the checkpoint.

use std::mem;

use jiff::Timestamp;
use larder_checkpoint::{CopyId, Excess, KeySource, MAX_FILE_BYTES, RejectedFile, Store, Written};
use larder_transport::registrar::{Labels, Registrar, label};
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::StaleNode;
use crate::status::{CheckpointStatus, ServingStatus};

/// Published by the checkpoint, read by status and metrics.
#[derive(Debug, Default)]
pub(crate) struct CheckpointBoard {
    /// `None`: there is no checkpoint.
    status: Mutex<Option<CheckpointStatus>>,
    metrics: CheckpointMetrics,
}

#[derive(Debug, Default)]
struct CheckpointMetrics {
    entries: Gauge,
    size: Gauge,
    rejected: Gauge,
    oldest_verification: Gauge,
    serving: Gauge,
    writes: Counter,
    written_bytes: Counter,
    failures: Family<Labels<1>, Counter>,
}

/// The labels of the counter of failures.
const FAILURES: [&str; 8] = [
    "key",
    "foreign",
    "occupied",
    "locked",
    "no_space",
    "read_only",
    "too_large",
    "io",
];

impl CheckpointBoard {
    /// The board of a checkpoint whose first key is `first`; without one there is no checkpoint.
    pub(crate) fn new(first: Option<&KeySource>, registry: &mut Registry) -> Self {
        let Some(first) = first else {
            return Self::default();
        };
        let mut registrar = Registrar(registry.sub_registry_with_prefix("checkpoint"));
        let metrics = CheckpointMetrics {
            entries: registrar.add("entries", "Copies in the checkpoint"),
            size: registrar.add(
                "size_bytes",
                "Size of the checkpoint's files on disk, without those in rejected/",
            ),
            rejected: registrar.add("rejected_files", "Files that did not open at the start"),
            oldest_verification: registrar.add(
                "oldest_confirmed_timestamp_seconds",
                "Time of the oldest freshness check among all copies, in seconds since 1970; 0 without copies",
            ),
            serving: registrar.add("serving", "1 while pods are served from the checkpoint"),
            writes: registrar.add("writes", "Writes of the checkpoint"),
            written_bytes: registrar.add(
                "written_bytes",
                "Bytes that writes of the checkpoint put on disk",
            ),
            failures: registrar.family(
                "failures",
                "Failures to open or write the checkpoint",
                label("reason", FAILURES),
            ),
        };
        let source = match first {
            KeySource::Credential(_) => "credential",
            KeySource::File(_) => "file",
        };
        let key: Family<Labels<1>, Gauge> = registrar.add("key", "Source of the sealing key");
        key.get_or_create(&[("source", source)]).set(1);
        let status = CheckpointStatus {
            key: first.to_string(),
            key_beside_data: matches!(first, KeySource::File(_)),
            ..CheckpointStatus::default()
        };
        Self {
            status: Mutex::new(Some(status)),
            metrics,
        }
    }

    pub(crate) fn status(&self) -> Option<CheckpointStatus> {
        self.status.lock().clone()
    }

    pub(super) fn opened(&self, store: &Store, rejected: &[RejectedFile]) {
        self.metrics.rejected.set(gauge_value(rejected.len()));
        self.update(|status| {
            status.rejected = rejected.iter().map(ToString::to_string).collect();
            status.problem.clear();
        });
        self.show(store);
    }

    fn show(&self, store: &Store) {
        let oldest = store.oldest_verification();
        let newest = (store.len() > 0).then(|| store.newest_verification());
        self.metrics.entries.set(gauge_value(store.len()));
        let size = i64::try_from(store.size()).unwrap_or(i64::MAX);
        self.metrics.size.set(size);
        self.metrics
            .oldest_verification
            .set(oldest.map_or(0, Timestamp::as_second));
        self.update(|status| {
            status.entries = store.len();
            status.written = newest;
            status.oldest_verification = oldest;
        });
    }

    /// The checkpoint is served from now on; the API server has been unreachable since `since`.
    pub(crate) fn serving(&self, stale: &StaleNode, since: Timestamp) {
        self.metrics.serving.set(1);
        self.update(|status| {
            status.serving = Some(ServingStatus {
                away_since: since,
                pods: stale.pods.len(),
                as_of: stale.as_of,
            });
        });
    }

    pub(super) fn stop_serving(&self) {
        self.metrics.serving.set(0);
        self.update(|status| status.serving = None);
    }

    /// A write has ended well. Returns what it could not copy, if that is news.
    pub(super) fn written(&self, store: &Store, written: Written) -> Option<String> {
        if written.files > 0 {
            self.metrics.writes.inc();
            self.metrics.written_bytes.inc_by(written.bytes);
        }
        self.show(store);
        let problem = too_large(store.too_large()).unwrap_or_default();
        let mut is_news = false;
        self.update(|status| {
            is_news = !problem.is_empty() && status.problem != problem;
            status.problem.clone_from(&problem);
        });
        if is_news {
            self.count_failure("too_large");
        }
        is_news.then_some(problem)
    }

    /// Opening or writing failed; returns whether that is news.
    pub(super) fn failed(&self, reason: &'static str, text: &str) -> bool {
        self.count_failure(reason);
        let mut status = self.status.lock();
        let Some(status) = &mut *status else {
            return true;
        };
        mem::replace(&mut status.problem, text.to_owned()) != text
    }

    fn count_failure(&self, reason: &'static str) {
        self.metrics
            .failures
            .get_or_create(&[("reason", reason)])
            .inc();
    }

    fn update(&self, change: impl FnOnce(&mut CheckpointStatus)) {
        if let Some(status) = &mut *self.status.lock() {
            change(status);
        }
    }
}

/// The problem of what is too large to be copied; `None` without any.
fn too_large<'a>(found: impl Iterator<Item = (&'a CopyId, &'a Excess)>) -> Option<String> {
    let (mut long, mut unlisted) = (Vec::new(), Vec::new());
    for (id, excess) in found {
        match excess {
            Excess::File { bytes, .. } => long.push(format!("{id} ({bytes} bytes)")),
            Excess::Index => unlisted.push(id.to_string()),
        }
    }
    // The first of each kind, and the number of others.
    let reason = |copies: &[String], reason: &str| {
        let (first, others) = copies.split_first()?;
        let others = match others.len() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        Some(format!("{first}{others} {reason} {MAX_FILE_BYTES} bytes"))
    };
    let long = reason(&long, "above the limit for a file of");
    let unlisted = reason(&unlisted, "without room in an index of");
    let reasons: Vec<_> = long.into_iter().chain(unlisted).collect();
    (!reasons.is_empty()).then(|| {
        let reasons = reasons.join("; ");
        format!("not copied, so a start without the API server lacks it: {reasons}")
    })
}

fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use larder_checkpoint::Version;

    use super::*;
    use crate::checkpoint::codec::CopyKind;

    #[test]
    fn copies_that_are_too_large_are_named_without_a_long_list() {
        let id = |name: &str| CopyKind::ConfigMap.id("prod".into(), name.into());
        let file = Excess::File {
            version: Version::default(),
            bytes: 5 << 20,
        };
        let found = [(id("a"), file), (id("b"), Excess::Index), (id("c"), file)];
        let problem = |indices: &[usize]| {
            let found = indices.iter().map(|index| &found[*index]);
            too_large(found.map(|(id, excess)| (id, excess)))
        };
        assert_eq!(problem(&[]), None);
        assert_eq!(
            problem(&[0]).unwrap(),
            "not copied, so a start without the API server lacks it: ConfigMap prod/a (5242880 bytes) above the limit \
             for a file of 4194304 bytes"
        );
        assert_eq!(
            problem(&[0, 1, 2]).unwrap(),
            "not copied, so a start without the API server lacks it: ConfigMap prod/a (5242880 bytes) and 1 more above \
             the limit for a file of 4194304 bytes; ConfigMap prod/b without room in an index of 4194304 bytes"
        );
    }
}
