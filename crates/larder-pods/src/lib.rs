//! The pods of a Kubernetes node: their sources, the merge of the sources, the pod manager, their lifecycle, mirror
//! pods.
//!
//! ```text
//!  ApiSource ──┐
//!  FileSource ─┼─► PodMerge ── PodUpdate ─► the agent ─► PodManager ─► readers
//!  HttpSource ─┘   per source  ADD, UPDATE,   │ │
//!                              REMOVE …       │ └─► PodLifecycle: when a pod is registered with the object managers
//!                                             └───► MirrorReconciler: the API server's copies of static pods
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
pub use stored::{StoredPod, StoredPodError};
