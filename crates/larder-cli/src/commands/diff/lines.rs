//! Differences of texts, line by line, in the unified format.

use std::ops::Range;

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};

use crate::output::Paint;

/// Most lines of both texts from their first difference to their last. More are shown as replaced: the time for texts
/// that share many short lines grows with nearly the square of their length.
const MAX_COMPARED: usize = 20_000;
/// Number of unchanged lines around a change.
const CONTEXT: u32 = 3;
/// How they are shown.
const KEPT: (Paint, char) = (Paint::Plain, ' ');

/// Stands after a line that ends its text without a line feed.
pub(super) const UNFINISHED: &str = "\\ no line feed at the end";

/// One line of a difference, without its line feed, and its color: `+new`, `-old`, ` same`, `@@ -1,3 +1,4 @@`, or
/// [`UNFINISHED`].
pub(super) type DiffLine = (Paint, String);

/// The changed lines of two texts, with their surroundings.
pub(super) fn unified(from: &str, to: &str) -> Vec<DiffLine> {
    let mut input = InternedInput::default();
    input.update_before(from.split_inclusive('\n'));
    input.update_after(to.split_inclusive('\n'));
    let changes = changes(&input);
    let mut found = Vec::new();
    // One place shows all changes that have at most two surroundings between them.
    for hunk in changes.chunk_by(|one, next| next.before.start - one.before.end <= 2 * CONTEXT) {
        let (first, last) = (&hunk[0], &hunk[hunk.len() - 1]);
        let above = first.before.start.min(CONTEXT);
        let rest = &input.before[last.before.end as usize..];
        let below = u32::try_from(rest.len()).map_or(CONTEXT, |rest| rest.min(CONTEXT));
        let (start, end) = (first.before.start - above, last.before.end + below);
        let place = |start: u32, end: u32| match end - start {
            0 => format!("{start},0"),
            1 => format!("{}", start + 1),
            count => format!("{},{count}", start + 1),
        };
        let old = place(start, end);
        let new = place(first.after.start - above, last.after.end + below);
        found.push((Paint::Cyan, format!("@@ -{old} +{new} @@")));
        let mut show = |(paint, sign): (Paint, char), tokens: &[Token], lines: Range<u32>| {
            for token in &tokens[lines.start as usize..lines.end as usize] {
                let line = input.interner[*token];
                let text = line.strip_suffix('\n').unwrap_or(line);
                found.push((paint, format!("{sign}{text}")));
                if !line.ends_with('\n') {
                    found.push((Paint::Dim, UNFINISHED.to_owned()));
                }
            }
        };
        let mut kept = start;
        for change in hunk {
            show(KEPT, &input.before, kept..change.before.start);
            show((Paint::Red, '-'), &input.before, change.before.clone());
            show((Paint::Green, '+'), &input.after, change.after.clone());
            kept = change.before.end;
        }
        show(KEPT, &input.before, kept..end);
    }
    found
}

fn changes(input: &InternedInput<&str>) -> Vec<Hunk> {
    let same = |(one, other): &(&Token, &Token)| one == other;
    let (before, after) = (&input.before[..], &input.after[..]);
    let start = before.iter().zip(after).take_while(same).count();
    let end = before[start..]
        .iter()
        .rev()
        .zip(after[start..].iter().rev())
        .take_while(same)
        .count();
    if before.len() + after.len() - 2 * (start + end) <= MAX_COMPARED {
        return Diff::compute(Algorithm::Myers, input).hunks().collect();
    }
    let changed = |lines: &[Token]| {
        let line = |number: usize| u32::try_from(number).expect("tokens are numbered so");
        line(start)..line(lines.len() - end)
    };
    vec![Hunk {
        before: changed(before),
        after: changed(after),
    }]
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn check(from: &str, to: &str, expected: Expect) {
        let lines = unified(from, to).into_iter();
        let text: String = lines.map(|(_, line)| line + "\n").collect();
        expected.assert_eq(&text);
    }

    #[test]
    fn changes_have_their_places_and_surroundings() {
        check(
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n",
            "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n11\n12\n12b\n13\n14",
            expect![[r#"
                @@ -2,7 +2,7 @@
                 2
                 3
                 4
                -5
                +five
                 6
                 7
                 8
                @@ -10,5 +10,6 @@
                 10
                 11
                 12
                +12b
                 13
                -14
                +14
                \ no line feed at the end
            "#]],
        );
        check(
            "",
            "a\n",
            expect![[r#"
            @@ -0,0 +1 @@
            +a
        "#]],
        );
        check(
            "a\n",
            "",
            expect![[r#"
            @@ -1 +0,0 @@
            -a
        "#]],
        );
    }

    #[test]
    fn texts_without_a_common_line_are_replaced() {
        let side = |letter: &str| {
            let lines = (0..3000).map(|number| format!("{letter}{number}\n"));
            lines.collect::<Vec<_>>().concat()
        };
        let (from, to) = (side("a"), side("b"));
        assert_eq!(unified(&from, &to).len(), 6001);
    }

    #[test]
    fn long_changes_are_shown_as_replaced() {
        let side = |odd: &str, even: &str| {
            ["first\n", &[odd, even].concat().repeat(10_001), "last\n"].concat()
        };
        let (from, to) = (side("a\n", "b\n"), side("c\n", "b\n"));
        let shown = unified(&from, &to);
        let kept = shown.iter().filter(|(_, line)| line.starts_with(' '));
        assert_eq!(kept.count(), 3);
        // A small change of a long text is not.
        let to = from.replacen("b\n", "c\n", 2);
        assert_eq!(unified(&from, &to).len(), 11);
    }

    proptest! {
        #[test]
        fn the_difference_leads_from_one_text_to_the_other(
            from in prop::collection::vec("[abc]\n", 0..12),
            to in prop::collection::vec("[abc]\n", 0..12),
        ) {
            let (from, to) = (from.concat(), to.concat());
            let (mut old, mut new) = (String::new(), String::new());
            let mut rest = from.split_inclusive('\n');
            for (_, line) in unified(&from, &to) {
                let (sign, line) = line.split_at(1);
                match sign {
                    "@" => {
                        // What lies between two places is the same in both.
                        let place = line.strip_prefix("@ -").unwrap().split([',', ' ']).next().unwrap();
                        let place = place.parse::<usize>().unwrap().saturating_sub(1);
                        for line in rest.by_ref().take(place.saturating_sub(old.lines().count())) {
                            old += line;
                            new += line;
                        }
                    }
                    " " => {
                        rest.next();
                        old.extend([line, "\n"]);
                        new.extend([line, "\n"]);
                    }
                    "-" => {
                        rest.next();
                        old.extend([line, "\n"]);
                    }
                    "+" => new.extend([line, "\n"]),
                    _ => prop_assert!(false, "every line is finished"),
                }
            }
            let rest: String = rest.collect();
            prop_assert_eq!(old + &rest, from);
            prop_assert_eq!(new + &rest, to);
        }
    }
}
