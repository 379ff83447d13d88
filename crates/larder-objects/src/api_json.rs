//! The JSON of pods, by functions that are compiled once.
//!
//! What serde generates for a pod is 300 KiB of code, and a crate that asks `serde_json` itself may get its own copy.
//! All of it would stay in the memory of an agent.

use std::io;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus, Volume};
use serde::Serialize;
use serde_json::{Error, Map, Value};
use zeroize::Zeroizing;

/// A type with a JSON form in the API.
pub trait ApiJson: Sized {
    /// Decodes the JSON of one value.
    ///
    /// # Errors
    ///
    /// Malformed JSON, or a field of the wrong type. The text may quote the input.
    fn from_json(json: &[u8]) -> Result<Self, Error>;

    /// The value as JSON, in one allocation of its size.
    ///
    /// # Errors
    ///
    /// It has a value that JSON cannot hold.
    fn to_json(&self) -> Result<Vec<u8>, Error>;
}

macro_rules! api_json {
    ($($type:ty)*) => {
        $(impl ApiJson for $type {
            fn from_json(json: &[u8]) -> Result<Self, Error> {
                serde_json::from_slice(json)
            }

            fn to_json(&self) -> Result<Vec<u8>, Error> {
                exact_json(self)
            }
        })*
    };
}

api_json!(Pod PodSpec PodStatus);

/// `value` as JSON in one allocation of its size: growing would take twice as much for a moment, and would leave copies
/// in freed memory, which may be of secrets.
///
/// # Errors
///
/// It has a value that JSON cannot hold.
pub fn exact_json(value: &impl Serialize) -> Result<Vec<u8>, Error> {
    // Both behind one type, so that one serializer suffices.
    let write = |to: &mut dyn io::Write| serde_json::to_writer(to, value);
    let mut length = Counter(0);
    write(&mut length)?;
    let mut json = Vec::with_capacity(length.0);
    write(&mut json)?;
    Ok(json)
}

/// Counts bytes instead of keeping them.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `value` as a tree, by way of its text: its type then needs no second serializer.
///
/// # Errors
///
/// It has a value that JSON cannot hold.
pub fn json_tree(value: &impl Serialize) -> Result<Value, Error> {
    // It may be a Secret.
    serde_json::from_slice(&Zeroizing::new(exact_json(value)?))
}

/// The sources of a volume, by type. The API server allows one, and defaults to `emptyDir`.
pub fn volume_sources(volume: &Volume) -> Map<String, Value> {
    match json_tree(volume) {
        Ok(Value::Object(mut fields)) => {
            fields.remove("name");
            fields
        }
        _ => Map::new(),
    }
}
