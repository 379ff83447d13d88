//! The fields of a configuration file as data, for `/configz` and reloads.
//!
//! Invariant: [`Config::values`] has exactly the fields that [`Config`] reads. A test checks it and [`RELOADED_FIELDS`]
//! against the table from which `docs/configuration.md` and `packaging/agent.yaml` are generated.

use std::{path::PathBuf, time::Duration};

use larder_pods::static_pod::{ApiReferences, shown_url};
use larder_transport::RateLimit;
use serde_json::{Map, Value, json};

use super::Config;

/// The fields whose new value a reload applies; the others need a restart.
pub const RELOADED_FIELDS: [&str; 6] = [
    "listen",
    "onChange",
    "onChangeAllowedNetworks",
    "onChangeFromPods",
    "onChangeParallelism",
    "syncFrequency",
];

impl Config {
    /// The values in use by field name, as `/configz` shows them; `null` for a missing one. Values of headers are
    /// masked, and a URL has neither user nor query.
    pub fn values(&self) -> Map<String, Value> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let (qps, burst) = match self.rate_limit {
            RateLimit::Unlimited => (None, None),
            RateLimit::Limited { qps, burst } => (Some(qps), Some(burst)),
        };
        let headers = self.static_pod_url_headers.values().iter();
        let headers: Map<_, _> = headers
            .map(|(name, _)| (name.clone(), json!([MASKED])))
            .collect();
        let references = match self.static_pod_api_references {
            ApiReferences::Refuse => "Refuse",
            ApiReferences::Allow => "Allow",
        };
        // Without arguments, bodies and variables, which may be credentials.
        let hooks = self.on_change.hooks.iter();
        let hooks: Vec<_> = hooks
            .map(|found| json!({"name": found.hook.name, "action": found.hook.action()}))
            .collect();
        let networks = self.on_change.allowed_networks.iter();
        let networks: Vec<_> = networks.map(ToString::to_string).collect();
        let values = json!({
            "kubeconfig": path(&self.kubeconfig),
            "manifests": path(&self.manifests),
            "podAddress": self.pod_address,
            "nodeName": self.node_name,
            "rootDir": self.root_dir.display().to_string(),
            "listen": self.listen,
            "configMapAndSecretChangeDetectionStrategy": self.change_detection.to_string(),
            "watchScope": self.watch_scope.to_string(),
            "syncFrequency": go_duration(self.sync_frequency),
            "staticPodPath": path(&self.static_pod_path),
            "fileCheckFrequency": go_duration(self.file_check_frequency),
            "staticPodURL": self.static_pod_url.as_deref().map(shown_url),
            "staticPodURLHeader": headers,
            "httpCheckFrequency": go_duration(self.http_check_frequency),
            "staticPodAPIReferences": references,
            "kubeAPIQPS": qps,
            "kubeAPIBurst": burst,
            "maxRequestsInFlight": self.max_requests_in_flight,
            "onChange": hooks,
            "onChangeAllowedNetworks": networks,
            "onChangeFromPods": self.on_change.from_pods.words().collect::<Vec<_>>(),
            "onChangeParallelism": self.on_change.parallelism,
            "subPathUpdates": self.sub_path_updates,
            "registerNode": self.register_node,
            "mode": if self.beside.is_some() { "Beside" } else { "Serve" },
            "beside": self.beside.as_ref().map(|beside| json!({
                "kubeletRootDir": beside.kubelet_root_dir.display().to_string(),
                "namespaces": beside.namespaces,
                "selector": beside.selector,
                "refreshClusterCAs": beside.refresh_cluster_cas,
                "restartEvents": beside.restart_events,
                "lockDir": beside.lock_dir.display().to_string(),
            })),
            "checkpoint": self.checkpoint.as_ref().map(|checkpoint| json!({
                "key": checkpoint.keys.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "after": go_duration(checkpoint.after),
                "maxAge": {
                    "Secret": go_duration(checkpoint.max_age_secrets.unwrap_or_default()),
                    "ConfigMap": go_duration(checkpoint.max_age_config_maps.unwrap_or_default()),
                },
            })),
            "checkpointDir": self.checkpoint_place().path().display().to_string(),
        });
        match values {
            Value::Object(values) => values,
            _ => unreachable!("built as an object"),
        }
    }

    /// The names of the fields whose value differs from that of `other`, sorted. Masked parts are compared, too.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let new = other.values();
        let is_secret = |name: &str| match name {
            "staticPodURL" => self.static_pod_url != other.static_pod_url,
            "onChange" => self.on_change.hooks != other.on_change.hooks,
            "staticPodURLHeader" => self.static_pod_url_headers != other.static_pod_url_headers,
            _ => false,
        };
        let values = self.values().into_iter();
        let different = values.filter(|(name, value)| *value != new[name] || is_secret(name));
        different.map(|(name, _)| name).collect()
    }
}

/// The kubelet's word in `/configz`.
const MASKED: &str = "<masked>";

/// As Go prints a duration: `1m30s`, `1.5ms`, `1h0m0s`.
fn go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
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
            let duration = larder_objects::go_duration::parse(text).unwrap();
            assert_eq!(go_duration(duration), text);
        }
    }
}
