//! The agent's configuration: file and flags become complete, checked settings.
//!
//! The file is YAML with the kubelet's field names where the kubelet has the setting. `apiVersion: larder.dev/v1alpha1`
//! and `kind: AgentConfiguration` are optional. A `KubeletConfiguration` is accepted as well; one warning names its
//! fields that have no effect here. Defaults are kubelet 1.36's (`pkg/kubelet/apis/config/v1beta1/defaults.go`) where
//! it has the field.
//!
//! Invariants:
//! 1. A [`Config`] is complete and checked; no later code checks a value again.
//! 2. An invalid configuration is rejected before anything runs; the error names file, line and field.
//! 3. A flag overrides the file.

mod authority;
mod check;
mod checkpoint;
mod fields;
mod written;

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use larder::{Strategy, WatchScope};
use larder_checkpoint::CheckpointDir;
use larder_files::{
    operation_error::{OperationError, failed},
    regular_file::read_regular_text,
};
use larder_hooks::OnChangeConfig;
use larder_objects::{
    FieldPath,
    validation::is_subdomain,
    yaml::{self, COPIED_BYTES, YamlDocument},
};
use larder_pods::static_pod::ApiReferences;
use larder_transport::RateLimit;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

pub use self::{
    checkpoint::CheckpointConfig,
    fields::RELOADED_FIELDS,
    written::{Headers, PodUrl},
};
use crate::beside::BesideConfig;
use crate::root_dir::CHECKPOINT;

/// Reads an address to listen on: `ADDRESS:PORT`, `localhost:PORT`, or `:PORT` for every address of this machine. No name
/// server is asked.
///
/// # Errors
///
/// What was expected instead.
pub fn listen_address(text: &str) -> Result<SocketAddr, &'static str> {
    let whole = match text.rsplit_once(':') {
        Some(("", port)) => format!("0.0.0.0:{port}"),
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    whole
        .parse()
        .map_err(|_| "expected ADDRESS:PORT, localhost:PORT or :PORT, such as 127.0.0.1:10290")
}

/// The complete configuration of an agent; made by [`Config::load`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Kubeconfig of the API server. `kubeconfig`, relative to the configuration file; none by default. Which API
    /// server an agent uses is the caller's decision; this crate only reads the field.
    pub kubeconfig: Option<PathBuf>,
    /// Directory of manifests to serve instead. `manifests`, relative to the configuration file; none by default, and
    /// never together with `kubeconfig`.
    pub manifests: Option<PathBuf>,
    /// Address of pods of `manifests` that state none. `podAddress`; none by default. Which pods get it is the caller's
    /// decision, as with `kubeconfig`.
    pub pod_address: Option<IpAddr>,
    /// Name of the Node whose pods are served. `nodeName`; defaults to the host name in lower case, as the kubelet's.
    pub node_name: String,
    /// Where volumes are written. `rootDir`; defaults to [`Host::default_root_dir`].
    pub root_dir: PathBuf,
    /// Where health, metrics and status are served over HTTP, besides the socket in the root directory. `listen`; off
    /// by default.
    pub listen: Option<SocketAddr>,
    /// `configMapAndSecretChangeDetectionStrategy`; defaults to `Watch`.
    pub change_detection: Strategy,
    /// `watchScope`: whether one watch covers an object (`Object`, the default), a namespace (`Namespace`), or
    /// whichever the API server grants (`Auto`). Applies under change detection `Watch` only.
    pub watch_scope: WatchScope,
    /// Time between two repair passes over all volumes, before jitter. `syncFrequency`; defaults to 1 min.
    pub sync_frequency: Duration,
    /// File or directory of static pods. `staticPodPath`, relative to the configuration file; off by default.
    pub static_pod_path: Option<PathBuf>,
    /// Time between two reads of `staticPodPath`; edits are also noticed at once. `fileCheckFrequency`; defaults to 20
    /// s.
    pub file_check_frequency: Duration,
    /// URL of static pods. `staticPodURL`; off by default.
    pub static_pod_url: Option<PodUrl>,
    /// `staticPodURLHeader`; none by default.
    pub static_pod_url_headers: Headers,
    /// Time between two reads of `staticPodURL`. `httpCheckFrequency`; defaults to 20 s.
    pub http_check_frequency: Duration,
    /// `staticPodAPIReferences`; defaults to `Refuse`.
    pub static_pod_api_references: ApiReferences,
    /// Limit of ordinary requests to the API server: `kubeAPIQPS`, by default 50 per second (0 means 5, as for the
    /// kubelet), and `kubeAPIBurst`, by default 100 at once.
    pub rate_limit: RateLimit,
    /// Most requests of each of the two managers that wait for their answer at the same time. `maxRequestsInFlight`;
    /// defaults to
    /// 64. See [`larder::ManagerConfig::max_requests_in_flight`].
    pub max_requests_in_flight: usize,
    /// The settings of hooks: `onChange`, `onChangeFromPods` and `onChangeParallelism`.
    pub on_change: OnChangeConfig,
    /// The sealed copies for a start while the API server is unreachable. `checkpoint`; off by default.
    pub checkpoint: Option<CheckpointConfig>,
    /// The directory of the sealed copies. `checkpointDir`, relative to the configuration file; `None`: `checkpoint` in
    /// the root directory.
    pub checkpoint_dir: Option<PathBuf>,
    /// Which mounts with `subPath` are updated in running containers. `subPathUpdates`; defaults to `Annotated`.
    pub sub_path_updates: SubPathUpdates,
    /// Whether to create the Node object if there is none. `registerNode`; off by default, as a kubelet may own it.
    pub register_node: bool,
    /// The settings of the mode `Beside`, in which an ordinary kubelet runs the pods and writes their volumes; `None`
    /// in the mode `Serve`. `mode`; defaults to `Serve`.
    pub beside: Option<BesideConfig>,
    /// `beside`, whatever the mode.
    beside_settings: BesideConfig,
}

/// Which mounts with `subPath` follow their volume in running containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum SubPathUpdates {
    /// None.
    Never,
    /// Those of pods with the annotation `larder.dev/subpath-updates: "true"`.
    #[default]
    Annotated,
    /// Those of all pods but for ones with the annotation `larder.dev/subpath-updates: "false"`.
    Always,
}

/// The flags; each overrides the file.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--node-name`.
    pub node_name: Option<String>,
    /// `--root-dir`.
    pub root_dir: Option<PathBuf>,
    /// `--listen`.
    pub listen: Option<SocketAddr>,
    /// `--change-detection`.
    pub change_detection: Option<Strategy>,
    /// `--watch-scope`.
    pub watch_scope: Option<WatchScope>,
    /// `--beside-kubelet`: the mode `Beside`.
    pub beside_kubelet: bool,
    /// `--kubelet-root-dir`.
    pub kubelet_root_dir: Option<PathBuf>,
    /// `--dry-run`.
    pub dry_run: bool,
}

/// Facts of the machine that defaults depend on.
#[derive(Clone, Debug)]
pub struct Host {
    /// Name of the machine.
    pub name: String,
    /// Effective user.
    pub uid: u32,
    /// `$XDG_RUNTIME_DIR`: a directory of the user in memory, on most systems.
    pub runtime_dir: Option<PathBuf>,
    /// Where temporary files go.
    pub temp_dir: PathBuf,
}

impl Host {
    /// This machine and user.
    pub fn current() -> Self {
        Self {
            name: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            uid: rustix::process::geteuid().as_raw(),
            runtime_dir: std::env::var_os("XDG_RUNTIME_DIR")
                .map(PathBuf::from)
                .filter(|path| path.is_absolute()),
            temp_dir: std::env::temp_dir(),
        }
    }

    /// Directories that are in memory on most systems, and outlive an agent, in order of preference.
    fn memory_dirs(&self, root_dir: &Path) -> Vec<PathBuf> {
        let first = match &self.runtime_dir {
            _ if self.uid == 0 => Some(PathBuf::from("/run/larder")),
            Some(runtime_dir) => Some(runtime_dir.join("larder")),
            None => None,
        };
        first.into_iter().chain([root_dir.to_owned()]).collect()
    }

    /// `/var/lib/larder` for root; else `$XDG_RUNTIME_DIR/larder`; without that variable, `larder-<uid>` among the
    /// temporary files. An ordinary user cannot mount a tmpfs, so Secrets are in memory only if this directory is.
    pub fn default_root_dir(&self) -> PathBuf {
        match &self.runtime_dir {
            _ if self.uid == 0 => PathBuf::from("/var/lib/larder"),
            Some(runtime_dir) => runtime_dir.join("larder"),
            None => self.temp_dir.join(format!("larder-{}", self.uid)),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] OperationError),
    /// The file is invalid.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The mistake and its line.
        source: yaml::Error,
    },
    /// The managers of other strategies keep no objects that could be copied or served.
    #[error("checkpoint needs change detection Watch, not {strategy}")]
    Checkpoint {
        /// The strategy, from flag or file.
        strategy: Strategy,
    },
    /// In the mode `Beside` pods come from an API server whose kubelet keeps their volumes.
    #[error("{field} cannot be combined with mode: Beside")]
    Beside {
        /// The field.
        field: &'static str,
    },
    /// A flag that only the mode `Beside` has.
    #[error("{flag} needs --beside-kubelet or mode: Beside")]
    NotBeside {
        /// The flag.
        flag: &'static str,
    },
    /// The node has no usable name.
    #[error(
        "node name {name:?} is not a lower-case DNS name; give another with --node-name or nodeName"
    )]
    NodeName {
        /// The name, from flag, file or host.
        name: String,
    },
}

impl Config {
    /// The configuration of `file` (defaults without one) overridden by `flags`, and a warning if a field of the file
    /// has no effect.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is invalid, or the node name is unusable.
    pub fn load(
        file: Option<&Path>,
        flags: Flags,
        host: &Host,
    ) -> Result<(Self, Option<String>), ConfigError> {
        let path = file.unwrap_or(Path::new(""));
        let text = match file {
            None => Zeroizing::default(),
            Some(path) => read_regular_text(path, MAX_BYTES).map_err(failed("read", path))?,
        };
        let (mut config, warning) =
            Self::parse(&text, path, host).map_err(|source| ConfigError::File {
                path: path.to_owned(),
                source,
            })?;
        if let Some(path) = file
            && config.on_change.runs_commands()
            && host.uid == 0
            && let Err(problem) = authority::check(path)
        {
            let field = FieldPath::fields("onChange");
            let document = YamlDocument::parse(&text, COPIED_BYTES);
            let source = document.map_or_else(|error| error, |read| read.error(field, problem));
            return Err(ConfigError::File {
                path: path.to_owned(),
                source,
            });
        }
        config.apply(flags)?;
        // Beside a kubelet, larder may write nowhere else.
        let lock_dir = config.beside.iter().map(|beside| beside.lock_dir.clone());
        config.on_change.key_dirs = lock_dir.chain(host.memory_dirs(&config.root_dir)).collect();
        let warning = warning.map(|text| format!("{}: {text}", path.display()));
        Ok((config, warning))
    }

    /// The directory of the sealed copies, whether or not there is a checkpoint.
    pub fn checkpoint_place(&self) -> CheckpointDir {
        match &self.checkpoint_dir {
            Some(path) => CheckpointDir::new(path.clone()),
            None => CheckpointDir::within(self.root_dir.join(CHECKPOINT)),
        }
    }

    fn apply(&mut self, flags: Flags) -> Result<(), ConfigError> {
        if flags.beside_kubelet && self.beside.is_none() {
            self.beside = Some(self.beside_settings.clone());
        }
        if let Some(beside) = &mut self.beside {
            beside.kubelet_root_dir = flags
                .kubelet_root_dir
                .unwrap_or_else(|| mem::take(&mut beside.kubelet_root_dir));
            beside.dry_run = flags.dry_run;
            let conflicts = [
                ("manifests", self.manifests.is_some()),
                ("checkpoint", self.checkpoint.is_some()),
                ("registerNode", self.register_node),
            ];
            if let Some((field, _)) = conflicts.into_iter().find(|(_, is_set)| *is_set) {
                return Err(ConfigError::Beside { field });
            }
        } else {
            let needing = [
                ("--dry-run", flags.dry_run),
                ("--kubelet-root-dir", flags.kubelet_root_dir.is_some()),
            ];
            if let Some((flag, _)) = needing.into_iter().find(|(_, is_set)| *is_set) {
                return Err(ConfigError::NotBeside { flag });
            }
        }
        self.node_name = flags
            .node_name
            .unwrap_or_else(|| mem::take(&mut self.node_name));
        self.root_dir = flags
            .root_dir
            .unwrap_or_else(|| mem::take(&mut self.root_dir));
        self.listen = flags.listen.or(self.listen);
        self.change_detection = flags.change_detection.unwrap_or(self.change_detection);
        self.watch_scope = flags.watch_scope.unwrap_or(self.watch_scope);
        if self.checkpoint.is_some() && self.change_detection != Strategy::Watch {
            return Err(ConfigError::Checkpoint {
                strategy: self.change_detection,
            });
        }
        if is_subdomain(&self.node_name) {
            Ok(())
        } else {
            Err(ConfigError::NodeName {
                name: self.node_name.clone(),
            })
        }
    }

    fn parse(text: &str, path: &Path, host: &Host) -> Result<(Self, Option<String>), yaml::Error> {
        let (config, ignored) = check::read(text, path, host)?;
        let names = ignored.join(", ");
        let warning = (!names.is_empty()).then(|| format!("fields without effect here: {names}"));
        Ok((config, warning))
    }
}

/// A configuration of this many bytes is rejected. One with every field takes a few KiB.
const MAX_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests;
