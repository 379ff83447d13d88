//! Field errors, in the API server's form.

use std::{fmt, ops::Deref};

use crate::{FieldPath, similar::most_similar};

/// Number of errors that are kept of one object. A hostile object has a wrong field for every few bytes.
const MAX_FIELD_ERRORS: usize = 256;

/// The kind of a field's problem (apimachinery 1.36, `pkg/util/validation/field/errors.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// Absent, and must not be.
    Required,
    /// Breaks a rule on its form.
    Invalid,
    /// There already.
    Duplicate,
    /// Must not be set here.
    Forbidden,
    /// None of the values that exist.
    NotSupported,
    /// Names something that is not there.
    NotFound,
    /// Exceeds a length or a size.
    TooLong,
}

impl FieldErrorKind {
    /// The `reason` of a cause in a `Status`.
    pub fn reason(self) -> String {
        format!("FieldValue{self:?}")
    }

    fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::NotSupported => "Unsupported value",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
        }
    }
}

/// One wrong field. Displays as `spec.volumes[0].name: Invalid value: "A": must …`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldError {
    /// Path of the field.
    pub field: FieldPath,
    /// The kind of the problem.
    pub kind: FieldErrorKind,
    /// The value, as JSON would show it; `None` where showing it would not help or would leak.
    pub value: Option<String>,
    /// The rule; may be empty.
    pub message: String,
}

impl FieldError {
    /// The text without the field's path: the `message` of a cause in a `Status`.
    pub fn body(&self) -> String {
        let mut body = self.kind.text().to_owned();
        if let Some(value) = &self.value {
            body += ": ";
            body += value;
        }
        if !self.message.is_empty() {
            body += ": ";
            body += &self.message;
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// The wrong fields of an object, in the order of the fields. Several display as `[one, two]`.
///
/// Beyond 256 they are only counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors {
    errors: Vec<FieldError>,
    omitted: usize,
}

impl FieldErrors {
    /// These errors and those.
    #[must_use]
    pub fn and(mut self, more: Self) -> Self {
        self.omitted += more.omitted;
        for error in more.errors {
            self.add(error);
        }
        self
    }

    /// The same errors of an object that is the part `prefix` of another one.
    #[must_use]
    pub fn within(mut self, prefix: &FieldPath) -> Self {
        for error in &mut self.errors {
            error.field = prefix.join(&error.field);
        }
        self
    }

    /// One error a line, as tests want them.
    #[cfg(test)]
    pub(super) fn lines(&self) -> String {
        let lines: Vec<_> = self.iter().map(ToString::to_string).collect();
        lines.join("\n") + "\n"
    }

    pub(super) fn push(
        &mut self,
        field: impl Into<FieldPath>,
        kind: FieldErrorKind,
        value: Option<String>,
        message: impl Into<String>,
    ) {
        self.add(FieldError {
            field: field.into(),
            kind,
            value,
            message: message.into(),
        });
    }

    fn add(&mut self, error: FieldError) {
        if self.errors.len() < MAX_FIELD_ERRORS {
            self.errors.push(error);
        } else {
            self.omitted += 1;
        }
    }

    pub(super) fn required(&mut self, field: impl Into<FieldPath>, message: &str) {
        self.push(field, FieldErrorKind::Required, None, message);
    }

    pub(super) fn invalid(
        &mut self,
        field: impl Into<FieldPath>,
        value: impl fmt::Debug,
        message: &str,
    ) {
        let shown = Some(format!("{value:?}"));
        self.push(field, FieldErrorKind::Invalid, shown, message);
    }

    pub(super) fn duplicate(&mut self, field: impl Into<FieldPath>, value: &str) {
        let shown = Some(format!("{value:?}"));
        self.push(field, FieldErrorKind::Duplicate, shown, "");
    }

    pub(super) fn forbidden(&mut self, field: impl Into<FieldPath>, message: &str) {
        self.push(field, FieldErrorKind::Forbidden, None, message);
    }

    /// The message of the API server, and the most similar of the names that are there.
    pub(super) fn not_found<'k>(
        &mut self,
        field: impl Into<FieldPath>,
        value: &str,
        known: impl IntoIterator<Item = &'k str>,
    ) {
        let shown = Some(format!("{value:?}"));
        // Not for errors that are only counted: comparing costs more than the rest.
        let known = known.into_iter().take_while(|_| self.omitted == 0);
        let near = most_similar(value, known).map(|near| format!("did you mean {near:?}?"));
        let near = near.unwrap_or_default();
        self.push(field, FieldErrorKind::NotFound, shown, near);
    }

    pub(super) fn too_long(&mut self, field: impl Into<FieldPath>, message: String) {
        self.push(field, FieldErrorKind::TooLong, None, message);
    }

    pub(super) fn not_supported(
        &mut self,
        field: impl Into<FieldPath>,
        value: &str,
        supported: &[&str],
    ) {
        let supported: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("supported values: {}", supported.join(", "));
        let shown = Some(format!("{value:?}"));
        self.push(field, FieldErrorKind::NotSupported, shown, message);
    }
}

impl Deref for FieldErrors {
    type Target = [FieldError];

    fn deref(&self) -> &[FieldError] {
        &self.errors
    }
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.errors {
            [error] => write!(f, "{error}"),
            errors => {
                f.write_str("[")?;
                for (index, error) in errors.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{error}")?;
                }
                if self.omitted > 0 {
                    write!(f, ", and {} more", self.omitted)?;
                }
                f.write_str("]")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_the_api_servers() {
        let mut errors = FieldErrors::default();
        errors.invalid("metadata.name", "A", "must be lower case");
        assert_eq!(
            errors.to_string(),
            r#"metadata.name: Invalid value: "A": must be lower case"#
        );
        errors.required("spec.containers", "");
        errors.not_supported("spec.restartPolicy", "No", &["Always", "Never"]);
        let name = FieldPath::fields("spec.volumes").index(1).child("name");
        errors.duplicate(&name, "v");
        let errors = errors.within(&FieldPath::fields("spec.template"));
        assert_eq!(
            errors[1..]
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
            [
                "spec.template.spec.containers: Required value",
                r#"spec.template.spec.restartPolicy: Unsupported value: "No": supported values: "Always", "Never""#,
                r#"spec.template.spec.volumes[1].name: Duplicate value: "v""#,
            ]
        );
        assert!(
            errors
                .to_string()
                .starts_with("[spec.template.metadata.name: ")
        );
    }
}
