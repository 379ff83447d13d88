//! Decodes JSON into a type, and notes where it fails and which fields the type does not have.
//!
//! A deserializer over [`Value`] that knows its path. The types of k8s-openapi name all their fields when they ask for
//! a struct, so an unknown field is found in the same pass, also in an object that is rejected later.
//!
//! Invariants:
//! 1. No error quotes a value: messages name types only. A message that a type words itself is in that type's care.
//! 2. Paths are made only for what is reported.
//! 3. A timestamp that Go cannot decode is rejected. jiff reads years that no serializer of Kubernetes writes, so an
//!    object with one could not be decoded again.
//! 4. The items of an object's lists take at most [`MAX_ITEM_BYTES`]. A volume is 3 bytes of JSON, `{},`, and 3 KiB
//!    decoded.

use std::cell::RefCell;

use k8s_openapi::jiff::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, Error as _, IntoDeserializer as _, MapAccess, SeqAccess, Unexpected,
        Visitor, value::StrDeserializer,
    },
};
use serde_json::{Error, Map, Value, map};

use super::{Problem, unknown::UnknownField};
use crate::{FieldPath, PathSegment};

/// Largest sum of the sizes of all decoded list items of an object: 5000 volumes, or 8000 containers.
const MAX_ITEM_BYTES: usize = 16 << 20;

/// Decodes `value`. Its unknown fields are added to `unknown`, also when decoding fails.
pub(crate) fn decode<'de, T: Deserialize<'de>>(
    value: &'de Value,
    unknown: &mut Vec<UnknownField>,
) -> Result<T, Problem> {
    let notes = RefCell::new(Notes {
        unknown,
        failure: None,
        item_bytes: 0,
    });
    let root = TypedValue {
        value,
        path: Path::Root,
        notes: &notes,
    };
    T::deserialize(root).map_err(|error| {
        let failure = notes.into_inner().failure;
        let (field, found) = failure.unwrap_or((FieldPath::root(), value));
        type_problem(field, &error.to_string(), found)
    })
}

/// The findings of decoding besides the object.
struct Notes<'a, 'de> {
    unknown: &'a mut Vec<UnknownField>,
    /// The innermost value that could not be decoded.
    failure: Option<(FieldPath, &'de Value)>,
    /// Sum of the sizes of the list items so far.
    item_bytes: usize,
}

impl Notes<'_, '_> {
    fn count_item(&mut self, size: usize) -> Result<(), Error> {
        self.item_bytes += size;
        if self.item_bytes > MAX_ITEM_BYTES {
            return Err(Error::custom("too many items"));
        }
        Ok(())
    }
}

/// The path of a value, as a list from the inside out. It lives on the stack.
#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl Path<'_> {
    fn to_field_path(self) -> FieldPath {
        let mut segments = Vec::new();
        let mut path = &self;
        loop {
            let (outer, segment) = match path {
                Path::Root => break,
                Path::Field(outer, name) => (outer, PathSegment::Field((*name).into())),
                Path::Key(outer, key) => (outer, PathSegment::Key((*key).into())),
                Path::Index(outer, index) => (outer, PathSegment::Index(*index)),
            };
            segments.push(segment);
            path = outer;
        }
        segments.into_iter().rev().collect()
    }
}

/// A value with its path.
struct TypedValue<'a, 'n, 'de> {
    value: &'de Value,
    path: Path<'a>,
    notes: &'a RefCell<Notes<'n, 'de>>,
}

impl<'n, 'de> TypedValue<'_, 'n, 'de> {
    /// Runs `decode`, and notes this value as the failed one unless one within it is.
    fn noting<T>(self, decode: impl FnOnce(&Self) -> Result<T, Error>) -> Result<T, Error> {
        let result = decode(&self);
        if result.is_err() {
            let failure = &mut self.notes.borrow_mut().failure;
            failure.get_or_insert_with(|| (self.path.to_field_path(), self.value));
        }
        result
    }

    /// The entries of a mapping.
    fn entries(&self, entries: &'de Map<String, Value>, names: Names) -> TypedEntries<'_, 'n, 'de> {
        TypedEntries {
            within: self,
            iter: entries.iter(),
            names,
            current: None,
        }
    }
}

/// The names of all fields of a struct.
type FieldNames = &'static [&'static str];

/// What the names in a mapping are.
#[derive(Clone, Copy)]
enum Names {
    /// Fields of a struct, which are known.
    Struct(FieldNames),
    /// Fields of a type that asks for any value: it has several forms, of which a struct is one.
    Any,
    /// Keys that the user chooses.
    Map,
}

macro_rules! forward {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, Error> {
            self.noting(|this| this.value.$method($($argument,)* visitor))
        })*
    };
}

impl<'de> Deserializer<'de> for TypedValue<'_, '_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Array(_) => self.deserialize_seq(visitor),
            Value::Object(entries) => {
                self.noting(|this| visitor.visit_map(this.entries(entries, Names::Any)))
            }
            _ => self.noting(|this| this.value.deserialize_any(visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if let ("Time" | "MicroTime", Value::String(text)) = (name, self.value)
            && !is_time(text)
        {
            let expected = "a time such as 2006-01-02T15:04:05Z";
            let error = Error::invalid_value(Unexpected::Other("text"), &expected);
            return self.noting(|_| Err(error));
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.noting(|this| match this.value {
            Value::Array(items) => visitor.visit_seq(Items {
                within: this,
                items: items.iter().enumerate(),
            }),
            other => other.deserialize_seq(visitor),
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.noting(|this| match this.value {
            Value::Object(entries) => visitor.visit_map(this.entries(entries, Names::Map)),
            other => other.deserialize_map(visitor),
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: FieldNames,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.noting(|this| match this.value {
            Value::Object(entries) => {
                visitor.visit_map(this.entries(entries, Names::Struct(fields)))
            }
            // serde would name the type, and take the list of its fields too.
            _ => Err(Error::invalid_type(Unexpected::Other("value"), &"a map")),
        })
    }

    forward! {
        deserialize_bool() deserialize_i8() deserialize_i16() deserialize_i32() deserialize_i64()
        deserialize_i128() deserialize_u8() deserialize_u16() deserialize_u32() deserialize_u64()
        deserialize_u128() deserialize_f32() deserialize_f64() deserialize_char() deserialize_str()
        deserialize_string() deserialize_bytes() deserialize_byte_buf() deserialize_unit()
        deserialize_unit_struct(name: &'static str) deserialize_tuple(length: usize)
        deserialize_tuple_struct(name: &'static str, length: usize)
        deserialize_enum(name: &'static str, variants: FieldNames)
        deserialize_identifier() deserialize_ignored_any()
    }
}

struct Items<'a, 'n, 'de> {
    within: &'a TypedValue<'a, 'n, 'de>,
    items: std::iter::Enumerate<std::slice::Iter<'de, Value>>,
}

impl<'de> SeqAccess<'de> for Items<'_, '_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let notes = self.within.notes;
        notes.borrow_mut().count_item(size_of::<T::Value>())?;
        let path = Path::Index(&self.within.path, index);
        let item = TypedValue { value, path, notes };
        // A type may fail after the value was read.
        item.noting(|item| seed.deserialize(TypedValue { ..*item }))
            .map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        self.items.size_hint().1
    }
}

struct TypedEntries<'a, 'n, 'de> {
    within: &'a TypedValue<'a, 'n, 'de>,
    iter: map::Iter<'de>,
    names: Names,
    current: Option<(&'de str, &'de Value)>,
}

impl<'de> MapAccess<'de> for TypedEntries<'_, '_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.iter.next() else {
            return Ok(None);
        };
        self.current = Some((key, value));
        if let Names::Struct(fields) = self.names
            && !fields.contains(&key.as_str())
        {
            let within = || self.within.path.to_field_path();
            UnknownField::note(self.within.notes.borrow_mut().unknown, within, key, fields);
        }
        let key: StrDeserializer<'_, Error> = key.as_str().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let (key, value) = self.current.take().expect("a key comes before its value");
        let within = &self.within.path;
        let path = match self.names {
            Names::Struct(_) | Names::Any => Path::Field(within, key),
            Names::Map => Path::Key(within, key),
        };
        let notes = self.within.notes;
        // A type may fail after the value was read.
        let value = TypedValue { value, path, notes };
        value.noting(|value| seed.deserialize(TypedValue { ..*value }))
    }

    fn size_hint(&self) -> Option<usize> {
        self.iter.size_hint().1
    }
}

/// Whether `text` is a time as Go reads and writes it: RFC 3339 with a year of four digits, also in UTC.
fn is_time(text: &str) -> bool {
    let form = b"dddd-dd-ddTdd:dd:dd";
    let has_form = text.len() > form.len()
        && text
            .bytes()
            .zip(form)
            .all(|(byte, expected)| match expected {
                b'd' => byte.is_ascii_digit(),
                _ => byte == *expected,
            });
    let first = Timestamp::from_second(-62_167_219_200).expect("the year 0 is in range");
    has_form && text.parse().is_ok_and(|time: Timestamp| time >= first)
}

/// Rewords serde's message. What it found is named by type: serde quotes the value.
fn type_problem(field: FieldPath, message: &str, found: &Value) -> Problem {
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let name = rest.split('`').next().unwrap_or_default();
        return Problem::UnknownField {
            field: field.child(name),
            suggestion: None,
        };
    }
    let Some((_, expected)) = message.rsplit_once(", expected ") else {
        let problem = message.to_owned();
        return Problem::Type { field, problem };
    };
    let expected = match expected {
        "i32" | "i64" | "u16" | "u32" | "u64" | "a 32-bit integer" => "a whole number",
        "a nonzero usize" => "a whole number from 1",
        "a map" => "a mapping",
        other => other,
    };
    match found {
        // It may be whole, and beyond the range of the type.
        Value::Number(_) if expected == "a whole number" => Problem::Type {
            field,
            problem: "expected a whole number, found one that is too large or a fraction"
                .to_owned(),
        },
        Value::Number(_) if expected == "a whole number from 1" => Problem::Type {
            field,
            problem: format!("expected {expected}"),
        },
        _ => wrong_type(field, expected, found),
    }
}

/// The problem of a field that holds `found` where `expected` belongs. Names types only.
pub(super) fn wrong_type(field: impl Into<FieldPath>, expected: &str, found: &Value) -> Problem {
    let hint = match found {
        Value::Number(_) | Value::Bool(_) if expected == "a string" => " (quote it)",
        _ => "",
    };
    let problem = format!("expected {expected}, found {}{hint}", type_name(found));
    let field = field.into();
    Problem::Type { field, problem }
}

/// The type of a value in a user's words.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a sequence",
        Value::Object(_) => "a mapping",
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::manifest::Suggestion;

    #[track_caller]
    fn check_problem(pod: Value, expected: &str) {
        let problem = decode::<Pod>(&pod, &mut Vec::new()).unwrap_err();
        assert_eq!(problem.to_string(), expected);
    }

    #[test]
    fn wrong_types_are_named_by_field() {
        check_problem(
            json!({"metadata": {"labels": {"a.b/c[0]": 5}}}),
            "metadata.labels[a.b/c[0]]: expected a string, found a number (quote it)",
        );
        check_problem(
            json!({"spec": {"containers": [{"name": "c"}, {"ports": [{"containerPort": "x"}]}]}}),
            "spec.containers[1].ports[0].containerPort: expected a whole number, found a string",
        );
        check_problem(
            json!({"spec": {"containers": [], "terminationGracePeriodSeconds": 1.5}}),
            "spec.terminationGracePeriodSeconds: expected a whole number, found one that is too large or a fraction",
        );
        check_problem(
            json!({"spec": {"containers": {"name": "c"}}}),
            "spec.containers: expected a sequence, found a mapping",
        );
        check_problem(
            json!({"spec": []}),
            "spec: expected a mapping, found a sequence",
        );
        check_problem(json!([]), "expected a mapping, found a sequence");
    }

    #[test]
    fn unknown_fields_are_noted_and_all_others_known() {
        let value = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"anything.goes/here": "x"}, "lables": {}},
            "spec": {
                "containers": [
                    {"name": "a", "env": [], "resources": {"limits": {"x.com/gpu": 1}}, "ports": [{"containerPort": 80}]},
                    {"name": "b", "evn": [{"name": "X"}]},
                ],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configmap": {"name": "m"}}],
                "overhead": {}, "tolerations": [{}], "zzz": 1,
            },
            "status": {"phase": "Running", "podIPs": [{"ip": "::1"}]},
        });
        let mut unknown = Vec::new();
        decode::<Pod>(&value, &mut unknown).unwrap();
        let shown = unknown
            .iter()
            .map(|unknown| (unknown.field.to_string(), unknown.suggestion.clone()));
        let shown: Vec<_> = shown.collect();
        let name = |name| Some(Suggestion::Name(name));
        let expected = [
            ("metadata.lables", name("labels")),
            ("spec.containers[1].evn", name("env")),
            ("spec.volumes[1].configmap", name("configMap")),
            ("spec.zzz", None),
        ];
        assert_eq!(
            shown,
            expected.map(|(field, meant)| (field.to_owned(), meant))
        );
    }

    #[test]
    fn unknown_fields_of_an_object_that_fails_are_noted() {
        let value = json!({"metadata": {"nam": "p"}, "spec": 5});
        let mut unknown = Vec::new();
        decode::<Pod>(&value, &mut unknown).unwrap_err();
        assert_eq!(unknown[0].field.to_string(), "metadata.nam");
    }

    #[test]
    fn the_memory_of_list_items_is_bounded() {
        let pod = |volumes: usize| json!({"spec": {"containers": [], "volumes": vec![json!({}); volumes]}});
        decode::<Pod>(&pod(5000), &mut Vec::new()).unwrap();
        check_problem(pod(6000), "spec.volumes: too many items");
    }

    #[test]
    fn times_are_those_that_go_can_decode() {
        for good in [
            "2026-03-01T12:30:05Z",
            "2026-03-01T12:30:05.123456Z",
            "2026-03-01T12:30:05+05:30",
            "0000-01-01T00:00:00Z",
            "9999-12-30T21:59:59Z",
        ] {
            assert!(is_time(good), "{good}");
        }
        for bad in [
            "",
            "2026-03-01",
            "-009998-01-02T03:04:05Z",
            "+002026-03-01T12:30:05Z",
            "0000-01-01T00:00:00+00:01",
            "2026-03-01 12:30:05Z",
            "2026-13-01T12:30:05Z",
            "2026-03-01T12:30:05",
            "2026-03-01T12:30:05[Europe/Paris]",
        ] {
            assert!(!is_time(bad), "{bad}");
        }
        check_problem(
            json!({"status": {"startTime": "-009998-01-02T03:04:05Z"}}),
            "status.startTime: expected a time such as 2006-01-02T15:04:05Z, found a string",
        );
    }
}
