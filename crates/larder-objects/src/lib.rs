//! ConfigMaps and Secrets as larder holds them, and the API server's processing of an object before any client sees it.
//!
//! This crate is the vocabulary that the others share. It knows no network, no disk layout and no clock.
//!
//! Invariants:
//! 1. Secret bytes are zeroized when dropped, and neither `Debug` nor an error of this crate shows any of them.
//! 2. An object is decoded in full or rejected; a field of the wrong type never becomes an empty one.

mod age;
mod api_json;
mod api_reference;
mod chain;
mod config_map;
mod data;
pub mod defaults;
mod digits;
mod encoding;
mod escape;
mod field_path;
pub mod go_base64;
pub mod go_duration;
mod key;
mod key_changes;
mod label_selector;
pub mod manifest;
mod object;
pub mod patch;
pub mod pem;
mod pod_identity;
mod pod_phase;
mod quantity;
mod reactions;
pub mod references;
mod resources;
mod secret;
mod similar;
mod source_kind;
mod stable_uid;
mod stated;
mod subscript;
mod uid;
pub mod validation;
mod wiped;
pub mod x509;
pub mod yaml;

pub use age::age;
pub use api_json::{ApiJson, exact_json, json_tree, volume_sources};
pub use api_reference::api_reference;
pub use chain::chain;
pub use config_map::ConfigMap;
pub use data::Data;
pub use escape::{escaped, is_unprintable};
pub use field_path::{FieldPath, PathSegment};
pub use key::{ObjectKey, ObjectKeyRef};
pub use key_changes::KeyChanges;
pub use label_selector::selects;
pub use object::{DecodeError, Kind, Object, ObjectMeta, ObjectType, ResourceVersion, Stated};
pub use pod_identity::PodIdentity;
pub use pod_phase::is_terminal_phase;
pub use quantity::{Quantity, QuantityError, canonical as canonical_quantity};
pub use reactions::{ON_CHANGE_ANNOTATION, Reactions};
pub use resources::qos_class;
pub use secret::{Secret, SecretBytes};
pub use source_kind::SourceKind;
pub use stable_uid::{StableHash, stable_pod_uid, uuid};
pub use subscript::split_subscript;
pub use uid::Uid;
