//! Forms of names (apimachinery 1.36, `pkg/util/validation/validation.go`) and of paths.
//!
//! Each function checks whether a text has the form; the message beside it is the API server's for a text that does
//! not.

use std::{borrow::Cow, ops::RangeInclusive};

use super::field::Field;

pub(super) const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
pub(super) const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENVIRONMENT: &str = "a valid environment variable name must consist only of printable ASCII characters other than '='";

/// Longest name of an object.
const MAX_SUBDOMAIN: usize = 253;
/// Longest label of a DNS name, and longest name part of a label key.
const MAX_LABEL: usize = 63;

/// Whether `text` is a lower-case DNS-1123 subdomain, as most objects' names are.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_unbounded_label)
}

/// Whether `text` is a lower-case DNS-1123 label, as names of namespaces, containers and volumes are.
pub fn is_label(text: &str) -> bool {
    text.len() <= MAX_LABEL && is_unbounded_label(text)
}

fn is_unbounded_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(first), Some(last)) if inner(*first) && inner(*last))
        && bytes.iter().all(|c| inner(*c) || *c == b'-')
}

/// Whether `text` can be the key of a label or of an annotation: `name` or `subdomain/name`.
pub fn is_qualified_name(text: &str) -> bool {
    qualified_name_problems(text).is_empty()
}

/// All that keeps `text` from being the key of a label, in the API server's words.
pub fn qualified_name_problems(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a valid label key {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else if prefix.len() > MAX_SUBDOMAIN {
                problems.push(format!("prefix part {}", too_long(MAX_SUBDOMAIN)));
            }
            if !prefix.is_empty() && !prefix.split('.').all(is_unbounded_label) {
                problems.push(format!("prefix part {SUBDOMAIN}"));
            }
            name
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL {
        problems.push(format!("name part {}", too_long(MAX_LABEL)));
    }
    if name.is_empty() || !has_label_form(name) {
        problems.push(format!("name part {QUALIFIED}"));
    }
    problems
}

/// Whether `text` can be the value of a label; it may be empty.
pub fn is_label_value(text: &str) -> bool {
    text.len() <= MAX_LABEL && has_label_form(text)
}

fn has_label_form(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

/// Whether `text` can be a key of a ConfigMap or a Secret.
pub fn is_config_map_key(text: &str) -> bool {
    config_map_key_problems(text).is_empty()
}

/// Whether `text` can name an environment variable: printable ASCII without `=`.
pub fn is_environment_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|c| (b' '..=b'~').contains(&c) && c != b'=')
}

fn config_map_key_problems(text: &str) -> Vec<String> {
    let form = |c: u8| c.is_ascii_alphanumeric() || b"-._".contains(&c);
    let mut problems = Vec::new();
    if text.len() > MAX_SUBDOMAIN {
        problems.push(too_long(MAX_SUBDOMAIN));
    }
    if text.is_empty() || !text.bytes().all(form) {
        problems.push(CONFIG_KEY.to_owned());
    }
    if matches!(text, "." | "..") {
        problems.push(format!("must not be '{text}'"));
    } else if text.starts_with("..") {
        problems.push("must not start with '..'".to_owned());
    }
    problems
}

/// `text` with another last character in place of a dash there.
fn without_dash(text: &str) -> Cow<'_, str> {
    match text.strip_suffix('-') {
        Some(rest) if !rest.is_empty() => format!("{rest}a").into(),
        _ => text.into(),
    }
}

pub(super) fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

impl Field<'_> {
    pub(super) fn check_not_empty(&self, text: &str) {
        if text.is_empty() {
            self.required("");
        }
    }

    /// A text that must not be empty, and passes `check` otherwise.
    pub(super) fn check_given(&self, text: &str, check: impl FnOnce(&Self, &str)) {
        if text.is_empty() {
            self.required("");
        } else {
            check(self, text);
        }
    }

    pub(super) fn check_environment_name(&self, name: &str) {
        if !is_environment_name(name) {
            self.invalid(name, ENVIRONMENT);
        }
    }

    pub(super) fn check_subdomain(&self, text: &str) {
        self.check_subdomain_in(text, text);
    }

    /// `checked` is what the rule applies to, `text` what the error shows.
    pub(super) fn check_subdomain_in(&self, checked: &str, text: &str) {
        if checked.len() > MAX_SUBDOMAIN {
            self.invalid(text, &too_long(MAX_SUBDOMAIN));
        }
        if !checked.split('.').all(is_unbounded_label) {
            self.invalid(text, SUBDOMAIN);
        }
    }

    /// As [`Self::check_subdomain`], for a name to which something is going to be added: it may end in a dash.
    pub(super) fn check_subdomain_prefix(&self, text: &str) {
        self.check_subdomain_in(&without_dash(text), text);
    }

    pub(super) fn check_label(&self, text: &str) {
        if text.len() > MAX_LABEL {
            self.invalid(text, &too_long(MAX_LABEL));
        }
        if !is_unbounded_label(text) {
            let has_dots = text.split('.').all(is_unbounded_label);
            let no_dots = "must not contain dots";
            self.invalid(text, if has_dots { no_dots } else { LABEL });
        }
    }

    pub(super) fn check_label_value(&self, text: &str) {
        if text.len() > MAX_LABEL {
            self.invalid(text, &too_long(MAX_LABEL));
        }
        if !has_label_form(text) {
            self.invalid(text, LABEL_VALUE);
        }
    }

    /// A path within a volume.
    pub(super) fn check_relative(&self, path: &str) {
        if path.starts_with('/') {
            self.invalid(path, "must be a relative path");
        }
        self.check_inside(path);
    }

    /// A path that does not lead out of where it begins.
    pub(super) fn check_inside(&self, path: &str) {
        if path.split('/').any(|element| element == "..") {
            self.invalid(path, "must not contain '..'");
        }
    }

    /// `checked` is what the rule applies to, `text` what the error shows.
    pub(super) fn check_qualified_name(&self, checked: &str, text: &str) {
        for problem in qualified_name_problems(checked) {
            self.invalid(text, &problem);
        }
    }

    pub(super) fn check_config_map_key(&self, key: &str) {
        for problem in config_map_key_problems(key) {
            self.invalid(key, &problem);
        }
    }

    /// A value that is not set breaks no rule.
    pub(super) fn check_choice(&self, value: Option<&str>, supported: &[&str]) {
        if let Some(value) = value.filter(|value| !supported.contains(value)) {
            self.not_supported(value, supported);
        }
    }

    /// The number of a user or group.
    pub(super) fn check_id(&self, id: Option<i64>) {
        self.check_range(id.unwrap_or(0), 0..=i64::from(i32::MAX));
    }

    pub(super) fn check_range(&self, number: i64, range: RangeInclusive<i64>) {
        if !range.contains(&number) {
            let (least, most) = range.into_inner();
            let rule = format!("must be between {least} and {most}, inclusive");
            self.invalid(number, &rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_objects_are_subdomains() {
        for good in ["a", "a-b", "a.b", "1", "a1.b-2.c", &"a".repeat(253)] {
            assert!(is_subdomain(good), "{good}");
        }
        for bad in [
            "",
            "A",
            "a_b",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "a/b",
            "ä",
            &"a".repeat(254),
        ] {
            assert!(!is_subdomain(bad), "{bad}");
        }
        assert!(!is_label("a.b") && is_label(&"a".repeat(63)) && !is_label(&"a".repeat(64)));
    }

    #[test]
    fn keys_of_labels_may_have_a_prefix() {
        for good in ["a", "A_b.c", "example.com/Name", "a/1"] {
            assert!(is_qualified_name(good), "{good}");
        }
        for bad in [
            "",
            "/a",
            "a/",
            "a/b/c",
            "Example.com/a",
            "_a",
            "a b",
            &"a".repeat(64),
        ] {
            assert!(!is_qualified_name(bad), "{bad}");
        }
        assert!(
            is_label_value("")
                && is_label_value("A-1")
                && !is_label_value("a b")
                && !is_label_value("-a")
        );
    }

    #[test]
    fn keys_of_config_maps_are_file_names() {
        // projection 14.1
        for good in ["a", ".hidden", "a..b", "-", "_x", "A.b-c", &"k".repeat(253)] {
            assert!(is_config_map_key(good), "{good}");
        }
        for bad in ["", ".", "..", "..a", "a/b", "a b", "ä", &"k".repeat(254)] {
            assert!(!is_config_map_key(bad), "{bad}");
        }
    }

    #[test]
    fn names_of_variables_are_printable_ascii_without_equals_sign() {
        for good in ["A", "1234", "a b", "$_-", "#@!", "x.y"] {
            assert!(is_environment_name(good), "{good}");
        }
        for bad in ["", "A=B", "a\tb", "ä", "a\0"] {
            assert!(!is_environment_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn every_problem_of_a_label_key_is_reported() {
        // projection 46
        let starts = |text: &str| -> Vec<String> {
            let problems = qualified_name_problems(text).into_iter();
            problems
                .map(|problem| problem.chars().take(27).collect())
                .collect()
        };
        assert_eq!(starts("www.k8s.io/test"), [""; 0]);
        assert_eq!(starts("Www.k8s.io/test"), ["prefix part a lowercase RFC"]);
        assert_eq!(
            starts(""),
            ["name part must be non-empty", "name part must consist of a"]
        );
        assert_eq!(
            starts("/-"),
            ["prefix part must be non-emp", "name part must consist of a"]
        );
        assert_eq!(starts(&"a".repeat(64)), ["name part must be no more t"]);
        assert_eq!(starts("a/b/c"), ["a valid label key must cons"]);
    }
}
