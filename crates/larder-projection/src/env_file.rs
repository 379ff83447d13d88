//! Env files: `NAME='value'` lines that `fileKeyRef` reads (KEP-3721).
//!
//! Kubelet 1.36, `pkg/kubelet/util/env/env_util.go`. A value is in single quotes directly after the `=`; it has no
//! escapes and may span lines. The first line that defines the key counts, and reading stops there.

use std::collections::HashMap;

use zeroize::Zeroizing;

/// Longest line, in bytes without its end, that the kubelet's reader takes.
const MAX_LINE: usize = 64 * 1024 - 1;

/// Why an env file cannot be read. Shows line numbers and no content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvFileError {
    /// A line is not `NAME='value'`.
    #[error("invalid environment variable format at line {line}: {problem}")]
    Line {
        /// Line, from 1.
        line: usize,
        /// The problem.
        problem: LineProblem,
    },
    /// No quote ends the value.
    #[error("invalid environment variable format starting at line {line}: unclosed single quote")]
    Unclosed {
        /// Line that the value begins in, from 1.
        line: usize,
    },
    /// A line has 64 KiB or more.
    #[error("line {line} is too long")]
    TooLong {
        /// Line, from 1.
        line: usize,
    },
}

/// The problem of one line of an env file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineProblem {
    /// No `=` in it.
    #[error("missing '='")]
    NoEquals,
    /// Nothing before the `=`.
    #[error("empty variable name")]
    NoName,
    /// A blank before the `=`.
    #[error("whitespace before '=' is not allowed")]
    BlankBeforeEquals,
    /// No single quote after the `=`.
    #[error("value must be enclosed in single quotes")]
    NotQuoted,
    /// Something other than blanks or a comment after the value.
    #[error("unexpected content after closing quote")]
    AfterQuote,
}

/// The value of `key` in `content`: of its first definition, empty if there is none.
///
/// # Errors
///
/// The first line, up to the definition of `key`, that is not well formed.
pub fn env_file_value(content: &[u8], key: &str) -> Result<Vec<u8>, EnvFileError> {
    EnvFileReader::new(content).value(key)
}

/// A name and its value.
type Definition<'c> = (&'c [u8], Zeroizing<Vec<u8>>);

/// Reads a file for one key after the other, and each line once.
pub(crate) struct EnvFileReader<'c> {
    lines: Lines<'c>,
    /// The first definition of each key so far.
    found: HashMap<&'c [u8], Zeroizing<Vec<u8>>>,
    /// The line that is not well formed, if reading has come to it.
    failed: Option<EnvFileError>,
}

impl<'c> EnvFileReader<'c> {
    pub(crate) fn new(content: &'c [u8]) -> Self {
        Self {
            lines: Lines {
                rest: content,
                number: 0,
            },
            found: HashMap::new(),
            failed: None,
        }
    }

    /// As [`env_file_value`].
    pub(crate) fn value(&mut self, key: &str) -> Result<Vec<u8>, EnvFileError> {
        loop {
            if let Some(value) = self.found.get(key.as_bytes()) {
                return Ok(value.to_vec());
            }
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            match self.lines.definition() {
                Ok(Some((name, value))) => {
                    self.found.entry(name).or_insert(value);
                }
                Ok(None) => return Ok(Vec::new()),
                Err(error) => self.failed = Some(error),
            }
        }
    }
}

/// Lines without their ends, and how many were taken.
struct Lines<'c> {
    rest: &'c [u8],
    number: usize,
}

impl<'c> Lines<'c> {
    /// The next definition.
    fn definition(&mut self) -> Result<Option<Definition<'c>>, EnvFileError> {
        while let Some(line) = self.next()? {
            let line = trim_blanks(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let problem = |line, problem| Err(EnvFileError::Line { line, problem });
            let Some(equals) = line.iter().position(|&byte| byte == b'=') else {
                return problem(self.number, LineProblem::NoEquals);
            };
            let (name, value) = (&line[..equals], &line[equals + 1..]);
            match name.last() {
                None => return problem(self.number, LineProblem::NoName),
                Some(b' ' | b'\t') => return problem(self.number, LineProblem::BlankBeforeEquals),
                Some(_) => {}
            }
            let value = match value {
                // A blank after the `=` ends the value before it began; the kubelet ignores what follows.
                [b' ' | b'\t', ..] => Vec::new(),
                [b'\'', value @ ..] => self.quoted(value)?,
                _ => return problem(self.number, LineProblem::NotQuoted),
            };
            return Ok(Some((name, Zeroizing::new(value))));
        }
        Ok(None)
    }

    fn next(&mut self) -> Result<Option<&'c [u8]>, EnvFileError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let end = self.rest.iter().position(|&byte| byte == b'\n');
        let line = &self.rest[..end.unwrap_or(self.rest.len())];
        if line.len() > MAX_LINE {
            return Err(EnvFileError::TooLong { line: self.number });
        }
        self.rest = end.map_or(&[], |end| &self.rest[end + 1..]);
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The value that begins with `line`, after its opening quote.
    fn quoted(&mut self, mut line: &'c [u8]) -> Result<Vec<u8>, EnvFileError> {
        let first = self.number;
        let mut value = Vec::new();
        loop {
            if let Some(quote) = line.iter().position(|&byte| byte == b'\'') {
                value.extend_from_slice(&line[..quote]);
                return match trim_blanks(&line[quote + 1..]) {
                    [] | [b'#', ..] => Ok(value),
                    _ => Err(EnvFileError::Line {
                        line: self.number,
                        problem: LineProblem::AfterQuote,
                    }),
                };
            }
            value.extend_from_slice(line);
            value.push(b'\n');
            line = self.next()?.ok_or(EnvFileError::Unclosed { line: first })?;
        }
    }
}

/// Drops leading spaces and tabs.
fn trim_blanks(line: &[u8]) -> &[u8] {
    let blanks = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t'));
    &line[blanks.count()..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(content: &str, key: &str, expected: Result<&str, &str>) {
        let value = env_file_value(content.as_bytes(), key);
        let value = value.map(|value| String::from_utf8(value).unwrap());
        let value = value.map_err(|error| error.to_string());
        assert_eq!(
            value.as_deref().map_err(String::as_str),
            expected,
            "{content:?}"
        );
    }

    #[test]
    fn finds_values_between_comments_and_blank_lines() {
        // projection 61
        let content = "# head\n\n  \t\nA='1'\n\tB='two words' # tail\nC='3'#tail\n";
        check(content, "A", Ok("1"));
        check(content, "B", Ok("two words"));
        check(content, "C", Ok("3"));
        check(content, "D", Ok(""));
        check("export K='a'", "export K", Ok("a"));
    }

    #[test]
    fn quoted_text_is_literal_and_may_span_lines() {
        // projection 62
        check(
            "A='1\r\n  2 # $VAR \"x\"\n3'\n",
            "A",
            Ok("1\n  2 # $VAR \"x\"\n3"),
        );
        check("A='x'\r", "A", Ok("x"));
        check("A=''\n", "A", Ok(""));
        check("K= 'x'\nK='y'", "K", Ok(""));
    }

    #[test]
    fn malformed_lines_are_named() {
        // projection 61, 62
        let at = |line, problem| {
            format!("invalid environment variable format at line {line}: {problem}")
        };
        for (content, line, problem) in [
            ("K = 'v'", 1, "whitespace before '=' is not allowed"),
            ("\nK", 2, "missing '='"),
            ("='x'", 1, "empty variable name"),
            (" ='x'", 1, "empty variable name"),
            ("K='foo''bar'", 1, "unexpected content after closing quote"),
            ("A='a\nb' x", 2, "unexpected content after closing quote"),
            ("K=\"v\"", 1, "value must be enclosed in single quotes"),
            ("K=v", 1, "value must be enclosed in single quotes"),
            ("K=", 1, "value must be enclosed in single quotes"),
        ] {
            check(content, "Z", Err(&at(line, problem)));
        }
        check(
            "A='1'\nB='2\n3\n",
            "B",
            Err("invalid environment variable format starting at line 2: unclosed single quote"),
        );
    }

    #[test]
    fn reading_stops_at_the_first_definition() {
        // projection 63
        check("K='1'\nK='2'", "K", Ok("1"));
        check("K='1'\nbroken", "K", Ok("1"));
        let error = "invalid environment variable format at line 1: missing '='";
        check("broken\nK='1'", "K", Err(error));
    }

    #[test]
    fn a_line_of_64_kib_is_refused() {
        // projection 63
        let longest = format!("#{}\nK='1'", "x".repeat(MAX_LINE - 1));
        check(&longest, "K", Ok("1"));
        let longer = format!("#{}\nK='1'", "x".repeat(MAX_LINE));
        check(&longer, "K", Err("line 1 is too long"));
    }
}
