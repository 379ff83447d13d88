//! Text split into pieces that are parsed separately, so that a document that cannot be parsed affects no other.

/// What separates documents, at the beginning of a line.
const SEPARATOR: &str = "---";

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
        if begins_document(first) {
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
}

/// Cuts `text` before each line that begins a document.
pub(crate) fn chunks(text: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let (mut start, mut start_line, mut has_content, mut offset) = (0, 1, false, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if begins_document(line) {
            // What stands before a first `---` may be directives or comments, which belong to the document below.
            if has_content {
                chunks.push(Chunk {
                    text: &text[start..offset],
                    line: start_line,
                });
                (start, start_line) = (offset, index + 1);
            }
            has_content = true;
        } else if !line.trim().is_empty() && !line.starts_with(['#', '%']) {
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

/// Whether it is a separator (apimachinery 1.36, `pkg/util/yaml/decoder.go`).
fn begins_document(line: &str) -> bool {
    let after = line.strip_prefix(SEPARATOR).map(str::trim);
    after.is_some_and(|after| after.is_empty() || after.starts_with('#'))
}
