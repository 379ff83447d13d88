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

/// Registers fields under their names.
macro_rules! register {
    ($registry:ident, $metrics:ident: $($field:ident $help:literal)*) => {
        $($registry.register(stringify!($field), $help, $metrics.$field.clone());)*
    };
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
    pub(super) throttled_requests: Counter,
    credential_reloads: Family<Label, Counter>,
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
            drop(
                metrics
                    .credential_reloads
                    .get_or_create(&of_outcome(outcome)),
            );
        }
        register! { registry, metrics:
            connections "Open connections"
            streams "Requests and watches under way"
            dials "Attempts to connect"
            go_aways "Connections on which the server accepts no further requests"
            dead_peers "Connections closed because a PING was not answered"
            refused_streams "Requests sent again because the server had not processed them"
            throttled_requests "Requests that waited for the client's own rate limit"
            credential_reloads "Changes of the credential files that were noticed"
        }
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
        self.credential_reloads
            .get_or_create(&of_outcome(outcome))
            .inc();
    }
}
