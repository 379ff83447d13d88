//! ConfigMaps.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Deserializer, de::Error as _};
use smol_str::SmolStr;

use crate::{
    Data, KeyChanges, Kind, Object, ObjectMeta, ObjectType, encoding::null_as_default, go_base64,
    references,
};

/// A `v1` ConfigMap, without the metadata that no consumer on a node reads.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMap {
    /// Name, identity and version.
    pub metadata: ObjectMeta,
    /// Text values by key, sorted.
    #[serde(deserialize_with = "null_as_default")]
    pub data: Data<SmolStr>,
    /// Binary values by key, sorted; not in the environment.
    #[serde(deserialize_with = "binary_data")]
    pub binary_data: Data<Vec<u8>>,
    /// Whether `data` and `binary_data` are final.
    #[serde(deserialize_with = "null_as_default")]
    pub immutable: bool,
}

impl Object for ConfigMap {
    const TYPE: ObjectType = Kind::ConfigMap.object_type();
    const IS_SECRET: bool = false;

    fn visit_references<'a>(pod: &'a Pod, found: &mut impl FnMut(&'a str)) {
        references::visit_config_maps(pod, found);
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_immutable(&self) -> bool {
        self.immutable
    }

    fn key_changes(&self, before: &Self) -> KeyChanges {
        KeyChanges::between(before.all_values(), self.all_values())
    }
}

impl ConfigMap {
    /// The values of both fields as `(is text, bytes)`, by key. No key is in both: the API server admits none.
    fn all_values(&self) -> BTreeMap<&str, (bool, &[u8])> {
        let text = self
            .data
            .iter()
            .map(|(key, value)| (key, (true, value.as_bytes())));
        let binary = self
            .binary_data
            .iter()
            .map(|(key, value)| (key, (false, &**value)));
        text.chain(binary).collect()
    }
}

/// Shows names and sizes; values stay out of logs.
impl fmt::Debug for ConfigMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.data.iter().map(|(key, value)| (key, value.len()));
        let binary = self
            .binary_data
            .iter()
            .map(|(key, value)| (key, value.len()));
        f.debug_struct("ConfigMap")
            .field("metadata", &self.metadata)
            .field("bytes", &text.chain(binary).collect::<BTreeMap<_, _>>())
            .field("immutable", &self.immutable)
            .finish()
    }
}

fn binary_data<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Data<Vec<u8>>, D::Error> {
    /// Fails while its own value is read, so that the error is that of its key.
    struct Bytes(Vec<u8>);

    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = SmolStr::deserialize(deserializer)?;
            go_base64::decode(&text)
                .map(Self)
                .map_err(|_| D::Error::custom("value is not base64"))
        }
    }

    let values = null_as_default::<D, BTreeMap<SmolStr, Bytes>>(deserializer)?.into_iter();
    Ok(values.map(|(key, bytes)| (key, bytes.0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_text_binary_and_identity() {
        let map = ConfigMap::from_json(
            br#"{"metadata":{"namespace":"n","name":"a","uid":"u","resourceVersion":"7","managedFields":[{"x":1}]},
                "data":{"k":"v"},"binaryData":{"b":"3sr+"},"immutable":true}"#,
        )
        .unwrap();
        assert_eq!(map.metadata.key().to_string(), "n/a");
        assert_eq!(map.metadata.resource_version.number(), 7);
        assert_eq!(map.data["k"], "v");
        assert_eq!(map.binary_data["b"], [0xde, 0xca, 0xfe]);
        assert!(map.is_immutable());
    }

    #[test]
    fn null_fields_stand_for_absent_ones() {
        let map = ConfigMap::from_json(
            br#"{"metadata":{"name":"a"},"data":null,"binaryData":null,"immutable":null}"#,
        )
        .unwrap();
        assert!(map.data.is_empty() && map.binary_data.is_empty() && !map.immutable);
    }

    #[test]
    fn a_value_of_the_wrong_type_is_refused_without_quoting_it() {
        let error = ConfigMap::from_json(br#"{"data":{"k":{"v":"hunter2"}}}"#).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot decode ConfigMap"),
            "{error}"
        );
        assert!(!error.to_string().contains("hunter2"));
    }
}
