//! All keys of an object whose keys are not known: a member of the ordered list in which later sources win.

use larder_objects::manifest::Recipe;

use super::{ObjectId, Question, Unknown, UnknownSource};

/// Longest lists of which every pair is compared.
const MAX_PAIRS: usize = 256;

/// All keys of an object, each with a prefix before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnyKeys<'a> {
    /// `DB_`; empty for none.
    pub prefix: &'a str,
    /// The object.
    pub object: ObjectId,
}

impl AnyKeys<'_> {
    /// What the object has under `name`, and whether it has it.
    pub(crate) fn layer(&self, name: &str) -> Option<(Question, Unknown)> {
        let key = name
            .strip_prefix(self.prefix)
            .filter(|key| !key.is_empty())?;
        let question = Question::HasKey(self.object.clone(), key.into());
        let value = UnknownSource::key(&self.object, key, &Recipe::default());
        let value = Unknown::of(value);
        Some((question, value))
    }

    /// What is under `name`: what the last object of `all` has, or what is `below`.
    pub(crate) fn look_up(all: &[Self], name: &str, below: Option<Unknown>) -> Option<Unknown> {
        let layers = all.iter().filter_map(|one| one.layer(name));
        layers.fold(below, |below, (question, value)| {
            Some(Unknown::layered(below, question, value))
        })
    }

    /// Whether two lists give the same names the same values, whatever keys the objects have.
    pub fn are_equivalent(one: &[Self], other: &[Self]) -> bool {
        let (one, other) = (last_ones(one), last_ones(other));
        if one == other {
            return true;
        }
        if one.len() != other.len() || one.len() > MAX_PAIRS {
            return false;
        }
        // Where the members of `one` are in `other`. Only those of which both may have a name must keep their order.
        let places = one
            .iter()
            .map(|member| other.iter().position(|found| found == member));
        let Some(places) = places.collect::<Option<Vec<_>>>() else {
            return false;
        };
        let may_clash =
            |a: &Self, b: &Self| a.prefix.starts_with(b.prefix) || b.prefix.starts_with(a.prefix);
        one.iter().enumerate().all(|(index, member)| {
            let later = one.iter().enumerate().skip(index + 1);
            let mut clashing = later.filter(|(_, later)| may_clash(member, later));
            clashing.all(|(later, _)| places[index] < places[later])
        })
    }
}

/// Each member where it is last: it counts only there.
fn last_ones<'k, 'a>(all: &'k [AnyKeys<'a>]) -> Vec<&'k AnyKeys<'a>> {
    let mut seen = std::collections::BTreeSet::new();
    let mut kept: Vec<_> = all.iter().rev().filter(|one| seen.insert(*one)).collect();
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use larder_objects::Kind;
    use proptest::prelude::*;

    use super::*;

    fn member(text: &'static str) -> AnyKeys<'static> {
        let (prefix, name) = text.split_at(text.len() - 1);
        let object = ObjectId {
            kind: Kind::Secret,
            name: name.into(),
            recipe: Recipe::default(),
        };
        AnyKeys { prefix, object }
    }

    fn list(members: &[&'static str]) -> Vec<AnyKeys<'static>> {
        members.iter().map(|text| member(text)).collect()
    }

    #[test]
    fn order_counts_where_names_may_clash() {
        for (one, other, expected) in [
            (&["x", "y"][..], &["y", "x"][..], false),
            (&["A_x", "B_y"], &["B_y", "A_x"], true),
            (&["A_x", "A_B_y"], &["A_B_y", "A_x"], false),
            (&["x", "y", "x"], &["y", "x"], true),
            (&["x"], &["x", "y"], false),
            (&[], &[], true),
        ] {
            let found = AnyKeys::are_equivalent(&list(one), &list(other));
            assert_eq!(found, expected, "{one:?} {other:?}");
        }
    }

    proptest! {
        /// Equivalent lists agree on each name, whichever keys the objects have.
        #[test]
        fn equivalent_lists_agree(
            one in prop::collection::vec(prop::sample::select(vec!["x", "y", "Ax", "Ay", "Bx"]), 0..4),
            other in prop::collection::vec(prop::sample::select(vec!["x", "y", "Ax", "Ay", "Bx"]), 0..4),
        ) {
            let (one, other) = (list(&one), list(&other));
            // The objects have the keys whose bit is set.
            let names = ["A", "B", "AA", "AB", "BA"];
            let keys = ["A", "B", "AA", "AB", "BA"];
            let agree = (0..1_u32 << 10).all(|bits| {
                let has = |question: &Question| match question {
                    Question::HasKey(object, key) => {
                        let place = keys.iter().position(|known| *known == &**key);
                        let shift = if &*object.name == "x" { 0 } else { 5 };
                        place.is_some_and(|place| bits >> (place + shift) & 1 == 1)
                    }
                    Question::Exists(_) | Question::Fact(_) => true,
                };
                names.iter().all(|name| {
                    let value = |list: &[AnyKeys<'_>]| AnyKeys::look_up(list, name, None)?.settled(&has);
                    value(&one) == value(&other)
                })
            });
            prop_assert_eq!(AnyKeys::are_equivalent(&one, &other), agree);
        }
    }
}
