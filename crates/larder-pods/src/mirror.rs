//! Mirror pods: the API server's copies of this node's static pods.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/pod/mirror_client.go` and `pkg/kubelet/kubelet.go`. A mirror pod carries the hash
//! of its static pod and is owned by the Node. The kubelet checks mirror pods while it syncs a pod, every 60 to 90 s.
//! Here a separate loop follows every change of the pods:
//! - A mirror pod that was force-deleted is recreated at once.
//! - Every delete carries a UID, for orphans too, so it cannot hit a successor.
//! - A mirror pod shows its static pod's content even if the manifest fixes the UID. (The kubelet's hash is that UID.)
//! - A failure is shown as a problem and retried with growing delays, and at once when the API server or the Node
//!   returns.
//!
//! Invariants:
//! 1. [`plan`] decides about actions, without I/O, from a consistent state of the pods.
//! 2. A mirror pod is created only with the UID of the Node, and only if the Node is not being deleted.
//! 3. Only mirror pods are deleted, by UID; orphans only once every source has been seen.
//! 4. A UID that was deleted or not found is not deleted again, however long the watch still shows it.

mod client;
mod reconcile;

pub use client::{Created, MirrorClient, MirrorError, NodeIdentity};
pub use reconcile::{MirrorAction, MirrorProblems, MirrorReconciler, MirrorScope, plan};
