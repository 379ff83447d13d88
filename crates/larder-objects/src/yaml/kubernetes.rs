//! What YAML 1.2 has and Kubernetes' YAML lacks (`go.yaml.in/yaml/v2`, behind `sigs.k8s.io/yaml` of Kubernetes 1.36): the
//! escape `\/`, keys apart from their colons, colons that touch what follows, signs within texts, and tabs before a key,
//! an item or a comment.
//!
//! The parser's events skip all that stands between two nodes. A [`Checker`] reads it again, as Kubernetes' scanner would.
//! Invariant: it looks at each byte once.

use granit_parser::{Event, ScalarStyle, Span, StructureStyle};

/// A line of the text, from 1, and why Kubernetes refuses it.
pub(super) type Refusal = (usize, &'static str);

const TAB: &str = "a tab is no indentation to Kubernetes: write spaces";
const ESCAPE: &str = "\\/ is no escape to Kubernetes: write /";
const SIGN: &str = "in braces or brackets, ? and : are signs to Kubernetes: quote the text";
const NAME: &str = "to Kubernetes, an anchor's name has only letters, digits, - and _";
const TAG: &str = "no tag to Kubernetes";
const KEY: &str = "a key and its colon are on one line";
const COLON: &str =
    "in braces or brackets, a key's colon belongs to the key for Kubernetes unless a space follows";

/// Reads what the parser's events skip.
pub(super) struct Checker<'a> {
    text: &'a str,
    /// Bytes of the text that were looked at.
    seen: usize,
    /// The place where they end: line from 1, characters of it.
    line: usize,
    column: usize,
    /// Whether the line is blank up to there.
    is_blank: bool,
    /// Whether a key, an item or a comment may begin there, so that a tab may not stand there in block style.
    may_begin: bool,
    /// The blanks behind a plain scalar belong to it: the column from which one may be a tab.
    after_plain: Option<usize>,
    /// Line of the key whose colon was not seen yet.
    key: Option<usize>,
    before: Before,
    open: Vec<Collection>,
}

/// What stands before the next node.
#[derive(Default)]
struct Before {
    /// Line of its tag or anchor.
    properties: Option<usize>,
    /// Column of the last `-`.
    dash: Option<usize>,
    is_explicit_key: bool,
    /// Whether a block scalar's indentation is given.
    is_indentation_given: bool,
}

struct Collection {
    /// Its column in block style; `None` in flow style.
    indent: Option<usize>,
    is_mapping: bool,
    /// Whether the next node of a mapping is a key.
    is_key_next: bool,
}

impl<'a> Checker<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            seen: 0,
            line: 1,
            column: 0,
            is_blank: true,
            may_begin: true,
            after_plain: None,
            key: None,
            before: Before::default(),
            open: Vec::new(),
        }
    }

    /// Checks the next event, and what stands before it.
    pub(super) fn check(&mut self, event: &Event<'_>, span: Span) -> Result<(), Refusal> {
        let Some(range) = span.byte_range() else {
            return Ok(());
        };
        if let Some(between) = self.text.get(self.seen..range.start) {
            self.between(between)?;
        }
        match event {
            Event::Scalar(_, style, ..) => {
                let before = self.node(span, true);
                self.scalar(*style, span, &before)?;
            }
            Event::Alias(..) => {
                self.node(span, true);
                let written = span.slice(self.text).unwrap_or_default();
                check_name(written, self.line)?;
                self.end_node(false);
            }
            Event::SequenceStart(style, ..) | Event::MappingStart(style, ..) => {
                let before = self.node(span, false);
                let is_mapping = matches!(event, Event::MappingStart(..));
                // The span of a sequence begins at its first `-`, or behind it.
                let column = before
                    .dash
                    .filter(|_| !is_mapping)
                    .unwrap_or(span.start.col());
                self.open.push(Collection {
                    indent: (*style == StructureStyle::Block).then_some(column),
                    is_mapping,
                    is_key_next: true,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let closed = self.open.pop();
                if closed.is_some_and(|closed| closed.indent.is_none()) {
                    self.end_node(false);
                }
            }
            _ => {}
        }
        if range.end > self.seen {
            self.seen = range.end;
            (self.line, self.column) = (span.end.line(), span.end.col());
        }
        Ok(())
    }

    fn is_flow(&self) -> bool {
        self.open
            .last()
            .is_some_and(|parent| parent.indent.is_none())
    }

    /// A node begins: a key or a value, if it is in a mapping. Returns what stood before it.
    fn node(&mut self, span: Span, may_be_key: bool) -> Before {
        let before = std::mem::take(&mut self.before);
        self.key = None;
        if let Some(mapping) = self.open.last_mut().filter(|parent| parent.is_mapping) {
            if mapping.is_key_next && may_be_key && !before.is_explicit_key {
                self.key = Some(before.properties.unwrap_or(span.start.line()));
            }
            mapping.is_key_next = !mapping.is_key_next;
        }
        before
    }

    fn end_node(&mut self, may_begin: bool) {
        (self.may_begin, self.is_blank, self.after_plain) = (may_begin, false, None);
    }

    fn scalar(&mut self, style: ScalarStyle, span: Span, before: &Before) -> Result<(), Refusal> {
        let written = span.slice(self.text).unwrap_or_default();
        match style {
            // A null that is not written.
            ScalarStyle::Plain if written.is_empty() => {}
            ScalarStyle::Plain => {
                let is_sign = written.starts_with(':') || written.contains('?');
                if self.is_flow() && is_sign {
                    return Err((span.start.line(), SIGN));
                }
                let mut parents = self.open.iter().rev();
                let indent = parents.find_map(|parent| parent.indent);
                let limit = indent.map_or(0, |indent| indent + 1);
                let mut continued = written.split('\n').enumerate().skip(1);
                let is_refused = |(_, line): &(usize, &str)| {
                    line.chars()
                        .take_while(|c| matches!(c, ' ' | '\t'))
                        .take(limit)
                        .any(|c| c == '\t')
                };
                if let Some((index, _)) = continued.find(is_refused) {
                    return Err((span.start.line() + index, TAB));
                }
                self.end_node(false);
                self.after_plain = Some(limit);
            }
            ScalarStyle::SingleQuoted => self.end_node(false),
            ScalarStyle::DoubleQuoted => {
                let mut bytes = written.bytes();
                while let Some(byte) = bytes.next() {
                    if byte == b'\\' && bytes.next() == Some(b'/') {
                        return Err((span.start.line(), ESCAPE));
                    }
                }
                self.end_node(false);
            }
            ScalarStyle::Literal | ScalarStyle::Folded => {
                // The first line's spaces are the indentation, if it is not given.
                if written.starts_with('\t') && !before.is_indentation_given {
                    return Err((span.start.line(), TAB));
                }
                self.end_node(true);
            }
        }
        Ok(())
    }

    /// Reads what stands between two nodes.
    fn between(&mut self, text: &str) -> Result<(), Refusal> {
        let is_flow = self.is_flow();
        let mut rest = text.char_indices().peekable();
        while let Some((at, character)) = rest.next() {
            let (line, column) = (self.line, self.column);
            self.column += 1;
            match character {
                ' ' => continue,
                '\r' if text[at..].starts_with("\r\n") => continue,
                '\n' | '\r' => {
                    (self.line, self.column) = (line + 1, 0);
                    (self.is_blank, self.may_begin) = (true, true);
                    continue;
                }
                '\t' => {
                    let is_refused = match self.after_plain {
                        Some(limit) => self.is_blank && column < limit,
                        None => self.may_begin && !is_flow,
                    };
                    if is_refused {
                        return Err((line, TAB));
                    }
                    continue;
                }
                '-' if rest.peek().is_none_or(|(_, next)| next.is_whitespace()) => {
                    self.before.dash = Some(column);
                    self.may_begin = true;
                }
                '?' => {
                    self.before.is_explicit_key = true;
                    self.may_begin = true;
                }
                ':' => {
                    if let Some(key) = self.key.take().filter(|key| *key != line) {
                        return Err((key, KEY));
                    }
                    let mut after = self.text[self.seen + at + 1..].chars();
                    let ends_key = after.next().is_none_or(char::is_whitespace);
                    if is_flow && self.after_plain.is_some() && !ends_key {
                        return Err((line, COLON));
                    }
                    // That of an explicit key.
                    self.may_begin = self.is_blank;
                }
                ',' => {}
                first => {
                    let ends = |c: char| match first {
                        '#' => matches!(c, '\n' | '\r'),
                        _ => c.is_whitespace() || is_flow && ",[]{}".contains(c),
                    };
                    let token = text[at..].split(ends).next().unwrap_or_default();
                    while rest.next_if(|(next, _)| *next < at + token.len()).is_some() {
                        self.column += 1;
                    }
                    self.token(token)?;
                }
            }
            (self.is_blank, self.after_plain) = (false, None);
        }
        Ok(())
    }

    /// A comment, tag, anchor, head of a block scalar or sign of documents.
    fn token(&mut self, token: &str) -> Result<(), Refusal> {
        match token.as_bytes() {
            // Behind it is the end of its line.
            [b'#', ..] => return Ok(()),
            [b'!', ..] => {
                let is_uri =
                    |c: char| c.is_ascii_alphanumeric() || "-_;/?:@&=+$,.!~*'()[]%<>".contains(c);
                if !token.chars().all(is_uri) {
                    return Err((self.line, TAG));
                }
                self.before.properties.get_or_insert(self.line);
            }
            [b'&', ..] => {
                check_name(token, self.line)?;
                self.before.properties.get_or_insert(self.line);
            }
            [b'|' | b'>', head @ ..] => {
                self.before.is_indentation_given = head.iter().any(u8::is_ascii_digit);
            }
            _ => {}
        }
        self.may_begin = false;
        Ok(())
    }
}

/// Checks the name of an anchor or an alias, which has a sign before it.
fn check_name(written: &str, line: usize) -> Result<(), Refusal> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if written.chars().skip(1).all(is_of_name) {
        return Ok(());
    }
    Err((line, NAME))
}
