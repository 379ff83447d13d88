//! `$(VAR)` references in `value`, `command`, `args` and `subPathExpr`.
//!
//! Kubelet 1.36, `third_party/forked/golang/expansion/expand.go`: one pass, no nesting, substituted text is not
//! expanded again. The grammar:
//! 1. `$(NAME)` is a reference; NAME is everything up to the next `)`.
//! 2. `$$` is one `$`, and what follows it is plain text.
//! 3. Every other `$`, also the one of a `$(` without `)`, is plain text.

/// A part of a text with references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece<'t> {
    /// Text that stands for itself.
    Text(&'t str),
    /// A reference: the name between the parentheses, and the whole of it, for unknown names.
    Reference { name: &'t str, whole: &'t str },
}

/// The pieces of `text`, in order. The cost is linear, also for many `$(` without `)`.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    let mut may_close = true;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let plain = find(rest, b'$').unwrap_or(rest.len());
        if plain > 0 {
            return Some(Piece::Text(take(&mut rest, plain)));
        }
        match rest.as_bytes().get(1) {
            Some(b'$') => {
                let escaped = take(&mut rest, 2);
                Some(Piece::Text(&escaped[1..]))
            }
            Some(b'(') => {
                if may_close && let Some(end) = find(rest, b')') {
                    let whole = take(&mut rest, end + 1);
                    let name = &whole[2..end];
                    return Some(Piece::Reference { name, whole });
                }
                may_close = false;
                Some(Piece::Text(take(&mut rest, 2)))
            }
            _ => Some(Piece::Text(take(&mut rest, 1))),
        }
    })
}

/// The first place of `wanted`, an ASCII character. References and the text between them are short, for which a plain
/// loop beats the set-up of `str::find`.
fn find(text: &str, wanted: u8) -> Option<usize> {
    text.bytes().position(|byte| byte == wanted)
}

/// Cuts the first `length` bytes off `rest`.
fn take<'t>(rest: &mut &'t str, length: usize) -> &'t str {
    let (head, tail) = rest.split_at(length);
    *rest = tail;
    head
}

/// Expands the references of `text`; those that `resolve` does not know stay as they are.
///
/// The result is as long as the values make it: bound their lengths, or that of `text`, if both come from outside.
///
/// ```
/// let value = |name: &str| (name == "USER").then_some(&b"ada"[..]);
/// assert_eq!(larder_projection::expand("$(USER) $$(USER) $(HOME)", value), b"ada $(USER) $(HOME)");
/// ```
pub fn expand<'v>(text: &str, mut resolve: impl FnMut(&str) -> Option<&'v [u8]>) -> Vec<u8> {
    let mut expanded = Vec::with_capacity(text.len());
    for piece in pieces(text) {
        expanded.extend_from_slice(match piece {
            Piece::Text(text) => text.as_bytes(),
            Piece::Reference { name, whole } => resolve(name).unwrap_or(whole.as_bytes()),
        });
    }
    expanded
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn check(input: &str, expected: &str) {
        let values = BTreeMap::from([
            ("VAR_A", "A"),
            ("VAR_B", "B"),
            ("VAR_C", "C"),
            ("VAR_REF", "$(VAR_A)"),
            ("VAR_EMPTY", ""),
        ]);
        let expanded = expand(input, |name| values.get(name).map(|value| value.as_bytes()));
        assert_eq!(String::from_utf8(expanded).unwrap(), expected, "{input}");
    }

    #[test]
    fn expands_each_known_reference_once() {
        // projection 57
        for (input, expected) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("$(VAR_A)$(VAR_B)-$(VAR_C)", "AB-C"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("$(VAR_EMPTY)", ""),
            ("f0o$(VAR_A)bar$", "f0oAbar$"),
            ("foo\\\\$(VAR_C)bar", "foo\\\\Cbar"),
            ("foo\\\\\\\\$(VAR_C)bar", "foo\\\\\\\\Cbar"),
            ("$$$$$$$(VAR_A)", "$$$A"),
            ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$(VAR_A))", "A)"),
        ] {
            check(input, expected);
        }
    }

    #[test]
    fn leaves_everything_else_as_it_is() {
        // projection 56, 57
        for text in [
            "",
            "$",
            "$VAR_A",
            "${VAR_A}",
            "$?",
            "$£FOO",
            "$()",
            "$(UNDEFINED)",
            "foo$(VAR_Awhoops!",
            "foo$($(VAR_A)",
            "$(VAR_A$(VAR_B))",
            "a$(",
        ] {
            check(text, text);
        }
    }

    /// The rules, byte after byte, in the plainest way.
    fn model(text: &[u8], values: &BTreeMap<String, String>) -> Vec<u8> {
        match text {
            [] => Vec::new(),
            [b'$', b'$', rest @ ..] => [b"$".to_vec(), model(rest, values)].concat(),
            [b'$', b'(', rest @ ..] if rest.contains(&b')') => {
                let end = rest.iter().position(|&byte| byte == b')').unwrap();
                let name = String::from_utf8(rest[..end].to_vec()).unwrap();
                let value = match values.get(&name) {
                    Some(value) => value.clone(),
                    None => format!("$({name})"),
                };
                [value.into_bytes(), model(&rest[end + 1..], values)].concat()
            }
            [b'$', b'(', rest @ ..] => [b"$(".to_vec(), model(rest, values)].concat(),
            [byte, rest @ ..] => [vec![*byte], model(rest, values)].concat(),
        }
    }

    #[test]
    fn unclosed_references_cost_linear_time() {
        // A quadratic search would look at 10^12 bytes.
        let text = "$(".repeat(1 << 20);
        assert_eq!(expand(&text, |_| None), text.as_bytes());
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(
            text in "([$()]|[$]{2}|[$][(]|[AB]|é){0,24}",
            values in prop::collection::btree_map("[AB]{0,2}", "[$()A]{0,3}", 0..4),
        ) {
            let expanded = expand(&text, |name| values.get(name).map(String::as_bytes));
            prop_assert_eq!(expanded, model(text.as_bytes(), &values));
        }
    }
}
