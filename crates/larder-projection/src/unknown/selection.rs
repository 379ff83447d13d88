//! What of a volume a `subPath` may select that is not known.

use std::mem;

use super::{Form, Unknown, UnknownSource, ValuePart};
use crate::ANY_KEY;

/// A part of an element of a path.
#[derive(Clone, Copy)]
enum ElementPart<'u> {
    Text(&'u [u8]),
    Gap(&'u UnknownSource),
}

impl ElementPart<'_> {
    fn may_be_in_key(&self) -> bool {
        let is_of_key = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
        match self {
            Self::Text(text) => text.iter().all(is_of_key),
            Self::Gap(_) => true,
        }
    }

    /// Whether it may have a slash in it.
    fn may_have_slash(&self) -> bool {
        matches!(self, Self::Gap(gap) if gap.form.may_have(b'/'))
    }
}

impl Unknown {
    /// Whether a `subPath` of this value, in which no question is left, may select what is at `path`: a directory that it
    /// is in, or itself. Elements that are empty or `.` count for nothing, in what is filled in as well. What stands for all
    /// keys ([`ANY_KEY`]) is no directory.
    pub fn may_select(&self, path: &str) -> bool {
        let path: Vec<_> = path.split('/').collect();
        // How many elements of the path those so far may be.
        let mut taken = vec![false; path.len() + 1];
        taken[0] = true;
        let elements = self.elements();
        let last = elements.len().saturating_sub(1);
        for (place, element) in elements.iter().enumerate() {
            let mut next = vec![false; path.len() + 1];
            for start in (0..=path.len()).filter(|start| taken[*start]) {
                for end in start..=path.len() {
                    let part = &path[start..end];
                    next[end] |= may_be(element, part) && (place == last || part != [ANY_KEY]);
                }
            }
            taken = next;
        }
        taken.contains(&true)
    }

    /// The parts between slashes that are known, without those that count for nothing.
    fn elements(&self) -> Vec<Vec<ElementPart<'_>>> {
        let (mut elements, mut last) = (Vec::new(), Vec::new());
        for part in &self.0 {
            match part {
                ValuePart::Text(text) => {
                    for (place, text) in text.split(|byte| *byte == b'/').enumerate() {
                        if place > 0 {
                            elements.push(mem::take(&mut last));
                        }
                        if !text.is_empty() {
                            last.push(ElementPart::Text(text));
                        }
                    }
                }
                ValuePart::Source(gap) => last.push(ElementPart::Gap(gap)),
                // Settled values have none.
                ValuePart::Layers(_) => {}
            }
        }
        elements.push(last);
        elements.retain(|element| !matches!(element[..], [] | [ElementPart::Text(b".")]));
        elements
    }
}

/// Whether the first or last byte of what a piece is part of may be this one: what has a form is not empty.
fn may_meet(piece: Option<&ElementPart<'_>>, byte: Option<u8>) -> bool {
    match piece {
        Some(ElementPart::Gap(gap)) if gap.form != Form::Any => {
            byte.is_some_and(|byte| gap.form.may_have(byte))
        }
        _ => true,
    }
}

/// Whether an element may be these elements of a path.
fn may_be(element: &[ElementPart<'_>], path: &[&str]) -> bool {
    let has_slashes = element.iter().any(ElementPart::may_have_slash);
    // Beside a slash in a gap, a dot is an element of its own, which counts for nothing.
    let ends = [element.first(), element.last()].map(|piece| match piece {
        Some(ElementPart::Text(b".")) if has_slashes => b"",
        Some(ElementPart::Text(text)) => *text,
        Some(ElementPart::Gap(_)) | None => &b""[..],
    });
    let [begin, end] = ends;
    let of_path = [
        path.first().and_then(|first| first.bytes().next()),
        path.last().and_then(|last| last.bytes().last()),
    ];
    let mut ends = [element.first(), element.last()].into_iter().zip(of_path);
    if path != [ANY_KEY] && !ends.all(|(piece, byte)| may_meet(piece, byte)) {
        return false;
    }
    match (element, path) {
        (_, []) => has_slashes && begin.is_empty() && end.is_empty(),
        (_, [_, _, ..]) if !has_slashes => false,
        (_, [ANY_KEY]) => element.iter().all(ElementPart::may_be_in_key),
        ([ElementPart::Text(text)], [only]) => *text == only.as_bytes(),
        ([ElementPart::Gap(gap)], [only]) => gap.may_be(only.as_bytes()),
        (_, [first, .., last]) => {
            first.as_bytes().starts_with(begin) && last.as_bytes().ends_with(end)
        }
        (_, [only]) => {
            let only = only.as_bytes();
            let rest = only.strip_prefix(begin);
            rest.is_some_and(|rest| rest.ends_with(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::unknown::testing::value;

    #[track_caller]
    fn check(sub_path: &str, path: &str, expected: bool) {
        let found = value(sub_path).may_select(path);
        assert_eq!(found, expected, "{sub_path} {path}");
    }

    #[test]
    fn texts_around_gaps_select_paths() {
        for (sub_path, path) in [
            ("X", "a"),
            ("X", "d/f"),
            ("X", ANY_KEY),
            ("d/X", "d/f"),
            ("d", "d/f"),
            ("./d//f", "d/f"),
            ("aX", "ab/c"),
            ("X.b", "a.b"),
            ("aXb", "a/c/b"),
            ("Xb", ANY_KEY),
            (".X", "a"),
        ] {
            check(sub_path, path, true);
        }
        for (sub_path, path) in [
            ("d/X", "a"),
            ("d/X", ANY_KEY),
            ("$X", ANY_KEY),
            ("aX", "b"),
            ("Xa", "b"),
            ("abXba", "aba"),
            ("d/f/g", "d/f"),
            ("f", "d/f"),
        ] {
            check(sub_path, path, false);
        }
        let number = Unknown::of(UnknownSource::number("limits.cpu", String::new()));
        assert!(number.may_select("2"));
        assert!(number.may_select(ANY_KEY));
        assert!(!number.may_select("ca.pem"));
        assert!(!number.may_select("d/f"));
        let last = Unknown::joined([Err(&value("X")), Err(&number)].into_iter());
        assert!(last.may_select("a2"));
        assert!(!last.may_select("a"));
    }

    proptest! {
        /// What is filled in selects nothing that it may not select.
        #[test]
        fn nothing_else_is_selected(
            sub_path in "[ab./XY]{0,6}",
            path in "[ab.]{1,3}(/[ab.]{1,3}){0,2}",
            fillings in prop::collection::vec(("[ab./]{0,4}", "[ab./]{0,4}"), 20),
        ) {
            let elements = |path: &str| -> Vec<String> {
                let all = path.split('/').filter(|element| !matches!(*element, "" | "."));
                all.map(str::to_owned).collect()
            };
            let path = elements(&path).join("/");
            prop_assume!(!path.is_empty());
            for (x, y) in fillings {
                let filled = sub_path.replace('X', &x).replace('Y', &y);
                let is_selected = elements(&path).starts_with(&elements(&filled));
                prop_assert!(!is_selected || value(&sub_path).may_select(&path), "{filled}");
            }
        }
    }
}
