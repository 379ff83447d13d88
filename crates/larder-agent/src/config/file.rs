//! A configuration file as typed: its fields with their lines, before they are interpreted.
//!
//! Invariant: no error of this module quotes a value, since a header of `staticPodURLHeader` may be a credential.

use std::collections::BTreeSet;

use larder_objects::{
    FieldPath,
    yaml::{COPIED_BYTES, ErrorKind, YamlDocument},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A mistake in a file and its line (from 1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Not YAML, or not a single mapping.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Where the parser stopped.
        line: usize,
        /// What it found there.
        problem: String,
    },
    /// A field with an invalid value.
    #[error("line {line}: {field}: {problem}")]
    Field {
        /// Where its value stands.
        line: usize,
        /// Its name, as in the file.
        field: String,
        /// What is expected instead.
        problem: String,
    },
    /// An unknown field: most likely a typing error.
    #[error("line {line}: unknown field {field:?}")]
    Unknown {
        /// Where its value stands.
        line: usize,
        /// Its name, as in the file.
        field: String,
    },
}

/// The fields of one file, and which of them are not read yet.
#[derive(Debug)]
pub(super) struct Fields {
    document: YamlDocument,
    /// Names that were requested, in that order.
    pub(super) taken: Vec<String>,
}

impl Fields {
    /// Reads one YAML (or JSON) mapping; an empty text has no fields.
    pub(super) fn parse(text: &str) -> Result<Self, FileError> {
        let malformed = |line, problem: &str| FileError::Malformed {
            line,
            problem: problem.to_owned(),
        };
        let document =
            YamlDocument::parse(text, COPIED_BYTES).map_err(|error| match error.kind {
                // The key may be a value on the wrong side of the colon.
                ErrorKind::DuplicateKey => malformed(error.line, "duplicate field"),
                _ => malformed(error.line, &error.problem),
            })?;
        match document.value() {
            Value::Object(_) | Value::Null => Ok(Self {
                document,
                taken: Vec::new(),
            }),
            _ => {
                let line = document.line_of(&FieldPath::root());
                Err(malformed(line, "not a mapping of fields"))
            }
        }
    }

    /// Takes `field` and decodes it; `None` if absent or `null`.
    pub(super) fn take<T: DeserializeOwned>(
        &mut self,
        field: &str,
        expected: &str,
    ) -> Result<Option<T>, FileError> {
        self.take_with(field, |value| typed(value, expected))
    }

    /// Takes `field` and parses its text with `read`.
    pub(super) fn take_text<T, E: ToString>(
        &mut self,
        field: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, FileError> {
        self.take_with(field, |value| match value {
            Value::String(text) => read(text).map_err(|error| error.to_string()),
            _ => Err("expected a string".to_owned()),
        })
    }

    /// Takes `field` and lets `read` make something of its value.
    pub(super) fn take_with<T>(
        &mut self,
        field: &str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Result<Option<T>, FileError> {
        self.taken.push(field.to_owned());
        match &self.document.value()[field] {
            Value::Null => Ok(None),
            value => read(value).map(Some).map_err(|problem| FileError::Field {
                line: self.line_of(field),
                field: field.to_owned(),
                problem,
            }),
        }
    }

    /// The line on which an entry of `onChange` begins.
    pub(super) fn line_of_hook(&self, position: usize) -> usize {
        let hook = FieldPath::fields("onChange").index(position);
        self.document.line_of(&hook)
    }

    /// The names of the fields that are left, sorted.
    pub(super) fn left(&self) -> BTreeSet<&str> {
        let fields = self.document.value().as_object().into_iter().flatten();
        let names = fields.map(|(name, _)| name.as_str());
        let is_left = |name: &&str| !self.taken.iter().any(|taken| taken == name);
        names.filter(is_left).collect()
    }

    /// Rejects the first field that is left.
    pub(super) fn finish(&self) -> Result<(), FileError> {
        let left = self.left().into_iter();
        let lines = left.map(|field| (self.line_of(field), field));
        lines.min().map_or(Ok(()), |(line, field)| {
            let field = field.to_owned();
            Err(FileError::Unknown { line, field })
        })
    }

    fn line_of(&self, field: &str) -> usize {
        self.document.line_of(&FieldPath::root().child(field))
    }
}

/// The value as a `T`.
pub(super) fn typed<T: DeserializeOwned>(value: &Value, expected: &str) -> Result<T, String> {
    T::deserialize(value).map_err(|_| format!("expected {expected}"))
}
