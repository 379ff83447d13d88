//! Mutations that keep the structure of an input: a tree stays a tree, and DER keeps its lengths right.
//!
//! Most changes of bytes end at the first rule of a format. These changes get past it, to the rules behind.

use std::str;

use fastrand::Rng;
use larder_objects::yaml::{COPIED_BYTES, YamlDocument};
use serde_json::{Map, Value};

/// How the inputs of a target are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Structure {
    /// Bytes without any.
    Bytes,
    /// YAML or JSON documents, after so many bytes that choose something.
    Tree {
        /// Number of bytes before the documents.
        prefix: usize,
    },
    /// PEM, or DER as it is in PEM.
    Der,
}

impl Structure {
    /// One to four changes of `input`, with parts of `other` and of `words`; `None` if it does not have this structure.
    pub(crate) fn mutate(
        self,
        input: &[u8],
        other: &[u8],
        words: &[String],
        rng: &mut Rng,
    ) -> Option<Vec<u8>> {
        match self {
            Self::Bytes => None,
            Self::Tree { prefix } => {
                let (head, text) = input.split_at_checked(prefix)?;
                let mut documents = self::documents(text)?;
                let others = other
                    .get(prefix..)
                    .and_then(self::documents)
                    .unwrap_or_default();
                for _ in 0..rng.usize(1..=4) {
                    change_documents(&mut documents, &others, words, rng);
                }
                let texts: Vec<_> = documents.iter().map(ToString::to_string).collect();
                Some([head, texts.join("\n---\n").as_bytes()].concat())
            }
            Self::Der => {
                let mut nodes = nodes(&der(input))?;
                for _ in 0..rng.usize(1..=3) {
                    let others = self::nodes(&der(other));
                    change_nodes(&mut nodes, &others.unwrap_or_default(), rng);
                }
                Some(nodes.iter().flat_map(Node::encoded).collect())
            }
        }
    }
}

fn documents(text: &[u8]) -> Option<Vec<Value>> {
    let text = str::from_utf8(text).ok()?;
    let read = |document: &str| {
        let json = serde_json::from_str(document);
        json.ok().or_else(|| {
            Some(
                YamlDocument::parse(document, COPIED_BYTES)
                    .ok()?
                    .value()
                    .clone(),
            )
        })
    };
    text.split("\n---\n").map(read).collect()
}

fn change_documents(documents: &mut Vec<Value>, others: &[Value], words: &[String], rng: &mut Rng) {
    match rng.u8(..16) {
        0 if documents.len() > 1 => drop(documents.remove(rng.usize(..documents.len()))),
        1 if !others.is_empty() => documents.push(others[rng.usize(..others.len())].clone()),
        _ => {
            let document = rng.usize(..documents.len());
            let at = rng.usize(..size(&documents[document]));
            let part = others.get(rng.usize(..others.len().max(1))).map(|other| {
                let at = rng.usize(..size(other));
                nth(other, at)
            });
            let target =
                nth_mut(&mut documents[document], &mut { at }).expect("it has so many nodes");
            change(target, part, words, rng);
        }
    }
}

fn change(target: &mut Value, part: Option<&Value>, words: &[String], rng: &mut Rng) {
    let word = rng.choice(words).cloned().unwrap_or_default();
    let scalar = |rng: &mut Rng, word: String| match rng.u8(..8) {
        0 => Value::Null,
        1 => rng.bool().into(),
        2 => rng.i64(..).into(),
        3 => rng.i64(-1..4).into(),
        4 => Value::String(String::new()),
        5 => Value::Array(Vec::new()),
        _ => word.into(),
    };
    match target {
        Value::Object(fields) if !fields.is_empty() && rng.u8(..4) > 0 => {
            change_fields(fields, part, &word, rng);
        }
        Value::Array(items) if !items.is_empty() && rng.u8(..4) > 0 => {
            let at = rng.usize(..items.len());
            match (rng.u8(..3), part) {
                (0, _) => drop(items.remove(at)),
                (1, Some(part)) => items.insert(at, part.clone()),
                _ => items.insert(at, items[at].clone()),
            }
        }
        Value::String(text) if rng.bool() => {
            let at = text.floor_char_boundary(rng.usize(..=text.len()));
            if rng.bool() {
                text.insert_str(at, &word);
            } else {
                text.truncate(at);
            }
        }
        _ => match part {
            Some(part) if rng.bool() => *target = part.clone(),
            _ => *target = scalar(rng, word),
        },
    }
}

fn change_fields(fields: &mut Map<String, Value>, part: Option<&Value>, word: &str, rng: &mut Rng) {
    let at = rng.usize(..fields.len());
    let key = fields
        .keys()
        .nth(at)
        .expect("it has so many fields")
        .clone();
    match (rng.u8(..5), part) {
        (0, _) => drop(fields.remove(&key)),
        (1, Some(Value::Object(others))) => fields.extend(others.clone()),
        (2, Some(part)) => drop(fields.insert(key, part.clone())),
        (3, _) => {
            let value = fields.remove(&key).unwrap_or_default();
            fields.insert(word.trim_end_matches([':', ' ']).to_owned(), value);
        }
        _ => {
            let other = rng.usize(..fields.len());
            let value = fields.values().nth(other).cloned();
            fields.insert(key, value.unwrap_or_default());
        }
    }
}

/// Number of nodes.
fn size(value: &Value) -> usize {
    1 + children(value).map(size).sum::<usize>()
}

fn children(value: &Value) -> impl Iterator<Item = &Value> {
    let (items, fields) = (value.as_array(), value.as_object());
    let fields = fields.into_iter().flat_map(Map::values);
    items.into_iter().flatten().chain(fields)
}

fn nth(value: &Value, mut at: usize) -> &Value {
    for child in children(value) {
        let size = size(child);
        if (1..=size).contains(&at) {
            return nth(child, at - 1);
        }
        at = at.saturating_sub(size);
    }
    value
}

fn nth_mut<'a>(value: &'a mut Value, at: &mut usize) -> Option<&'a mut Value> {
    if *at == 0 {
        return Some(value);
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth_mut(item, at)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth_mut(field, at)),
        _ => None,
    }
}

/// One element of DER.
#[derive(Clone, Debug)]
struct Node {
    tag: u8,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Bytes(Vec<u8>),
    Nodes(Vec<Node>),
}

impl Node {
    fn encoded(&self) -> Vec<u8> {
        let content = match &self.content {
            Content::Bytes(bytes) => bytes.clone(),
            Content::Nodes(nodes) => nodes.iter().flat_map(Self::encoded).collect(),
        };
        let length = u16::try_from(content.len()).unwrap_or(u16::MAX);
        let [high, low] = length.to_be_bytes();
        let head = match length {
            0..0x80 => vec![self.tag, low],
            0x80..0x100 => vec![self.tag, 0x81, low],
            _ => vec![self.tag, 0x82, high, low],
        };
        [head, content].concat()
    }
}

/// The first block of PEM, or `input` itself.
fn der(input: &[u8]) -> Vec<u8> {
    let text = str::from_utf8(input).unwrap_or_default();
    let block = larder_objects::pem::blocks(text).into_iter().next();
    block.map_or_else(|| input.to_vec(), |block| block.der)
}

/// The elements of which `der` consists, and theirs.
fn nodes(mut der: &[u8]) -> Option<Vec<Node>> {
    let mut nodes = Vec::new();
    while let [tag, length, rest @ ..] = der {
        let (length, rest) = match (length, rest) {
            (0..=0x7f, rest) => (usize::from(*length), rest),
            (0x81, [length, rest @ ..]) => (usize::from(*length), rest),
            (0x82, [high, low, rest @ ..]) => {
                (usize::from(u16::from_be_bytes([*high, *low])), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let constructed = (tag & 0x20 != 0).then(|| self::nodes(content)).flatten();
        let content = constructed.map_or_else(|| Content::Bytes(content.to_vec()), Content::Nodes);
        nodes.push(Node { tag: *tag, content });
        der = rest;
    }
    (der.is_empty() && !nodes.is_empty()).then_some(nodes)
}

fn change_nodes(nodes: &mut Vec<Node>, others: &[Node], rng: &mut Rng) {
    let at = rng.usize(..nodes.len());
    if let Content::Nodes(inner) = &mut nodes[at].content
        && !inner.is_empty()
        && rng.u8(..8) > 0
    {
        let others = others.iter().find_map(|other| match &other.content {
            Content::Nodes(inner) => Some(inner.as_slice()),
            Content::Bytes(_) => None,
        });
        return change_nodes(inner, others.unwrap_or_default(), rng);
    }
    match rng.u8(..6) {
        0 if nodes.len() > 1 => drop(nodes.remove(at)),
        1 => nodes.insert(at, nodes[at].clone()),
        2 if !others.is_empty() => nodes[at] = others[rng.usize(..others.len())].clone(),
        3 => nodes[at].tag ^= 1 << rng.u8(..8),
        _ => match &mut nodes[at].content {
            Content::Bytes(bytes) if !bytes.is_empty() => {
                let byte = rng.usize(..bytes.len());
                if rng.bool() {
                    bytes[byte] = rng.u8(..);
                } else {
                    bytes.truncate(byte);
                }
            }
            _ => nodes[at].tag = rng.u8(..),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_trees_and_der_are_read_again() {
        let mut rng = Rng::with_seed(1);
        let words = ["name: ", "x"].map(str::to_owned);
        let mut tree = b"cspec: {containers: [{name: c}]}\n---\n[1, 2]\n".to_vec();
        let mut der = crate::targets::repository_file("crates/larder-objects/src/x509/leaf.pem");
        assert_eq!(nodes(&self::der(&der)).unwrap().len(), 1);
        for _ in 0..500 {
            let structure = Structure::Tree { prefix: 1 };
            tree = structure.mutate(&tree, &tree, &words, &mut rng).unwrap();
            assert!(tree.starts_with(b"c") && documents(&tree[1..]).is_some());
            tree.truncate(if tree.len() > 10_000 { 1 } else { tree.len() });
            if tree.len() == 1 {
                tree.extend(b"{}");
            }
            let changed = Structure::Der.mutate(&der, &der, &[], &mut rng).unwrap();
            if changed.len() < 10_000 {
                der = changed;
            }
        }
    }
}
