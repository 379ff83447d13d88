//! Names in the kubelet's directory layout (kubelet 1.36, `pkg/kubelet/kubelet_getters.go` and the volume plugins).
//!
//! ```text
//! <root>/pods/<pod UID>/
//!   volumes/kubernetes.io~configmap/<volume>/           a directory on disk
//!   volumes/kubernetes.io~secret/<volume>/              a tmpfs; likewise projected and downward-api
//!   volumes/kubernetes.io~empty-dir/<volume>/           filled by others; env files are read from there
//!   plugins/kubernetes.io~empty-dir/wrapped_<volume>/ready
//!   volume-subpaths/<volume>/<container>/<index>        targets of bind mounts for subPath
//!   containers/<container>/env.json                     ours: the environment, mode 0600
//! <root>/by-name/<namespace>/<pod> -> ../../pods/<pod UID>     ours
//! ```

use super::error::DiskError;
use crate::VolumeKind;

pub(crate) const PODS: &str = "pods";
pub(crate) const VOLUMES: &str = "volumes";
pub(crate) const PLUGINS: &str = "plugins";
pub(crate) const SUBPATHS: &str = "volume-subpaths";
pub(crate) const CONTAINERS: &str = "containers";
pub(crate) const BY_NAME: &str = "by-name";
/// A kubelet has these directories in its root directory from its first start on (kubelet 1.36, `setupDataDirs`).
pub(crate) const OF_KUBELET: [&str; 2] = ["plugins_registry", "pod-resources"];
/// What a kubelet mounts as `/etc/hosts`, in the directory of a pod.
pub(crate) const HOSTS: &str = "etc-hosts";
/// Plugin of the volumes that containers share files in. The program that starts containers creates them.
pub(crate) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
/// Plugin that the kubelet wraps our volumes in; its directory holds the markers.
pub(crate) const WRAPPER: &str = EMPTY_DIR;
/// Marker of a volume whose directory, or tmpfs, was set up.
pub(crate) const READY: &str = "ready";
pub(crate) const ENVIRONMENT: &str = "env.json";

/// Mode of the directory of a pod and of those that sort what is in it. That of the pod and `volumes` belong to the pod's
/// `fsGroup`, so that a service of the machine in that group can read the pod's volumes, and no others.
pub(crate) const PRIVATE: u32 = 0o750;
/// Mode of the directories above, which only need to be passed. (The kubelet has 0750 for `pods`.)
pub(crate) const PASSAGE: u32 = 0o711;
/// Mode of the directory of a plugin in `volumes`. The kubelet leaves it to the umask, which is 022 for it.
pub(crate) const PLUGIN: u32 = 0o755;

/// Longest name that Linux takes, in bytes.
const MAX_NAME: usize = 255;

impl VolumeKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::ConfigMap,
        Self::Secret,
        Self::Projected,
        Self::DownwardApi,
    ];

    /// Name of the directory of the kubelet's plugin, such as `kubernetes.io~configmap`.
    pub fn directory(self) -> &'static str {
        match self {
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::Secret => "kubernetes.io~secret",
            Self::Projected => "kubernetes.io~projected",
            Self::DownwardApi => "kubernetes.io~downward-api",
        }
    }

    /// Whether such a volume belongs into memory.
    pub fn wants_memory(self) -> bool {
        !matches!(self, Self::ConfigMap)
    }

    /// Mode of the root of such a volume: that of a wrapped emptyDir, on disk or tmpfs.
    pub(crate) fn root_mode(self) -> u32 {
        if self.wants_memory() { 0o1777 } else { 0o777 }
    }
}

/// The file that is renamed over `name` to replace it.
pub(crate) fn aside(name: &str) -> String {
    format!("..{name}_tmp")
}

const WRAPPED: &str = "wrapped_";

/// Directory of the marker of a volume.
pub(crate) fn wrapped(volume: &str) -> String {
    format!("{WRAPPED}{volume}")
}

/// Whether `name` is one that [`wrapped`] makes.
pub(crate) fn is_wrapped(name: &str) -> bool {
    name.starts_with(WRAPPED)
}

/// Whether a kubelet has made the file `name` for what a container writes when it ends (kubelet 1.36, `makeMounts` of
/// `kuberuntime_container.go`): `%08x`.
pub(crate) fn is_termination_log(name: &str) -> bool {
    name.len() == 8 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Checks that `name`, which comes from an object, is a single element of a path.
pub(crate) fn element(name: &str) -> Result<&str, DiskError> {
    // A marker prefixes its volume's name.
    let fits = name.len() <= MAX_NAME - WRAPPED.len();
    if fits && !["", ".", ".."].contains(&name) && !name.contains(['/', '\0']) {
        Ok(name)
    } else {
        Err(DiskError::Name(name.to_owned()))
    }
}
