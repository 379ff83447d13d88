//! Kubernetes' protobuf form of objects, read into the JSON form.
//!
//! A [`MessageSchema`] has the fields that a reader knows; any other is an error. No code is generated.
//!
//! Invariants:
//! 1. The cost grows with the bytes. The nesting of the schemas, which are constants and so cannot be circular, bounds
//!    the depth; [`MAX_ITEMS`] bounds what small bytes can become.
//! 2. Malformed bytes are `None`, and nothing of them is quoted.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// Most items of lists and maps in one object. Decoded, an item of two bytes may take kilobytes.
const MAX_ITEMS: usize = 20_000;

/// A message, with the fields that may be in it.
#[derive(Debug)]
pub(super) struct MessageSchema(pub(super) &'static [FieldSchema]);

/// A field of a message.
#[derive(Debug)]
pub(super) struct FieldSchema {
    number: u64,
    /// As JSON names it.
    name: &'static str,
    count: Count,
    field_type: FieldType,
}

/// How often a field may be in a message, and what JSON has for it.
#[derive(Debug)]
enum Count {
    One,
    List,
    /// Entries with a text as key.
    Map,
}

/// The type of a field, or of its items.
#[derive(Debug)]
pub(super) enum FieldType {
    Text,
    Bytes,
    Bool,
    Int,
    /// Go writes it though it is false, which JSON leaves out.
    PlainBool,
    /// Go writes it though it is zero, which JSON leaves out.
    PlainInt,
    Time,
    IntOrString,
    Message(&'static MessageSchema),
}

pub(super) const fn one(number: u64, name: &'static str, field_type: FieldType) -> FieldSchema {
    FieldSchema {
        number,
        name,
        count: Count::One,
        field_type,
    }
}

pub(super) const fn list(number: u64, name: &'static str, field_type: FieldType) -> FieldSchema {
    FieldSchema {
        number,
        name,
        count: Count::List,
        field_type,
    }
}

pub(super) const fn map(number: u64, name: &'static str, field_type: FieldType) -> FieldSchema {
    FieldSchema {
        number,
        name,
        count: Count::Map,
        field_type,
    }
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

impl FieldType {
    /// What an entry without a value stands for.
    fn default(&self) -> Value {
        match self {
            Self::PlainInt => json!(0),
            Self::PlainBool => json!(false),
            _ => json!(""),
        }
    }

    /// Whether JSON leaves a field out that has this value.
    fn omits(&self, value: &Value) -> bool {
        match self {
            Self::Text | Self::PlainInt | Self::PlainBool => *value == self.default(),
            _ => value.is_null(),
        }
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

impl MessageSchema {
    /// The object that `bytes` stand for. `None` if they are malformed, have more than [`MAX_ITEMS`] items, or hold a
    /// field that the schema does not know.
    pub(super) fn decode(&self, bytes: &[u8]) -> Option<Map<String, Value>> {
        Decoder { items: 0 }.message(self, bytes)
    }
}

/// Reads one object.
struct Decoder {
    /// Number of the items so far.
    items: usize,
}

impl Decoder {
    fn message(&mut self, schema: &MessageSchema, bytes: &[u8]) -> Option<Map<String, Value>> {
        let mut object = Map::new();
        for field in fields(bytes) {
            let (number, wire) = field?;
            let declared = schema.0.iter().find(|field| field.number == number)?;
            let (name, field_type) = (declared.name, &declared.field_type);
            match declared.count {
                Count::One => {
                    let value = self.value(field_type, wire)?;
                    if !field_type.omits(&value) {
                        object.insert(name.to_owned(), value);
                    }
                }
                Count::List => {
                    self.items += 1;
                    let list = object.entry(name).or_insert_with(|| json!([]));
                    list.as_array_mut()?.push(self.value(field_type, wire)?);
                }
                Count::Map => {
                    self.items += 1;
                    let (key, held) = self.entry(field_type, wire)?;
                    object.entry(name).or_insert_with(|| json!({}))[key] = held;
                }
            }
            if self.items > MAX_ITEMS {
                return None;
            }
        }
        Some(object)
    }

    /// One entry of a map.
    fn entry(&mut self, item: &FieldType, wire: WireValue<'_>) -> Option<(String, Value)> {
        let (mut key, mut held) = (String::new(), item.default());
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

    fn value(&mut self, field_type: &FieldType, wire: WireValue<'_>) -> Option<Value> {
        use FieldType::{Bool, Bytes, Int, IntOrString, Message, PlainBool, PlainInt, Text, Time};
        Some(match (field_type, wire) {
            (Text, WireValue::Bytes(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
            (Bytes, WireValue::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
            (Bool | PlainBool, WireValue::Number(number)) => json!(number != 0),
            // Negative numbers are written as 64-bit two's complement.
            (Int | PlainInt, WireValue::Number(number)) => json!(number.cast_signed()),
            (Time, WireValue::Bytes(bytes)) => match parts(bytes)?[0] {
                Some(WireValue::Number(seconds @ 1..)) => {
                    let time = Timestamp::from_second(seconds.cast_signed()).ok()?;
                    json!(time.to_string())
                }
                _ => Value::Null,
            },
            (IntOrString, WireValue::Bytes(bytes)) => match parts(bytes)? {
                // The type: 0 for a number, 1 for a text.
                [Some(WireValue::Number(1)), _, text] => self.value(&Text, text?)?,
                [_, number, _] => self.value(&Int, number.unwrap_or(WireValue::Number(0)))?,
            },
            (Message(schema), WireValue::Bytes(bytes)) => {
                Value::Object(self.message(schema, bytes)?)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: MessageSchema = MessageSchema(&[
        one(1, "port", FieldType::IntOrString),
        one(2, "flag", FieldType::Bool),
        one(3, "number", FieldType::Int),
    ]);
    const OBJECT: MessageSchema = MessageSchema(&[
        one(1, "name", FieldType::Text),
        list(2, "list", FieldType::Message(&INNER)),
        map(3, "map", FieldType::Text),
        one(4, "inner", FieldType::Message(&INNER)),
        one(5, "time", FieldType::Time),
    ]);

    fn decode(bytes: &[u8]) -> Option<Value> {
        OBJECT.decode(bytes).map(Value::Object)
    }

    #[test]
    fn a_field_becomes_what_its_type_says() {
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
