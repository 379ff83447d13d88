//! The mode *beside a kubelet*: an ordinary kubelet runs the pods and writes their volumes. When the computed content
//! differs from the kubelet's files, larder *touches* the pod, which makes the kubelet sync it at once. larder then
//! verifies on disk that the computed bytes have arrived.
//!
//! ```text
//!  plan, inputs ─► look: compute, compare ─► rules ─► queue ─► look ─► touch ─► API server ─► kubelet
//!                          ▲      ▲            ▲                                                 │
//!            changes ──────┘      └── swaps ◄──┼──────────────── ..data ◄────────────────────────┘
//!            Node, lease, permissions, lock ───┘
//! ```
//!
//! The contract is `docs/spec/beside-kubelet.md`; rules are cited by their numbers. Code that deals only with the
//! kubelet is in [`larder_kubelet`]; this module connects it with managers, plans and hooks. The rest of the agent
//! depends on the mode in one place: the reconciler has another factory of workers, `Beside`.
//!
//! Invariants:
//! 1. Nothing below the kubelet's root directory is written, and nothing stays open there (R1, R21).
//! 2. Just before a pod is touched, its volumes are compared once more (R4).
//! 3. Volumes are shown as `Delivered` only after a look that found the computed bytes.
//! 4. Hooks learn of content once it is verified, and from one larder of the node only (R28, R29).
//! 5. No payload is kept after a look, only keyed fingerprints. The key exists in memory only.

pub(crate) mod host_lock;
mod look;
mod metrics;
mod settings;
mod shared;
mod worker;

pub use self::settings::{BesideConfig, OverlapError};
pub(crate) use self::{settings::POLICY, shared::Beside};
