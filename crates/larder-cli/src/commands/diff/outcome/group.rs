//! Parts that decide together what a container sees.
//!
//! Invariants:
//! 1. Two groups share no open question, so what one of them is says nothing of the other; nor a source, unless a group
//!    of those that share one had too many questions.
//! 2. The answers are tried for each group alone: all that are possible, which means that an object that has a key is there,
//!    and that the values are there that a start needs.
//! 3. Parts are compared one by one, but one value of what is not known must make all of them the same ([`exclusive`]).
//! 4. Beyond [`MAX_QUESTIONS`] questions in one group, or [`MAX_SETTLED`] parts in all, only what depends on no question is
//!    certain.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    iter,
};

use larder_projection::{Filling, ObjectId, Question, Sameness, Unknown, UnknownSource};

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
    Object(&'p ObjectId),
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
            Question::Exists(object) => Some(object),
            Question::HasKey(..) | Question::Fact(_) => None,
        });
        let unsure: BTreeSet<_> = unsure.collect();
        let mut sets = DisjointSets::new(members.len());
        let mut places = BTreeMap::new();
        for (place, Member { role, open }) in members.iter().enumerate() {
            let objects = open.iter().filter_map(|question| question.object());
            let objects = objects.filter(|object| unsure.contains(object));
            let sources = match shared {
                Shared::Questions => Vec::new(),
                Shared::QuestionsAndSources => role.sources(),
            };
            let links = open.iter().copied().map(Link::Question);
            let links = links.chain(objects.map(Link::Object));
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

/// What may be seen of parts like these.
fn seen(settled: &[SettledPart]) -> impl Iterator<Item = Option<Effect>> {
    let strongest = |wanted: Sameness| {
        let found = settled.iter().filter(|part| part.sameness == wanted);
        found.map(|part| part.effect).max()
    };
    let certain = strongest(Sameness::Different).max(exclusive(settled));
    let unsure = strongest(Sameness::Unsure).filter(|unsure| Some(*unsure) > certain);
    iter::once(certain).chain(unsure.map(Some))
}

/// The effect of parts of which one differs in any case: what makes one the same makes the other different.
fn exclusive(settled: &[SettledPart]) -> Option<Effect> {
    let mut strongest = BTreeMap::<_, BTreeMap<&[u8], Effect>>::new();
    for part in settled {
        let Some(Filling { source, text }) = &part.filling else {
            continue;
        };
        let by_text = strongest.entry(source).or_default();
        let effect = by_text.entry(&**text).or_insert(part.effect);
        *effect = part.effect.max(*effect);
    }
    // All but one of the texts are wrong; at best, that is the one with the strongest effect.
    let second = strongest.values().filter_map(|by_text| {
        let mut effects: Vec<_> = by_text.values().copied().collect();
        effects.sort_unstable();
        effects.pop()?;
        effects.pop()
    });
    second.max()
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
