//! Whether several pairs of values may be equal at once.
//!
//! Each pair is an equation over the gaps of its values. One in which a gap stands alone says what that gap is, which is
//! put in its place in the others, until one is contradicted or nothing more follows. What a number is made of has digits
//! alone, and an address likewise, so other texts contradict that as well. An answer of `false` is certain.

use std::collections::BTreeMap;

use super::{Form, Joiner, Sameness, Unknown, UnknownSource, ValuePart, sameness::forced};

/// Most passes over all pairs. Beyond it, nothing is certain.
const MAX_PASSES: usize = 4;
/// Most parts that a value may have with what follows in the place of its gaps.
const MAX_PARTS: usize = 1 << 10;
/// Most bytes of it.
const MAX_BYTES: usize = 1 << 20;

/// Whether one way to fill in what is not known makes both values of each pair equal: `false` if there is none, and `true`
/// if there is one, or none is known. No question may be left in the values ([`Unknown::settled`]).
pub fn may_all_be_equal<'u>(pairs: impl Iterator<Item = [&'u Unknown; 2]>) -> bool {
    let mut equations = Equations::default();
    let mut open: Vec<_> = pairs.collect();
    for _ in 0..MAX_PASSES {
        let known = equations.gaps.len();
        let mut left = Vec::new();
        for pair in open {
            match equations.add(pair) {
                Follows::Contradiction => return false,
                Follows::Gap => {}
                Follows::Nothing => left.push(pair),
            }
        }
        if left.is_empty() || equations.gaps.len() == known {
            return left.is_empty() || equations.may_have_all_bytes(&left);
        }
        open = left;
    }
    true
}

/// What the gaps must be, as far as it follows.
#[derive(Default)]
struct Equations {
    /// What a gap is has none in it that was in here before it.
    gaps: BTreeMap<UnknownSource, Unknown>,
}

/// What follows from an equation.
enum Follows {
    Contradiction,
    /// What a gap is; or it is met.
    Gap,
    Nothing,
}

impl Equations {
    fn add(&mut self, [one, other]: [&Unknown; 2]) -> Follows {
        let (Some(one), Some(other)) = (self.filled(one), self.filled(other)) else {
            return Follows::Nothing;
        };
        match Sameness::of(Some(&one), Some(&other)) {
            Sameness::Equal => return Follows::Gap,
            Sameness::Different => return Follows::Contradiction,
            Sameness::Unsure => {}
        }
        match forced(&one, &other) {
            Some((gap, value)) => {
                self.gaps.insert(gap, value);
                Follows::Gap
            }
            None => Follows::Nothing,
        }
    }

    /// Whether no side has a text with bytes that the other one, which is of parts of numbers and addresses, never has.
    fn may_have_all_bytes(&self, pairs: &[[&Unknown; 2]]) -> bool {
        let formed = self
            .gaps
            .iter()
            .filter(|(gap, _)| gap.form.is_of_few_bytes());
        let parts = formed.filter_map(|(gap, is)| Some((gap.form, self.filled(is)?)));
        let parts: Vec<_> = parts.collect();
        let parts = parts
            .iter()
            .flat_map(|(form, is)| is.sources().map(|gap| (gap, *form)));
        let forms: BTreeMap<_, _> = parts.collect();
        let form = |part: &ValuePart| match part {
            ValuePart::Source(gap) => forms.get(gap).copied().unwrap_or(gap.form),
            ValuePart::Text(_) | ValuePart::Layers(_) => Form::Any,
        };
        let may_have = |one: &Unknown, other: &Unknown| {
            let mut texts = other.parts().filter_map(Result::ok).flatten();
            texts.all(|byte| one.0.iter().any(|part| form(part).may_have(*byte)))
        };
        let mut filled = pairs
            .iter()
            .filter_map(|[one, other]| Some((self.filled(one)?, self.filled(other)?)));
        filled.all(|(one, other)| may_have(&one, &other) && may_have(&other, &one))
    }

    /// The value with what follows in the place of its gaps; `None` if that is too much.
    fn filled(&self, value: &Unknown) -> Option<Unknown> {
        let (mut joiner, mut bytes) = (Joiner::default(), 0);
        let mut left: Vec<_> = value.0.iter().rev().collect();
        for _ in 0..MAX_PARTS {
            let Some(part) = left.pop() else {
                return Some(joiner.finish());
            };
            let is = match part {
                ValuePart::Source(gap) => self.gaps.get(gap),
                ValuePart::Text(text) => {
                    bytes += text.len();
                    None
                }
                ValuePart::Layers(_) => None,
            };
            match is {
                Some(is) => left.extend(is.0.iter().rev()),
                None => joiner.push(part),
            }
            if bytes > MAX_BYTES {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::unknown::testing::value;

    /// Whether equations like `X=ab` may all be met.
    fn may_be(equations: &[(String, String)]) -> bool {
        let values = equations.iter();
        let values: Vec<_> = values
            .map(|(one, other)| [value(one), value(other)])
            .collect();
        may_all_be_equal(values.iter().map(|[one, other]| [one, other]))
    }

    #[track_caller]
    fn check(text: &str, expected: bool) {
        let equations = text.split(' ').map(|one| {
            let (one, other) = one.split_once('=').unwrap();
            (one.to_owned(), other.to_owned())
        });
        assert_eq!(may_be(&equations.collect::<Vec<_>>()), expected, "{text}");
    }

    #[test]
    fn what_follows_from_one_equation_contradicts_another_one() {
        for text in [
            "X=a X=b",
            "aX=ab X=c",
            "X=Y aX=Y",
            "X=Y Y=Z X=a Z=b",
            "XY=ab X=c",
            "X=aY Y=b X=ac",
        ] {
            check(text, false);
        }
        for text in ["X=a Y=b", "X=Y Y=X", "XY=ab X=a", "X=YY Y=ZZ", "X=aX Y=b"] {
            check(text, text != "X=aX Y=b");
        }
    }

    #[test]
    fn parts_of_a_number_are_digits() {
        let number = Unknown::of(UnknownSource::number("limits.cpu", String::new()));
        let (both, more) = (value("XY"), value("XXY"));
        let may_be = |text: &str| {
            let text = Unknown::of_text(text.as_bytes());
            may_all_be_equal([[&both, &text], [&more, &number]].into_iter())
        };
        assert!(may_be("12"));
        assert!(!may_be("$(X)"));
    }

    #[test]
    fn what_is_too_much_is_not_certain() {
        // Twice as much with each letter.
        let all: Vec<_> = ('A'..='X')
            .map(|gap| {
                let next = char::from(gap as u8 + 1);
                format!("{gap}={next}{next}")
            })
            .collect();
        check(&format!("{} A=a", all.join(" ")), true);
    }

    proptest! {
        /// Equations that something meets are not contradicted.
        #[test]
        fn no_contradiction_where_something_meets_all(
            sides in prop::collection::vec(("[abXYZ]{0,4}", "[abXYZ]{0,4}"), 1..4),
            fillings in prop::collection::vec(("[ab]{0,2}", "[ab]{0,2}", "[ab]{0,2}"), 30),
        ) {
            let is_met = fillings.iter().any(|(x, y, z)| {
                let filled = |text: &str| text.replace('X', x).replace('Y', y).replace('Z', z);
                sides.iter().all(|(one, other)| filled(one) == filled(other))
            });
            prop_assert!(!is_met || may_be(&sides));
        }
    }
}
