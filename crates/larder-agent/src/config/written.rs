//! A configuration as it is written: one struct for the file, for `/configz`, and for the list of its fields.
//!
//! A field is decoded here into its own type; `check` compares it with others and fills in defaults.
//!
//! Invariants:
//! 1. No error of decoding quotes a value, since a header of `staticPodURLHeader` may be a credential.
//! 2. What is serialized holds no credential: values of headers are masked, a URL has neither user nor query, and of a
//!    hook only its name and action are shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    time::Duration,
};

use larder::{Strategy, WatchScope};
use larder_checkpoint::KeySource;
use larder_hooks::Network;
use larder_objects::go_duration;
use larder_on_change::parse::HookFields;
use larder_pods::static_pod::{ApiReferences, shown_url};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::{SubPathUpdates, listen_address};

/// The fields of a configuration file, in the order of the documentation.
#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AgentConfiguration {
    #[serde(skip_serializing)]
    pub(super) kind: Option<ConfigurationKind>,
    #[serde(skip_serializing)]
    pub(super) api_version: Option<String>,
    pub(super) kubeconfig: Option<String>,
    pub(super) manifests: Option<String>,
    pub(super) pod_address: Option<Text<IpAddr>>,
    pub(super) node_name: Option<String>,
    pub(super) root_dir: Option<String>,
    pub(super) listen: Option<Text<SocketAddr>>,
    #[serde(rename = "configMapAndSecretChangeDetectionStrategy")]
    pub(super) change_detection: Option<Strategy>,
    pub(super) watch_scope: Option<WatchScope>,
    pub(super) sync_frequency: Option<Text<Duration>>,
    pub(super) static_pod_path: Option<String>,
    pub(super) file_check_frequency: Option<Text<Duration>>,
    #[serde(rename = "staticPodURL")]
    pub(super) static_pod_url: Option<PodUrl>,
    #[serde(rename = "staticPodURLHeader")]
    pub(super) static_pod_url_headers: Option<Headers>,
    pub(super) http_check_frequency: Option<Text<Duration>>,
    #[serde(rename = "staticPodAPIReferences")]
    pub(super) static_pod_api_references: Option<ReferencesWord>,
    #[serde(rename = "kubeAPIQPS")]
    pub(super) kube_api_qps: Option<Requests>,
    #[serde(rename = "kubeAPIBurst")]
    pub(super) kube_api_burst: Option<Requests>,
    pub(super) max_requests_in_flight: Option<NonZeroUsize>,
    pub(super) on_change: Option<Vec<HookEntry>>,
    pub(super) on_change_allowed_networks: Option<Vec<Text<Network>>>,
    pub(super) on_change_from_pods: Option<Vec<String>>,
    pub(super) on_change_parallelism: Option<NonZeroUsize>,
    pub(super) sub_path_updates: Option<SubPathUpdates>,
    pub(super) register_node: Option<bool>,
    pub(super) checkpoint: Option<CheckpointFields>,
    pub(super) checkpoint_dir: Option<String>,
    pub(super) mode: Option<Mode>,
    pub(super) beside: Option<BesideFields>,
}

/// A number of requests.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Requests(pub(super) u16);

impl<'de> Deserialize<'de> for Requests {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = |_| D::Error::custom("expected a number of requests, 0 to 65535");
        u16::deserialize(deserializer).map(Self).map_err(expected)
    }
}

/// The kind of the file. kubeadm writes every time as `0s` and means the default, so a `KubeletConfiguration` is read
/// that way; in larder's own kind a time of zero is an error.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum ConfigurationKind {
    #[serde(rename = "AgentConfiguration")]
    Agent,
    #[serde(rename = "KubeletConfiguration")]
    Kubelet,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Mode {
    Serve,
    Beside,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(remote = "ApiReferences")]
enum ReferencesNames {
    Refuse,
    Allow,
}

/// `staticPodAPIReferences`.
#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(transparent)]
pub(super) struct ReferencesWord(#[serde(with = "ReferencesNames")] pub(super) ApiReferences);

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CheckpointFields {
    pub(super) key: Option<OneOrMany>,
    pub(super) after: Option<Text<Duration>>,
    pub(super) max_age: Option<MaxAgeFields>,
}

/// A key, or a list of them.
#[derive(Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "expected credential:NAME or file:PATH, or a list of these"
)]
pub(super) enum OneOrMany {
    One(Text<KeySource>),
    Many(Vec<Text<KeySource>>),
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MaxAgeFields {
    #[serde(rename = "Secret")]
    pub(super) secrets: Option<Text<Duration>>,
    #[serde(rename = "ConfigMap")]
    pub(super) config_maps: Option<Text<Duration>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct BesideFields {
    pub(super) kubelet_root_dir: Option<String>,
    pub(super) namespaces: Option<BTreeSet<String>>,
    pub(super) selector: Option<BTreeMap<String, String>>,
    #[serde(rename = "refreshClusterCAs")]
    pub(super) refresh_cluster_cas: Option<bool>,
    pub(super) restart_events: Option<bool>,
    pub(super) lock_dir: Option<String>,
}

/// Headers of the requests to `staticPodURL`; values may be credentials, so `Debug` shows names only.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Headers(BTreeMap<String, Vec<String>>);

impl Headers {
    /// Values by name.
    pub fn values(&self) -> &BTreeMap<String, Vec<String>> {
        &self.0
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The kubelet's word in `/configz`.
const MASKED: &str = "<masked>";

impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.keys().map(|name| (name, [MASKED])))
    }
}

/// `staticPodURL`. It may have a user and a query, which neither `Debug` nor `/configz` shows.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct PodUrl(pub(super) String);

impl PodUrl {
    /// The URL as a whole.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PodUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown_url(&self.0))
    }
}

impl Serialize for PodUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&shown_url(&self.0))
    }
}

/// An entry of `onChange`: with all of its fields in a file, and without what may be a credential in `/configz`.
pub(super) enum HookEntry {
    Fields(Box<HookFields>),
    Shown { name: String, action: String },
}

impl<'de> Deserialize<'de> for HookEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        HookFields::deserialize(deserializer).map(|fields| Self::Fields(Box::new(fields)))
    }
}

impl Serialize for HookEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fields(_) => serializer.serialize_str(MASKED),
            Self::Shown { name, action } => {
                serializer.collect_map([("name", name), ("action", action)])
            }
        }
    }
}

/// A value that is written as a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text<T>(pub(super) T);

/// How a value is read from its text, and written.
pub(super) trait Written: Sized {
    /// What an error says, without the text.
    const EXPECTED: &str;

    fn read(text: &str) -> Option<Self>;

    fn write(&self) -> String;
}

impl<'de, T: Written> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        T::read(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom(format_args!("expected {}", T::EXPECTED)))
    }
}

impl<T: Written> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.write())
    }
}

impl Written for IpAddr {
    const EXPECTED: &str = "an IP address, such as 127.0.0.1";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Written for SocketAddr {
    const EXPECTED: &str = "ADDRESS:PORT, localhost:PORT or :PORT, such as 127.0.0.1:10290";

    fn read(text: &str) -> Option<Self> {
        listen_address(text).ok()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Written for Network {
    const EXPECTED: &str = "a network such as 10.244.0.0/16";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Written for KeySource {
    const EXPECTED: &str = "credential:NAME or file:PATH";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn write(&self) -> String {
        self.to_string()
    }
}

impl Written for Duration {
    const EXPECTED: &str = "a duration such as 20s, 1m30s or 500ms";

    fn read(text: &str) -> Option<Self> {
        go_duration::parse(text).ok()
    }

    /// As Go prints it: `1m30s`, `1.5ms`, `1h0m0s`.
    fn write(&self) -> String {
        let nanos = self.as_nanos();
        let (unit, digits) = match nanos {
            0 => return "0s".to_owned(),
            1..1_000 => return format!("{nanos}ns"),
            1_000..1_000_000 => ("µs", 3),
            1_000_000..1_000_000_000 => ("ms", 6),
            _ => ("s", 9),
        };
        let scale = 10_u128.pow(digits);
        let (whole, rest, width) = (nanos / scale, nanos % scale, digits as usize);
        let (hours, minutes, whole) = match unit {
            "s" => (whole / 3600, whole / 60 % 60, whole % 60),
            _ => (0, 0, whole),
        };
        let number = format!("{whole}.{rest:0width$}");
        let number = number.trim_end_matches('0').trim_end_matches('.');
        match (hours, minutes) {
            (0, 0) => format!("{number}{unit}"),
            (0, _) => format!("{minutes}m{number}s"),
            _ => format!("{hours}h{minutes}m{number}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for text in [
            "0s",
            "1ns",
            "7µs",
            "1.001µs",
            "1.5ms",
            "500ms",
            "1.5s",
            "2.000000001s",
            "20s",
            "1m0s",
            "1m30s",
            "1h0m0s",
            "1h0m0.25s",
        ] {
            let duration = Duration::read(text).unwrap();
            assert_eq!(duration.write(), text);
        }
    }
}
