//! The configuration in use as its fields, for `/configz` and reloads.
//!
//! Invariant: [`Config::values`] has exactly the fields that a file may have, since it is the same struct. A test checks
//! it and [`RELOADED_FIELDS`] against the table from which `docs/configuration.md` and `packaging/agent.yaml` are
//! generated.

use std::{num::NonZeroUsize, path::Path};

use larder_transport::RateLimit;
use serde_json::{Map, Value};

use super::{
    CheckpointConfig, Config,
    written::{
        AgentConfiguration, BesideFields, CheckpointFields, HookEntry, MaxAgeFields, Mode,
        OneOrMany, ReferencesWord, Requests, Text,
    },
};
use crate::beside::BesideConfig;

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
    /// masked, a URL has neither user nor query, and of a hook only its name and action are shown.
    pub fn values(&self) -> Map<String, Value> {
        match serde_json::to_value(self.written()) {
            Ok(Value::Object(values)) => values,
            _ => unreachable!("a struct with text keys is an object"),
        }
    }

    fn written(&self) -> AgentConfiguration {
        let (qps, burst) = match self.rate_limit {
            RateLimit::Unlimited => (None, None),
            RateLimit::Limited { qps, burst } => (Some(qps), Some(burst)),
        };
        let number = |value: Option<u32>| Some(Requests(u16::try_from(value?).ok()?));
        // Without arguments, bodies and variables, which may be credentials.
        let hooks = self.on_change.hooks.iter().map(|found| HookEntry::Shown {
            name: found.hook.name.clone(),
            action: found.hook.action(),
        });
        let networks = self.on_change.allowed_networks.iter();
        let words = self.on_change.from_pods.words();
        AgentConfiguration {
            kind: None,
            api_version: None,
            kubeconfig: self.kubeconfig.as_deref().map(shown),
            manifests: self.manifests.as_deref().map(shown),
            pod_address: self.pod_address.map(Text),
            node_name: Some(self.node_name.clone()),
            root_dir: Some(shown(&self.root_dir)),
            listen: self.listen.map(Text),
            change_detection: Some(self.change_detection),
            watch_scope: Some(self.watch_scope),
            sync_frequency: Some(Text(self.sync_frequency)),
            static_pod_path: self.static_pod_path.as_deref().map(shown),
            file_check_frequency: Some(Text(self.file_check_frequency)),
            static_pod_url: self.static_pod_url.clone(),
            static_pod_url_headers: Some(self.static_pod_url_headers.clone()),
            http_check_frequency: Some(Text(self.http_check_frequency)),
            static_pod_api_references: Some(ReferencesWord(self.static_pod_api_references)),
            kube_api_qps: number(qps),
            kube_api_burst: number(burst),
            max_requests_in_flight: NonZeroUsize::new(self.max_requests_in_flight),
            on_change: Some(hooks.collect()),
            on_change_allowed_networks: Some(networks.copied().map(Text).collect()),
            on_change_from_pods: Some(words.map(str::to_owned).collect()),
            on_change_parallelism: NonZeroUsize::new(self.on_change.parallelism),
            sub_path_updates: Some(self.sub_path_updates),
            register_node: Some(self.register_node),
            checkpoint: self.checkpoint.as_ref().map(checkpoint),
            checkpoint_dir: Some(shown(self.checkpoint_place().path())),
            mode: Some(match self.beside {
                Some(_) => Mode::Beside,
                None => Mode::Serve,
            }),
            beside: self.beside.as_ref().map(beside),
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
        self.values()
            .into_iter()
            .filter(|(name, value)| *value != new[name] || is_secret(name))
            .map(|(name, _)| name)
            .collect()
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn checkpoint(config: &CheckpointConfig) -> CheckpointFields {
    let keys = config.keys.iter().cloned().map(Text);
    let age = |age: Option<_>| Some(Text(age.unwrap_or_default()));
    CheckpointFields {
        key: Some(OneOrMany::Many(keys.collect())),
        after: Some(Text(config.after)),
        max_age: Some(MaxAgeFields {
            secrets: age(config.max_age_secrets),
            config_maps: age(config.max_age_config_maps),
        }),
    }
}

fn beside(config: &BesideConfig) -> BesideFields {
    BesideFields {
        kubelet_root_dir: Some(shown(&config.kubelet_root_dir)),
        namespaces: Some(config.namespaces.clone()),
        selector: Some(config.selector.clone()),
        refresh_cluster_cas: Some(config.refresh_cluster_cas),
        restart_events: Some(config.restart_events),
        lock_dir: Some(shown(&config.lock_dir)),
    }
}
