//! Subscripts of field paths: `metadata.labels['key']`.

/// Splits `base['key']`; `None` when `path` has no subscript.
///
/// Kubelet 1.36, `SplitMaybeSubscriptedPath` in `pkg/fieldpath/fieldpath.go`: at the first `['`, so that the key may
/// contain more of them.
pub fn split_subscript(path: &str) -> Option<(&str, &str)> {
    let inner = path.strip_suffix("']")?;
    let (base, key) = inner.split_once("['")?;
    (!base.is_empty()).then_some((base, key))
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

    proptest! {
        #[test]
        fn a_subscript_is_a_base_and_a_key_in_brackets(path in "(\\[|'|\\]|\\['|'\\]|[a.]){0,12}") {
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
