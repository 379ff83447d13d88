//! One thing that may differ, as a function of questions and of values that are left open.

use std::borrow::Cow;

use larder_projection::{Filling, Question, Sameness, Unknown, UnknownSource, Variable};

use crate::{
    commands::diff::sub_paths::SubPathDiff,
    rendered::{ContainerContent, MountedFile, PathTerm},
};

/// How a container gets to see that a part differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::commands::diff) enum Effect {
    Live,
    Restart,
}

/// Something that may differ.
pub(in crate::commands::diff) enum DiffPart<'p, 'r> {
    /// A variable on both sides.
    Variable(Box<[VariableTerm; 2]>),
    /// What is at a path on both sides, and how a container gets to see that its content differs.
    File(&'p PathTerm<'r>, &'p PathTerm<'r>, Effect),
    /// The part of a volume that is mounted.
    SubPath(Box<[Unknown; 2]>),
    /// It differs, whatever is not known.
    Different(Effect),
    /// It depends on values and names that are left open.
    Unsure(Effect, Vec<&'r UnknownSource>),
}

/// A variable on one side; `None` where nothing sets it.
pub(in crate::commands::diff) struct VariableTerm {
    seen: Option<Unknown>,
    /// Without what only Services set.
    own: Option<Unknown>,
}

impl VariableTerm {
    pub(in crate::commands::diff) fn of(side: &ContainerContent<'_>, name: &str) -> Self {
        let term = |found: Option<Cow<'_, Variable<'_>>>| Some(found?.value.clone().into_term());
        Self {
            seen: term(side.environment.look_up(name)),
            own: term(side.environment.own(name)),
        }
    }

    /// Whether something other than a Service sets it.
    fn is_own(&self, is_true: &dyn Fn(&Question) -> bool) -> bool {
        let own = self.own.as_ref();
        own.is_some_and(|own| own.settled(is_true).is_some())
    }

    fn settled(&self, is_true: &dyn Fn(&Question) -> bool) -> Option<Unknown> {
        self.seen.as_ref()?.settled(is_true)
    }
}

/// What a part is, for some answers.
pub(super) struct SettledPart {
    pub(super) sameness: Sameness,
    pub(super) effect: Effect,
    /// The only way in which it is the same.
    pub(super) filling: Option<Filling>,
}

impl SettledPart {
    fn new(sameness: Sameness, effect: Effect) -> Self {
        Self {
            sameness,
            effect,
            filling: None,
        }
    }

    fn of(from: Option<&Unknown>, to: Option<&Unknown>, effect: Effect) -> Self {
        let mut part = Self::new(Sameness::of(from, to), effect);
        if let (Sameness::Unsure, Some(from), Some(to)) = (part.sameness, from, to) {
            part.filling = Filling::of(from, to);
        }
        part
    }

    /// One of which nothing is certain.
    pub(super) fn unsure() -> Self {
        Self::new(Sameness::Unsure, Effect::Restart)
    }
}

impl DiffPart<'_, '_> {
    /// The questions that decide what it is.
    pub(super) fn questions(&self) -> Vec<&Question> {
        match self {
            Self::Variable(sides) => {
                let seen = sides.iter().filter_map(|side| side.seen.as_ref());
                seen.flat_map(Unknown::questions).collect()
            }
            Self::File(from, to, _) => {
                let layers = from.layers.iter().chain(&to.layers);
                layers.map(|(question, _)| question).collect()
            }
            Self::SubPath(sides) => sides.iter().flat_map(Unknown::questions).collect(),
            Self::Different(_) | Self::Unsure(..) => Vec::new(),
        }
    }

    /// What is left open in what it is made of.
    pub(super) fn sources(&self) -> Vec<&UnknownSource> {
        match self {
            Self::Variable(sides) => {
                let seen = sides.iter().filter_map(|side| side.seen.as_ref());
                seen.flat_map(Unknown::sources).collect()
            }
            Self::File(from, to, _) => {
                let files = from.files().chain(to.files());
                let unknown = files.filter_map(|file| file.file.data.unknown());
                unknown.flat_map(Unknown::sources).collect()
            }
            Self::SubPath(sides) => sides.iter().flat_map(Unknown::sources).collect(),
            Self::Different(_) => Vec::new(),
            Self::Unsure(_, sources) => sources.clone(),
        }
    }

    /// What it is for these answers.
    pub(super) fn settle(&self, is_true: &dyn Fn(&Question) -> bool) -> SettledPart {
        match self {
            Self::Variable(sides) => {
                let [from, to] = &**sides;
                // New pods get other variables of Services; no container restarts for them.
                if !from.is_own(is_true) && !to.is_own(is_true) {
                    return SettledPart::new(Sameness::Equal, Effect::Restart);
                }
                let (from, to) = (from.settled(is_true), to.settled(is_true));
                SettledPart::of(from.as_ref(), to.as_ref(), Effect::Restart)
            }
            Self::File(from, to, effect) => {
                same_file(from.settled(is_true), to.settled(is_true), *effect)
            }
            Self::SubPath(sides) => {
                let [from, to] = [&sides[0], &sides[1]].map(|side| side.settled(is_true));
                SettledPart::of(from.as_ref(), to.as_ref(), Effect::Restart)
            }
            Self::Different(effect) => SettledPart::new(Sameness::Different, *effect),
            Self::Unsure(effect, _) => SettledPart::new(Sameness::Unsure, *effect),
        }
    }
}

fn same_file<'r>(
    from: Option<&MountedFile<'r>>,
    to: Option<&MountedFile<'r>>,
    effect: Effect,
) -> SettledPart {
    let (Some(from), Some(to)) = (from, to) else {
        let sameness = match (from, to) {
            (None, None) => Sameness::Equal,
            _ => Sameness::Different,
        };
        return SettledPart::new(sameness, effect);
    };
    if permissions(from) != permissions(to) || from.is_other_token(to) {
        return SettledPart::new(Sameness::Different, Effect::Restart);
    }
    let (from, to) = (&from.file.data, &to.file.data);
    if from == to {
        return SettledPart::new(Sameness::Equal, effect);
    }
    if from.unknown().is_none() && to.unknown().is_none() {
        return SettledPart::new(Sameness::Different, effect);
    }
    let (from, to) = (from.clone().into_term(), to.clone().into_term());
    SettledPart::of(Some(&from), Some(&to), effect)
}

/// What the pod says of a file.
pub(in crate::commands::diff) fn permissions(
    one: &MountedFile<'_>,
) -> (u32, Option<u32>, Option<u32>) {
    (one.file.mode, one.file.owner, one.group)
}

/// The effect of a file that differs, on a side where `mount` shows it.
pub(in crate::commands::diff) fn file_effect(sub_path: SubPathDiff, is_pinned: bool) -> Effect {
    if sub_path.is_fixed() || is_pinned {
        Effect::Restart
    } else {
        Effect::Live
    }
}
