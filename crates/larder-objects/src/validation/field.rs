//! The field that a check looks at.

use std::{cell::RefCell, fmt};

use super::error::{FieldError, FieldErrorKind, FieldErrors};
use crate::{FieldPath, similar::most_similar};

/// A field of an object. What is wrong with it goes to a list that all fields of the object share.
#[derive(Clone)]
pub(super) struct Field<'e> {
    errors: &'e RefCell<FieldErrors>,
    path: FieldPath,
}

impl FieldErrors {
    /// What `check` finds wrong with an object.
    pub(super) fn found(check: impl FnOnce(&Field<'_>)) -> Self {
        let (errors, path) = (RefCell::default(), FieldPath::root());
        check(&Field {
            errors: &errors,
            path,
        });
        errors.into_inner()
    }
}

impl Field<'_> {
    fn with(&self, path: FieldPath) -> Self {
        Self { path, ..*self }
    }

    /// The nested fields `names` of this one, written with dots.
    pub(super) fn at(&self, names: &'static str) -> Self {
        self.with(self.path.join(&names.into()))
    }

    /// The field `name` of this one.
    pub(super) fn child(&self, name: &str) -> Self {
        self.with(self.path.child(name))
    }

    /// The entry `key` of this map.
    pub(super) fn key(&self, key: &str) -> Self {
        self.with(self.path.key(key))
    }

    /// The item at `index` of this list.
    pub(super) fn index(&self, index: usize) -> Self {
        self.with(self.path.index(index))
    }

    /// Number of the errors of the object so far.
    pub(super) fn errors(&self) -> usize {
        self.errors.borrow().len()
    }

    pub(super) fn report(
        &self,
        kind: FieldErrorKind,
        value: Option<String>,
        message: impl Into<String>,
    ) {
        self.errors.borrow_mut().add(FieldError {
            field: self.path.clone(),
            kind,
            value,
            message: message.into(),
        });
    }

    pub(super) fn required(&self, message: &str) {
        self.report(FieldErrorKind::Required, None, message);
    }

    pub(super) fn invalid(&self, value: impl fmt::Debug, message: &str) {
        let shown = Some(format!("{value:?}"));
        self.report(FieldErrorKind::Invalid, shown, message);
    }

    pub(super) fn duplicate(&self, value: &str) {
        let shown = Some(format!("{value:?}"));
        self.report(FieldErrorKind::Duplicate, shown, "");
    }

    pub(super) fn forbidden(&self, message: &str) {
        self.report(FieldErrorKind::Forbidden, None, message);
    }

    /// The message of the API server, and the most similar of the names that are there.
    pub(super) fn not_found<'k>(&self, value: &str, known: impl IntoIterator<Item = &'k str>) {
        let shown = Some(format!("{value:?}"));
        // Not for errors that are only counted: comparing costs more than the rest.
        let is_kept = self.errors.borrow().omitted == 0;
        let known = known.into_iter().take_while(|_| is_kept);
        let near = most_similar(value, known).map(|near| format!("did you mean {near:?}?"));
        self.report(FieldErrorKind::NotFound, shown, near.unwrap_or_default());
    }

    pub(super) fn too_long(&self, message: String) {
        self.report(FieldErrorKind::TooLong, None, message);
    }

    pub(super) fn not_supported(&self, value: &str, supported: &[&str]) {
        let supported: Vec<_> = supported.iter().map(|value| format!("{value:?}")).collect();
        let message = format!("supported values: {}", supported.join(", "));
        let shown = Some(format!("{value:?}"));
        self.report(FieldErrorKind::NotSupported, shown, message);
    }
}
