//! Metrics of the transport, without prefix; the parent picks one, for instance `larder_transport`.

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{
    ConnectError, Lane,
    registrar::{Labels, Registrar},
};

/// How an attempt to connect ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum DialOutcome {
    Connected,
    Failed,
    TimedOut,
}

impl DialOutcome {
    const ALL: [Self; 3] = [Self::Connected, Self::Failed, Self::TimedOut];

    pub(super) fn of<T>(result: &Result<T, ConnectError>) -> Self {
        match result {
            Ok(_) => Self::Connected,
            Err(error) if error.is_timeout() => Self::TimedOut,
            Err(_) => Self::Failed,
        }
    }

    fn label(self) -> Labels<1> {
        let outcome = match self {
            Self::Connected => "connected",
            Self::Failed => "failed",
            Self::TimedOut => "timeout",
        };
        [("outcome", outcome)]
    }
}

/// The outcome of a change of the credential files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reload {
    Renewed,
    Failed,
}

impl Reload {
    const ALL: [Self; 2] = [Self::Renewed, Self::Failed];

    fn label(self) -> Labels<1> {
        let outcome = match self {
            Self::Renewed => "renewed",
            Self::Failed => "failed",
        };
        [("outcome", outcome)]
    }
}

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
        let dialed = DialOutcome::ALL.map(DialOutcome::label);
        let reloaded = Reload::ALL.map(Reload::label);
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

    /// Counts an attempt to connect.
    pub(super) fn dialed(&self, outcome: DialOutcome) {
        self.dials.get_or_create(&outcome.label()).inc();
    }

    /// Counts a change of the credential files.
    pub(super) fn credentials_reloaded(&self, outcome: Reload) {
        self.credential_reloads
            .get_or_create(&outcome.label())
            .inc();
    }
}
