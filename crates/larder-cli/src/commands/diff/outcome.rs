//! What a difference means for a container, for each way to fill in what is not known.
//!
//! Two containers differ in parts: variables, files, mounts ([`part`]). Each part is a function of questions whose answers
//! are not known, and of values that are left open. Those that share some are tried together ([`group`]); what may be seen
//! of the container is what may be seen of all groups.
//!
//! Invariants:
//! 1. The verdicts of [`Outcomes`] are those of all answers that are possible.
//! 2. What either side needs to start counts as there: the first side runs, and what only the second side needs is named
//!    beside the verdict. But such a condition is a difference by itself, so without another one the verdict is not `same`.

mod group;
mod part;

use std::collections::BTreeSet;

use larder_projection::{Question, Unknown};

use self::group::{Effects, Group, MAX_SETTLED};
pub(super) use self::part::{DiffPart, Effect, Selected, VariableTerm, file_effect, permissions};
use crate::rendered::Start;

/// What follows for a container, in one way to fill in what is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// It would not start.
    Fails,
    /// It would start on neither side, and something differs.
    Neither,
    /// Only a new start shows the difference.
    Restart,
    /// It did not start before.
    Starts,
    /// A running container sees the difference.
    Live,
    Same,
}

impl Outcome {
    /// In words, for a container for which others may follow as well.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Fails => "would not start",
            Self::Neither => "would start on neither side",
            Self::Restart => "needs a restart",
            Self::Starts => "starts",
            Self::Live => "sees a difference without a restart",
            Self::Same => "sees no difference",
        }
    }
}

/// What follows in all ways.
#[derive(Debug)]
pub(super) struct Outcomes {
    pub(super) possible: BTreeSet<Outcome>,
    /// Whether each part may differ.
    pub(super) may_differ: Vec<bool>,
    /// What decides, if there are several.
    pub(super) deciding: BTreeSet<String>,
}

/// What follows for a container that is on the second side. `from` is `None` if the first side lacks it.
pub(super) fn outcomes(from: Option<&Start>, to: &Start, parts: &[DiffPart<'_, '_>]) -> Outcomes {
    let starts = Starts { from, to };
    let mut may_differ = vec![false; parts.len()];
    let (mut seen, mut deciding) = (Effects::from([None]), BTreeSet::new());
    let mut budget = MAX_SETTLED;
    for group in Group::all(parts, starts.values(), |question| !starts.answer(question)) {
        let effects = group.effects(&mut budget, &mut may_differ);
        if effects.len() > 1 {
            deciding.extend(group.names(&may_differ));
        }
        let both = seen
            .iter()
            .flat_map(|one| effects.iter().map(move |other| *one.max(other)));
        seen = both.collect();
    }
    let mut possible = starts.outcomes(&seen, may_differ.contains(&true));
    if possible.iter().eq([&Outcome::Same]) {
        possible.extend(starts.conditional());
    }
    deciding.extend(starts.different_conditions());
    Outcomes {
        possible,
        may_differ,
        deciding,
    }
}

/// The conditions of both starts.
struct Starts<'s> {
    from: Option<&'s Start>,
    to: &'s Start,
}

impl<'s> Starts<'s> {
    /// Whether one of them answers the question.
    fn answer(&self, question: &Question) -> bool {
        self.from.is_some_and(|from| from.needs(question)) || self.to.needs(question)
    }

    fn values(&self) -> impl Iterator<Item = &'s Unknown> {
        let before = self.from.iter().flat_map(|from| &from.values);
        before.chain(&self.to.values)
    }

    /// What follows where this may be seen.
    fn outcomes(&self, seen: &Effects, differs: bool) -> BTreeSet<Outcome> {
        let fails = self.to.error.is_some();
        let outcome = match self.from {
            // Neither side shows the parts, only that they are made of something else.
            Some(from) if fails && from.error.is_some() => {
                if differs || from != self.to {
                    Outcome::Neither
                } else {
                    Outcome::Same
                }
            }
            _ if fails => Outcome::Fails,
            Some(from) if from.error.is_none() => {
                let outcomes = seen.iter().map(|effect| match effect {
                    None => Outcome::Same,
                    Some(Effect::Live) => Outcome::Live,
                    Some(Effect::Restart) => Outcome::Restart,
                });
                return outcomes.collect();
            }
            _ => Outcome::Starts,
        };
        [outcome].into()
    }

    /// What follows from conditions of one side alone.
    fn conditional(&self) -> impl Iterator<Item = Outcome> {
        let both = self
            .from
            .filter(|from| from.error.is_none() && self.to.error.is_none());
        let starts = both.filter(|from| from.needs_more_than(self.to));
        let fails = both.filter(|from| self.to.needs_more_than(from));
        let starts = starts.map(|_| Outcome::Starts);
        starts.into_iter().chain(fails.map(|_| Outcome::Fails))
    }

    /// What the conditions are about that one side has alone.
    fn different_conditions(&self) -> BTreeSet<String> {
        let none = Start::default();
        let from = self.from.unwrap_or(&none);
        let mut different = BTreeSet::new();
        for (one, other) in [(from, self.to), (self.to, from)] {
            different.extend(one.needs_beyond(other).map(Question::subject));
            let sources = one.values_beyond(other).flat_map(Unknown::sources);
            different.extend(sources.map(|source| source.what.to_string()));
        }
        different
    }
}
