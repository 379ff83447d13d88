//! Whether two values with gaps are equal.
//!
//! A gap stands for any bytes, the same ones wherever its source occurs. So what both values begin and end with counts for
//! nothing, and what is left decides as far as texts, lengths and forms do.

use larder_objects::SecretBytes;

use super::{Form, Unknown, UnknownSource, ValuePart};

/// Most steps of a search for the texts of one value in the other. Beyond it, nothing is certain.
const MAX_SEARCH: usize = 1 << 24;

/// What is certain about two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// Equal, whatever is filled in.
    Equal,
    /// Different, whatever is filled in.
    Different,
    /// It depends.
    Unsure,
}

/// A part of a settled value.
#[derive(Clone, Copy)]
enum Gapped<'u> {
    Text(&'u [u8]),
    Gap(&'u UnknownSource),
}

impl Sameness {
    /// Of two values in which no question is left ([`Unknown::settled`]); `None` is one that is not there.
    pub fn of(one: Option<&Unknown>, other: Option<&Unknown>) -> Self {
        match (one, other) {
            (None, None) => Self::Equal,
            (Some(one), Some(other)) => of_parts(parts(one), parts(other)),
            _ => Self::Different,
        }
    }
}

fn parts(value: &Unknown) -> Vec<Gapped<'_>> {
    value
        .0
        .iter()
        .filter_map(|part| match part {
            ValuePart::Text(text) => Some(Gapped::Text(text)),
            ValuePart::Source(source) => Some(Gapped::Gap(source)),
            // Settled values have none.
            ValuePart::Layers(_) => None,
        })
        .collect()
}

/// Which end of two values is compared.
#[derive(Clone, Copy)]
enum End {
    First,
    Last,
}

/// The gap that must be as the other value is for both to be equal, and what that is; `None` if there is no such gap.
///
/// Of two gaps, the one of which less is known must be as the other one is.
pub(super) fn forced(one: &Unknown, other: &Unknown) -> Option<(UnknownSource, Unknown)> {
    let (one, other) = cut_both(parts(one), parts(other))?;
    let rank = |side: &[Gapped<'_>]| match side {
        [Gapped::Gap(gap)] if gap.form == Form::Any => 2,
        [Gapped::Gap(_)] => 1,
        _ => 0,
    };
    let (gap, value) = if rank(&one) < rank(&other) {
        (other, one)
    } else {
        (one, other)
    };
    let [Gapped::Gap(gap)] = gap[..] else {
        return None;
    };
    let mut all = value.iter();
    if all.any(|part| matches!(part, Gapped::Gap(other) if *other == gap)) {
        return None;
    }
    let owned = value.iter().map(|part| match part {
        Gapped::Text(text) => ValuePart::Text(SecretBytes::new(text.to_vec())),
        Gapped::Gap(gap) => ValuePart::Source((*gap).clone()),
    });
    Some((gap.clone(), Unknown(owned.collect())))
}

/// What is left of both without what they begin and end with; `None` if their texts differ there.
fn cut_both<'u>(
    mut one: Vec<Gapped<'u>>,
    mut other: Vec<Gapped<'u>>,
) -> Option<(Vec<Gapped<'u>>, Vec<Gapped<'u>>)> {
    for end in [End::First, End::Last] {
        // The first part is the last one of a reversed list, where it is cut cheaply.
        one.reverse();
        other.reverse();
        if !cut_common(&mut one, &mut other, end) {
            return None;
        }
    }
    Some((one, other))
}

fn of_parts<'u>(one: Vec<Gapped<'u>>, other: Vec<Gapped<'u>>) -> Sameness {
    let Some((one, other)) = cut_both(one, other) else {
        return Sameness::Different;
    };
    if !may_meet(&one, &other) || !may_meet(&other, &one) {
        return Sameness::Different;
    }
    let (one, other) = (Rest::of(&one), Rest::of(&other));
    if one.is_empty() && other.is_empty() {
        return Sameness::Equal;
    }
    let has_gaps = [&one, &other].map(|rest| !rest.gaps.is_empty());
    let may_be_equal = match has_gaps {
        [false, false] => false,
        [true, false] => one.may_be(&other),
        [false, true] => other.may_be(&one),
        [true, true] => {
            let may_be_form = match (one.only_gap(), other.only_gap()) {
                (Some(one), Some(other)) => one.may_equal(other),
                (Some(gap), None) => other.may_be_in(gap.form),
                (None, Some(gap)) => one.may_be_in(gap.form),
                (None, None) => true,
            };
            may_be_form && (one.gaps != other.gaps || one.length() == other.length())
        }
    };
    if may_be_equal {
        Sameness::Unsure
    } else {
        Sameness::Different
    }
}

/// Whether the texts at both ends of `other` may be what is in gaps at those of `one`: what has a form is not empty.
fn may_meet(one: &[Gapped<'_>], other: &[Gapped<'_>]) -> bool {
    let may_be = |gap: &Gapped<'_>, text: &Gapped<'_>, end| match (gap, text) {
        (Gapped::Gap(gap), Gapped::Text(text)) => {
            let byte = match end {
                End::First => text.first(),
                End::Last => text.last(),
            };
            byte.is_none_or(|byte| gap.form.may_have(*byte))
        }
        _ => true,
    };
    let first = one.first().zip(other.first());
    let last = one.last().zip(other.last());
    first.is_none_or(|(gap, text)| may_be(gap, text, End::First))
        && last.is_none_or(|(gap, text)| may_be(gap, text, End::Last))
}

/// Cuts off what both have at this end, which is the end of the lists; `false` if their texts differ there.
fn cut_common<'u>(one: &mut Vec<Gapped<'u>>, other: &mut Vec<Gapped<'u>>, end: End) -> bool {
    while let (Some(a), Some(b)) = (one.last().copied(), other.last().copied()) {
        match (a, b) {
            (Gapped::Gap(a), Gapped::Gap(b)) if a == b => {
                one.pop();
                other.pop();
            }
            (Gapped::Text(a), Gapped::Text(b)) => {
                let same = match end {
                    End::First => a.iter().zip(b).take_while(|(a, b)| a == b).count(),
                    End::Last => a
                        .iter()
                        .rev()
                        .zip(b.iter().rev())
                        .take_while(|(a, b)| a == b)
                        .count(),
                };
                if same < a.len().min(b.len()) {
                    return false;
                }
                cut(one, a, same, end);
                cut(other, b, same, end);
            }
            _ => break,
        }
    }
    true
}

fn cut<'u>(parts: &mut Vec<Gapped<'u>>, text: &'u [u8], same: usize, end: End) {
    parts.pop();
    let rest = match end {
        End::First => &text[same..],
        End::Last => &text[..text.len() - same],
    };
    if !rest.is_empty() {
        parts.push(Gapped::Text(rest));
    }
}

/// What is left of a value: its texts in order, and its gaps, sorted.
struct Rest<'u> {
    texts: Vec<&'u [u8]>,
    gaps: Vec<&'u UnknownSource>,
}

impl<'u> Rest<'u> {
    fn of(parts: &[Gapped<'u>]) -> Self {
        let texts = parts.iter().filter_map(|part| match part {
            Gapped::Text(text) => Some(*text),
            Gapped::Gap(_) => None,
        });
        let mut gaps: Vec<_> = parts
            .iter()
            .filter_map(|part| match part {
                Gapped::Gap(gap) => Some(*gap),
                Gapped::Text(_) => None,
            })
            .collect();
        gaps.sort_unstable();
        Self {
            texts: texts.collect(),
            gaps,
        }
    }

    fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.gaps.is_empty()
    }

    /// Its gap, if that is all.
    fn only_gap(&self) -> Option<&'u UnknownSource> {
        match (&self.gaps[..], &self.texts[..]) {
            ([gap], []) => Some(gap),
            _ => None,
        }
    }

    fn length(&self) -> usize {
        self.texts.iter().map(|text| text.len()).sum()
    }

    /// Whether it may be a part of something of this form.
    fn may_be_in(&self, form: Form) -> bool {
        let mut bytes = self.texts.iter().copied().flatten();
        bytes.all(|byte| form.may_have(*byte)) && self.gaps.iter().all(|gap| gap.may_be_in(form))
    }

    /// Whether `text`, which has no gaps, may be this value.
    fn may_be(&self, text: &Self) -> bool {
        let whole = text.texts.concat();
        if let Some(gap) = self.only_gap() {
            return gap.may_be(&whole);
        }
        if whole.len().saturating_mul(self.length()) > MAX_SEARCH {
            return true;
        }
        // Each text must be found behind the one before it.
        let mut rest = &whole[..];
        self.texts.iter().all(|text| {
            let mut starts = rest.windows(text.len());
            match starts.position(|found| found == *text) {
                Some(at) => {
                    rest = &rest[at + text.len()..];
                    true
                }
                None => false,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::unknown::{Form, testing::value};

    #[track_caller]
    fn check(one: &str, other: &str, expected: Sameness) {
        let found = Sameness::of(Some(&value(one)), Some(&value(other)));
        assert_eq!(found, expected, "{one} {other}");
    }

    #[test]
    fn texts_around_gaps_decide() {
        for (one, other) in [("a", "a"), ("aXb", "aXb"), ("", ""), ("XYX", "XYX")] {
            check(one, other, Sameness::Equal);
        }
        for (one, other) in [
            ("a", "b"),
            ("aX", "bX"),
            ("Xa", "Xb"),
            ("aX", "b"),
            ("X", "Xa"),
            ("XYa", "YX"),
            ("aXcY", "ab"),
        ] {
            check(one, other, Sameness::Different);
        }
        for (one, other) in [
            ("X", ""),
            ("X", "Y"),
            ("aX", "Xa"),
            ("XabY", "ab"),
            ("XY", "YX"),
        ] {
            check(one, other, Sameness::Unsure);
        }
    }

    #[test]
    fn address_is_no_other_text() {
        let address = Unknown::of(UnknownSource::fact("status.podIP", Form::Address));
        let of = |text: &str| Sameness::of(Some(&address), Some(&value(text)));
        assert_eq!(of("10.0.0.1"), Sameness::Unsure);
        assert_eq!(of("web"), Sameness::Different);
        assert_eq!(of(""), Sameness::Different);
        assert_eq!(Sameness::of(Some(&address), None), Sameness::Different);
        let number = Unknown::of(UnknownSource::number("limits.cpu", String::new()));
        let of = |other: &Unknown| Sameness::of(Some(&address), Some(other));
        assert_eq!(of(&number), Sameness::Different);
        for other in ["X", "X.1", "aXY"] {
            assert_eq!(of(&value(other)), Sameness::Unsure, "{other}");
        }
        for other in ["X-x", "xX"] {
            assert_eq!(of(&value(other)), Sameness::Different, "{other}");
        }
        let of = |other: &str| Sameness::of(Some(&number), Some(&value(other)));
        assert_eq!(of("1X"), Sameness::Unsure);
        assert_eq!(of("aX"), Sameness::Different);
        let beside = |one: &Unknown, other: &Unknown, text: &str| {
            let both = Unknown::joined([Err(one), Err(other)].into_iter());
            Sameness::of(Some(&both), Some(&value(text)))
        };
        for (text, expected) in [("1a1", Sameness::Unsure), ("a", Sameness::Different)] {
            assert_eq!(beside(&number, &value("X"), text), expected, "{text}");
            assert_eq!(beside(&value("X"), &number, text), expected, "{text}");
        }
    }

    #[test]
    fn certificate_is_no_other_text() {
        let file = |file| Unknown::of(UnknownSource::pod_certificate("example.com/a", file));
        let of = |other: &Unknown| Sameness::of(Some(&file("")), Some(other));
        assert_eq!(of(&file("")), Sameness::Equal);
        assert_eq!(of(&file(" key")), Sameness::Unsure);
        assert_eq!(of(&value("10.0.0.1")), Sameness::Different);
        assert_eq!(
            of(&Unknown::of_text(b"-----BEGIN CERTIFICATE-----")),
            Sameness::Unsure
        );
        assert_eq!(of(&value("X")), Sameness::Unsure);
    }

    proptest! {
        /// Each answer holds for each way to fill in the gaps.
        #[test]
        fn answer_holds_for_what_is_filled_in(
            one in "[abXY]{0,5}",
            other in "[abXY]{0,5}",
            fillings in prop::collection::vec(("[ab]{0,3}", "[ab]{0,3}"), 12),
        ) {
            let found = Sameness::of(Some(&value(&one)), Some(&value(&other)));
            for (x, y) in fillings {
                let filled = |text: &str| text.replace('X', &x).replace('Y', &y);
                match found {
                    Sameness::Equal => prop_assert_eq!(filled(&one), filled(&other)),
                    Sameness::Different => prop_assert_ne!(filled(&one), filled(&other)),
                    Sameness::Unsure => {}
                }
            }
        }
    }
}
