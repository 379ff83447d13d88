//! Forms that settings have, and derived types do not: a field with a short form, and the names of fields.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, Error, IntoDeserializer as _, MapAccess, SeqAccess, Visitor,
        value::{Error as NoValue, MapAccessDeserializer, SeqAccessDeserializer},
    },
    forward_to_deserialize_any,
};

/// A field that has fields of its own, or stands for them in a short form: a text, a number, a boolean or a list.
///
/// ```
/// use larder_objects::yaml::{ShortOr, YamlDocument};
///
/// #[derive(serde::Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Target {
///     port: u16,
/// }
/// let read = |text| YamlDocument::parse(text, 0)?.decode::<ShortOr<String, Target>>();
/// assert!(matches!(read("8080"), Err(error) if error.problem.starts_with("expected a string")));
/// assert!(matches!(read("http"), Ok(ShortOr::Short(name)) if name == "http"));
/// assert!(matches!(read("{port: 80}"), Ok(ShortOr::Fields(Target { port: 80 }))));
/// assert_eq!(read("{prot: 80}").err().map(|error| error.to_string()).as_deref(), Some("line 1: unknown field \"prot\""));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShortOr<S, T> {
    /// The short form.
    Short(S),
    /// A mapping.
    Fields(T),
}

impl<'de, S: Deserialize<'de>, T: Deserialize<'de>> Deserialize<'de> for ShortOr<S, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms(PhantomData))
    }
}

struct Forms<S, T>(PhantomData<(S, T)>);

macro_rules! short {
    ($($method:ident: $type:ty)*) => {
        $(fn $method<E: Error>(self, value: $type) -> Result<Self::Value, E> {
            S::deserialize(value.into_deserializer()).map(ShortOr::Short)
        })*
    };
}

impl<'de, S: Deserialize<'de>, T: Deserialize<'de>> Visitor<'de> for Forms<S, T> {
    type Value = ShortOr<S, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    short! { visit_bool: bool visit_i64: i64 visit_u64: u64 visit_f64: f64 visit_str: &str }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        S::deserialize(SeqAccessDeserializer::new(items)).map(ShortOr::Short)
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(entries)).map(ShortOr::Fields)
    }
}

/// The names of the fields of a struct that derives `Deserialize`, in the order in which it has them.
pub fn field_names<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &[&str] = &[];
    // A struct asks for its fields by name, and that is all that is answered.
    let _ = T::deserialize(Asked(&mut names));
    names
}

/// Notes the fields that a struct asks for, and has none.
struct Asked<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Asked<'_> {
    type Error = NoValue;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, NoValue> {
        Err(NoValue::custom("there is no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, NoValue> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::YamlDocument;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Settings {
        #[expect(dead_code, reason = "only decoded")]
        exec: Option<ShortOr<Vec<String>, Exec>>,
        #[expect(dead_code, reason = "only decoded")]
        is_short: Option<ShortOr<bool, Exec>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Exec {
        #[expect(dead_code, reason = "only decoded")]
        words: Vec<u16>,
    }

    #[test]
    fn names_are_those_of_the_file() {
        assert_eq!(field_names::<Settings>(), ["exec", "isShort"]);
    }

    #[test]
    fn fields_of_a_form_have_their_place() {
        for (text, expected) in [
            (
                "exec:\n- a\n- 5",
                "line 3: exec[1]: expected a string, found a number (quote it)",
            ),
            (
                "exec:\n  words: [1, 2, hunter2]",
                "line 2: exec.words[2]: expected a whole number, found a string",
            ),
            (
                "exec:\n  wrods: [1]",
                "line 2: exec: unknown field \"wrods\"",
            ),
            (
                "exec: hunter2",
                "line 1: exec: expected a sequence, found a string",
            ),
            (
                "isShort: hunter2",
                "line 1: isShort: expected a boolean, found a string",
            ),
            (
                "isShort: []",
                "line 1: isShort: expected a boolean, found a sequence",
            ),
        ] {
            let document = YamlDocument::parse(text, 0).unwrap();
            let error = document.decode::<Settings>().unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        for text in [
            "exec: null",
            "exec: [a]\nisShort: yes",
            "isShort: {words: []}",
        ] {
            YamlDocument::parse(text, 0)
                .unwrap()
                .decode::<Settings>()
                .unwrap();
        }
    }
}
