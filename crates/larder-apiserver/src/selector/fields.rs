//! Field selectors.

use smol_str::SmolStr;

use crate::{object::Object, resource::Resource, status::ApiError};

const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

/// Terms over fields, all of which must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct FieldSelector {
    terms: Vec<FieldTerm>,
}

#[derive(Clone, Debug)]
struct FieldTerm {
    field: &'static str,
    equal: bool,
    value: SmolStr,
}

impl FieldSelector {
    /// Parses the grammar of `fieldSelector=`: `field=value`, `==` and `!=`, joined by commas; `\` escapes `\`, `,` and
    /// `=` in values.
    ///
    /// # Errors
    ///
    /// 400 for bad syntax or a field that `resource` cannot be selected by.
    pub(crate) fn parse(text: &str, resource: &Resource) -> Result<Self, ApiError> {
        let terms = split_unescaped(text)
            .filter(|term| !term.is_empty())
            .map(|term| {
                let (field, equal, value) = split_term(term).ok_or_else(|| {
                    ApiError::bad_request(format!(
                        "invalid selector: '{text}'; can't understand '{term}'"
                    ))
                })?;
                let field =
                    known_field(field, resource).ok_or_else(|| unknown_field(field, resource))?;
                let value = unescape(value).ok_or_else(|| {
                    ApiError::bad_request(format!(
                        "invalid field selector: invalid escape sequence in '{value}'"
                    ))
                })?;
                Ok(FieldTerm {
                    field,
                    equal,
                    value,
                })
            })
            .collect::<Result<_, ApiError>>()?;
        Ok(Self { terms })
    }

    /// Whether it lets everything through.
    pub(super) fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub(super) fn matches(&self, object: &Object) -> bool {
        self.terms
            .iter()
            .all(|term| (object.field(term.field) == term.value) == term.equal)
    }

    /// The one name that can match.
    pub(crate) fn name(&self) -> Option<&SmolStr> {
        self.equal_to(NAME)
    }

    /// The one node whose pods can match.
    pub(crate) fn node_name(&self) -> Option<&SmolStr> {
        self.equal_to("spec.nodeName")
    }

    /// The value that `field` must have.
    fn equal_to(&self, field: &str) -> Option<&SmolStr> {
        let mut terms = self.terms.iter();
        terms
            .find(|term| term.equal && term.field == field)
            .map(|term| &term.value)
    }
}

fn known_field(name: &str, resource: &Resource) -> Option<&'static str> {
    match name {
        NAME => Some(NAME),
        NAMESPACE if resource.namespaced => Some(NAMESPACE),
        name => resource.fields.iter().copied().find(|field| *field == name),
    }
}

/// The rejection of a field; kube-apiserver names those that a kind has without selectable fields of its own.
fn unknown_field(name: &str, resource: &Resource) -> ApiError {
    ApiError::bad_request(if resource.fields.is_empty() {
        format!("\"{name}\" is not a known field selector: only \"{NAME}\", \"{NAMESPACE}\"")
    } else {
        format!("field label not supported: {name}")
    })
}

/// Splits at commas that no backslash precedes.
fn split_unescaped(text: &str) -> impl Iterator<Item = &str> {
    let mut is_escaped = false;
    text.split(move |character| {
        let splits = character == ',' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        splits
    })
}

/// Field, whether it must be equal, and the value as written.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let position = term.find(['=', '!'])?;
    let (field, rest) = term.split_at(position);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, false, value));
    }
    let value = rest.strip_prefix("==").or(rest.strip_prefix('='))?;
    Some((field, true, value))
}

fn unescape(value: &str) -> Option<SmolStr> {
    if !value.contains(['\\', '=']) {
        return Some(value.into());
    }
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(
                characters
                    .next()
                    .filter(|next| matches!(next, '\\' | ',' | '='))?,
            ),
            '=' => return None,
            other => plain.push(other),
        }
    }
    Some(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiKind, selector::testing::pod};

    #[track_caller]
    fn check_fields(selector: &str, expected: bool) {
        let selector = FieldSelector::parse(selector, ApiKind::Pod.resource()).unwrap();
        assert_eq!(selector.matches(&pod()), expected, "{selector:?}");
    }

    #[test]
    fn fields_select_by_equality_and_inequality() {
        check_fields("metadata.name=web", true);
        check_fields(
            "metadata.name==web,spec.nodeName=n1,status.phase!=Failed",
            true,
        );
        check_fields("spec.hostNetwork=false", true);
        check_fields("status.podIP=", true);
        check_fields("metadata.namespace!=n", false);
        check_fields("spec.nodeName=", false);
        check_fields(r"metadata.name=a\,b", false);
        let selector =
            FieldSelector::parse(r"metadata.name=a\,b\=c", ApiKind::Pod.resource()).unwrap();
        assert_eq!(selector.equal_to(NAME).unwrap(), "a,b=c");
    }

    #[test]
    fn bad_field_selectors_are_rejected() {
        for selector in [
            "metadata.name",
            "data.a=1",
            "metadata.name=a=b",
            r"metadata.name=a\b",
            "spec.nodeName>1",
        ] {
            let error = FieldSelector::parse(selector, ApiKind::Pod.resource()).unwrap_err();
            assert_eq!(error.reason(), "BadRequest", "{selector}");
        }
        assert!(FieldSelector::parse("metadata.namespace=a", ApiKind::Node.resource()).is_err());
    }
}
