//! One object as the API server sends it: its files, and its annotation.

use std::sync::Arc;

use larder_objects::{ConfigMap, DecodeError, Kind, Object as _, Secret};
use serde_json::Value;

/// A decoded object.
#[derive(Debug)]
pub(crate) enum DecodedObject {
    ConfigMap(Arc<ConfigMap>),
    Secret(Arc<Secret>),
}

impl DecodedObject {
    /// # Errors
    ///
    /// The object is malformed; the error names the place, and never a value.
    pub(crate) fn from_json(kind: Kind, json: &[u8]) -> Result<Self, DecodeError> {
        Ok(match kind {
            Kind::ConfigMap => Self::ConfigMap(Arc::new(ConfigMap::from_json(json)?)),
            Kind::Secret => Self::Secret(Arc::new(Secret::from_json(json)?)),
        })
    }

    /// Keys and bytes. A key that is there twice has its binary value last.
    pub(crate) fn files(&self) -> Vec<(&str, &[u8])> {
        match self {
            Self::ConfigMap(map) => {
                let text = map.data.iter().map(|(key, value)| (key, value.as_bytes()));
                let binary = map.binary_data.iter();
                text.chain(binary.map(|(key, value)| (key, value.as_slice())))
                    .collect()
            }
            Self::Secret(secret) => {
                let values = secret.data.iter();
                values.map(|(key, value)| (key, &**value)).collect()
            }
        }
    }
}

/// The value of an annotation.
pub(crate) fn annotation(json: &[u8], name: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Annotated {
        metadata: Value,
    }
    let annotated: Annotated = serde_json::from_slice(json).ok()?;
    Some(annotated.metadata["annotations"][name].as_str()?.to_owned())
}
