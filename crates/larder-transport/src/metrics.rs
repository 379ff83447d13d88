//! Metrics of the transport, without prefix; the parent picks one, for instance `larder_transport`.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::Lane;

/// Name and value.
type Label = [(&'static str, &'static str); 1];

fn of_lane(lane: Lane) -> Label {
    [("lane", lane.as_str())]
}

const fn of_outcome(outcome: &'static str) -> Label {
    [("outcome", outcome)]
}

/// Metrics of one transport. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    connections: Family<Label, Gauge>,
    streams: Family<Label, Gauge>,
    dials: Family<Label, Counter>,
    pub(super) go_aways: Counter,
    pub(super) dead_peers: Counter,
    pub(super) refused_streams: Counter,
    pub(super) throttled: Counter,
    credentials: Family<Label, Counter>,
}

impl Metrics {
    /// Creates the metrics and registers them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // Every label set exists from the start, so that the first increase is seen as one.
        for lane in [Lane::Watch, Lane::Request] {
            drop(metrics.connections.get_or_create(&of_lane(lane)));
            drop(metrics.streams.get_or_create(&of_lane(lane)));
        }
        for outcome in ["connected", "failed", "timeout"] {
            drop(metrics.dials.get_or_create(&of_outcome(outcome)));
        }
        for outcome in ["renewed", "failed"] {
            drop(metrics.credentials.get_or_create(&of_outcome(outcome)));
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
        self.connections.get_or_create_owned(&of_lane(lane))
    }

    pub(super) fn streams(&self, lane: Lane) -> Gauge {
        self.streams.get_or_create_owned(&of_lane(lane))
    }

    /// Counts an attempt to connect: `connected`, `failed` or `timeout`.
    pub(super) fn dialed(&self, outcome: &'static str) {
        self.dials.get_or_create(&of_outcome(outcome)).inc();
    }

    /// Counts a change of the credential files: `renewed` or `failed`.
    pub(super) fn credentials_reloaded(&self, outcome: &'static str) {
        self.credentials.get_or_create(&of_outcome(outcome)).inc();
    }
}
