//! Kubernetes' protobuf form of objects, read into the JSON form.
//!
//! A [`Schema`] names the messages and fields that a reader knows; any other is an error. No code is generated.
//!
//! Invariants:
//! 1. The cost grows with the bytes. The nesting of the messages of a schema bounds the depth; [`MAX_ITEMS`] bounds
//!    what small bytes can become.
//! 2. Malformed bytes are `None`, and nothing of them is quoted.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Most items of lists and maps in one object. Decoded, an item of two bytes may take kilobytes.
const MAX_ITEMS: usize = 20_000;

/// The known messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schema {
    /// The messages, each with its fields: number, JSON name and type, joined by commas. A type is a message, `[TYPE]`,
    /// `{TYPE}` (a map from strings), or a scalar: `Text`, `Bytes`, `Bool`, `Int`, `Time`, `IntOrString`. The scalars
    /// `PlainInt` and `PlainBool` are those that Go writes though they are zero, which JSON leaves out.
    pub(super) messages: &'static [(&'static str, &'static str)],
}

/// A value as it stands in the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum WireValue<'a> {
    /// A number, a flag or a choice.
    Number(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
}

/// The fields of a message in their order; `None` ends those that are malformed.
pub(super) fn fields(mut bytes: &[u8]) -> impl Iterator<Item = Option<(u64, WireValue<'_>)>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let field = field(&mut bytes);
        if field.is_none() {
            bytes = &[];
        }
        Some(field)
    })
}

fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, WireValue<'a>)> {
    let tag = varint(bytes)?;
    let wire = match tag & 0b111 {
        0 => WireValue::Number(varint(bytes)?),
        2 => {
            let length = varint(bytes)?;
            WireValue::Bytes(take(bytes, usize::try_from(length).ok()?)?)
        }
        // Numbers of a fixed width, which no known message has, and the groups of protobuf 1.
        _ => return None,
    };
    Some((tag >> 3, wire))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (value, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(value)
}

/// The first three fields of a message that is a scalar in JSON.
fn parts(bytes: &[u8]) -> Option<[Option<WireValue<'_>>; 3]> {
    let mut parts = [None; 3];
    for field in fields(bytes) {
        let (number, wire) = field?;
        let place = usize::try_from(number).ok()?.checked_sub(1)?;
        *parts.get_mut(place)? = Some(wire);
    }
    Some(parts)
}

fn default(kind: &str) -> Value {
    match kind {
        "PlainInt" => json!(0),
        "PlainBool" => json!(false),
        _ => json!(""),
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The JSON name and the type of the field `number` among `declared`.
fn field_of(declared: &'static str, number: u64) -> Option<(&'static str, &'static str)> {
    declared.split(", ").find_map(|field| {
        let (known, rest) = field.split_once(' ')?;
        (known.parse() == Ok(number)).then(|| rest.split_once(' '))?
    })
}

/// The type between `brackets`.
fn within(kind: &'static str, brackets: [char; 2]) -> Option<&'static str> {
    kind.strip_prefix(brackets[0])?.strip_suffix(brackets[1])
}

impl Schema {
    /// The object that `bytes`, a message called `name`, stand for. `None` if they are malformed, have more than
    /// [`MAX_ITEMS`] items, or hold a field that the schema does not know.
    pub(super) fn decode(&self, name: &str, bytes: &[u8]) -> Option<Map<String, Value>> {
        let (messages, items) = (self.messages, 0);
        Decoder { messages, items }.message(name, bytes)
    }
}

/// Reads one object.
struct Decoder {
    /// Of the schema.
    messages: &'static [(&'static str, &'static str)],
    /// Number of the items so far.
    items: usize,
}

impl Decoder {
    fn message(&mut self, name: &str, bytes: &[u8]) -> Option<Map<String, Value>> {
        let (_, declared) = self.messages.iter().find(|(known, _)| *known == name)?;
        let mut object = Map::new();
        for field in fields(bytes) {
            let (number, wire) = field?;
            let (name, kind) = field_of(declared, number)?;
            if let Some(item) = within(kind, ['[', ']']) {
                self.items += 1;
                let list = object.entry(name).or_insert_with(|| json!([]));
                list.as_array_mut()?.push(self.value(item, wire)?);
            } else if let Some(item) = within(kind, ['{', '}']) {
                self.items += 1;
                let (key, held) = self.entry(item, wire)?;
                object.entry(name).or_insert_with(|| json!({}))[key] = held;
            } else {
                let value = self.value(kind, wire)?;
                let is_absent = match kind {
                    "Text" | "PlainInt" | "PlainBool" => value == default(kind),
                    _ => value.is_null(),
                };
                if !is_absent {
                    object.insert(name.to_owned(), value);
                }
            }
            if self.items > MAX_ITEMS {
                return None;
            }
        }
        Some(object)
    }

    /// One entry of a map.
    fn entry(&mut self, item: &str, wire: WireValue<'_>) -> Option<(String, Value)> {
        let (mut key, mut held) = (String::new(), default(item));
        let WireValue::Bytes(entry) = wire else {
            return None;
        };
        for part in fields(entry) {
            match part? {
                (1, WireValue::Bytes(bytes)) => {
                    std::str::from_utf8(bytes).ok()?.clone_into(&mut key);
                }
                (2, wire) => held = self.value(item, wire)?,
                _ => return None,
            }
        }
        Some((key, held))
    }

    fn value(&mut self, kind: &str, wire: WireValue<'_>) -> Option<Value> {
        Some(match (kind, wire) {
            ("Text", WireValue::Bytes(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
            ("Bytes", WireValue::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
            ("Bool" | "PlainBool", WireValue::Number(number)) => json!(number != 0),
            // Negative numbers are written as 64-bit two's complement.
            ("Int" | "PlainInt", WireValue::Number(number)) => json!(number.cast_signed()),
            ("Time", WireValue::Bytes(bytes)) => match parts(bytes)?[0] {
                Some(WireValue::Number(seconds @ 1..)) => {
                    let time = Timestamp::from_second(seconds.cast_signed()).ok()?;
                    json!(time.to_string())
                }
                _ => Value::Null,
            },
            ("IntOrString", WireValue::Bytes(bytes)) => match parts(bytes)? {
                // The type: 0 for a number, 1 for a text.
                [Some(WireValue::Number(1)), _, text] => self.value("Text", text?)?,
                [_, number, _] => self.value("Int", number.unwrap_or(WireValue::Number(0)))?,
            },
            (message, WireValue::Bytes(bytes)) => Value::Object(self.message(message, bytes)?),
            (_, WireValue::Number(_)) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: Schema = Schema {
        messages: &[
            (
                "Object",
                "1 name Text, 2 list [Inner], 3 map {Text}, 4 inner Inner, 5 time Time",
            ),
            ("Inner", "1 port IntOrString, 2 flag Bool, 3 number Int"),
        ],
    };

    /// The types of fields that are neither a scalar nor a message of the schema.
    fn unknown_types(schema: &Schema) -> Vec<&'static str> {
        let scalars = "Text Bytes Bool PlainBool Int PlainInt Time IntOrString";
        let messages = schema.messages.iter();
        let fields = messages.flat_map(|(_, fields)| fields.split(", "));
        let types = fields.filter(|field| !field.is_empty()).map(|field| {
            let kind = field.splitn(3, ' ').nth(2).unwrap_or(field);
            kind.trim_matches(['[', ']', '{', '}'])
        });
        let is_message = |kind: &str| schema.messages.iter().any(|(name, _)| *name == kind);
        types
            .filter(|kind| !scalars.split(' ').any(|known| known == *kind) && !is_message(kind))
            .collect()
    }

    #[test]
    fn every_type_is_a_scalar_or_a_message() {
        assert_eq!(unknown_types(&super::super::SCHEMA), [""; 0]);
    }

    fn decode(bytes: &[u8]) -> Option<Value> {
        SCHEMA.decode("Object", bytes).map(Value::Object)
    }

    #[test]
    fn a_field_becomes_what_its_type_says() {
        assert_eq!(unknown_types(&SCHEMA), [""; 0]);
        for (bytes, expected) in [
            (&b"\x0a\x01a"[..], json!({"name": "a"})),
            (b"\x0a\0", json!({})),
            (
                b"\x12\0\x12\x02\x10\x01",
                json!({"list": [{}, {"flag": true}]}),
            ),
            (b"\x1a\x06\x0a\x01k\x12\x01v", json!({"map": {"k": "v"}})),
            (b"\"\x02\x18\0", json!({"inner": {"number": 0}})),
            (
                b"\"\x06\x0a\x04\x10\x50\x1a\0",
                json!({"inner": {"port": 80}}),
            ),
            (
                b"\"\x09\x0a\x07\x08\x01\x1a\x03web",
                json!({"inner": {"port": "web"}}),
            ),
            (b"*\x02\x08\x01", json!({"time": "1970-01-01T00:00:01Z"})),
            (b"*\0", json!({})),
        ] {
            assert_eq!(decode(bytes), Some(expected), "{bytes:?}");
        }
    }

    #[test]
    fn malformed_bytes_are_nothing() {
        for bytes in [
            &b"\x0a"[..],
            b"\x0a\x02a",
            b"\x0b",
            b"\x0a\x01\xff",
            b"\x12\x01\x0a",
            b"\x08\x01",
            b"*\x02\x20\x01",
            // Unknown, also of a fixed width.
            b"\x58\x01\x0a\x01a",
            b"\x51\0\0\0\0\0\0\0\0\x55\0\0\0\0\x0a\x01a",
        ] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn small_bytes_do_not_become_many_items() {
        assert!(decode(&[0x12, 0].repeat(MAX_ITEMS)).is_some());
        assert_eq!(decode(&[0x12, 0].repeat(MAX_ITEMS + 1)), None);
    }
}
