//! YAML text to JSON values, as `kubectl` converts it, with the line of every node.
//!
//! The parser yields events, from which this module builds trees. Unlike a deserializer, a tree lets an error name its
//! line, and lets scalars be typed by the rules of `sigs.k8s.io/yaml` (YAML 1.1: `yes` is a boolean, `0644` is octal),
//! for which existing manifests were written.
//!
//! Invariants:
//! 1. A document that cannot be parsed affects no other: the text is split at its `---` lines before anything is
//!    parsed, as by `kubectl` (apimachinery 1.36, `pkg/util/yaml/decoder.go`).
//! 2. No error quotes a scalar: it may belong to a Secret. Keys are quoted, since they identify the place.
//! 3. Copies made by aliases and merge keys count against a [`CopyBudget`], which grows with the file.
//! 4. No tree is deeper than [`MAX_DEPTH`], copies included: everything below walks it recursively.

mod chunks;
mod scalar;

use std::collections::{HashMap, hash_map::Entry};

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::Value;

use crate::PathSegment;

pub(crate) use self::chunks::{Chunk, chunks};

/// Largest number of mappings and sequences within each other. JSON has a limit of its own, 128, in `serde_json`.
const MAX_DEPTH: usize = 100;
/// Estimate of the memory of a node beside its text, in bytes.
const NODE_BYTES: usize = 64;

/// The bytes of text and of tree that the aliases and merge keys of one file may copy.
pub(crate) struct CopyBudget {
    limit: usize,
    left: usize,
}

impl CopyBudget {
    /// For a file of `size` bytes: 4 MiB, and 16 times its size.
    pub(crate) fn for_file(size: usize) -> Self {
        let limit = (4 << 20) + size.saturating_mul(16);
        Self { limit, left: limit }
    }
}

/// The documents of a chunk, in order. Usually one; `...` may separate more.
pub(crate) fn parse(chunk: Chunk<'_>, budget: &mut CopyBudget) -> Result<Vec<Node>, SyntaxError> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder {
        events: Parser::new_from_str_with_options(chunk.text, options),
        first_line: chunk.line,
        anchors: HashMap::new(),
        budget,
        depth: 0,
    };
    let mut documents = Vec::new();
    while let Some((event, _)) = builder.next()? {
        if let Event::DocumentStart(..) = event {
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
    Scalar(Value),
    Sequence(Vec<Node>),
    /// In the order of the file; no key twice.
    Mapping(Vec<(String, Node)>),
}

impl Node {
    /// Whether nothing is written here.
    pub(crate) fn is_null(&self) -> bool {
        matches!(self.content, Content::Scalar(Value::Null))
    }

    /// The JSON form. Moves the text of the scalars out, and leaves keys and lines.
    pub(crate) fn take_value(&mut self) -> Value {
        match &mut self.content {
            Content::Scalar(value) => value.take(),
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
                    let mut named = entries.iter().filter(|(name, _)| name == key);
                    named.next().map(|(_, node)| node)
                }
                (PathSegment::Index(index), Content::Sequence(nodes)) => nodes.get(*index),
                _ => None,
            };
            Some((child?, rest))
        });
        child.map_or(self.line, |(child, rest)| child.line_of(rest))
    }
}

/// Why a text is not YAML that Kubernetes would take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyntaxError {
    /// Line of the file, from 1.
    pub(crate) line: usize,
    /// The problem; quotes no value.
    pub(crate) problem: String,
}

impl SyntaxError {
    fn new(line: usize, problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self { line, problem }
    }
}

struct Builder<'a> {
    events: Parser<'a, StrInput<'a>>,
    first_line: usize,
    anchors: HashMap<usize, Anchored>,
    budget: &'a mut CopyBudget,
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
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, SyntaxError> {
        match self.events.next() {
            None => Ok(None),
            Some(Ok(next)) => Ok(Some(next)),
            Some(Err(error)) => Err(self.scan_error(&error)),
        }
    }

    fn expect_next(&mut self) -> Result<(Event<'a>, Span), SyntaxError> {
        let next = self.next()?;
        Ok(next.expect("the parser closes what it opens before it ends"))
    }

    /// The node that begins with `event`, to its end.
    fn node(&mut self, event: Event<'a>, span: Span) -> Result<Node, SyntaxError> {
        let line = self.line(span);
        let (content, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(&text, style, tag.as_deref())
                    .map_err(|problem| SyntaxError::new(line, problem))?;
                // A block scalar's text moves; nothing else is worth the trouble.
                let value = value.unwrap_or_else(|| Value::String(text.into_owned()));
                (Content::Scalar(value), anchor)
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
            other => unreachable!("the parser gives a node here, not {other:?}"),
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

    fn sequence(&mut self) -> Result<Vec<Node>, SyntaxError> {
        let mut nodes = Vec::new();
        loop {
            match self.expect_next()? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, span) => nodes.push(self.node(event, span)?),
            }
        }
    }

    fn mapping(&mut self) -> Result<Vec<(String, Node)>, SyntaxError> {
        let mut entries = MappingEntries::default();
        let mut merged = Vec::new();
        loop {
            let (event, span) = self.expect_next()?;
            if let Event::MappingEnd = event {
                break;
            }
            let line = self.line(span);
            let is_merge_key =
                matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.node(event, span)?;
            let (event, span) = self.expect_next()?;
            let value = self.node(event, span)?;
            if is_merge_key {
                merged.extend(merge_sources(value)?);
                continue;
            }
            let name = key_name(key)?;
            entries.push(name, line, value)?;
        }
        // Keys of the mapping itself win over merged ones; of these, the first.
        for (name, node) in merged {
            entries.push_if_absent(name, node);
        }
        Ok(entries.list)
    }

    fn alias(&mut self, anchor: usize, line: usize) -> Result<Node, SyntaxError> {
        // An anchor is known only once its node is complete, so a node that contains itself is rejected here.
        let Some(&Anchored { size, height, .. }) = self.anchors.get(&anchor) else {
            let problem = "an alias refers to the node that contains it";
            return Err(SyntaxError::new(line, problem));
        };
        self.check_depth(height, line)?;
        self.spend(size, line)?;
        Ok(self.anchors[&anchor].node.clone())
    }

    /// Whether there is room for `more` mappings and sequences within each other.
    fn check_depth(&self, more: usize, line: usize) -> Result<(), SyntaxError> {
        if self.depth + more > MAX_DEPTH {
            let problem = format!("nested more than {MAX_DEPTH} levels deep");
            return Err(SyntaxError::new(line, problem));
        }
        Ok(())
    }

    fn spend(&mut self, size: usize, line: usize) -> Result<(), SyntaxError> {
        let budget = &mut *self.budget;
        if let Some(left) = budget.left.checked_sub(size) {
            budget.left = left;
            return Ok(());
        }
        let problem = format!("aliases copy more than {} bytes", budget.limit);
        Err(SyntaxError::new(line, problem))
    }

    fn line(&self, span: Span) -> usize {
        self.first_line + span.start.line().max(1) - 1
    }

    fn scan_error(&self, error: &ScanError) -> SyntaxError {
        let line = self.first_line + error.marker().line().max(1) - 1;
        SyntaxError::new(line, error.info())
    }
}

/// MappingEntries of a mapping, with an index once there are enough of them to need one.
#[derive(Default)]
struct MappingEntries {
    list: Vec<(String, Node)>,
    lines: HashMap<String, usize>,
}

impl MappingEntries {
    fn push(&mut self, name: String, line: usize, node: Node) -> Result<(), SyntaxError> {
        match self.lines.entry(name.clone()) {
            Entry::Occupied(first) => {
                let problem = format!("key {name:?} is already set on line {}", first.get());
                Err(SyntaxError::new(line, problem))
            }
            Entry::Vacant(entry) => {
                entry.insert(line);
                self.list.push((name, node));
                Ok(())
            }
        }
    }

    fn push_if_absent(&mut self, name: String, node: Node) {
        if !self.lines.contains_key(&name) {
            self.lines.insert(name.clone(), node.line);
            self.list.push((name, node));
        }
    }
}

/// What `<<: value` brings in: a mapping, or several in a sequence, of which the earlier win.
fn merge_sources(value: Node) -> Result<Vec<(String, Node)>, SyntaxError> {
    let line = value.line;
    let sources = match value.content {
        Content::Mapping(entries) => return Ok(entries),
        Content::Sequence(nodes) => nodes,
        Content::Scalar(_) => Vec::new(),
    };
    let mut entries = Vec::new();
    let mut refused = sources.is_empty();
    for source in sources {
        match source.content {
            Content::Mapping(more) => entries.extend(more),
            _ => refused = true,
        }
    }
    if refused {
        let problem = "a merge key (<<) takes a mapping or a sequence of mappings";
        return Err(SyntaxError::new(line, problem));
    }
    Ok(entries)
}

/// A key as JSON has it: numbers and booleans become their text.
fn key_name(key: Node) -> Result<String, SyntaxError> {
    match key.content {
        Content::Scalar(Value::String(name)) => Ok(name),
        Content::Scalar(Value::Number(number)) => Ok(number.to_string()),
        Content::Scalar(Value::Bool(value)) => Ok(value.to_string()),
        _ => {
            let problem = "a key must be text, a number or a boolean";
            Err(SyntaxError::new(key.line, problem))
        }
    }
}

/// The value of a scalar; `None` when it is its own text.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Option<Value>, String> {
    let yaml_tag = tag.and_then(|tag| tag.suffix_in_namespace("tag:yaml.org,2002:"));
    match yaml_tag.as_deref() {
        Some("str") => Ok(None),
        Some("binary") => scalar::binary(text).map(Some),
        Some("int" | "float" | "bool" | "null" | "timestamp") => scalar::plain(text),
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
        Content::Scalar(Value::String(text)) => (NODE_BYTES + text.len(), 0),
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

    fn parse_one(chunk: Chunk<'_>) -> Result<Vec<Node>, SyntaxError> {
        parse(chunk, &mut CopyBudget::for_file(chunk.text.len()))
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
        assert!(
            error.problem.starts_with("aliases copy more than"),
            "{}",
            error.problem
        );
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
    }

    #[test]
    fn errors_quote_no_value() {
        for text in [
            "a: \"hunter2\n",
            "a: hunter2: x\n",
            "a: !!binary \"hunter2!\"\n",
            "a: [hunter2\n",
        ] {
            let error = parse_one(chunks(text)[0]).err().unwrap();
            assert!(!error.problem.contains("hunter2"), "{}", error.problem);
        }
    }
}
