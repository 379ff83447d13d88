//! How [`Stated`] is decoded: the object's own decoder sees all fields but two, which are kept besides.
//!
//! Reading an object twice, once for its kind, would take twice the time; `#[serde(flatten)]` would hold all of it in a
//! buffer, which is not wiped.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor},
    forward_to_deserialize_any,
};
use smol_str::SmolStr;

use crate::Stated;

/// What an object states of its type.
#[derive(Default)]
struct TypeMeta {
    api_version: SmolStr,
    kind: SmolStr,
}

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Stated<K> {
    fn deserialize<D: Deserializer<'de>>(inner: D) -> Result<Self, D::Error> {
        let mut stated = TypeMeta::default();
        let found = &mut stated;
        let object = K::deserialize(Observed { inner, found })?;
        let TypeMeta { api_version, kind } = stated;
        Ok(Self {
            api_version,
            kind,
            object,
        })
    }
}

/// A decoder, visitor or map that passes everything on but the type.
struct Observed<'a, T> {
    inner: T,
    found: &'a mut TypeMeta,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Observed<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let found = self.found;
        self.inner.deserialize_map(Observed {
            inner: visitor,
            found,
        })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Observed<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let found = self.found;
        self.inner.visit_map(Observed { inner: map, found })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Observed<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        while let Some(key) = self.inner.next_key::<SmolStr>()? {
            match &*key {
                "apiVersion" => self.found.api_version = self.inner.next_value()?,
                "kind" => self.found.kind = self.inner.next_value()?,
                key => return seed.deserialize(key.into_deserializer()).map(Some),
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Secret, Stated};

    fn read(json: &str) -> Result<Stated<Secret>, String> {
        Stated::from_json(json.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_object_is_as_without_its_type() {
        let json = r#"{"kind":"Secret","data":{"k":"dg=="},"apiVersion":"v1","metadata":{"name":"a"},"x":[{}]}"#;
        let stated = read(json).unwrap();
        assert_eq!((&*stated.kind, &*stated.api_version), ("Secret", "v1"));
        let alone = serde_json::from_str::<Secret>(json).unwrap();
        assert_eq!(stated.object, alone);
        assert_eq!(&*stated.object.data["k"], b"v");
        let unstated = read("{}").unwrap();
        assert_eq!((&*unstated.kind, &*unstated.api_version), ("", ""));
    }

    #[test]
    fn an_error_has_its_place_and_no_content() {
        for json in [
            r#"{"kind":7,"data":{"k":"hunter2"}}"#,
            r#"{"kind":"Secret","data":{"k":7}}"#,
            "[]",
            "",
            r#"{"kind":"Secret","data":{"k":"hunter2!"}}"#,
        ] {
            let error = read(json).unwrap_err();
            assert!(error.starts_with("cannot decode Secret: "), "{error}");
            assert!(error.contains(" at line "), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
