//! The ConfigMap and Secret managers of a Kubernetes node agent.
//!
//! # The managers
//!
//! Register a pod, and every ConfigMap and Secret that it references can be read, stays up to date, and is forgotten
//! with the last pod that references it:
//!
//! ```no_run
//! use larder::{ConfigMapManager, SecretManager};
//!
//! # async fn example(pod: k8s_openapi::api::core::v1::Pod) -> Result<(), Box<dyn std::error::Error>> {
//! let client = kube::Client::try_default().await?;
//! let config_maps = ConfigMapManager::watching(client.clone());
//! let secrets = SecretManager::watching(client);
//!
//! // Costs less than a microsecond and waits for nothing.
//! config_maps.register_pod(&pod);
//! secrets.register_pod(&pod);
//!
//! let app = config_maps.get("prod", "app").await?;
//! match secrets.get("prod", "tls").await {
//!     Ok(tls) => println!("{} keys", tls.data.len()),
//!     Err(error) if error.is_not_found() => println!("not there: as good as an answer"),
//!     Err(error) if error.is_retryable() => println!("later perhaps: {error}, because of {:?}", error.request()),
//!     Err(error) => return Err(error.into()),
//! }
//! # drop(app);
//! # Ok(())
//! # }
//! ```
//!
//! They guarantee:
//!
//! - **One watch per object**, regardless of the number of pods that reference it; by name, as the node authorizer
//!   requires; none after the last reference ([`ObjectManager::unregister_pod`]).
//! - **A new pod never starts with old data**: a read for it returns data no older than its registration, or an
//!   error that says why. Running pods keep reading meanwhile ([`ObjectManager::get_for`],
//!   [`ObjectManager::registered`]).
//! - **Versions never go backward** for a reader, whichever API server answers, unless the cluster was restored.
//! - **Nothing polls**: waiting readers are woken, and [`ObjectManager::subscribe`] reports every change.
//! - **Errors carry their cause**, and no error, log or metric carries a byte of an object.
//!
//! There are three strategies, named as in the kubelet ([`Strategy`]): `Watch` (the default), `Cache` with a time to
//! live, and `Get`. For tests of code that uses a manager, [`ObjectManager::fake`] needs no API server:
//!
//! ```
//! use larder::ConfigMapManager;
//! use larder_objects::{ConfigMap, ObjectMeta};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! # let pod = serde_json::from_str(r#"{"metadata":{"namespace":"prod","name":"web","uid":"1"},"spec":{"containers":[],
//! #     "volumes":[{"name":"v","configMap":{"name":"app"}}]}}"#).unwrap();
//! let (manager, objects) = ConfigMapManager::fake();
//! manager.register_pod(&pod);
//! objects.set(ConfigMap {
//!     metadata: ObjectMeta { namespace: "prod".into(), name: "app".into(), ..Default::default() },
//!     data: [("level", "debug".into())].into(),
//!     ..Default::default()
//! });
//! assert_eq!(manager.get("prod", "app").await.unwrap().data["level"], "debug");
//! # }
//! ```
//!
//! # Features
//!
//! A program with two managers needs only this crate and tokio; the types of their API are re-exported here. It chooses
//! the Kubernetes version of the types by feature `latest`, or by a feature of its own dependency on [`k8s_openapi`].
//!
//! | feature | on by default | adds |
//! | --- | --- | --- |
//! | `transport` | yes | [`transport`]: thousands of watches over a few HTTP/2 connections, as a [`kube::Client`] |
//! | `rustls-tls` | yes | TLS for the clients that [`kube`] makes itself |
//! | `metrics` | yes | [`ManagerMetrics`] for Prometheus |
//! | `projection` | no | [`Error`] as `Unavailable` of `larder-projection`, so that failed reads are inputs like others |
//! | `latest` | no | the newest Kubernetes version that [`k8s_openapi`] knows |
//!
//! # The rest
//!
//! [`references`] lists the references of a pod. `larder-watch` watches whole collections of the API server.

mod changes;
mod config;
mod error;
mod manager;
mod metrics;
#[cfg(feature = "projection")]
mod projection;
mod registration;
mod status;
mod store;

pub use changes::{ChangeKind, Changes, ObjectChange};
pub use config::{ChangeLog, ConfigError, ManagerConfig, NodeTtl, Strategy, WatchScope};
pub use error::{Error, ErrorKind};
pub use jiff;
pub use k8s_openapi;
pub use kube;
pub use larder_objects::{
    ConfigMap, Data, DecodeError, Object, ObjectKey, ObjectMeta, ObjectType, PodIdentity,
    ResourceVersion, Secret, SecretBytes, Uid, references,
};
#[cfg(feature = "transport")]
pub use larder_transport as transport;
pub use larder_watch::{
    NodeContext, Proof, RequestError, RequestFailure, RequestPhase, SilentWatch,
};
pub use manager::{ConfigMapManager, ObjectManager, RegisteredPod, SecretManager};
#[cfg(feature = "metrics")]
pub use metrics::ManagerMetrics;
#[cfg(feature = "metrics")]
pub use prometheus_client;
pub use smol_str::SmolStr;
pub use status::{
    KnownObject, NamespaceScope, ObjectState, ObjectStatus, ScopeChoice, StaleObject,
};
pub use store::fake::FakeObjects;
