//! The JSON encoding of the fields of ConfigMaps and Secrets in the API.

use serde::{Deserialize, Deserializer};

/// `null` for a field stands for its absence, as everywhere in the API.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
