//! Metrics of the transport, without prefix; the parent picks one, for instance `larder_transport`.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::Lane;

/// Metrics of one transport. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    connections: Family<LaneLabel, Gauge>,
    streams: Family<LaneLabel, Gauge>,
    dials: Family<OutcomeLabel, Counter>,
    pub(super) go_aways: Counter,
    pub(super) dead_peers: Counter,
    pub(super) refused_streams: Counter,
    pub(super) throttled: Counter,
    credentials: Family<OutcomeLabel, Counter>,
}

impl Metrics {
    /// Creates the metrics and registers them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // Every label set exists from the start, so that the first increase is seen as one.
        for lane in [Lane::Watch, Lane::Request] {
            drop(metrics.connections.get_or_create(&lane.into()));
            drop(metrics.streams.get_or_create(&lane.into()));
        }
        for outcome in ["connected", "failed", "timeout"] {
            drop(metrics.dials.get_or_create(&OutcomeLabel { outcome }));
        }
        for outcome in ["renewed", "failed"] {
            drop(metrics.credentials.get_or_create(&OutcomeLabel { outcome }));
        }
        registry.register(
            "connections",
            "Open connections",
            metrics.connections.clone(),
        );
        registry.register(
            "streams",
            "Requests and watches under way",
            metrics.streams.clone(),
        );
        registry.register("dials", "Attempts to connect", metrics.dials.clone());
        registry.register(
            "go_aways",
            "Connections on which the server accepts no further requests",
            metrics.go_aways.clone(),
        );
        registry.register(
            "dead_peers",
            "Connections closed because a PING was not answered",
            metrics.dead_peers.clone(),
        );
        registry.register(
            "refused_streams",
            "Requests sent again because the server had not processed them",
            metrics.refused_streams.clone(),
        );
        registry.register(
            "throttled_requests",
            "Requests that waited for the client's own rate limit",
            metrics.throttled.clone(),
        );
        registry.register(
            "credential_reloads",
            "Changes of the credential files that were noticed",
            metrics.credentials.clone(),
        );
        metrics
    }

    pub(super) fn connections(&self, lane: Lane) -> Gauge {
        self.connections.get_or_create_owned(&lane.into())
    }

    pub(super) fn streams(&self, lane: Lane) -> Gauge {
        self.streams.get_or_create_owned(&lane.into())
    }

    /// Counts an attempt to connect: `connected`, `failed` or `timeout`.
    pub(super) fn dialed(&self, outcome: &'static str) {
        self.dials.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a change of the credential files: `renewed` or `failed`.
    pub(super) fn credentials_reloaded(&self, outcome: &'static str) {
        self.credentials
            .get_or_create(&OutcomeLabel { outcome })
            .inc();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LaneLabel {
    lane: &'static str,
}

impl From<Lane> for LaneLabel {
    fn from(lane: Lane) -> Self {
        Self {
            lane: lane.as_str(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}
