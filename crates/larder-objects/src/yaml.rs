//! YAML text to JSON values, as `kubectl` converts it, with the line of every node. JSON is YAML.
//!
//! The parser yields events, from which this module builds trees. Unlike a deserializer, a tree lets an error name its
//! line, and lets scalars be typed by the rules of `sigs.k8s.io/yaml` (YAML 1.1: `yes` is a boolean, `0644` is octal),
//! for which existing manifests were written.
//!
//! ```text
//! settings ─► YamlDocument ─► value, or a type, or an error with its line
//! manifests ─► chunks ─► nodes ─► value, and the lines of its fields
//! ```
//!
//! Invariants:
//! 1. A document of a manifest that cannot be parsed affects no other: the text is split at its `---` lines before
//!    anything is parsed, as by `kubectl` (apimachinery 1.36, `pkg/util/yaml/decoder.go`). What kubectl reads is read
//!    alike or refused, and what it refuses or passes over is an error, by [`Limits::as_kubernetes`].
//! 2. No error quotes a scalar: it may belong to a Secret. Keys are quoted, since they identify the place.
//! 3. Copies made by anchors and aliases count against [`Limits::copied_bytes`].
//! 4. No tree is deeper than 100 levels, copies included: everything below walks it recursively.
//! 5. The texts of a [`YamlDocument`] are zeroized on drop: settings hold credentials.
//!
//! # Examples
//!
//! ```
//! use larder_objects::yaml::YamlDocument;
//!
//! let document = YamlDocument::parse("ports:\n- 80\n- https\n", 0)?;
//! assert_eq!(document.value()["ports"][0], 80);
//!
//! #[derive(Debug, serde::Deserialize)]
//! struct Settings {
//!     ports: Vec<u16>,
//! }
//! let error = document.decode::<Settings>().unwrap_err();
//! assert_eq!(error.to_string(), "line 3: ports[1]: expected a whole number, found a string");
//! # Ok::<(), larder_objects::yaml::Error>(())
//! ```

mod chunks;
mod kubernetes;
mod scalar;
mod settings;

use std::{collections::HashMap, fmt};

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    FieldPath, PathSegment,
    manifest::{Problem, typed},
    wiped::Wiped,
};

pub(crate) use self::chunks::{Chunk, chunks};
use self::kubernetes::Checker;
pub use self::settings::{ShortOr, field_names};

/// Largest number of mappings and sequences within each other. JSON has a limit of its own, 128, in `serde_json`.
const MAX_DEPTH: usize = 100;
/// Number of characters of a key that an error quotes.
const MAX_SHOWN_KEY: usize = 64;
/// Estimate of the memory of a node beside its text, in bytes.
const NODE_BYTES: usize = 64;

/// Bytes that anchors and aliases of settings may copy; see [`Limits::copied_bytes`].
pub const COPIED_BYTES: usize = 1 << 20;

/// What a text may hold.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of documents.
    pub documents: usize,
    /// Bytes that anchors and aliases may copy: the length of the texts, and 64 for each node. 0 rejects anchors.
    pub copied_bytes: usize,
    /// Whether the last of duplicate keys wins; otherwise, they are an error.
    pub last_key_wins: bool,
    /// Whether what YAML 1.2 has and Kubernetes' YAML lacks is an error.
    pub as_kubernetes: bool,
}

/// One document of a text, with the lines of its fields. Its texts are zeroized on drop, and `Debug` does not show them.
pub struct YamlDocument {
    value: Wiped,
    lines: Node,
}

impl YamlDocument {
    /// The only document of `text`; `null` if nothing is written there. For aliases, see [`Limits::copied_bytes`].
    ///
    /// # Errors
    ///
    /// The text is not YAML, has two documents or a key twice, or copies too much.
    pub fn parse(text: &str, copied_bytes: usize) -> Result<Self, Error> {
        let limits = Limits {
            documents: 1,
            copied_bytes,
            last_key_wins: false,
            as_kubernetes: false,
        };
        match Self::parse_all(text, limits)?.pop() {
            Some(document) => Ok(document),
            None => Self::parse("null", 0),
        }
    }

    /// The documents of `text`, in order.
    ///
    /// # Errors
    ///
    /// The text is not YAML, or exceeds the limits.
    pub fn parse_all(text: &str, mut limits: Limits) -> Result<Vec<Self>, Error> {
        let nodes = parse(Chunk { text, line: 1 }, &mut limits).map_err(Error::without_key)?;
        Ok(nodes.into_iter().map(Self::new).collect())
    }

    fn new(mut lines: Node) -> Self {
        let value = Wiped(lines.take_value());
        Self { value, lines }
    }

    /// The document as JSON.
    pub fn value(&self) -> &Value {
        &self.value.0
    }

    /// The document as a `T`. A field that a struct does not have is ignored, unless the struct denies it.
    ///
    /// # Errors
    ///
    /// A field has another type than in `T`, is missing or is denied, or the lists are too long.
    pub fn decode<'de, T: Deserialize<'de>>(&'de self) -> Result<T, Error> {
        typed::decode(self.value(), &mut Vec::new()).map_err(|problem| match problem {
            Problem::Type { field, problem } => self.error(field, problem),
            Problem::UnknownField { field, .. } => self.unknown(&field),
            other => self.error(other.field(), other.to_string()),
        })
    }

    /// The error of a field that a struct denies: it is on the line of the field, and names the struct's own.
    fn unknown(&self, field: &FieldPath) -> Error {
        let (name, within) = match field.segments() {
            [within @ .., PathSegment::Field(name)] => (name.as_str(), within),
            all => ("", all),
        };
        let name: String = name.chars().take(MAX_SHOWN_KEY).collect();
        Error {
            line: self.line_of(field),
            kind: ErrorKind::Type,
            field: within.iter().cloned().collect(),
            problem: format!("unknown field {name:?}"),
        }
    }

    /// An error of a field that was decoded, and whose value cannot be used. The problem must not quote it.
    pub fn error(&self, field: FieldPath, problem: impl Into<String>) -> Error {
        Error {
            line: self.line_of(&field),
            kind: ErrorKind::Type,
            field,
            problem: problem.into(),
        }
    }

    /// Removes the fields of the outermost mapping that `is_kept` does not name, and returns their names, sorted.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) -> Vec<String> {
        let Value::Object(fields) = &mut self.value.0 else {
            return Vec::new();
        };
        let mut removed = Vec::new();
        fields.retain(|name, value| {
            let is_kept = is_kept(name);
            if !is_kept {
                Wiped(value.take());
                removed.push(name.clone());
            }
            is_kept
        });
        removed.sort_unstable();
        removed
    }

    /// Line of the innermost field that exists on the way along `path`, from 1: that of its value.
    pub fn line_of(&self, path: &FieldPath) -> usize {
        self.lines.line_of(path.segments())
    }
}

impl fmt::Debug for YamlDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("YamlDocument").finish_non_exhaustive()
    }
}

/// Why a text, or a document of it, is rejected. Quotes no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field}{}{problem}", if field.segments().is_empty() { "" } else { ": " })]
pub struct Error {
    /// Line of the text, from 1.
    pub line: usize,
    /// The kind of the problem.
    pub kind: ErrorKind,
    /// The field, if it is known; else the root.
    pub field: FieldPath,
    /// The problem.
    pub problem: String,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not YAML that Kubernetes would take.
    Syntax,
    /// A mapping has a key twice. The problem names the key.
    DuplicateKey,
    /// Too deep, too many documents or too many copies.
    Limit,
    /// A field does not have the expected form.
    Type,
}

impl Error {
    fn new(kind: ErrorKind, line: usize, problem: impl Into<String>) -> Self {
        Self {
            line,
            kind,
            field: FieldPath::root(),
            problem: problem.into(),
        }
    }

    /// In settings, a key that stands there twice may be a value on the wrong side of the colon.
    fn without_key(mut self) -> Self {
        if self.kind == ErrorKind::DuplicateKey {
            "duplicate field".clone_into(&mut self.problem);
        }
        self
    }

    fn syntax(line: usize, problem: impl Into<String>) -> Self {
        Self::new(ErrorKind::Syntax, line, problem)
    }
}

/// Next line, line separator and paragraph separator: line breaks of YAML 1.1, which Kubernetes reads, and not of 1.2.
const LINE_BREAKS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// The documents of a chunk, in order. Usually one; `...` may separate more. What is copied is taken off the limits.
///
/// Kubernetes' YAML takes three more characters as line breaks, so that text after them is no comment there. They are
/// rejected, since the rules of YAML 1.2 give them another meaning.
pub(crate) fn parse(chunk: Chunk<'_>, limits: &mut Limits) -> Result<Vec<Node>, Error> {
    if let Some(at) = chunk.text.find(LINE_BREAKS) {
        let line = chunk.line + chunk.text[..at].matches('\n').count();
        let character = chunk.text[at..].chars().next().map_or(0, u32::from);
        let problem =
            format!("the character U+{character:04X} is a line break to Kubernetes: escape it");
        return Err(Error::syntax(line, problem));
    }
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder {
        events: Parser::new_from_str_with_options(chunk.text, options),
        kubernetes: limits.as_kubernetes.then(|| Checker::new(chunk.text)),
        first_line: chunk.line,
        anchors: HashMap::new(),
        limits,
        depth: 0,
    };
    let mut documents = Vec::new();
    while let Some((event, span)) = builder.next()? {
        if let Event::DocumentStart(..) = event {
            let most = builder.limits.documents;
            if documents.len() == most {
                let problem = format!("too many documents: at most {most}");
                return Err(Error::new(ErrorKind::Limit, builder.line(span), problem));
            }
            builder.anchors.clear();
            let (event, span) = builder.expect_next()?;
            documents.push(builder.node(event, span)?);
        }
    }
    Ok(documents)
}

/// A YAML node with the line on which it begins.
///
/// Also the map of a document's lines, once its value is [taken](Node::take_value).
#[derive(Clone)]
pub(crate) struct Node {
    /// Line of the file, from 1.
    pub(crate) line: usize,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Scalar(Wiped),
    Sequence(Vec<Node>),
    /// Sorted by name; no key twice.
    Mapping(Vec<(String, Node)>),
}

impl Node {
    /// Whether nothing is written here.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(Wiped(Value::Null)))
    }

    /// The JSON form. Moves the text of the scalars out, and leaves keys and lines.
    pub(crate) fn take_value(&mut self) -> Value {
        match &mut self.content {
            Content::Scalar(Wiped(value)) => value.take(),
            Content::Sequence(nodes) => nodes.iter_mut().map(Self::take_value).collect(),
            Content::Mapping(entries) => entries
                .iter_mut()
                .map(|(key, node)| (key.clone(), node.take_value()))
                .collect(),
        }
    }

    /// Line of the deepest node that exists on the way along `path`.
    pub(crate) fn line_of(&self, path: &[PathSegment]) -> usize {
        let child = path.split_first().and_then(|(segment, rest)| {
            let child = match (segment, &self.content) {
                (PathSegment::Field(key) | PathSegment::Key(key), Content::Mapping(entries)) => {
                    entries
                        .binary_search_by(|(name, _)| (**name).cmp(key))
                        .ok()
                        .map(|place| &entries[place].1)
                }
                (PathSegment::Index(index), Content::Sequence(nodes)) => nodes.get(*index),
                _ => None,
            };
            Some((child?, rest))
        });
        child.map_or(self.line, |(child, rest)| child.line_of(rest))
    }
}

struct Builder<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// What Kubernetes refuses, if that counts.
    kubernetes: Option<Checker<'a>>,
    first_line: usize,
    anchors: HashMap<usize, Anchored>,
    limits: &'a mut Limits,
    /// Number of the mappings and sequences that are open.
    depth: usize,
}

/// A node that aliases may copy.
struct Anchored {
    node: Node,
    /// The size of a copy, in bytes.
    size: usize,
    /// Number of the mappings and sequences within each other.
    height: usize,
}

impl<'a> Builder<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Error> {
        let next = self.events.next().transpose().map_err(|error| {
            let line = self.first_line + error.marker().line().max(1) - 1;
            Error::syntax(line, error.info())
        })?;
        if let (Some((event, span)), Some(kubernetes)) = (&next, &mut self.kubernetes) {
            let checked = kubernetes.check(event, *span);
            checked
                .map_err(|(line, problem)| Error::syntax(self.first_line + line - 1, problem))?;
        }
        Ok(next)
    }

    fn expect_next(&mut self) -> Result<(Event<'a>, Span), Error> {
        self.next()?
            .ok_or_else(|| Error::syntax(self.first_line, "unexpected end"))
    }

    /// The node that begins with `event`, to its end.
    fn node(&mut self, event: Event<'a>, span: Span) -> Result<Node, Error> {
        let line = self.line(span);
        let (content, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref())
                    .map_err(|problem| Error::syntax(line, problem))?;
                // A block scalar's text moves; nothing else is worth the trouble.
                let value = value.unwrap_or_else(|| Value::String(text.into_owned()));
                (Content::Scalar(Wiped(value)), anchor)
            }
            Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _) => {
                self.check_depth(1, line)?;
                self.depth += 1;
                let content = match event {
                    Event::SequenceStart(..) => Content::Sequence(self.sequence()?),
                    _ => Content::Mapping(self.mapping()?),
                };
                self.depth -= 1;
                (content, anchor)
            }
            Event::Alias(anchor) => return self.alias(anchor, line),
            _ => return Err(Error::syntax(line, "unexpected event")),
        };
        let node = Node { line, content };
        if anchor != 0 {
            let (size, height) = measure(&node);
            self.spend(size, line)?;
            let copy = node.clone();
            let anchored = Anchored {
                node: copy,
                size,
                height,
            };
            self.anchors.insert(anchor, anchored);
        }
        Ok(node)
    }

    fn sequence(&mut self) -> Result<Vec<Node>, Error> {
        let mut nodes = Vec::new();
        loop {
            match self.expect_next()? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, span) => nodes.push(self.node(event, span)?),
            }
        }
    }

    fn mapping(&mut self) -> Result<Vec<(String, Node)>, Error> {
        let (mut entries, mut merged) = (Vec::new(), Vec::new());
        loop {
            let (event, span) = self.expect_next()?;
            if let Event::MappingEnd = event {
                break;
            }
            let line = self.line(span);
            let is_merge_key = is_merge_key(&event);
            if is_merge_key
                && self.kubernetes.is_some()
                && !(entries.is_empty() && merged.is_empty())
            {
                let problem = "to Kubernetes, a merge key (<<) wins over what stands before it: write one, as the first \
                               key; it takes several mappings as [*a, *b]";
                return Err(Error::syntax(line, problem));
            }
            let key = self.node(event, span)?;
            let (event, span) = self.expect_next()?;
            let is_alias = matches!(event, Event::Alias(_));
            let value = self.node(event, span)?;
            if is_merge_key {
                merged.extend(merge_sources(value, is_alias)?);
            } else {
                entries.push((key_name(key)?, value, line));
            }
        }
        if self.limits.last_key_wins {
            entries.reverse();
        }
        entries.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        let twice = entries.windows(2).find(|pair| pair[0].0 == pair[1].0);
        if let (Some([(name, _, first), (.., next)]), false) = (twice, self.limits.last_key_wins) {
            let name: String = name.chars().take(MAX_SHOWN_KEY).collect();
            let problem = format!("key {name:?} is already set on line {first}");
            return Err(Error::new(ErrorKind::DuplicateKey, *next, problem));
        }
        // Keys of the mapping itself win over merged ones; of these, the first.
        let mut entries: Vec<_> = entries
            .into_iter()
            .map(|(name, value, _)| (name, value))
            .chain(merged)
            .collect();
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries.dedup_by(|next, first| next.0 == first.0);
        Ok(entries)
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<Node, Error> {
        // An anchor is known only once its node is complete, so a node that contains itself is rejected here.
        let Some(&Anchored { size, height, .. }) = self.anchors.get(&anchor) else {
            let problem = "an alias refers to the node that contains it";
            return Err(Error::syntax(line, problem));
        };
        self.check_depth(height, line)?;
        self.spend(size, line)?;
        Ok(self.anchors[&anchor].node.clone())
    }

    /// Whether there is room for `more` mappings and sequences within each other.
    fn check_depth(&self, more: usize, line: usize) -> Result<(), Error> {
        if self.depth + more > MAX_DEPTH {
            let problem = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(Error::new(ErrorKind::Limit, line, problem));
        }
        Ok(())
    }

    fn spend(&mut self, size: usize, line: usize) -> Result<(), Error> {
        let left = self.limits.copied_bytes.checked_sub(size).ok_or_else(|| {
            let problem = "aliases repeat too much of the text";
            Error::new(ErrorKind::Limit, line, problem)
        })?;
        self.limits.copied_bytes = left;
        Ok(())
    }

    fn line(&self, span: Span) -> usize {
        self.first_line + span.start.line().max(1) - 1
    }
}

/// Whether the node that begins with `event` is a merge key, if it is a key (`go.yaml.in/yaml/v2`, `decode.go`).
fn is_merge_key(event: &Event<'_>) -> bool {
    let Event::Scalar(text, style, _, tag) = event else {
        return false;
    };
    let tag = tag
        .as_deref()
        .map(|tag| [tag.handle(), tag.suffix()].concat());
    let is_merge = match tag.as_deref() {
        None => *style == ScalarStyle::Plain,
        Some(tag) => matches!(tag, "!" | "tag:yaml.org,2002:merge"),
    };
    is_merge && text == "<<"
}

/// What `<<: value` brings in: a mapping, or several in a sequence, of which the earlier win. As in Kubernetes, an alias
/// stands for no sequence.
fn merge_sources(value: Node, is_alias: bool) -> Result<Vec<(String, Node)>, Error> {
    let line = value.line;
    let sources = match value.content {
        Content::Sequence(nodes) if !is_alias => nodes,
        _ => vec![value],
    };
    let mut entries = Vec::new();
    for source in sources {
        let Content::Mapping(more) = source.content else {
            let problem = "a merge key (<<) takes a mapping or a sequence of mappings";
            return Err(Error::syntax(line, problem));
        };
        entries.extend(more);
    }
    Ok(entries)
}

/// A key as JSON has it: numbers and booleans become their text.
fn key_name(mut key: Node) -> Result<String, Error> {
    match key.take_value() {
        Value::String(name) => Ok(name),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        _ => {
            let problem = "a key must be text, a number or a boolean";
            Err(Error::syntax(key.line, problem))
        }
    }
}

/// The value of a scalar; `None` when it is its own text.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Option<Value>, String> {
    let yaml_tag = tag.and_then(|tag| tag.suffix_in_namespace("tag:yaml.org,2002:"));
    match yaml_tag.as_deref() {
        Some("str") => Ok(None),
        Some("binary") => scalar::binary(text).map(Some),
        Some("int" | "float" | "bool" | "null") => match scalar::plain(text)? {
            None => Err("a value is not of the type of its tag".to_owned()),
            value => Ok(value),
        },
        Some("timestamp") => scalar::plain(text),
        // Tags of others say nothing that JSON could hold.
        _ if tag.is_some() => Ok(None),
        _ if style == ScalarStyle::Plain => scalar::plain(text),
        _ => Ok(None),
    }
}

/// Memory of `node` in bytes, and the number of the mappings and sequences within each other.
fn measure(node: &Node) -> (usize, usize) {
    let within = |sizes: &mut dyn Iterator<Item = (usize, usize)>| {
        sizes.fold((NODE_BYTES, 1), |(size, height), (more, below)| {
            (size.saturating_add(more), height.max(below + 1))
        })
    };
    match &node.content {
        Content::Scalar(Wiped(Value::String(text))) => (NODE_BYTES + text.len(), 0),
        Content::Scalar(_) => (NODE_BYTES, 0),
        Content::Sequence(nodes) => within(&mut nodes.iter().map(measure)),
        Content::Mapping(entries) => within(&mut entries.iter().map(|(key, node)| {
            let (size, height) = measure(node);
            (size + key.len(), height)
        })),
    }
}

#[cfg(test)]
mod tests;
