//! ConfigMap and Secret managers, pod manager and pod sources of a Kubernetes node agent.

mod api;
mod backoff;
mod changes;
mod config;
mod error;
mod manager;
mod metrics;
pub mod pods;
pub mod references;
mod registration;
mod status;
mod store;
pub mod transport;
mod watch;

pub use changes::{ChangeKind, Changes, ObjectChange};
pub use config::{ConfigError, ManagerConfig, NodeTtl, Strategy};
pub use error::{Error, RequestError};
pub use manager::{ConfigMapManager, ObjectManager, RegisteredPod, SecretManager};
pub use metrics::ManagerMetrics;
pub use registration::PodIdentity;
pub use status::{ObjectState, ObjectStatus};
pub use store::fake::FakeObjects;
