//! The fields of a configuration file, as `docs/configuration.md` and `packaging/agent.yaml` describe them.

/// A field of the configuration file.
pub(super) struct Field {
    /// Its name, as in the file.
    pub(super) name: &'static str,
    /// The form of its value.
    pub(super) form: &'static str,
    /// Its value if the file has none.
    pub(super) default: &'static str,
    /// Its purpose, in whole sentences.
    pub(super) about: &'static str,
    /// A value for the annotated example, as YAML.
    pub(super) example: &'static str,
}

/// Every field, in the order of the documentation.
pub(super) const FIELDS: &[Field] = &[
    Field {
        name: "kubeconfig",
        form: "path",
        default: "none: the cluster around the agent",
        about: "Kubeconfig of the API server whose pods are served. Renewed credentials in it are taken up without a reload.",
        example: "/etc/larder/kubeconfig",
    },
    Field {
        name: "manifests",
        form: "path",
        default: "none",
        about: "Directory of manifests to serve instead of the pods of an API server. Edits take effect at once. Cannot be combined with `kubeconfig`.",
        example: "/etc/larder/manifests",
    },
    Field {
        name: "nodeName",
        form: "string",
        default: "the host name in lower case",
        about: "Name of the Node whose pods are served.",
        example: "edge-7",
    },
    Field {
        name: "rootDir",
        form: "path",
        default: "`/var/lib/larder`; for an ordinary user `$XDG_RUNTIME_DIR/larder`, or else `/tmp/larder-UID`",
        about: "Directory of the volumes. One agent uses it at a time.",
        example: "/run/larder",
    },
    Field {
        name: "listen",
        form: "address and port",
        default: "none",
        about: "Address of the HTTP API: health, metrics and status, without authentication and without values. `localhost:PORT` works, and `:PORT` for all addresses.",
        example: "127.0.0.1:10290",
    },
    Field {
        name: "configMapAndSecretChangeDetectionStrategy",
        form: "`Get`, `Cache` or `Watch`",
        default: "`Watch`",
        about: "How the agent notices changes to ConfigMaps and Secrets. `Get` reads on demand, `Cache` reads when a copy has expired.",
        example: "Watch",
    },
    Field {
        name: "watchScope",
        form: "`Object`, `Namespace` or `Auto`",
        default: "`Object`",
        about: "Scope of a watch. `Namespace` needs permission to list and watch the namespace. `Auto` uses it where it is granted, and otherwise `Object`.",
        example: "Object",
    },
    Field {
        name: "syncFrequency",
        form: "duration, more than 0",
        default: "`1m`",
        about: "Time between two repair passes over all volumes, plus up to 50% jitter. Changes do not wait for it.",
        example: "1m",
    },
    Field {
        name: "staticPodPath",
        form: "path",
        default: "none",
        about: "File or directory of static pods.",
        example: "/etc/larder/static-pods",
    },
    Field {
        name: "fileCheckFrequency",
        form: "duration, more than 0",
        default: "`20s`",
        about: "Time between two reads of `staticPodPath`. Edits are also noticed at once.",
        example: "20s",
    },
    Field {
        name: "staticPodURL",
        form: "URL, http or https",
        default: "none",
        about: "URL of static pods.",
        example: "https://config.example.com/pods",
    },
    Field {
        name: "staticPodURLHeader",
        form: "lists of strings by header name",
        default: "none",
        about: "Headers of the requests to `staticPodURL`. No log and no status shows their values.",
        example: "{Accept: [application/yaml]}",
    },
    Field {
        name: "httpCheckFrequency",
        form: "duration, more than 0",
        default: "`20s`",
        about: "Time between two reads of `staticPodURL`.",
        example: "20s",
    },
    Field {
        name: "staticPodAPIReferences",
        form: "`Refuse` or `Allow`",
        default: "`Refuse`",
        about: "Whether static pods may reference objects of the API server. The kubelet rejects such pods.",
        example: "Refuse",
    },
    Field {
        name: "kubeAPIQPS",
        form: "number, 0 to 65535",
        default: "`50`",
        about: "Ordinary requests to the API server per second. 0 means 5, as for the kubelet. Watches do not count.",
        example: "50",
    },
    Field {
        name: "kubeAPIBurst",
        form: "number, 0 to 65535",
        default: "`100`",
        about: "Ordinary requests to the API server in one burst. 0 means the default.",
        example: "100",
    },
    Field {
        name: "maxRequestsInFlight",
        form: "number, at least 1",
        default: "`64`",
        about: "Limit of requests that wait for an answer, for ConfigMaps and Secrets each.",
        example: "64",
    },
    Field {
        name: "onChange",
        form: "list of hooks",
        default: "none",
        about: "Hooks: actions after changed content of a pod's volumes or variables is in place. Each hook selects pods by `pods` or `selector`. Only hooks in this file may run commands on this machine. If one does, an agent that runs as root starts only if no other user can write to the file. See on-change.md.",
        example: "[{pods: [web/nginx-*], volumes: [config], steps: [{exec: [nginx, -t]}, {exec: [systemctl, reload, nginx]}]}]",
    },
    Field {
        name: "onChangeAllowedNetworks",
        form: "list of networks",
        default: "`[]`",
        about: "Networks in which a hook may call the addresses that the manifest of a pod states, in a file of `manifests` or of a static pod: whoever writes the manifest chooses them. Addresses of pods that the API server reports need no such permission. Link-local addresses and the metadata services of clouds are never called, the addresses of this machine only for pods with `hostNetwork`.",
        example: "[10.244.0.0/16, 'fd00:10:244::/56']",
    },
    Field {
        name: "onChangeFromPods",
        form: "list of `signal`, `http` and `restart`",
        default: "`[signal, http, restart]`",
        about: "Actions that the annotations `larder.dev/on-change` and `on-change.larder.dev/CONTAINER` of pods may request. `[]` turns the annotations off.",
        example: "[signal, http, restart]",
    },
    Field {
        name: "onChangeParallelism",
        form: "number, at least 1",
        default: "`8`",
        about: "Limit of hooks that run at the same time, two of a pod at most. Pods take turns, the most overdue first. Of 4 or more places, a quarter is kept for hooks of this file, and a quarter for pods that have no running hook.",
        example: "8",
    },
    Field {
        name: "subPathUpdates",
        form: "`Never`, `Annotated` or `Always`",
        default: "`Annotated`",
        about: "Which mounts by `subPath` follow their volume in running containers: those of pods with the annotation `larder.dev/subpath-updates: \"true\"`, or of all pods but for ones with `\"false\"`. See [subpath.md](subpath.md) for what it needs.",
        example: "Annotated",
    },
    Field {
        name: "registerNode",
        form: "`true` or `false`",
        default: "`false`",
        about: "Whether to create the Node object if it is missing. Static pods need one for their mirror pods.",
        example: "false",
    },
    Field {
        name: "checkpoint",
        form: "`key`, `after`, `maxAge`",
        default: "none",
        about: "Sealed copies of pods and objects, for a start while the API server is unreachable. `key` is `credential:NAME` or `file:PATH`, or a list of them: the first key encrypts, any key decrypts. `after` (1s) limits the wait for the API server. `maxAge` limits the age of copies by kind (`Secret: 168h`, `ConfigMap: 0s`; 0s is no limit).",
        example: "{key: 'credential:larder-checkpoint', after: 1s, maxAge: {Secret: 168h, ConfigMap: 0s}}",
    },
    Field {
        name: "checkpointDir",
        form: "path",
        default: "`checkpoint` in `rootDir`",
        about: "Directory of the sealed copies, on a disk. Its parent must exist.",
        example: "/var/lib/larder/checkpoint",
    },
    Field {
        name: "mode",
        form: "`Serve` or `Beside`",
        default: "`Serve`",
        about: "`Serve` writes the volumes of pods below `rootDir`. `Beside` leaves them to the kubelet of this node and makes it refresh those that are out of date; see beside-kubelet.md. The flag `--beside-kubelet` selects it, too. `Beside` does not start over a `rootDir` with volumes that `Serve` has written: containers may still use them, and they would hold old Secrets for good. Delete those pods and remove the volumes first, or set another `rootDir`.",
        example: "Serve",
    },
    Field {
        name: "beside",
        form: "`kubeletRootDir`, `namespaces`, `selector`, `refreshClusterCAs`, `restartEvents`, `lockDir`",
        default: "all pods of the kubelet in `/var/lib/kubelet`",
        about: "Settings of the mode `Beside`. `kubeletRootDir` is the kubelet's root directory. `namespaces` and `selector` (labels with values) select the pods that are touched. `refreshClusterCAs` (false) touches pods if only `kube-root-ca.crt` or `openshift-service-ca.crt` changed, which nearly every pod mounts. `restartEvents` (false) posts an event for a container that sees a change only after a restart. `lockDir` (/run/larder) is a directory of the host that holds a lock, so that only one larder per node refreshes pods.",
        example: "{kubeletRootDir: /var/lib/kubelet, namespaces: [prod], selector: {tier: web}, refreshClusterCAs: false, restartEvents: false, lockDir: /run/larder}",
    },
];
