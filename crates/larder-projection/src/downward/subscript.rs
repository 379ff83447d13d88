//! Subscripts of field paths: `metadata.labels['key']`.

/// Splits `base['key']`; `None` when `path` has no subscript.
///
/// Kubelet 1.36, `SplitMaybeSubscriptedPath` in `pkg/fieldpath/fieldpath.go`: at the first `['`, so that the key may contain more of them.
pub(super) fn split_subscript(path: &str) -> Option<(&str, &str)> {
    let inner = path.strip_suffix("']")?;
    let (base, key) = inner.split_once("['")?;
    (!base.is_empty()).then_some((base, key))
}

/// What keeps `key` from being the key of a label, in the words of k8s.io/apimachinery 0.36 (`IsQualifiedName`).
pub(super) fn subscript_problems(key: &str) -> Vec<String> {
    const NAME: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut problems = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((_, name)) if name.contains('/') => {
            return vec![format!(
                "a qualified name {NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
        Some(("", name)) => {
            problems.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            problems.extend(prefix_problems(prefix));
            name
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push("name part must be no more than 63 characters".to_owned());
    }
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(starts_and_ends_alphanumeric(name) && name.bytes().all(inner)) {
        problems.push(format!("name part {NAME}"));
    }
    problems
}

fn prefix_problems(prefix: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if prefix.len() > 253 {
        problems.push("prefix part must be no more than 253 characters".to_owned());
    }
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = |label: &str| starts_and_ends_alphanumeric(label) && label.bytes().all(inner);
    if prefix.bytes().any(|byte| byte.is_ascii_uppercase()) || !prefix.split('.').all(is_label) {
        problems.push("prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".to_owned());
    }
    problems
}

fn starts_and_ends_alphanumeric(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    ends.iter()
        .all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn splits_at_the_first_bracket_and_the_last_quote() {
        // projection 46
        for (path, expected) in [
            ("metadata.labels['key']", Some(("metadata.labels", "key"))),
            ("metadata.labels['']", Some(("metadata.labels", ""))),
            (
                "metadata.labels['['key']",
                Some(("metadata.labels", "['key")),
            ),
            (
                "metadata.annotations['a[b']c']",
                Some(("metadata.annotations", "a[b']c")),
            ),
            ("metadata.labels[''']", Some(("metadata.labels", "'"))),
            (
                "metadata.labels['foo']['bar']",
                Some(("metadata.labels", "foo']['bar")),
            ),
            ("metadata.labels", None),
            ("metadata.labels[]", None),
            ("metadata.labels[']", None),
            ("metadata.labels['key']x", None),
            ("metadata.labels[key]", None),
            ("['key']", None),
            ("", None),
        ] {
            assert_eq!(split_subscript(path), expected, "{path}");
        }
    }

    #[test]
    fn keys_are_qualified_names() {
        // projection 46, 47
        for key in ["a", "A.b_c-9", "www.k8s.io/test", "a/B"] {
            assert_eq!(subscript_problems(key), Vec::<String>::new(), "{key}");
        }
        for key in [
            "Www.k8s.io/test",
            "",
            "a/",
            "/a",
            "-a",
            "a.",
            "a b",
            "a/b/c",
            "a..b/c",
        ] {
            assert_ne!(subscript_problems(key), Vec::<String>::new(), "{key}");
        }
        assert_eq!(subscript_problems(&"a".repeat(63)).len(), 0);
        assert_eq!(
            subscript_problems(&"a".repeat(64)),
            ["name part must be no more than 63 characters"]
        );
        assert_eq!(subscript_problems("")[0], "name part must be non-empty");
    }

    proptest! {
        #[test]
        fn what_is_split_is_a_base_and_a_key_in_brackets(path in "(\\[|'|\\]|\\['|'\\]|[a.]){0,12}") {
            // The naive reading: try every place, from the left.
            let naive = (1..path.len()).find_map(|at| {
                let fits = path.is_char_boundary(at) && path[at..].starts_with("['")
                    && path.len() >= at + 4 && path.ends_with("']");
                fits.then(|| (&path[..at], &path[at + 2..path.len() - 2]))
            });
            // A path that begins with the brackets has no base, wherever else they stand.
            let expected = if path.starts_with("['") { None } else { naive };
            prop_assert_eq!(split_subscript(&path), expected);
        }
    }
}
