//! Metrics: those of a sidecar, and those of configmap-reload.

use std::{sync::atomic::AtomicU64, time::Duration};

use larder_actions::{StepOutcome, http::RequestProgress, metrics::RoundMetrics};
use larder_objects::Kind;
use larder_transport::registrar::{Labels, Registrar, label};
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// Labels of a webhook: its URL without user and query, and what else.
type WebhookLabels = Vec<(&'static str, String)>;
type Seconds = Gauge<f64, AtomicU64>;

/// What a sidecar follows.
const KINDS: [Kind; 2] = [Kind::ConfigMap, Kind::Secret];

/// The metrics of a sidecar, under the prefix `larder_sidecar`. Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) files: Gauge,
    pub(crate) collisions: Gauge,
    pub(crate) proof_age: Seconds,
    pub(crate) delivery: Histogram,
    objects: Family<Labels<1>, Gauge>,
    writes: Family<Labels<1>, Counter>,
    url_fetches: Family<Labels<1>, Counter>,
    pub(crate) on_change: RoundMetrics,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let on_change = RoundMetrics::register(registry);
        let kinds = label("kind", KINDS.map(Kind::as_str));
        let writes = ["written", "unchanged", "removed", "failed", "refused"];
        let writes = label("outcome", writes);
        let fetches = label("outcome", ["succeeded", "unchanged", "failed"]);
        let mut registrar = Registrar(registry);
        // From 0.25 ms to 8 min.
        let seconds = Histogram::new(exponential_buckets(0.000_25, 2.0, 22));
        Self {
            files: registrar.add("files", "Files that are ours"),
            collisions: registrar.add("collisions", "Paths that several objects want"),
            proof_age: registrar.add(
                "confirmed_age_seconds",
                "Time since the watch that was confirmed longest ago was last confirmed",
            ),
            delivery: registrar.seconds(
                "change_delivery",
                "Time from the event to the file",
                seconds,
            ),
            objects: registrar.family("objects", "Objects that are followed", kinds),
            writes: registrar.family("writes", "Files that were wanted, by outcome", writes),
            url_fetches: registrar.family(
                "url_fetches",
                "Fetches of the URLs of keys, by outcome",
                fetches,
            ),
            on_change,
        }
    }

    /// None is followed yet.
    pub(crate) fn no_objects(&self) {
        for labels in label("kind", KINDS.map(Kind::as_str)) {
            self.objects.get_or_create(&labels).set(0);
        }
    }

    pub(crate) fn objects(&self, kind: Kind, change: i64) {
        let labels = [("kind", kind.as_str())];
        self.objects.get_or_create(&labels).inc_by(change);
    }

    pub(crate) fn wrote(&self, outcome: &'static str) {
        self.writes.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn fetched(&self, outcome: &'static str) {
        let labels = [("outcome", outcome)];
        self.url_fetches.get_or_create(&labels).inc();
    }
}

/// Sets a gauge to a number of things.
pub(crate) fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

/// The metrics of configmap-reload, under its prefix (rule V3). Clones are one.
#[derive(Clone, Debug)]
pub(crate) struct WebhookMetrics {
    last_error: Family<WebhookLabels, Gauge>,
    successes: Family<WebhookLabels, Counter>,
    errors: Family<WebhookLabels, Counter>,
    requests: Family<WebhookLabels, Counter>,
    duration: Family<WebhookLabels, Seconds>,
    pub(crate) watcher_errors: Counter,
}

impl WebhookMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let mut registrar = Registrar(registry);
        Self {
            last_error: registrar.add(
                "last_reload_error",
                "Whether the last reload resulted in an error (1 for error, 0 for success)",
            ),
            successes: registrar.add("success_reloads", "Successful reloads"),
            errors: registrar.add("request_errors", "Failed requests"),
            requests: registrar.add("requests", "Requests by status"),
            duration: registrar.add(
                "last_request_duration_seconds",
                "Duration of the last request",
            ),
            watcher_errors: registrar
                .add("watcher_errors", "Directories that could not be watched"),
        }
    }

    /// A request has ended.
    pub(crate) fn asked(
        &self,
        webhook: &str,
        outcome: &StepOutcome,
        progress: RequestProgress,
        took: Duration,
    ) {
        let own = ("webhook", webhook.to_owned());
        let labels = vec![own.clone()];
        self.duration.get_or_create(&labels).set(took.as_secs_f64());
        self.last_error
            .get_or_create(&labels)
            .set(i64::from(!outcome.is_success()));
        let answered = matches!(progress, RequestProgress::Answered(_));
        match (outcome.is_success(), answered) {
            (true, _) => drop(self.successes.get_or_create(&labels).inc()),
            (false, true) => self.failed(webhook, "client_response"),
            (false, false) => self.failed(webhook, "client_request_do"),
        }
        if let RequestProgress::Answered(status) = progress {
            let labels = vec![own, ("status_code", status.to_string())];
            self.requests.get_or_create(&labels).inc();
        }
    }

    /// A request has failed for this reason.
    pub(crate) fn failed(&self, webhook: &str, reason: &str) {
        let (webhook, reason) = (webhook.to_owned(), reason.to_owned());
        let labels = vec![("webhook", webhook), ("reason", reason)];
        self.errors.get_or_create(&labels).inc();
    }
}
