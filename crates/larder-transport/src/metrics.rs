//! Metrics of the transport, without prefix; the parent picks one, for instance `larder_transport`.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{
    Lane,
    registrar::{Labels, Registrar, label},
};

fn of_lane(lane: Lane) -> Labels<1> {
    [("lane", lane.as_str())]
}

/// Metrics of one transport. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    connections: Family<Labels<1>, Gauge>,
    streams: Family<Labels<1>, Gauge>,
    dials: Family<Labels<1>, Counter>,
    pub(super) go_aways: Counter,
    pub(super) dead_peers: Counter,
    pub(super) refused_streams: Counter,
    pub(super) throttled_requests: Counter,
    credential_reloads: Family<Labels<1>, Counter>,
}

impl Metrics {
    /// Creates the metrics and registers them in `registry`.
    pub fn register(registry: &mut Registry) -> Self {
        let mut registrar = Registrar(registry);
        let lanes = [Lane::Watch, Lane::Request].map(of_lane);
        let dialed = label("outcome", ["connected", "failed", "timeout"]);
        let reloaded = label("outcome", ["renewed", "failed"]);
        let go_aways = "Connections on which the server accepts no further requests";
        let dead_peers = "Connections closed because a PING was not answered";
        let refused = "Requests sent again because the server had not processed them";
        let throttled = "Requests that waited for the client's own rate limit";
        let reloads = "Changes of the credential files that were noticed";
        Self {
            connections: registrar.family("connections", "Open connections", lanes),
            streams: registrar.family("streams", "Requests and watches under way", lanes),
            dials: registrar.family("dials", "Attempts to connect", dialed),
            go_aways: registrar.add("go_aways", go_aways),
            dead_peers: registrar.add("dead_peers", dead_peers),
            refused_streams: registrar.add("refused_streams", refused),
            throttled_requests: registrar.add("throttled_requests", throttled),
            credential_reloads: registrar.family("credential_reloads", reloads, reloaded),
        }
    }

    pub(super) fn connections(&self, lane: Lane) -> Gauge {
        self.connections.get_or_create_owned(&of_lane(lane))
    }

    pub(super) fn streams(&self, lane: Lane) -> Gauge {
        self.streams.get_or_create_owned(&of_lane(lane))
    }

    /// Counts an attempt to connect: `connected`, `failed` or `timeout`.
    pub(super) fn dialed(&self, outcome: &'static str) {
        self.dials.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a change of the credential files: `renewed` or `failed`.
    pub(super) fn credentials_reloaded(&self, outcome: &'static str) {
        self.credential_reloads
            .get_or_create(&[("outcome", outcome)])
            .inc();
    }
}
