//! The settings of a manager: the strategy and its times, validated before anything runs.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc, time::Duration};

use larder_objects::{Object, ObjectKey};
use larder_transport::setters;
use larder_watch::NodeContext;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::info;

/// The names that the values of an enum have in a configuration file: exactly those of its variants.
macro_rules! spelled {
    ($type:ident, $unknown:path: $($variant:ident)+) => {
        impl $type {
            /// The name in a configuration file.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = ConfigError;

            /// Exactly this spelling, as in the kubelet; another case is another word.
            fn from_str(text: &str) -> Result<Self, ConfigError> {
                match text {
                    $(stringify!($variant) => Ok(Self::$variant),)+
                    _ => Err($unknown(text.to_owned())),
                }
            }
        }
    };
}

/// How a manager learns that an object has changed: the kubelet's `configMapAndSecretChangeDetectionStrategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Strategy {
    /// Every read asks the API server.
    Get,
    /// A read asks the API server when the last answer is older than the time to live.
    Cache,
    /// One watch per referenced object. The default, as in the kubelet.
    #[default]
    Watch,
}

spelled! { Strategy, ConfigError::Strategy: Get Cache Watch }

/// Under strategy `Watch`, what one watch covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WatchScope {
    /// One referenced object, by name: all that a node may ask for. The default.
    #[default]
    Object,
    /// A namespace: one watch per kind for all its referenced objects; requires permission to list and watch the
    /// namespace. The API server sends the other objects of the namespace too; they are dropped as they come in, and
    /// their bytes are wiped.
    Namespace,
    /// `Namespace` where a self subject access review grants list and watch, else `Object`. Decided when a namespace
    /// gets its first reference, and again after it has lost its last one. When the API server rejects the watch of a
    /// namespace later on, it is `Object` until then.
    Auto,
}

spelled! { WatchScope, ConfigError::WatchScope: Object Namespace Auto }

/// Which changes of objects a manager logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeLog {
    /// None.
    #[default]
    Off,
    /// Each change of the keys of an object that was known before: a line of level `info` names object and keys, and no
    /// value.
    Keys,
}

impl ChangeLog {
    /// Logs the change from one version of the object to another.
    pub(crate) fn record<K: Object>(self, key: &ObjectKey, before: &K, after: &K) {
        if self == Self::Off {
            return;
        }
        let keys = after.key_changes(before);
        if !keys.is_empty() {
            info!(object = %format_args!("{} {key}", K::TYPE.kind), %keys, "changed");
        }
    }
}

/// The settings of one manager. `Default` has the kubelet's values where the kubelet has the setting.
///
/// ```
/// use larder::{ManagerConfig, WatchScope};
///
/// let config = ManagerConfig::default().watch_scope(WatchScope::Auto).max_requests_in_flight(32);
/// assert_eq!(config.validate(), Ok(()));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ManagerConfig {
    /// Which changes of objects are logged. Defaults to none.
    pub change_log: ChangeLog,
    /// Change detection strategy. Defaults to `Watch`.
    pub strategy: Strategy,
    /// Under `Watch`, what one watch covers. Defaults to `Object`.
    pub watch_scope: WatchScope,
    /// The kubelet's `syncFrequency`: how often a pod is looked at again. Defaults to 1 min; must be positive.
    ///
    /// Under `Watch`, a watch without reads for five times as long (at least 60 s) is stopped until the next
    /// read (kubelet 1.36, `pkg/kubelet/util/manager/watch_based_manager.go`).
    pub sync_frequency: Duration,
    /// Under `Watch`, how long `get` waits for the first answer about an object. Defaults to 1 s, as in the kubelet;
    /// must be positive. Under `Get` and `Cache` a read waits for its own request, at most 30 s.
    pub read_timeout: Duration,
    /// Under `Cache`, how long an answer is good for while the node does not say. Defaults to 60 s; must be positive.
    pub default_ttl: Duration,
    /// Under `Cache`, how long an answer is valid according to the node. Defaults to a node that sets no time.
    pub node_ttl: NodeTtl,
    /// Under `Cache`, the maximum age of an answer that is served while the API server fails. Defaults to no limit: as
    /// under `Watch`, the last good copy stays served, and status and change events show why it is stale.
    pub max_stale: Option<Duration>,
    /// Under `Watch` with one watch per object, most requests that wait for their answer at the same time; further ones
    /// wait in a queue, those with a waiting reader first. An established watch does not count. Must be positive.
    ///
    /// Defaults to 64: what kube-apiserver answers at the same time for all nodes together, as it comes (98 seats of
    /// priority level `node-high`), so that more would only wait there; and what fits on one HTTP/2 connection (100
    /// streams).
    pub max_requests_in_flight: usize,
    /// What this manager shares with the other managers and collections of the node: the rate of repeated requests, and
    /// the state of outages. Defaults to a context of its own.
    pub node_context: Option<NodeContext>,
    /// Seed of all random delays, so that a test can be repeated. Defaults to a random one.
    pub seed: Option<u64>,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            change_log: ChangeLog::default(),
            strategy: Strategy::default(),
            watch_scope: WatchScope::default(),
            sync_frequency: Duration::from_mins(1),
            read_timeout: Duration::from_secs(1),
            default_ttl: Duration::from_mins(1),
            node_ttl: NodeTtl::default(),
            max_stale: None,
            max_requests_in_flight: 64,
            node_context: None,
            seed: None,
        }
    }
}

impl ManagerConfig {
    setters! {
        change_log: ChangeLog
        strategy: Strategy
        watch_scope: WatchScope
        sync_frequency: Duration
        read_timeout: Duration
        default_ttl: Duration
        node_ttl: NodeTtl
        max_stale: Option<Duration>
        max_requests_in_flight: usize
        seed: Option<u64>
    }

    /// Sets [`node_context`](Self#structfield.node_context).
    #[must_use]
    pub fn node_context(mut self, context: &NodeContext) -> Self {
        self.node_context = Some(context.clone());
        self
    }

    /// Checks every field.
    ///
    /// # Errors
    ///
    /// The first field that is out of bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let is_zero = [
            ("syncFrequency", self.sync_frequency.is_zero()),
            ("readTimeout", self.read_timeout.is_zero()),
            ("defaultTTL", self.default_ttl.is_zero()),
            ("maxRequestsInFlight", self.max_requests_in_flight == 0),
        ];
        match is_zero.into_iter().find(|(_, is_zero)| *is_zero) {
            Some((field, _)) => Err(ConfigError::NotPositive(field)),
            None => Ok(()),
        }
    }

    /// How long an answer is good for, as of now: as the node says, or the default.
    pub(crate) fn current_ttl(&self) -> Duration {
        self.node_ttl.get().unwrap_or(self.default_ttl)
    }

    /// How long a watch lives without being read: five sync periods, at least 60 s.
    pub fn max_idle(&self) -> Duration {
        self.sync_frequency
            .saturating_mul(5)
            .max(Duration::from_mins(1))
    }
}

/// The time to live that the cluster asks its nodes to use, which grows with their number (TTL controller of Kubernetes
/// 1.36, `pkg/controller/ttl/ttl_controller.go`: 0 s up to 100 nodes, 300 s from 1800 on). It is looked up on every
/// read.
///
/// ```
/// use larder::NodeTtl;
///
/// let ttl = NodeTtl::default();
/// let annotations = [("node.alpha.kubernetes.io/ttl".to_owned(), "15".to_owned())].into();
/// ttl.set(NodeTtl::of_annotations(&annotations));
/// assert_eq!(ttl.get(), Some(std::time::Duration::from_secs(15)));
/// ```
///
/// Cheap to clone; all clones share one value, which the follower of the node sets. By default the node says nothing.
#[derive(Clone, Debug, Default)]
pub struct NodeTtl(Arc<Mutex<Option<Duration>>>);

/// Longest time to live that is taken from a Node. The TTL controller sets 300 s at most; a longer one is a
/// mistake, and would overflow times that it is added to.
const MAX_TTL: Duration = Duration::from_hours(24);

impl NodeTtl {
    /// Sets the node's TTL from now on.
    pub fn set(&self, ttl: Option<Duration>) {
        *self.0.lock() = ttl;
    }

    /// The last time to live that was set.
    pub fn get(&self) -> Option<Duration> {
        *self.0.lock()
    }

    /// The time to live in a node's annotations: `node.alpha.kubernetes.io/ttl`, a whole number of seconds. A negative
    /// one acts like 0, and what is no number is none (kubelet 1.36, `pkg/kubelet/kubelet.go`). More than 24 h counts as
    /// 24 h: no control plane sets as much, and other code adds it to times.
    pub fn of_annotations(annotations: &BTreeMap<String, String>) -> Option<Duration> {
        let seconds: i64 = annotations
            .get("node.alpha.kubernetes.io/ttl")?
            .parse()
            .ok()?;
        let ttl = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        Some(ttl.min(MAX_TTL))
    }
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No such strategy; the kubelet's text.
    #[error("unknown configmap and secret manager mode: {0}")]
    Strategy(String),
    /// No such scope.
    #[error("unknown watch scope: {0}; expected one of Object, Namespace, Auto")]
    WatchScope(String),
    /// A time that must be greater than zero.
    #[error("{0} must be greater than 0")]
    NotPositive(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_are_spelled_as_the_kubelet_spells_them() {
        for strategy in [Strategy::Get, Strategy::Cache, Strategy::Watch] {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        assert_eq!(
            "watch".parse::<Strategy>().unwrap_err().to_string(),
            "unknown configmap and secret manager mode: watch"
        );
    }

    // managers 29
    #[test]
    fn a_watch_idles_after_five_sync_periods_or_a_minute() {
        let max_idle = |secs| {
            let config = ManagerConfig::default();
            config.sync_frequency(Duration::from_secs(secs)).max_idle()
        };
        assert_eq!(max_idle(60), Duration::from_mins(5));
        assert_eq!(max_idle(1), Duration::from_mins(1));
    }

    // managers 12
    #[test]
    fn the_node_ttl_is_a_whole_number_of_seconds() {
        let ttl = |text: &str| {
            let key = "node.alpha.kubernetes.io/ttl".to_owned();
            NodeTtl::of_annotations(&[(key, text.to_owned())].into())
        };
        assert_eq!(NodeTtl::of_annotations(&BTreeMap::new()), None);
        for text in ["", "bad", "60s", " 60", "6.5"] {
            assert_eq!(ttl(text), None, "{text:?}");
        }
        assert_eq!(ttl("0"), Some(Duration::ZERO));
        assert_eq!(ttl("+60"), Some(Duration::from_mins(1)));
        assert_eq!(ttl("-5"), Some(Duration::ZERO));
        assert_eq!(ttl(&i64::MAX.to_string()), Some(MAX_TTL));
        let node = NodeTtl::default();
        assert_eq!(node.get(), None);
        for ttl in [Duration::MAX, Duration::ZERO] {
            node.clone().set(Some(ttl));
            assert!(
                node.get()
                    .is_some_and(|kept| kept.is_zero() == ttl.is_zero())
            );
        }
    }

    #[test]
    fn zero_times_are_refused_by_name() {
        assert_eq!(ManagerConfig::default().validate(), Ok(()));
        let config = ManagerConfig::default().sync_frequency(Duration::ZERO);
        assert_eq!(
            config.validate(),
            Err(ConfigError::NotPositive("syncFrequency"))
        );
    }
}
