//! The agent's configuration of hooks: the operator's own, and the actions that pods may request.

use std::path::PathBuf;

use larder_actions::http::Network;
use larder_on_change::parse::{AllowedActions, ConfiguredHook};

/// Default limit of rounds that run at the same time.
const PARALLELISM: usize = 8;

/// The settings of hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnChangeConfig {
    /// Actions that annotations of pods may request. `onChangeFromPods`; everything but commands by default.
    pub from_pods: AllowedActions,
    /// Networks of the addresses that manifests may state for hooks to call. `onChangeAllowedNetworks`; none by default.
    pub allowed_networks: Vec<Network>,
    /// Limit of rounds that run at the same time. `onChangeParallelism`; defaults to 8.
    pub parallelism: usize,
    /// The operator's hooks. `onChange`; none by default.
    pub hooks: Vec<ConfiguredHook>,
    /// Directories in memory for the digest key, in order of preference; one that is not in memory is skipped.
    /// Defaults to `beside.lockDir` beside a kubelet, then `/run/larder` for root, `$XDG_RUNTIME_DIR/larder` for others,
    /// then the root directory.
    pub key_dirs: Vec<PathBuf>,
}

impl Default for OnChangeConfig {
    fn default() -> Self {
        Self {
            from_pods: AllowedActions::default(),
            allowed_networks: Vec::new(),
            parallelism: PARALLELISM,
            hooks: Vec::new(),
            key_dirs: Vec::new(),
        }
    }
}

impl OnChangeConfig {
    /// Whether a hook of the operator runs commands.
    pub fn runs_commands(&self) -> bool {
        self.hooks.iter().any(|hook| hook.hook.runs_commands())
    }
}
