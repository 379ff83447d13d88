//! Internal to larder, no stability. For a program beside a kubelet: compares the volumes that the kubelet has written
//! with computed content, and *touches* pods, which makes the kubelet rewrite their volumes at once.
//!
//! ```text
//!  computed files ─► kubelet_dir: compare ─► rules ─► touch_queue ─► touch ─► API server ─► kubelet
//!                          ▲                   ▲                                              │
//!                          └── swaps ◄─────────┼──────────────── ..data ◄─────────────────────┘
//!                          node_state, pod_view, outdated
//! ```
//!
//! The contract is `docs/spec/beside-kubelet.md`; rules are cited by their numbers. The crate computes no content and
//! knows nothing about hooks: its caller passes in projections, pods and time.
//!
//! Invariants:
//! 1. Nothing below the kubelet's root directory is written, and nothing stays open there (R1, R21).
//! 2. Only the [rules] decide about time. They are pure.
//! 3. No content is kept after a comparison, only [keyed fingerprints](fingerprint).

pub mod backoff;
pub mod fingerprint;
pub mod kubeconfig;
pub mod landlock;

pub mod kubelet_dir;
pub mod swaps;

pub mod permissions;
pub mod touch;
pub mod touch_limiter;
pub mod touch_queue;

pub mod node_state;
pub mod node_view;
pub mod outdated;
pub mod pod_view;
pub mod rules;
pub mod sub_path_mounts;

#[cfg(test)]
mod testing;
