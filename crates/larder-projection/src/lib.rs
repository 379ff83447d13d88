//! Environment and volumes of a container, computed from a pod and the objects that it references, and written to disk.
//!
//! The crate has two halves, both synchronous. The upper one is pure: pod and inputs in, environment and payload out,
//! no I/O. The lower one takes a payload and makes a volume directory hold exactly that.
//!
//! Rules: Kubernetes 1.36; each module names the upstream source of its own.

mod assumptions;
mod clean;
mod container;
pub mod disk;
mod downward;
mod env_file;
mod environment;
mod expand;
mod inputs;
mod memory_limit;
mod mounts;
mod needs;
mod origin;
mod payload;
mod pod_certificate;
mod service_links;
mod token;
mod trust_bundle;
mod unknown;
mod value;
mod volume;

pub use assumptions::Assumptions;
pub use container::{ContainerKind, ContainerView, containers, pod_volumes, used_volumes};
pub use downward::{FieldRefError, ResourceError, quote, unknown_address};
pub use env_file::{EnvFileError, LineProblem, env_file_value};
pub use environment::{
    EnvFileUnavailable, Environment, EnvironmentError, ExpansionError, MAX_ENVIRONMENT_BYTES,
    Variable, environment, partial_environment,
};
pub use expand::expand;
pub use inputs::{
    EnvFile, EnvFileRef, Existence, Inputs, KeyContent, Keyed, NodeFacts, ObjectError, OtherKeys,
    ServiceFacts, ServicePortFacts, SourceKey, TokenRequest, Unavailable, UnknownObject,
};
pub use memory_limit::memory_limit;
pub use mounts::{
    BindOptions, Mount, MountError, MountTable, NestedMountError, NestedMountPoints, Propagation,
    RuntimeFeatures, mounts, nested_mount_points, partial_mounts,
};
pub use needs::{Need, env_files};
pub use origin::{Absent, Origin};
pub use payload::{File, Payload, VolumePath, VolumePathError};
pub use pod_certificate::PodCertificate;
pub use token::{MAX_REFRESH_JITTER, Token};
pub use trust_bundle::{TrustBundle, TrustBundleError, TrustBundles};
pub use unknown::{
    ANY_KEY, AnyKeys, ObjectId, Question, Sameness, Unknown, UnknownSource, may_all_be_equal,
};
pub use value::Value;
pub use volume::{
    AnyFiles, FileLayer, PathView, PayloadError, Projection, SourceError, VolumeKind, fs_group,
    fs_user, project, token_paths,
};

/// Compiles and runs the examples of the repository's front page.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FrontPage;
