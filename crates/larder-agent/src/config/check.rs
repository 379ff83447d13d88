//! From the fields of a file to a complete configuration: defaults, and what one field says about another.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use larder::ManagerConfig;
use larder_hooks::{Network, OnChangeConfig};
use larder_objects::{
    FieldPath,
    yaml::{self, COPIED_BYTES, YamlDocument, field_names},
};
use larder_on_change::parse::{HookList, allowed_actions};
use larder_transport::RateLimit;

use super::{
    CheckpointConfig, Config, Host,
    written::{
        AgentConfiguration, BesideFields, ConfigurationKind, HookEntry, Mode, PodUrl, Requests,
        Text,
    },
};
use crate::beside::BesideConfig;

const MINUTE: Duration = Duration::from_mins(1);
const TWENTY_SECONDS: Duration = Duration::from_secs(20);

/// The configuration of a file's text, and the names of its fields that have no effect here.
///
/// # Errors
///
/// The first mistake, with its line.
pub(super) fn read(
    text: &str,
    path: &Path,
    host: &Host,
) -> Result<(Config, Vec<String>), yaml::Error> {
    let mut document = YamlDocument::parse(text, COPIED_BYTES)?;
    let is_kubelets = document.value()["kind"] == "KubeletConfiguration";
    let ignored = if is_kubelets {
        let known = field_names::<AgentConfiguration>();
        document.retain(|name| known.contains(&name))
    } else {
        Vec::new()
    };
    let written: Option<AgentConfiguration> = document.decode()?;
    let written = written.unwrap_or_default();
    let check = Check {
        document: &document,
        directory: path.parent().unwrap_or(Path::new("")),
        host,
        kind: written.kind.unwrap_or(ConfigurationKind::Agent),
    };
    Ok((check.config(written)?, ignored))
}

/// What fields are checked against.
struct Check<'a> {
    document: &'a YamlDocument,
    /// Paths are relative to it.
    directory: &'a Path,
    host: &'a Host,
    kind: ConfigurationKind,
}

type Checked<T> = Result<T, yaml::Error>;

impl Check<'_> {
    fn config(&self, written: AgentConfiguration) -> Checked<Config> {
        self.check_api_version(written.api_version.as_deref())?;
        if written.kubeconfig.is_some() && written.manifests.is_some() {
            let problem = "kubeconfig is set as well, expected one of the two";
            return Err(self.error("manifests", problem));
        }
        let headers = written.static_pod_url_headers;
        let references = written.static_pod_api_references;
        let requests = written.max_requests_in_flight;
        let beside = self.beside(written.beside.unwrap_or_default())?;
        Ok(Config {
            kubeconfig: self.path("kubeconfig", written.kubeconfig)?,
            manifests: self.path("manifests", written.manifests)?,
            pod_address: written.pod_address.map(|Text(address)| address),
            node_name: written
                .node_name
                .unwrap_or_else(|| self.host.name.to_lowercase()),
            root_dir: self
                .path("rootDir", written.root_dir)?
                .unwrap_or_else(|| self.host.default_root_dir()),
            listen: written.listen.map(|Text(address)| address),
            change_detection: written.change_detection.unwrap_or_default(),
            watch_scope: written.watch_scope.unwrap_or_default(),
            sync_frequency: self.period("syncFrequency", written.sync_frequency, MINUTE)?,
            static_pod_path: self.path("staticPodPath", self.set(written.static_pod_path))?,
            file_check_frequency: self.period(
                "fileCheckFrequency",
                written.file_check_frequency,
                TWENTY_SECONDS,
            )?,
            static_pod_url: self.pod_url(written.static_pod_url)?,
            static_pod_url_headers: headers.unwrap_or_default(),
            http_check_frequency: self.period(
                "httpCheckFrequency",
                written.http_check_frequency,
                TWENTY_SECONDS,
            )?,
            static_pod_api_references: references.map(|word| word.0).unwrap_or_default(),
            rate_limit: rate_limit(written.kube_api_qps, written.kube_api_burst),
            max_requests_in_flight: requests.map_or(
                ManagerConfig::default().max_requests_in_flight,
                NonZeroUsize::get,
            ),
            on_change: self.on_change(
                written.on_change.unwrap_or_default(),
                written.on_change_from_pods,
                written.on_change_allowed_networks,
                written.on_change_parallelism,
            )?,
            checkpoint: match written.checkpoint {
                Some(fields) => CheckpointConfig::check(fields, self.directory)
                    .map_err(|problem| self.document.error(problem.field, problem.problem))?,
                None => None,
            },
            checkpoint_dir: self.checkpoint_dir(written.checkpoint_dir)?,
            sub_path_updates: written.sub_path_updates.unwrap_or_default(),
            register_node: written.register_node.unwrap_or(false),
            beside: (written.mode == Some(Mode::Beside)).then(|| beside.clone()),
            beside_settings: beside,
        })
    }

    fn error(&self, field: &'static str, problem: &str) -> yaml::Error {
        self.document.error(FieldPath::fields(field), problem)
    }

    fn check_api_version(&self, written: Option<&str>) -> Checked<()> {
        let expected = match self.kind {
            ConfigurationKind::Agent => "larder.dev/v1alpha1",
            ConfigurationKind::Kubelet => "kubelet.config.k8s.io/v1beta1",
        };
        match written {
            Some(version) if version != expected => {
                Err(self.error("apiVersion", &format!("expected {expected}")))
            }
            _ => Ok(()),
        }
    }

    /// To the kubelet an empty text is an absent field.
    fn set(&self, text: Option<String>) -> Option<String> {
        text.filter(|text| !(text.is_empty() && self.kind == ConfigurationKind::Kubelet))
    }

    fn path(&self, field: &'static str, text: Option<String>) -> Checked<Option<PathBuf>> {
        match text {
            Some(text) if text.is_empty() => Err(self.error(field, "must not be empty")),
            text => Ok(text.map(|text| self.directory.join(text))),
        }
    }

    fn period(
        &self,
        field: &'static str,
        written: Option<Text<Duration>>,
        default: Duration,
    ) -> Checked<Duration> {
        match written {
            Some(Text(Duration::ZERO)) if self.kind == ConfigurationKind::Agent => {
                Err(self.error(field, "must be more than zero"))
            }
            None | Some(Text(Duration::ZERO)) => Ok(default),
            Some(Text(period)) => Ok(period),
        }
    }

    fn pod_url(&self, written: Option<PodUrl>) -> Checked<Option<PodUrl>> {
        let url = written.and_then(|PodUrl(url)| self.set(Some(url)));
        let is_http = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if url.as_ref().is_none_or(is_http) {
            return Ok(url.map(PodUrl));
        }
        let problem = "expected a URL that begins with http:// or https://";
        Err(self.error("staticPodURL", problem))
    }

    fn on_change(
        &self,
        entries: Vec<HookEntry>,
        from_pods: Option<Vec<String>>,
        networks: Option<Vec<Text<Network>>>,
        parallelism: Option<NonZeroUsize>,
    ) -> Checked<OnChangeConfig> {
        let mut hooks = HookList::default();
        for entry in entries {
            let HookEntry::Fields(fields) = entry else {
                unreachable!("only a configuration in use shows hooks");
            };
            hooks.add(*fields).map_err(|error| {
                let field = FieldPath::fields("onChange").join(&error.field);
                self.document.error(field, error.problem)
            })?;
        }
        let default = OnChangeConfig::default();
        let from_pods = from_pods
            .map(|words| allowed_actions(&words))
            .transpose()
            .map_err(|problem| self.error("onChangeFromPods", problem))?;
        Ok(OnChangeConfig {
            from_pods: from_pods.unwrap_or(default.from_pods),
            allowed_networks: networks
                .into_iter()
                .flatten()
                .map(|Text(network)| network)
                .collect(),
            parallelism: parallelism.map_or(default.parallelism, NonZeroUsize::get),
            hooks: hooks.into_hooks(),
            key_dirs: default.key_dirs,
        })
    }

    fn checkpoint_dir(&self, text: Option<String>) -> Checked<Option<PathBuf>> {
        let path = self.path("checkpointDir", text)?;
        if path.as_ref().is_some_and(|path| path.file_name().is_none()) {
            let problem = "expected a path that ends with the name of the directory";
            return Err(self.error("checkpointDir", problem));
        }
        Ok(path)
    }

    fn beside(&self, written: BesideFields) -> Checked<BesideConfig> {
        let mut config = BesideConfig::default();
        let kubelet = self.path("beside.kubeletRootDir", written.kubelet_root_dir)?;
        let lock = self.path("beside.lockDir", written.lock_dir)?;
        config.kubelet_root_dir = kubelet.unwrap_or(config.kubelet_root_dir);
        config.lock_dir = lock.unwrap_or(config.lock_dir);
        config.namespaces = written.namespaces.unwrap_or_default();
        config.selector = written.selector.unwrap_or_default();
        config.refresh_cluster_cas = written.refresh_cluster_cas.unwrap_or(false);
        config.restart_events = written.restart_events.unwrap_or(false);
        Ok(config)
    }
}

fn rate_limit(qps: Option<Requests>, burst: Option<Requests>) -> RateLimit {
    let qps = qps.map_or(50, |Requests(qps)| qps);
    let burst = burst
        .map(|Requests(burst)| burst)
        .filter(|&burst| burst > 0);
    RateLimit::from_kubelet(qps.into(), burst.unwrap_or(100).into())
}
