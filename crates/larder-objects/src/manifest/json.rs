//! Parses JSON, and rejects duplicate keys, which `serde_json` accepts.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// A value in which no object has a key twice.
pub(super) struct Strict(pub(super) Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = elements.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!(
                    "key {key:?} is already set"
                )));
            }
            map.insert(key, entries.next_value::<Strict>()?.0);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_serde_json_takes() {
        let text = r#"{"a":[1,-2,1.5,"x",null,true,{"b":{}}],"c":"\ud83d\ude00\/"}"#;
        let Strict(strict) = serde_json::from_str(text).unwrap();
        assert_eq!(strict, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_key_twice_is_an_error_with_its_line() {
        let error = serde_json::from_str::<Strict>("{\"a\": {\n\"b\": 1,\n\"b\": 2}}")
            .err()
            .unwrap();
        assert_eq!(error.line(), 3);
        assert!(
            error.to_string().starts_with(r#"key "b" is already set"#),
            "{error}"
        );
    }
}
