//! The fields of a configuration file as data: for the documentation, `/configz` and reloads.
//!
//! Invariant: [`FIELDS`] names exactly the fields that [`Config`] reads, and each has a value in
//! [`Config::values`]. Tests check both, and `docs/configuration.md` and `packaging/agent.yaml` against this table.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use larder_pods::static_pod::{ApiReferences, shown_url};
use larder_transport::RateLimit;
use serde_json::{Map, Value, json};

use super::Config;

/// A field of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, as in the file.
    pub name: &'static str,
    /// The form of its value.
    pub form: &'static str,
    /// Its value if the file has none.
    pub default: &'static str,
    /// Whether a reload applies a new value; the others need a restart.
    pub reloads: bool,
    /// Its purpose, in whole sentences.
    pub about: &'static str,
    /// A value for the annotated example, as YAML.
    pub example: &'static str,
}

/// Every field, in the order of the documentation.
pub const FIELDS: &[Field] = &[
    Field {
        name: "kubeconfig",
        form: "path",
        default: "none: the cluster around the agent",
        reloads: false,
        about: "Kubeconfig of the API server whose pods are served. Renewed credentials in it are taken up without a reload.",
        example: "/etc/larder/kubeconfig",
    },
    Field {
        name: "manifests",
        form: "path",
        default: "none",
        reloads: false,
        about: "Directory of manifests to serve instead of the pods of an API server. Edits take effect at once. Cannot be combined with `kubeconfig`.",
        example: "/etc/larder/manifests",
    },
    Field {
        name: "nodeName",
        form: "string",
        default: "the host name in lower case",
        reloads: false,
        about: "Name of the Node whose pods are served.",
        example: "edge-7",
    },
    Field {
        name: "rootDir",
        form: "path",
        default: "`/var/lib/larder`; for an ordinary user `$XDG_RUNTIME_DIR/larder`, or else `/tmp/larder-UID`",
        reloads: false,
        about: "Directory of the volumes. One agent uses it at a time.",
        example: "/run/larder",
    },
    Field {
        name: "listen",
        form: "address and port",
        default: "none",
        reloads: true,
        about: "Address of the HTTP API: health, metrics and status, without authentication and without values. `localhost:PORT` works, and `:PORT` for all addresses.",
        example: "127.0.0.1:10290",
    },
    Field {
        name: "configMapAndSecretChangeDetectionStrategy",
        form: "`Get`, `Cache` or `Watch`",
        default: "`Watch`",
        reloads: false,
        about: "How the agent notices changes to ConfigMaps and Secrets. `Get` reads on demand, `Cache` reads when a copy has expired.",
        example: "Watch",
    },
    Field {
        name: "watchScope",
        form: "`Object`, `Namespace` or `Auto`",
        default: "`Object`",
        reloads: false,
        about: "Scope of a watch. `Namespace` needs permission to list and watch the namespace. `Auto` uses it where it is granted, and otherwise `Object`.",
        example: "Object",
    },
    Field {
        name: "syncFrequency",
        form: "duration, more than 0",
        default: "`1m`",
        reloads: true,
        about: "Time between two repair passes over all volumes, plus up to 50% jitter. Changes do not wait for it.",
        example: "1m",
    },
    Field {
        name: "staticPodPath",
        form: "path",
        default: "none",
        reloads: false,
        about: "File or directory of static pods.",
        example: "/etc/larder/static-pods",
    },
    Field {
        name: "fileCheckFrequency",
        form: "duration, more than 0",
        default: "`20s`",
        reloads: false,
        about: "Time between two reads of `staticPodPath`. Edits are also noticed at once.",
        example: "20s",
    },
    Field {
        name: "staticPodURL",
        form: "URL, http or https",
        default: "none",
        reloads: false,
        about: "URL of static pods.",
        example: "https://config.example.com/pods",
    },
    Field {
        name: "staticPodURLHeader",
        form: "lists of strings by header name",
        default: "none",
        reloads: false,
        about: "Headers of the requests to `staticPodURL`. No log and no status shows their values.",
        example: "{Accept: [application/yaml]}",
    },
    Field {
        name: "httpCheckFrequency",
        form: "duration, more than 0",
        default: "`20s`",
        reloads: false,
        about: "Time between two reads of `staticPodURL`.",
        example: "20s",
    },
    Field {
        name: "staticPodAPIReferences",
        form: "`Refuse` or `Allow`",
        default: "`Refuse`",
        reloads: false,
        about: "Whether static pods may reference objects of the API server. The kubelet rejects such pods.",
        example: "Refuse",
    },
    Field {
        name: "kubeAPIQPS",
        form: "number, 0 to 65535",
        default: "`50`",
        reloads: false,
        about: "Ordinary requests to the API server per second. 0 means 5, as for the kubelet. Watches do not count.",
        example: "50",
    },
    Field {
        name: "kubeAPIBurst",
        form: "number, 0 to 65535",
        default: "`100`",
        reloads: false,
        about: "Ordinary requests to the API server in one burst. 0 means the default.",
        example: "100",
    },
    Field {
        name: "maxWatches",
        form: "number, at least 1",
        default: "`5000`",
        reloads: false,
        about: "Maximum watches, counted separately for ConfigMaps and Secrets. Objects beyond it cannot be read until a watch ends; the error says so.",
        example: "5000",
    },
    Field {
        name: "maxRequestsInFlight",
        form: "number, at least 1",
        default: "`64`",
        reloads: false,
        about: "Limit of requests that wait for an answer, for ConfigMaps and Secrets each.",
        example: "64",
    },
    Field {
        name: "onChange",
        form: "list of hooks",
        default: "none",
        reloads: true,
        about: "Hooks: actions after changed content of a pod's volumes or variables is in place. Each hook selects pods by `pods` or `selector`. Only hooks in this file may run commands on this machine. If one does, an agent that runs as root starts only if no other user can write to the file. See on-change.md.",
        example: "[{pods: [web/nginx-*], volumes: [config], steps: [{exec: [nginx, -t]}, {exec: [systemctl, reload, nginx]}]}]",
    },
    Field {
        name: "onChangeAllowedNetworks",
        form: "list of networks",
        default: "`[]`",
        reloads: true,
        about: "Networks in which a hook may call the addresses that the manifest of a pod states, in a file of `manifests` or of a static pod: whoever writes the manifest chooses them. Addresses of pods that the API server reports need no such permission. Link-local addresses and the metadata services of clouds are never called, the addresses of this machine only for pods with `hostNetwork`.",
        example: "[10.244.0.0/16, 'fd00:10:244::/56']",
    },
    Field {
        name: "onChangeFromPods",
        form: "list of `signal`, `http` and `restart`",
        default: "`[signal, http, restart]`",
        reloads: true,
        about: "Actions that the annotations `larder.dev/on-change` and `on-change.larder.dev/CONTAINER` of pods may request. `[]` turns the annotations off.",
        example: "[signal, http, restart]",
    },
    Field {
        name: "onChangeParallelism",
        form: "number, at least 1",
        default: "`8`",
        reloads: true,
        about: "Limit of hooks that run at the same time, two of a pod at most. Pods take turns, the most overdue first. Of 4 or more places, a quarter is kept for hooks of this file, and a quarter for pods that have no running hook.",
        example: "8",
    },
    Field {
        name: "registerNode",
        form: "`true` or `false`",
        default: "`false`",
        reloads: false,
        about: "Whether to create the Node object if it is missing. Static pods need one for their mirror pods.",
        example: "false",
    },
    Field {
        name: "checkpoint",
        form: "`key`, `after`, `maxAge`",
        default: "none",
        reloads: false,
        about: "Sealed copies of pods and objects, for a start while the API server is unreachable. `key` is `credential:NAME` or `file:PATH`, or a list of them: the first key encrypts, any key decrypts. `after` (1s) limits the wait for the API server. `maxAge` limits the age of copies by kind (`Secret: 168h`, `ConfigMap: 0s`; 0s is no limit).",
        example: "{key: 'credential:larder-checkpoint', after: 1s, maxAge: {Secret: 168h, ConfigMap: 0s}}",
    },
    Field {
        name: "checkpointDir",
        form: "path",
        default: "`checkpoint` in `rootDir`",
        reloads: false,
        about: "Directory of the sealed copies, on a disk. Its parent must exist.",
        example: "/var/lib/larder/checkpoint",
    },
    Field {
        name: "mode",
        form: "`Serve` or `Beside`",
        default: "`Serve`",
        reloads: false,
        about: "`Serve` writes the volumes of pods below `rootDir`. `Beside` leaves them to the kubelet of this node and makes it refresh those that are out of date; see beside-kubelet.md. The flag `--beside-kubelet` selects it, too. `Beside` does not start over a `rootDir` with volumes that `Serve` has written: containers may still use them, and they would hold old Secrets for good. Delete those pods and remove the volumes first, or set another `rootDir`.",
        example: "Serve",
    },
    Field {
        name: "beside",
        form: "`kubeletRootDir`, `namespaces`, `selector`, `refreshClusterCAs`, `restartEvents`, `lockDir`",
        default: "all pods of the kubelet in `/var/lib/kubelet`",
        reloads: false,
        about: "Settings of the mode `Beside`. `kubeletRootDir` is the kubelet's root directory. `namespaces` and `selector` (labels with values) select the pods that are touched. `refreshClusterCAs` (false) touches pods if only `kube-root-ca.crt` or `openshift-service-ca.crt` changed, which nearly every pod mounts. `restartEvents` (false) posts an event for a container that sees a change only after a restart. `lockDir` (/run/larder) is a directory of the host that holds a lock, so that only one larder per node refreshes pods.",
        example: "{kubeletRootDir: /var/lib/kubelet, namespaces: [prod], selector: {tier: web}, refreshClusterCAs: false, restartEvents: false, lockDir: /run/larder}",
    },
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
            "nodeName": self.node_name,
            "rootDir": self.root_dir.display().to_string(),
            "listen": self.listen.as_ref().map(SocketAddr::to_string),
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
            "maxWatches": self.max_watches,
            "maxRequestsInFlight": self.max_requests_in_flight,
            "onChange": hooks,
            "onChangeAllowedNetworks": networks,
            "onChangeFromPods": self.on_change.allowed_words(),
            "onChangeParallelism": self.on_change.parallelism,
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

    /// The fields whose value differs from that of `other`. Masked parts are compared, too.
    pub fn differences(&self, other: &Self) -> Vec<&'static Field> {
        let (old, new) = (self.values(), other.values());
        let is_secret = |name: &str| match name {
            "staticPodURL" => self.static_pod_url != other.static_pod_url,
            "onChange" => self.on_change.hooks != other.on_change.hooks,
            "staticPodURLHeader" => self.static_pod_url_headers != other.static_pod_url_headers,
            _ => false,
        };
        let differs = |field: &&Field| old[field.name] != new[field.name] || is_secret(field.name);
        FIELDS.iter().filter(differs).collect()
    }
}

/// The kubelet's word in `/configz`.
const MASKED: &str = "<masked>";

/// As Go prints a duration: `1m30s`, `500ms`, `1h0m0s`.
fn go_duration(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        let micros = duration.as_micros();
        return match micros {
            0 => format!("{}ns", duration.as_nanos()),
            _ if micros.is_multiple_of(1000) => format!("{}ms", micros / 1000),
            _ => format!("{micros}µs"),
        };
    }
    let (hours, minutes) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60);
    let seconds = format!(
        "{}.{:03}",
        duration.as_secs() % 60,
        duration.subsec_millis()
    );
    let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for text in ["1m30s", "500ms", "1h0m0s", "20s", "1.5s", "1m0s", "7µs"] {
            let duration = larder_objects::go_duration::parse(text).unwrap();
            assert_eq!(go_duration(duration), text);
        }
    }
}
