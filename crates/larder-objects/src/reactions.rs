//! The annotation by which a ConfigMap or Secret is left out of what hooks react to.
//!
//! Invariant: no annotation is kept, only what this one says: another one may have a copy of a Secret's values, as
//! `kubectl apply` writes it.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// The key of the annotation. On a pod it has the pod's hooks.
pub const ON_CHANGE_ANNOTATION: &str = "larder.dev/on-change";

/// Whether hooks react to changes of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reactions {
    /// They do: it has no such annotation.
    #[default]
    Counted,
    /// They do not: the annotation is `"false"`.
    LeftOut,
    /// They do, although the annotation has another value, which means nothing.
    Invalid,
}

impl<'de> Deserialize<'de> for Reactions {
    /// Reads all annotations of an object.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Annotations)
    }
}

/// A value of the annotation. The API server lets only text through.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Other(IgnoredAny),
}

struct Annotations;

impl<'de> Visitor<'de> for Annotations {
    type Value = Reactions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("annotations")
    }

    fn visit_unit<E>(self) -> Result<Reactions, E> {
        Ok(Reactions::Counted)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut annotations: A) -> Result<Reactions, A::Error> {
        let mut found = Reactions::Counted;
        while let Some(key) = annotations.next_key::<Cow<'_, str>>()? {
            if key != ON_CHANGE_ANNOTATION {
                annotations.next_value::<IgnoredAny>()?;
                continue;
            }
            found = match annotations.next_value()? {
                Written::Text(text) if text == "false" => Reactions::LeftOut,
                Written::Text(_) | Written::Other(_) => Reactions::Invalid,
            };
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ConfigMap, Object as _};

    #[test]
    fn only_false_leaves_an_object_out() {
        let annotated = |annotations: &str| {
            let json = format!(r#"{{"metadata":{{"name":"a","annotations":{annotations}}}}}"#);
            ConfigMap::from_json(json.as_bytes())
                .unwrap()
                .metadata
                .on_change
        };
        for (annotations, expected) in [
            ("null", Reactions::Counted),
            ("{}", Reactions::Counted),
            (
                r#"{"larder.dev/on-chang":"false","a":{"b":[1]}}"#,
                Reactions::Counted,
            ),
            (
                r#"{"a":"1","larder.dev/on-change":"false","b":"2"}"#,
                Reactions::LeftOut,
            ),
            (
                r#"{"larder.dev\/on-change":"fals\u0065"}"#,
                Reactions::LeftOut,
            ),
            (r#"{"larder.dev/on-change":"true"}"#, Reactions::Invalid),
            (r#"{"larder.dev/on-change":"False"}"#, Reactions::Invalid),
            (r#"{"larder.dev/on-change":""}"#, Reactions::Invalid),
            (r#"{"larder.dev/on-change":false}"#, Reactions::Invalid),
            (r#"{"larder.dev/on-change":null}"#, Reactions::Invalid),
        ] {
            assert_eq!(annotated(annotations), expected, "{annotations}");
        }
        let without = ConfigMap::from_json(br#"{"metadata":{"name":"a"}}"#).unwrap();
        assert_eq!(without.metadata.on_change, Reactions::Counted);
    }
}
