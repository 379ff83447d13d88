//! The pods of a Kubernetes node: their sources, the merge of the sources, the pod manager, their lifecycle, mirror
//! pods.
//!
//! ```text
//!  ApiSource ──┐   ┌─ PodLoop ───────────────────────────────────────────────────────┐
//!  FileSource ─┼─► │ PodMerge: ADD, UPDATE, REMOVE … ─► PodManager ─► PodLifecycle ──┼─► PodAction: serve, retire …
//!  HttpSource ─┘   └────────────────────────────────────────┼────────────────────────┘
//!                                                           └─► MirrorReconciler: the API server's copies
//! ```
//!
//! Rules: kubelet 1.36, `pkg/kubelet/{pod,config}`. If a part differs, its module explains why.
//!
//! Features, both on by default: `static-sources` (`FileSource`, `HttpSource`) and `metrics` (`PodMetrics`).

pub mod deleter;
pub mod events;
pub mod identity;
pub mod lifecycle;
mod manager;
mod merge;
#[cfg(feature = "metrics")]
mod metrics;
pub mod mirror;
mod pod_loop;
pub mod source;
pub mod static_pod;
mod stored;
#[cfg(test)]
mod testing;

pub use identity::{FullName, FullNameError, MirrorPodUid, PodSource, PodUid, ResolvedPodUid};
pub use manager::{
    MirrorOverview, PodAndMirrorPod, PodCounts, PodManager, Pods, PodsAndMirrorPods,
    UidTranslations,
};
pub use merge::{DuplicatePod, Merged, Operation, PodMerge, PodUpdate, SourcePods};
#[cfg(feature = "metrics")]
pub use metrics::PodMetrics;
pub use pod_loop::{PodAction, PodLoop};
pub use stored::{StoredPod, StoredPodError};
