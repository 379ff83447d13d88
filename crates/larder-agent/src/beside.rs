//! Beside a kubelet: makes a change arrive in the volumes that an ordinary kubelet has set up.

#[allow(dead_code, reason = "the mode calls it")]
pub(crate) mod host_lock;
#[allow(dead_code, reason = "the mode calls it")]
pub(crate) mod kubelet_dir;
pub mod kubelet_kubeconfig;
pub mod landlock;
#[allow(dead_code, reason = "the mode calls it")]
pub(crate) mod node_state;
#[allow(dead_code, reason = "the mode calls it")]
pub(crate) mod swaps;
#[allow(dead_code, reason = "the mode calls it")]
pub(crate) mod touch;
#[allow(dead_code, reason = "the mode calls it")]
pub(crate) mod touch_limiter;

pub use self::{kubelet_dir::Mounts, swaps::SwapDetection};
