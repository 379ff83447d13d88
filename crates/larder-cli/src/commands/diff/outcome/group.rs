//! Parts that decide together what a container sees.
//!
//! Invariants:
//! 1. Two groups share no open question, so what one of them is says nothing of the other; nor a source, unless a group
//!    of those that share one had too many questions.
//! 2. The answers are tried for each group alone: all that are possible, which means that an object that has a key is there,
//!    and that the values are there that a start needs.
//! 3. Parts are compared one by one, but one way to fill in what is not known must make all of them the same
//!    ([`may_all_be_equal`]).
//! 4. Beyond [`MAX_QUESTIONS`] questions in one group, or [`MAX_SETTLED`] parts in all, only what depends on no question is
//!    certain.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    iter,
};

use larder_objects::Kind;
use larder_projection::{Question, Sameness, Unknown, UnknownSource, may_all_be_equal};

use super::part::{DiffPart, Effect, SettledPart};

/// Most questions of which all answers are tried.
const MAX_QUESTIONS: usize = 12;
/// Most parts that are computed, once for each way to answer.
pub(super) const MAX_SETTLED: usize = 1 << 18;

/// What may be seen of some parts; `None` is no difference.
pub(super) type Effects = BTreeSet<Option<Effect>>;

/// Parts of which some share something.
#[derive(Default)]
pub(super) struct Group<'p, 'q, 'r> {
    members: Vec<Member<'p, 'q, 'r>>,
    /// The open ones of all members.
    questions: BTreeSet<&'p Question>,
}

/// A member of a group, with its open questions.
struct Member<'p, 'q, 'r> {
    role: Role<'p, 'q, 'r>,
    open: BTreeSet<&'p Question>,
}

enum Role<'p, 'q, 'r> {
    /// With its number.
    Part(usize, &'p DiffPart<'q, 'r>),
    /// What a start needs.
    Value(&'p Unknown),
}

/// What makes members those of one group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shared {
    Questions,
    QuestionsAndSources,
}

/// What members of one group share.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Link<'p> {
    Question(&'p Question),
    /// Whether it is there is a question.
    Object(Kind, &'p str),
    Source(&'p UnknownSource),
}

impl<'p> Role<'p, '_, '_> {
    fn questions(&self) -> Vec<&'p Question> {
        match self {
            Self::Part(_, part) => part.questions(),
            Self::Value(value) => value.questions().collect(),
        }
    }

    fn sources(&self) -> Vec<&'p UnknownSource> {
        match self {
            Self::Part(_, part) => part.sources(),
            Self::Value(value) => value.sources().collect(),
        }
    }
}

impl<'p, 'q, 'r> Group<'p, 'q, 'r> {
    /// The groups of these parts, and of the values that a start needs.
    pub(super) fn all(
        parts: &'p [DiffPart<'q, 'r>],
        values: impl Iterator<Item = &'p Unknown>,
        is_open: impl Fn(&Question) -> bool,
    ) -> impl Iterator<Item = Self> {
        let parts = parts.iter().enumerate();
        let parts = parts.map(|(number, part)| Role::Part(number, part));
        let members = parts.chain(values.map(Role::Value)).map(|role| {
            let questions = role.questions().into_iter();
            let open = questions.filter(|question| is_open(question)).collect();
            Member { role, open }
        });
        let groups = Self::of(members.collect(), Shared::QuestionsAndSources);
        groups.flat_map(|group| {
            if group.questions.len() > MAX_QUESTIONS {
                Self::of(group.members, Shared::Questions).collect()
            } else {
                vec![group]
            }
        })
    }

    /// The groups of members that share something.
    fn of(members: Vec<Member<'p, 'q, 'r>>, shared: Shared) -> impl Iterator<Item = Self> {
        let asked = members.iter().flat_map(|member| &member.open);
        let unsure = asked.filter_map(|question| match question {
            Question::Exists(object) => Some((object.kind, &*object.name)),
            Question::HasKey(..) | Question::Fact(_) => None,
        });
        let unsure: BTreeSet<_> = unsure.collect();
        let mut sets = DisjointSets::new(members.len());
        let mut places = BTreeMap::new();
        for (place, Member { role, open }) in members.iter().enumerate() {
            let objects = open.iter().filter_map(|question| question.object());
            let objects = objects.map(|object| (object.kind, &*object.name));
            let objects = objects.filter(|object| unsure.contains(object));
            let sources = match shared {
                Shared::Questions => Vec::new(),
                Shared::QuestionsAndSources => role.sources(),
            };
            let links = open.iter().copied().map(Link::Question);
            let links = links.chain(objects.map(|(kind, name)| Link::Object(kind, name)));
            for link in links.chain(sources.into_iter().map(Link::Source)) {
                match places.entry(link) {
                    Entry::Vacant(first) => {
                        first.insert(place);
                    }
                    Entry::Occupied(first) => sets.join(*first.get(), place),
                }
            }
        }
        let mut groups = BTreeMap::<usize, Self>::new();
        for (place, member) in members.into_iter().enumerate() {
            let group = groups.entry(sets.first_of(place)).or_default();
            group.questions.extend(&member.open);
            group.members.push(member);
        }
        groups.into_values()
    }

    /// Its parts, with their numbers.
    fn parts(&self) -> impl Iterator<Item = (usize, &'p DiffPart<'q, 'r>)> {
        self.members.iter().filter_map(|member| match member.role {
            Role::Part(number, part) => Some((number, part)),
            Role::Value(_) => None,
        })
    }

    /// What may be seen of its parts. Takes what is computed from `budget`, and notes which parts may differ.
    pub(super) fn effects(&self, budget: &mut usize, may_differ: &mut [bool]) -> Effects {
        let mut effects = Effects::new();
        let mut note = |settled: Vec<SettledPart>| {
            for ((number, _), part) in self.parts().zip(&settled) {
                may_differ[number] |= part.sameness != Sameness::Equal;
            }
            effects.extend(seen(&settled));
        };
        if !self.is_bounded(budget) {
            let settled = self.parts().map(|(_, part)| {
                let mut questions = part.questions().into_iter();
                if questions.any(|one| self.questions.contains(one)) {
                    SettledPart::unsure()
                } else {
                    part.settle(&|_| true)
                }
            });
            note(settled.collect());
            return effects;
        }
        let questions: Vec<_> = self.questions.iter().copied().collect();
        for bits in 0..1_u32 << questions.len() {
            let is_true = |question: &Question| match questions.binary_search(&question) {
                Ok(place) => bits >> place & 1 == 1,
                Err(_) => true,
            };
            if self.is_possible(&is_true) {
                let parts = self.parts();
                note(parts.map(|(_, part)| part.settle(&is_true)).collect());
            }
        }
        effects
    }

    fn is_bounded(&self, budget: &mut usize) -> bool {
        if self.questions.len() > MAX_QUESTIONS {
            return false;
        }
        let left = budget.checked_sub(self.members.len() << self.questions.len());
        *budget = left.unwrap_or(*budget);
        left.is_some()
    }

    /// Whether no answer contradicts another one, and the values are there.
    fn is_possible(&self, is_true: &dyn Fn(&Question) -> bool) -> bool {
        let mut questions = self.questions.iter().filter(|question| is_true(question));
        let mut values = self.members.iter().filter_map(|member| match member.role {
            Role::Value(value) => Some(value),
            Role::Part(..) => None,
        });
        questions.all(|question| question.implied().all(|one| is_true(&one)))
            && values.all(|value| value.settled(is_true).is_some())
    }

    /// What decides what is seen of its parts: its questions, and the values that may be equal or not.
    pub(super) fn names(&self, may_differ: &[bool]) -> impl Iterator<Item = String> {
        let questions = self.questions.iter().map(|question| question.subject());
        let parts = self.parts().filter(|(number, _)| may_differ[*number]);
        let sources = parts.flat_map(|(_, part)| part.sources());
        questions.chain(sources.map(|source| source.what.to_string()))
    }
}

/// What may be seen of parts like these: the least, where as many as possible are the same, and the most.
fn seen(settled: &[SettledPart]) -> impl Iterator<Item = Option<Effect>> {
    let mut all = [Effect::Restart, Effect::Live].into_iter();
    let certain = all.find(|effect| !may_all_be_same(settled, *effect));
    let unsure = settled
        .iter()
        .filter(|part| part.sameness == Sameness::Unsure);
    let unsure = unsure.map(|part| part.effect).max();
    let unsure = unsure.filter(|unsure| Some(*unsure) > certain);
    iter::once(certain).chain(unsure.map(Some))
}

/// Whether no part with at least this effect differs, in some way to fill in what is left open.
fn may_all_be_same(settled: &[SettledPart], least: Effect) -> bool {
    let parts = || settled.iter().filter(|part| part.effect >= least);
    let sides = parts().filter_map(|part| part.sides.as_ref());
    parts().all(|part| part.sameness != Sameness::Different)
        && may_all_be_equal(sides.map(<[Unknown; 2]>::each_ref))
}

/// Sets of numbers that share no number.
struct DisjointSets(Vec<usize>);

impl DisjointSets {
    /// Each number is a set.
    fn new(numbers: usize) -> Self {
        Self((0..numbers).collect())
    }

    /// The number that stands for the set of this one.
    fn first_of(&mut self, mut number: usize) -> usize {
        while self.0[number] != number {
            self.0[number] = self.0[self.0[number]];
            number = self.0[number];
        }
        number
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.first_of(one), self.first_of(other));
        self.0[one.max(other)] = one.min(other);
    }
}
