//! ConfigMap and Secret managers, pod manager and pod sources of a Kubernetes node agent.

pub mod pods;
pub mod references;
pub mod transport;
