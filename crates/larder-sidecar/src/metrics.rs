//! Metrics, under the prefix `larder_sidecar`.

use std::{fmt, time::Duration};

use larder_actions::StepOutcome;
use larder_objects::Kind;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WriteOutcome {
    Written,
    Unchanged,
    Removed,
    Refused,
    Failed,
}

impl WriteOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    action: Word,
    outcome: Word,
}

/// A value from a small fixed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Word(&'static str);

impl EncodeLabelValue for Word {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }
}

/// The metrics of a sidecar. Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    files: Gauge,
    objects: Family<KindLabels, Gauge>,
    writes: Family<OutcomeLabels, Counter>,
    collisions: Gauge,
    url_fetches: Family<OutcomeLabels, Counter>,
    delivery: Delivery,
    runs: Family<RunLabels, Counter>,
    last_failed: Gauge,
    pending: Gauge,
}

/// Time from an event to the file.
#[derive(Clone, Debug)]
struct Delivery(Histogram);

impl Default for Delivery {
    fn default() -> Self {
        Self(Histogram::new(exponential_buckets(0.000_25, 2.0, 12)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    webhook: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    webhook: String,
    reason: Word,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabels {
    webhook: String,
    status_code: String,
}

/// The metrics of configmap-reload (rule V3). Clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct WebhookMetrics {
    last_error: Family<WebhookLabels, Gauge>,
    successes: Family<WebhookLabels, Counter>,
    errors: Family<ReasonLabels, Counter>,
    requests: Family<StatusLabels, Counter>,
    duration: Family<WebhookLabels, Gauge<f64, std::sync::atomic::AtomicU64>>,
    watcher_errors: Counter,
}

impl WebhookMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        registry.register(
            "last_reload_error",
            "Whether the last reload resulted in an error (1 for error, 0 for success)",
            own.last_error.clone(),
        );
        registry.register(
            "success_reloads",
            "Successful reloads",
            own.successes.clone(),
        );
        registry.register("request_errors", "Failed requests", own.errors.clone());
        registry.register("requests", "Requests by status", own.requests.clone());
        registry.register(
            "last_request_duration_seconds",
            "Duration of the last request",
            own.duration.clone(),
        );
        registry.register(
            "watcher_errors",
            "Directories that could not be watched",
            own.watcher_errors.clone(),
        );
        own
    }

    pub(crate) fn watcher_error(&self) {
        self.watcher_errors.inc();
    }

    /// One request has ended.
    pub(crate) fn asked(&self, webhook: &str, outcome: &StepOutcome, took: Duration, status: u16) {
        let labels = WebhookLabels {
            webhook: webhook.to_owned(),
        };
        self.duration.get_or_create(&labels).set(took.as_secs_f64());
        let is_success = outcome.is_success();
        self.last_error
            .get_or_create(&labels)
            .set(i64::from(!is_success));
        let answered = outcome.reason().split_once(": answered ");
        let answered = answered.and_then(|(_, rest)| rest.split([';', ' ']).next());
        let code = is_success.then(|| status.to_string());
        if let Some(status_code) = code.or(answered.map(str::to_owned)) {
            let webhook = webhook.to_owned();
            let labels = StatusLabels {
                webhook,
                status_code,
            };
            self.requests.get_or_create(&labels).inc();
        }
        if is_success {
            self.successes.get_or_create(&labels).inc();
        } else {
            let reason = if answered.is_some() {
                "client_response"
            } else {
                "client_request_do"
            };
            self.failed(webhook, reason);
        }
    }

    /// No attempt in quick succession is left.
    pub(crate) fn exhausted(&self, webhook: &str) {
        self.failed(webhook, "retries_exhausted");
    }

    fn failed(&self, webhook: &str, reason: &'static str) {
        let labels = ReasonLabels {
            webhook: webhook.to_owned(),
            reason: Word(reason),
        };
        self.errors.get_or_create(&labels).inc();
    }
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        registry.register("files", "Files that are ours", own.files.clone());
        registry.register("objects", "Objects that are followed", own.objects.clone());
        registry.register("writes", "Files that were wanted", own.writes.clone());
        registry.register(
            "collisions",
            "Paths that several objects have",
            own.collisions.clone(),
        );
        registry.register(
            "url_fetches",
            "Fetches of the URLs of keys",
            own.url_fetches.clone(),
        );
        registry.register(
            "change_delivery_seconds",
            "Time from the event to the file",
            own.delivery.0.clone(),
        );
        registry.register("on_change_runs", "Actions after a change", own.runs.clone());
        registry.register(
            "on_change_last_failed",
            "1 while the last round of a hook has failed",
            own.last_failed.clone(),
        );
        registry.register(
            "on_change_pending",
            "Hooks that have not succeeded for the present files",
            own.pending.clone(),
        );
        own
    }

    pub(crate) fn files(&self, count: usize) {
        self.files.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn objects(&self, kind: Kind, change: i64) {
        let labels = KindLabels {
            kind: Word(kind.as_str()),
        };
        self.objects.get_or_create(&labels).inc_by(change);
    }

    pub(crate) fn wrote(&self, outcome: WriteOutcome) {
        let outcome = Word(outcome.name());
        self.writes.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub(crate) fn collisions(&self, count: usize) {
        self.collisions
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn fetched(&self, outcome: &'static str) {
        let outcome = Word(outcome);
        self.url_fetches
            .get_or_create(&OutcomeLabels { outcome })
            .inc();
    }

    pub(crate) fn delivered(&self, took: Duration) {
        self.delivery.0.observe(took.as_secs_f64());
    }

    pub(crate) fn ran(&self, action: &'static str, outcome: &StepOutcome) {
        let labels = RunLabels {
            action: Word(action),
            outcome: Word(outcome.name()),
        };
        self.runs.get_or_create(&labels).inc();
    }

    pub(crate) fn hooks(&self, failing: bool, pending: usize) {
        self.last_failed.set(failing.into());
        self.pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
    }
}
