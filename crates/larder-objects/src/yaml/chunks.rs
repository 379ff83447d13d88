//! Text split into pieces that are parsed separately, so that a document that cannot be parsed affects no other.
//!
//! kubectl splits by line feeds alone, and then parses each piece by the rules of YAML 1.1, where a comment ends at any of
//! [`BREAKS`]. Invariant: a piece is left out only if it holds nothing by both.

/// What separates documents, at the beginning of a line.
const SEPARATOR: &str = "---";

/// Where a line ends to Kubernetes' YAML.
const BREAKS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];

/// A piece of a file that holds at least one document of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk<'a> {
    /// The text from its `---` line, if it has one, to the next.
    pub(crate) text: &'a str,
    /// Line of the file on which `text` begins, from 1.
    pub(crate) line: usize,
}

impl Chunk<'_> {
    /// What is below the `---` line, if there is one.
    pub(crate) fn without_separator(self) -> Self {
        let (first, rest) = self.text.split_once('\n').unwrap_or((self.text, ""));
        // What is behind another break is part of the document.
        let has_more = !first.split(BREAKS).skip(1).all(is_blank);
        if begins_document(first) && !has_more {
            Self {
                text: rest,
                line: self.line + 1,
            }
        } else {
            self
        }
    }

    /// The line of a `---` in it that is followed by more than a comment. For kubectl, neither a document ends there nor
    /// does one begin.
    pub(crate) fn invalid_separator(self) -> Option<usize> {
        let mut lines = self.text.lines();
        let is_invalid = |line: &str| line.starts_with(SEPARATOR) && !begins_document(line);
        Some(self.line + lines.position(is_invalid)?)
    }

    /// Whether kubectl never gets to the document. At the beginning of a file it keeps a `---`, so that one more below it,
    /// which is no line of its own to kubectl, begins a second document. Elsewhere it drops the whole line of a `---`.
    pub(crate) fn is_hidden(self) -> bool {
        let body = self.without_separator();
        if self.line > 1 {
            return body == self;
        }
        let mut lines = body.text.split(BREAKS).filter(|line| !is_blank(line));
        body != self
            && lines
                .next()
                .is_some_and(|first| first.starts_with(SEPARATOR))
    }

    /// Whether a `...` ends the document before it has begun, so that kubectl reads none.
    pub(crate) fn is_ended(self) -> bool {
        let mut lines = self.text.split(BREAKS).filter(|line| !is_blank(line));
        lines
            .next()
            .and_then(|first| first.strip_prefix("..."))
            .is_some_and(|after| after.is_empty() || after.starts_with([' ', '\t']))
    }

    /// Whether it has directives only. kubectl takes them for a document of their own, where a `---` follows.
    pub(crate) fn is_directives(self) -> bool {
        let mut lines = self.text.split(BREAKS).filter(|line| !is_blank(line));
        lines.all(|line| line.starts_with('%'))
    }
}

/// Cuts `text` before each line that begins a document.
pub(crate) fn chunks(text: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let (mut start, mut start_line, mut has_content, mut offset) = (0, 1, false, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if begins_document(line) {
            // What stands before a first `---` may be comments, which belong to the document below.
            if has_content {
                chunks.push(Chunk {
                    text: &text[start..offset],
                    line: start_line,
                });
                (start, start_line) = (offset, index + 1);
            }
            has_content = true;
        } else if !line.split(BREAKS).all(is_blank) {
            has_content = true;
        }
        offset += line.len();
    }
    if has_content {
        chunks.push(Chunk {
            text: &text[start..],
            line: start_line,
        });
    }
    chunks
}

/// Whether a line is blank or a comment.
fn is_blank(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

/// Whether it is a separator (apimachinery 1.36, `pkg/util/yaml/decoder.go`).
fn begins_document(line: &str) -> bool {
    line.strip_prefix(SEPARATOR)
        .map(str::trim)
        .is_some_and(|after| after.is_empty() || after.starts_with('#'))
}
