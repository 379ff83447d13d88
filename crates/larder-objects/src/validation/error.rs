//! Field errors, in the API server's form.

use std::{fmt, ops::Deref};

use crate::FieldPath;

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
    pub(super) omitted: usize,
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

    pub(super) fn add(&mut self, error: FieldError) {
        if self.errors.len() < MAX_FIELD_ERRORS {
            self.errors.push(error);
        } else {
            self.omitted += 1;
        }
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
        let errors = FieldErrors::found(|object| {
            object
                .at("metadata.name")
                .invalid("A", "must be lower case");
        });
        assert_eq!(
            errors.to_string(),
            r#"metadata.name: Invalid value: "A": must be lower case"#
        );
        let errors = errors.and(FieldErrors::found(|object| {
            object.at("spec.containers").required("");
            let policy = object.at("spec.restartPolicy");
            policy.not_supported("No", &["Always", "Never"]);
            let volume = object.at("spec.volumes").index(1);
            volume.child("name").duplicate("v");
        }));
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
