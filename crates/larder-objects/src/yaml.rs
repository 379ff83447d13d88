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
//!    alike or refused, and what it passes over is an error. Some texts that it refuses are read: a file of YAML that
//!    begins with a brace, keys of several lines, `\/`.
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
mod scalar;

use std::{collections::HashMap, fmt};

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, Tag};
use serde::Deserialize;
use serde_json::Value;

use crate::{FieldPath, PathSegment, manifest::typed, wiped::Wiped};

pub(crate) use self::chunks::{Chunk, chunks};

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
        let nodes = parse(Chunk { text, line: 1 }, &mut limits)?;
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
        typed::decode(self.value(), &mut Vec::new()).map_err(|problem| {
            let line = self.line_of(&problem.field());
            Error::new(ErrorKind::Type, line, problem.to_string())
        })
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
#[error("line {line}: {problem}")]
pub struct Error {
    /// Line of the text, from 1.
    pub line: usize,
    /// The kind of the problem.
    pub kind: ErrorKind,
    /// The field, if it is known, and the problem.
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
    /// A field does not have the expected type.
    Type,
}

impl Error {
    fn new(kind: ErrorKind, line: usize, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self {
            line,
            kind,
            problem,
        }
    }

    fn syntax(line: usize, problem: impl Into<String>) -> Self {
        Self::new(ErrorKind::Syntax, line, problem)
    }
}

/// Next line, line separator and paragraph separator: line breaks of YAML 1.1, which Kubernetes reads, and not of 1.2.
pub(crate) const LINE_BREAKS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

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
        text: chunk.text,
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
            Content::Mapping(entries) => {
                let entries = entries.iter_mut();
                entries
                    .map(|(key, node)| (key.clone(), node.take_value()))
                    .collect()
            }
        }
    }

    /// Line of the deepest node that exists on the way along `path`.
    pub(crate) fn line_of(&self, path: &[PathSegment]) -> usize {
        let child = path.split_first().and_then(|(segment, rest)| {
            let child = match (segment, &self.content) {
                (PathSegment::Field(key) | PathSegment::Key(key), Content::Mapping(entries)) => {
                    let place = entries.binary_search_by(|(name, _)| (**name).cmp(key));
                    place.ok().map(|place| &entries[place].1)
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
    text: &'a str,
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
        self.events.next().transpose().map_err(|error| {
            let line = self.first_line + error.marker().line().max(1) - 1;
            Error::syntax(line, error.info())
        })
    }

    fn expect_next(&mut self) -> Result<(Event<'a>, Span), Error> {
        let next = self.next()?;
        next.ok_or_else(|| Error::syntax(self.first_line, "unexpected end"))
    }

    /// The node that begins with `event`, to its end.
    fn node(&mut self, event: Event<'a>, span: Span) -> Result<Node, Error> {
        let line = self.line(span);
        let (content, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.check_escapes(style, span)?;
                let value = scalar(&text, style, tag.as_deref())
                    .map_err(|problem| Error::syntax(line, problem))?;
                // A block scalar's text moves; nothing else is worth the trouble.
                let value = value.unwrap_or_else(|| Value::String(text.into_owned()));
                (Content::Scalar(Wiped(value)), anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.check_depth(1, line)?;
                self.depth += 1;
                let nodes = self.sequence()?;
                self.depth -= 1;
                (Content::Sequence(nodes), anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                self.check_depth(1, line)?;
                self.depth += 1;
                let entries = self.mapping()?;
                self.depth -= 1;
                (Content::Mapping(entries), anchor)
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
            let is_merge_key =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key_span = matches!(&event, Event::Scalar(..)).then_some(span);
            let key = self.node(event, span)?;
            let (event, span) = self.expect_next()?;
            if let Some(key) = key_span {
                self.check_key(key, span)?;
            }
            let value = self.node(event, span)?;
            if is_merge_key {
                merged.extend(merge_sources(value)?);
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
        let entries = entries.into_iter().map(|(name, value, _)| (name, value));
        let mut entries: Vec<_> = entries.chain(merged).collect();
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries.dedup_by(|next, first| next.0 == first.0);
        Ok(entries)
    }

    /// YAML 1.2 has taken the escape `\/` from JSON, and Kubernetes' YAML lacks it.
    fn check_escapes(&self, style: ScalarStyle, span: Span) -> Result<(), Error> {
        let is_quoted = style == ScalarStyle::DoubleQuoted && self.limits.as_kubernetes;
        let written = span.slice(self.text).filter(|_| is_quoted);
        let mut bytes = written.unwrap_or_default().bytes();
        while let Some(byte) = bytes.next() {
            if byte == b'\\' && bytes.next() == Some(b'/') {
                let problem = "\\/ is no escape to Kubernetes: write /";
                return Err(Error::syntax(self.line(span), problem));
            }
        }
        Ok(())
    }

    /// To Kubernetes, a key without `?` and its colon are on one line.
    fn check_key(&self, key: Span, value: Span) -> Result<(), Error> {
        let (Some(key_range), Some(value_range)) = (key.byte_range(), value.byte_range()) else {
            return Ok(());
        };
        if !self.limits.as_kubernetes {
            return Ok(());
        }
        let before = self.text.get(..key_range.start).unwrap_or_default();
        let after = self.text.get(key_range.end..value_range.start);
        let to_colon = after.and_then(|after| after.split_once(':'));
        let has_break = key.start.line() != key.end.line()
            || to_colon.is_some_and(|(to_colon, _)| to_colon.contains('\n'));
        if has_break && !before.trim_end().ends_with('?') {
            let problem = "a key and its colon are on one line";
            return Err(Error::syntax(self.line(key), problem));
        }
        Ok(())
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

/// What `<<: value` brings in: a mapping, or several in a sequence, of which the earlier win.
fn merge_sources(value: Node) -> Result<Vec<(String, Node)>, Error> {
    let line = value.line;
    let sources = match value.content {
        Content::Sequence(nodes) => nodes,
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
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::FieldPath;

    fn limits(copied_bytes: usize) -> Limits {
        Limits {
            documents: 16,
            copied_bytes,
            last_key_wins: false,
            as_kubernetes: false,
        }
    }

    #[test]
    fn line_breaks_of_kubernetes_hide_nothing() {
        for (character, code) in [
            ('\u{85}', "0085"),
            ('\u{2028}', "2028"),
            ('\u{2029}', "2029"),
        ] {
            // kubectl sees a second key after the comment, and a line break in the text.
            for text in ["a: 1\n# x@b: 2\n", "a: 1\nc: 'x@b: 2'\n"] {
                let text = text.replace('@', &character.to_string());
                let error = parse_one(Chunk {
                    text: &text,
                    line: 1,
                })
                .err()
                .unwrap();
                assert_eq!(error.line, 2);
                assert!(error.problem.contains(code), "{}", error.problem);
            }
        }
        let text = r#"a: "x\Ly\Pz\N""#;
        let mut documents = parse_one(Chunk { text, line: 1 }).unwrap();
        assert_eq!(documents[0].take_value()["a"], "x\u{2028}y\u{2029}z\u{85}");
    }

    fn parse_one(chunk: Chunk<'_>) -> Result<Vec<Node>, Error> {
        parse(chunk, &mut limits(1 << 20))
    }

    /// Every document as one line of JSON with its line, or the error.
    #[track_caller]
    fn check(text: &str, expected: Expect) {
        let mut shown = Vec::new();
        for chunk in chunks(text) {
            match parse_one(chunk) {
                Ok(documents) => {
                    for mut node in documents {
                        let line = node.line;
                        shown.push(format!("{line}: {}\n", node.take_value()));
                    }
                }
                Err(error) => shown.push(format!("line {}: {}\n", error.line, error.problem)),
            }
        }
        expected.assert_eq(&shown.concat());
    }

    #[test]
    fn documents_keep_their_lines_and_a_bad_one_costs_only_itself() {
        check(
            "# licence\n---\na: 1\n---\nb: [\n---\n---\n# nothing\n--- # three\nc:\n  d: 2\n",
            expect![[r#"
                3: {"a":1}
                line 5: unclosed bracket '['
                6: null
                7: null
                10: {"c":{"d":2}}
            "#]],
        );
    }

    #[test]
    fn a_separator_inside_a_block_scalar_is_text() {
        check(
            "a: |\n  x\n  ---\n  y\nb: 1\n",
            expect![[r#"
                1: {"a":"x\n---\ny\n","b":1}
            "#]],
        );
    }

    #[test]
    fn block_scalars_keep_their_newlines() {
        check(
            "strip: |-\n  a\n  b\nclip: |\n  a\n\nkeep: |+\n  a\n\nfold: >\n  a\n  b\n\n  c\nindent: |2\n    a\n",
            expect![[r#"
                1: {"clip":"a\n","fold":"a b\nc\n","indent":"  a\n","keep":"a\n\n","strip":"a\nb"}
            "#]],
        );
    }

    #[test]
    fn windows_line_ends_and_directives_are_taken() {
        check(
            "%YAML 1.1\r\n---\r\na: |\r\n  x\r\n---\r\nb: 1\r\n",
            expect![[r#"
                3: {"a":"x\n"}
                6: {"b":1}
            "#]],
        );
    }

    #[test]
    fn a_key_twice_is_an_error_that_names_both_lines() {
        check(
            "data:\n  a: 1\n  b: 2\n  a: 3\n",
            expect![[r#"
                line 4: key "a" is already set on line 2
            "#]],
        );
        check(
            "a:\n  x: 1\na:\n  x: 2\n",
            expect![[r#"
                line 3: key "a" is already set on line 1
            "#]],
        );
    }

    #[test]
    fn anchors_are_copied_and_merge_keys_give_way_to_the_mappings_own() {
        check(
            "base: &base {a: 1, b: 2}\nother: &other {b: 3, c: 4}\n\
             use: {<<: *base, b: 9}\nboth: {b: 9, <<: [*base, *other]}\nsame: *base\n",
            expect![[r#"
                1: {"base":{"a":1,"b":2},"both":{"a":1,"b":9,"c":4},"other":{"b":3,"c":4},"same":{"a":1,"b":2},"use":{"a":1,"b":9}}
            "#]],
        );
        check(
            "a: {<<: 5}\n",
            expect![[r#"
                line 1: a merge key (<<) takes a mapping or a sequence of mappings
            "#]],
        );
    }

    #[test]
    fn aliases_cannot_blow_up_memory_or_contain_themselves() {
        let levels = (1..9).map(|level| {
            let below = format!("*a{}", level - 1);
            format!("a{level}: &a{level} [{}]\n", [&*below; 10].join(", "))
        });
        let first = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        let bomb: Vec<_> = [first].into_iter().chain(levels).collect();
        let bomb = bomb.concat();
        let chunk = chunks(&bomb)[0];
        let error = parse_one(chunk).err().unwrap();
        assert_eq!(error.problem, "aliases repeat too much of the text");
        assert_eq!(error.kind, ErrorKind::Limit);
        check(
            "a: &a [*a]\n",
            expect![[r#"
                line 1: an alias refers to the node that contains it
            "#]],
        );
    }

    #[test]
    fn keys_become_text_as_in_json() {
        check(
            "{1234: a, yes: b, 1.50: c, 0x10: d, 'on': e}\n",
            expect![[r#"
                1: {"1.5":"c","1234":"a","16":"d","on":"e","true":"b"}
            "#]],
        );
        check(
            "[a]: 1\n",
            expect![[r#"
                line 1: a key must be text, a number or a boolean
            "#]],
        );
    }

    #[test]
    fn a_path_is_found_again_as_a_line() {
        let text = "# c\nspec:\n  volumes:\n  - name: a\n  - name: b\n    secret: {}\n";
        let node = &parse_one(chunks(text)[0]).unwrap()[0];
        let line_of = |path: &FieldPath| node.line_of(path.segments());
        let item = FieldPath::fields("spec.volumes").index(1);
        assert_eq!(line_of(&item.child("secret")), 6);
        assert_eq!(line_of(&item), 5);
        assert_eq!(line_of(&FieldPath::fields("spec.absent")), 3);
    }

    #[test]
    fn tags_decide_the_type() {
        check(
            "[!!str 5, !!int \"5\", !!binary aGk=, !local 5, ! 5]\n",
            expect![[r#"
                1: ["5",5,"hi","5","5"]
            "#]],
        );
        check(
            "a: !!int x\n",
            expect![[r#"
                line 1: a value is not of the type of its tag
            "#]],
        );
    }

    #[test]
    fn a_text_is_one_document_or_as_many_as_are_allowed() {
        for (text, expected) in [
            ("", "null"),
            ("# nothing\n", "null"),
            ("\u{feff}---\na: 1\n...\n", r#"{"a":1}"#),
            ("a: |\r\n  x\r\n", r#"{"a":"x\n"}"#),
            ("{\n\t\"a\": [\"\\u00e4\"]\n}", r#"{"a":["ä"]}"#),
        ] {
            let document = YamlDocument::parse(text, 0).unwrap();
            assert_eq!(document.value().to_string(), expected, "{text}");
        }
        let error = YamlDocument::parse("a: 1\n---\n", 0).unwrap_err();
        let expected = "line 2: too many documents: at most 1";
        assert_eq!(error.to_string(), expected);
        let all = YamlDocument::parse_all("---\n---\na: 1\n---\n", limits(0)).unwrap();
        assert_eq!(all.len(), 3);
        let error = YamlDocument::parse_all(&"---\n".repeat(1 << 20), limits(0)).unwrap_err();
        assert_eq!((error.line, error.kind), (17, ErrorKind::Limit));
    }

    #[test]
    fn the_last_of_equal_keys_counts_where_it_may() {
        let text = "a: 1\nb: {c: 1, <<: {c: 2, d: 2}, c: 3}\na:\n  x: 2\n";
        let mut last = limits(0);
        last.last_key_wins = true;
        let document = YamlDocument::parse_all(text, last).unwrap().pop().unwrap();
        let expected = r#"{"a":{"x":2},"b":{"c":3,"d":2}}"#;
        assert_eq!(document.value().to_string(), expected);
        assert_eq!(document.line_of(&FieldPath::fields("a.x")), 4);
        let error = YamlDocument::parse(text, 0).unwrap_err();
        assert_eq!((error.line, error.kind), (2, ErrorKind::DuplicateKey));
    }

    #[test]
    fn anchors_may_be_rejected() {
        for text in ["a: &x 1\n", "a: &x\n", "a: &x {}\nb: *x\n", "&x a: 1\n"] {
            let error = YamlDocument::parse(text, 0).unwrap_err();
            assert_eq!((error.line, error.kind), (1, ErrorKind::Limit), "{text}");
        }
        let merged = YamlDocument::parse("a: {<<: {b: 1}}\n", 0).unwrap();
        assert_eq!(merged.value()["a"]["b"], 1);
    }

    #[test]
    fn errors_quote_no_value_and_little_of_a_key() {
        #[derive(Debug, Deserialize)]
        struct Typed {
            #[expect(dead_code, reason = "only decoded")]
            a: Option<Vec<bool>>,
        }
        let long = "k".repeat(1000);
        for text in [
            "a: \"hunter2\n",
            "a: hunter2: x\n",
            "a: !!binary \"hunter2!\"\n",
            "a: [hunter2\n",
            "a: hunter2\n",
            "a: [hunter2]\n",
            "- hunter2\n",
            "a: *hunter2\n",
            "a: &hunter2 [*hunter2]\n",
            "a: !<hunter2\n",
            "a: !!int hunter2\n",
            "a: \"\\hunter2\"\n",
            "a: 'x'hunter2\n",
            "a:\n\thunter2: 1\n",
            "%hunter2 1\n%hunter2\na: [",
            "a: |hunter2\n",
            "[hunter2]: 1\n",
            "a: {<<: hunter2}\n",
            &format!("{long}: 1\n{long}: hunter2\n"),
            &format!("a: {}hunter2", "[".repeat(1 << 20)),
            &format!("a: {}hunter2", "- ".repeat(1 << 20)),
            &format!("{}hunter2", "? ".repeat(1 << 20)),
            &format!("{}hunter2", "{a: ".repeat(1 << 20)),
        ] {
            let shown: String = text.chars().take(20).collect();
            let read = YamlDocument::parse(text, 1 << 20).and_then(|document| {
                assert!(!format!("{document:?}").contains("hunter2"), "{shown}");
                document.decode::<Typed>()
            });
            let error = format!("{0} {0:?}", read.unwrap_err());
            assert!(!error.contains("hunter2"), "{error}");
            assert!(error.len() < 500, "{error}");
        }
    }
}
