//! A configuration file as typed: its fields with their lines, before they are interpreted.
//!
//! Invariant: no error of this module quotes a value, since a header of `staticPodURLHeader` may be a credential.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// A mistake in a file and its line (from 1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Not YAML, or not a single mapping.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Where the parser stopped.
        line: u64,
        /// What it found there.
        problem: String,
    },
    /// A field with an invalid value.
    #[error("line {line}: {field}: {problem}")]
    Field {
        /// Where its value stands.
        line: u64,
        /// Its name, as in the file.
        field: String,
        /// What is expected instead.
        problem: String,
    },
    /// An unknown field: most likely a typing error.
    #[error("line {line}: unknown field {field:?}")]
    Unknown {
        /// Where its value stands.
        line: u64,
        /// Its name, as in the file.
        field: String,
    },
}

/// The fields of one file that are not read yet.
#[derive(Debug)]
pub(super) struct Fields {
    left: BTreeMap<String, Spanned<Value>>,
    /// The lines on which the entries of `onChange` begin.
    hook_lines: Vec<u64>,
    /// Names that were requested.
    #[cfg(test)]
    taken: Vec<String>,
}

impl Fields {
    /// Reads one YAML (or JSON) mapping; an empty text has no fields.
    pub(super) fn parse(text: &str) -> Result<Self, FileError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            duplicate_keys: DuplicateKeyPolicy::Error,
        };
        let left: Option<BTreeMap<String, Spanned<Value>>> =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                FileError::Malformed {
                    line: error.location().map_or(1, |location| location.line()),
                    problem: malformed(&error).to_owned(),
                }
            })?;
        let left = left.unwrap_or_default();
        let hook_lines = if left.contains_key("onChange") {
            lines_of_hooks(text)
        } else {
            Vec::new()
        };
        Ok(Self {
            left,
            hook_lines,
            #[cfg(test)]
            taken: Vec::new(),
        })
    }

    /// Takes `field` out and decodes it; `None` if absent or `null`.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        field: &str,
        expected: &str,
    ) -> Result<Option<T>, FileError> {
        self.take_with(field, |value| typed(value, expected))
    }

    /// Takes `field` out and parses its text with `read`.
    pub(super) fn take_text<T, E: ToString>(
        &mut self,
        field: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, FileError> {
        self.take_with(field, |value| match value {
            Value::String(text) => read(&text).map_err(|error| error.to_string()),
            _ => Err("expected a string".to_owned()),
        })
    }

    /// Takes `field` out and lets `read` make something of its value.
    pub(super) fn take_with<T>(
        &mut self,
        field: &str,
        read: impl FnOnce(Value) -> Result<T, String>,
    ) -> Result<Option<T>, FileError> {
        #[cfg(test)]
        self.taken.push(field.to_owned());
        let Some(spanned) = self
            .left
            .remove(field)
            .filter(|spanned| !spanned.value.is_null())
        else {
            return Ok(None);
        };
        let line = spanned.referenced.line();
        read(spanned.value)
            .map(Some)
            .map_err(|problem| FileError::Field {
                line,
                field: field.to_owned(),
                problem,
            })
    }

    /// The line on which an entry of `onChange` begins.
    pub(super) fn line_of_hook(&self, position: usize) -> u64 {
        self.hook_lines.get(position).copied().unwrap_or(1)
    }

    /// The names that were requested so far, in that order.
    #[cfg(test)]
    pub(super) fn taken(&self) -> &[String] {
        &self.taken
    }

    /// The names of the fields that are left, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.left.keys().map(String::as_str)
    }

    /// Rejects the first field that is left.
    pub(super) fn finish(self) -> Result<(), FileError> {
        let first = self
            .left
            .into_iter()
            .min_by_key(|(_, spanned)| spanned.referenced.line());
        match first {
            None => Ok(()),
            Some((field, spanned)) => Err(FileError::Unknown {
                line: spanned.referenced.line(),
                field,
            }),
        }
    }
}

/// The value as a `T`.
pub(super) fn typed<T: DeserializeOwned>(value: Value, expected: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|_| format!("expected {expected}"))
}

/// The lines on which the entries of `onChange` begin; none if the text is not as [`Fields::parse`] wants it.
fn lines_of_hooks(text: &str) -> Vec<u64> {
    /// Apart from [`Fields`], whose values have lost the places of what is in them.
    #[derive(serde::Deserialize)]
    struct HookLines {
        #[serde(rename = "onChange")]
        hooks: Vec<Spanned<serde::de::IgnoredAny>>,
    }
    let options = serde_saphyr::options! { with_snippet: false };
    let found: Result<HookLines, _> = serde_saphyr::from_str_with_options(text, options);
    let hooks = found.map(|found| found.hooks).unwrap_or_default();
    hooks.iter().map(|hook| hook.referenced.line()).collect()
}

/// The parser's message may quote the text at the mistake.
fn malformed(error: &serde_saphyr::Error) -> &'static str {
    match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { .. } => "duplicate field",
        serde_saphyr::Error::Budget { .. } => "too large or too deeply nested",
        _ => "malformed YAML, or not a mapping of fields",
    }
}
