//! Mirror pods: the API server's copies of this node's static pods.
//!
//! Rules: kubelet 1.36, `pkg/kubelet/pod/mirror_client.go` and `pkg/kubelet/kubelet.go`. A mirror pod carries the hash of its static
//! pod and is owned by the Node. Where the kubelet looks at mirrors while it syncs a pod, every 60 to 90 s, here a loop of their
//! own follows every change of the pods:
//! - A mirror pod that was deleted by force is back at once.
//! - Every delete carries the UID of what it means, orphans included, so it cannot hit a successor.
//! - A mirror pod shows its static pod's content even if the manifest fixes the UID, on which the kubelet's hash hangs.
//! - A failure is kept and told, and tried again with growing delays; at once when the API server or the Node is back.
//!
//! Invariants:
//! 1. What to do is decided by [`plan`], without I/O, from one moment's state of the pods.
//! 2. Nothing is created without the UID of the Node, nor for a Node that is being deleted.
//! 3. Nothing is deleted but mirror pods, by UID; orphans only once every source has been seen.
//! 4. A UID that was deleted, or not found, is not deleted again, however long the watch still shows it.

mod client;
mod reconcile;

pub use client::{Created, MirrorClient, MirrorError, NodeIdentity};
pub use reconcile::{MirrorAction, MirrorProblems, MirrorReconciler, MirrorScope, plan};
