//! All keys of an object whose keys are not known: a member of the ordered list in which later sources win.
//!
//! Invariant: what two lists give to names that no document has is compared at one name for each prefix, that with
//! [`ANY_KEY`]. Which members may have a name depends on the longest prefix that it has, and on nothing else.

use larder_objects::validation::is_config_map_key;

use super::{ObjectId, Question, Unknown, UnknownSource};
use crate::Origin;

/// Stands for every key that no document names: no key, variable or path has a NUL byte.
pub const ANY_KEY: &str = "\0";

/// All keys of an object, each with a prefix before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnyKeys<'a> {
    /// `DB_`; empty for none.
    pub prefix: &'a str,
    /// Name of the object, as the pod has it.
    pub name: &'a str,
    /// The object.
    pub object: ObjectId,
}

impl<'a> AnyKeys<'a> {
    /// The source of any of them.
    pub fn origin(&self) -> Origin<'a> {
        Origin::Missing {
            kind: self.object.kind,
            name: self.name,
            key: None,
        }
    }

    /// What the object has under `name`, and whether it has it. What is no key is in no object.
    pub(crate) fn layer(&self, name: &str) -> Option<(Question, Unknown)> {
        let key = name
            .strip_prefix(self.prefix)
            .filter(|key| is_config_map_key(&key.replace(ANY_KEY, "k")))?;
        let question = Question::HasKey(self.object.clone(), key.into());
        let value = match key {
            ANY_KEY => UnknownSource::object(&self.object),
            key => UnknownSource::key(&self.object, key, &self.object.recipe),
        };
        let value = Unknown::of(value);
        Some((question, value))
    }

    /// What is under `name`: what the last object of `all` has, or what is `below`.
    pub(crate) fn look_up(all: &[Self], name: &str, below: Option<Unknown>) -> Option<Unknown> {
        all.iter()
            .filter_map(|one| one.layer(name))
            .fold(below, |below, (question, value)| {
                Some(Unknown::layered(below, question, value))
            })
    }

    /// The name of a variable that stands for all with its prefix that no document names.
    pub fn any_name(&self) -> String {
        [self.prefix, ANY_KEY].concat()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use larder_objects::{Kind, manifest::Recipe};
    use proptest::prelude::*;

    use super::*;

    fn member(text: &'static str) -> AnyKeys<'static> {
        let (prefix, name) = text.split_at(text.len() - 1);
        let object = ObjectId {
            kind: Kind::Secret,
            name: name.into(),
            recipe: Recipe::default(),
        };
        AnyKeys {
            prefix,
            name,
            object,
        }
    }

    fn list(members: &[&'static str]) -> Vec<AnyKeys<'static>> {
        members.iter().map(|text| member(text)).collect()
    }

    /// Whether two lists give each of `names` the same, for all answers.
    fn agree(one: &[AnyKeys<'_>], other: &[AnyKeys<'_>], names: &[String]) -> bool {
        names.iter().all(|name| {
            let [one, other] = [one, other].map(|list| AnyKeys::look_up(list, name, None));
            let both = [&one, &other].into_iter().flatten();
            let asked: BTreeSet<_> = both.flat_map(Unknown::questions).cloned().collect();
            (0..1_u32 << asked.len()).all(|bits| {
                let is_true = |question: &Question| {
                    let place = asked.iter().position(|one| one == question);
                    place.is_some_and(|place| bits >> place & 1 == 1)
                };
                let settled = |value: &Option<Unknown>| value.as_ref()?.settled(&is_true);
                settled(&one) == settled(&other)
            })
        })
    }

    #[track_caller]
    fn check(one: &[&'static str], other: &[&'static str]) -> bool {
        let (one, other) = (list(one), list(other));
        let any: Vec<_> = one.iter().chain(&other).map(AnyKeys::any_name).collect();
        let names = ["A", "B", "AA", "AB", "BA", "AAB"].map(str::to_owned);
        let found = agree(&one, &other, &any);
        assert_eq!(found, agree(&one, &other, &names), "{one:?} {other:?}");
        found
    }

    #[test]
    fn order_counts_where_names_may_clash() {
        for (one, other, expected) in [
            (&["x", "y"][..], &["y", "x"][..], false),
            (&["Ax", "By"], &["By", "Ax"], true),
            (&["Ax", "AAy"], &["AAy", "Ax"], false),
            (&["x", "y", "x"], &["y", "x"], true),
            (&["x"], &["x", "y"], false),
            (&[], &[], true),
        ] {
            assert_eq!(check(one, other), expected, "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_is_no_key_is_in_no_object() {
        for name in ["DB_", "DB_$(A)", "DB_..", "host"] {
            assert_eq!(member("DB_x").layer(name), None, "{name}");
        }
        assert!(member("DB_x").layer("DB_.host").is_some());
    }

    proptest! {
        /// Two lists agree on all names if they agree on the one for each prefix.
        #[test]
        fn one_name_stands_for_each_prefix(
            one in prop::collection::vec(prop::sample::select(vec!["x", "y", "Ax", "Ay", "Bx", "AAy"]), 0..4),
            other in prop::collection::vec(prop::sample::select(vec!["x", "y", "Ax", "Ay", "Bx", "AAy"]), 0..4),
        ) {
            check(&one, &other);
        }
    }
}
