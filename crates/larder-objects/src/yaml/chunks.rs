//! Text split into pieces that are parsed separately, so that a document that cannot be parsed affects no other.

/// A piece of a file that holds at least one document of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk<'a> {
    /// The text from its `---` line, if it has one, to the next.
    pub(crate) text: &'a str,
    /// Line of the file on which `text` begins, from 1.
    pub(crate) line: usize,
}

impl Chunk<'_> {
    /// What is below the `---` line, if there is one with nothing but a comment on it.
    pub(crate) fn without_separator(self) -> Self {
        let (first, rest) = self.text.split_once('\n').unwrap_or((self.text, ""));
        let after = first.strip_prefix("---").map(str::trim_start);
        match after {
            Some(after) if after.is_empty() || after.starts_with('#') => Self {
                text: rest,
                line: self.line + 1,
            },
            _ => self,
        }
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

fn begins_document(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}
