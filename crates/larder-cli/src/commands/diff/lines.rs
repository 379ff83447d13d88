//! Differences of texts, line by line, in the unified format.
//!
//! The algorithm is that of Myers (1986), "An O(ND) Difference Algorithm and Its Variations". Texts with more than
//! [`MAX_EDITS`] differences are shown as replaced, so the cost stays linear in their length.

/// Most lines that a difference may add and remove in total.
const MAX_EDITS: usize = 400;
/// Number of unchanged lines around a change.
const CONTEXT: usize = 3;

/// One line of a difference, without its line feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DiffLine<'t> {
    /// `@@ -1,3 +1,4 @@`
    Place(String),
    Kept(&'t str),
    Removed(&'t str),
    Added(&'t str),
    /// The line before this one ends the text without a line feed.
    Unfinished,
}

/// The changed lines of two texts, with their surroundings.
pub(super) fn unified<'t>(from: &'t str, to: &'t str) -> Vec<DiffLine<'t>> {
    let (a, b): (Vec<_>, Vec<_>) = (lines(from), lines(to));
    let steps = steps(&a, &b);
    let mut found = Vec::new();
    let mut rest = &steps[..];
    while let Some(first) = rest.iter().position(|step| !step.is_kept()) {
        let start = first.saturating_sub(CONTEXT);
        // A hunk ends where more lines are unchanged than two surroundings show.
        let (mut end, mut kept) = (first, 0);
        for (index, step) in rest.iter().enumerate().skip(first) {
            kept = if step.is_kept() { kept + 1 } else { 0 };
            if kept == 0 {
                end = index + 1;
            } else if kept > 2 * CONTEXT {
                break;
            }
        }
        let hunk = &rest[start..rest.len().min(end + CONTEXT)];
        let removed = hunk.iter().filter(|step| !matches!(step, Step::Add(..)));
        let added = hunk.iter().filter(|step| !matches!(step, Step::Remove(..)));
        let (removed, added) = (removed.count(), added.count());
        let (a_start, b_start) = hunk[0].place();
        let place = |start: usize, count: usize| match count {
            0 => format!("{start},0"),
            1 => format!("{}", start + 1),
            _ => format!("{},{count}", start + 1),
        };
        found.push(DiffLine::Place(format!(
            "@@ -{} +{} @@",
            place(a_start, removed),
            place(b_start, added)
        )));
        for step in hunk {
            let (line, text): (fn(_) -> _, &str) = match step {
                Step::Keep(line, _) => (DiffLine::Kept, a[*line]),
                Step::Remove(line, _) => (DiffLine::Removed, a[*line]),
                Step::Add(_, line) => (DiffLine::Added, b[*line]),
            };
            found.push(line(text.strip_suffix('\n').unwrap_or(text)));
            if !text.ends_with('\n') {
                found.push(DiffLine::Unfinished);
            }
        }
        rest = &rest[start + hunk.len()..];
    }
    found
}

fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// One step from one text to the other, with the number of the next line in each.
#[derive(Clone, Copy, Debug)]
enum Step {
    Keep(usize, usize),
    Remove(usize, usize),
    Add(usize, usize),
}

impl Step {
    fn is_kept(self) -> bool {
        matches!(self, Self::Keep(..))
    }

    /// The same step in texts with `lines` more lines before it.
    fn after(self, lines: usize) -> Self {
        match self {
            Self::Keep(a, b) => Self::Keep(a + lines, b + lines),
            Self::Remove(a, b) => Self::Remove(a + lines, b + lines),
            Self::Add(a, b) => Self::Add(a + lines, b + lines),
        }
    }

    fn place(self) -> (usize, usize) {
        let (Self::Keep(a, b) | Self::Remove(a, b) | Self::Add(a, b)) = self;
        (a, b)
    }
}

fn steps(a: &[&str], b: &[&str]) -> Vec<Step> {
    let same = |(one, other): &(&&str, &&str)| one == other;
    let start = a.iter().zip(b).take_while(same).count();
    let (a_rest, b_rest) = (&a[start..], &b[start..]);
    let end = a_rest.iter().rev().zip(b_rest.iter().rev());
    let end = end.take_while(same).count();
    let (a_middle, b_middle) = (&a_rest[..a_rest.len() - end], &b_rest[..b_rest.len() - end]);
    let mut steps: Vec<_> = (0..start).map(|line| Step::Keep(line, line)).collect();
    let (n, m) = (a_middle.len(), b_middle.len());
    let middle = shortest(a_middle, b_middle).unwrap_or_else(|| {
        let removed = (0..n).map(|line| Step::Remove(line, 0));
        removed
            .chain((0..m).map(|line| Step::Add(n, line)))
            .collect()
    });
    steps.extend(middle.into_iter().map(|step| step.after(start)));
    steps.extend((0..end).map(|line| Step::Keep(start + n + line, start + m + line)));
    steps
}

/// The shortest way from `a` to `b`; `None` if it has more than [`MAX_EDITS`] edits.
fn shortest(a: &[&str], b: &[&str]) -> Option<Vec<Step>> {
    // The furthest line of `a` on each diagonal `x - y`, after each number of edits. Diagonal `k` is at `k + edits`.
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    for edits in 0..=MAX_EDITS.min(a.len() + b.len()) {
        let mut round = vec![0; 2 * edits + 1];
        for index in (0..=2 * edits).step_by(2) {
            let mut x = match rounds.last() {
                None => 0,
                Some(last) => came_from(last, index).0,
            };
            // `y` may be beyond `b` on a diagonal that leads nowhere.
            let mut y = (x + edits).checked_sub(index)?;
            while x < a.len() && y < b.len() && a[x] == b[y] {
                (x, y) = (x + 1, y + 1);
            }
            round[index] = x;
            if x >= a.len() && y >= b.len() {
                rounds.push(round);
                return Some(walk_back(&rounds, a.len(), b.len()));
            }
        }
        rounds.push(round);
    }
    None
}

/// Where the diagonal at `index` begins after one more edit than `last`, and whether that edit adds a line.
fn came_from(last: &[usize], index: usize) -> (usize, bool) {
    // Of `last`, the diagonal above is at `index`, and the one below at `index - 2`.
    let above = last.get(index).copied();
    let below = index.checked_sub(2).map(|index| last[index]);
    match (below, above) {
        (None, Some(above)) => (above, true),
        (Some(below), Some(above)) if below < above => (above, true),
        (Some(below), _) => (below + 1, false),
        (None, None) => (0, true),
    }
}

fn walk_back(rounds: &[Vec<usize>], mut x: usize, mut y: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for (edits, last) in rounds[..rounds.len() - 1].iter().enumerate().rev() {
        let index = x + edits + 1 - y;
        let (begin, adds) = came_from(last, index);
        while x > begin {
            (x, y) = (x - 1, y - 1);
            steps.push(Step::Keep(x, y));
        }
        if adds {
            y -= 1;
            steps.push(Step::Add(x, y));
        } else {
            x -= 1;
            steps.push(Step::Remove(x, y));
        }
    }
    while x > 0 {
        (x, y) = (x - 1, y - 1);
        steps.push(Step::Keep(x, y));
    }
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn text(lines: &[DiffLine<'_>]) -> String {
        let lines = lines.iter().map(|line| match line {
            DiffLine::Place(text) => format!("{text}\n"),
            DiffLine::Kept(text) => format!(" {text}\n"),
            DiffLine::Removed(text) => format!("-{text}\n"),
            DiffLine::Added(text) => format!("+{text}\n"),
            DiffLine::Unfinished => "\\\n".to_owned(),
        });
        lines.collect()
    }

    fn check(from: &str, to: &str, expected: Expect) {
        expected.assert_eq(&text(&unified(from, to)));
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
                \
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

    proptest! {
        #[test]
        fn the_difference_leads_from_one_text_to_the_other(
            from in prop::collection::vec("[abc]", 0..12),
            to in prop::collection::vec("[abc]", 0..12),
        ) {
            let (a, b): (Vec<_>, Vec<_>) =
                (from.iter().map(String::as_str).collect(), to.iter().map(String::as_str).collect());
            let steps = steps(&a, &b);
            let (mut old, mut new) = (Vec::new(), Vec::new());
            for step in &steps {
                prop_assert_eq!(step.place(), (old.len(), new.len()));
                match step {
                    Step::Keep(x, y) => { prop_assert_eq!(a[*x], b[*y]); old.push(a[*x]); new.push(b[*y]); }
                    Step::Remove(x, _) => old.push(a[*x]),
                    Step::Add(_, y) => new.push(b[*y]),
                }
            }
            prop_assert_eq!(old, a);
            prop_assert_eq!(new, b);
        }
    }
}
