//! One thing that may differ, as a function of questions and of values that are left open.

use std::borrow::Cow;

use larder_projection::{Question, Sameness, Unknown, UnknownSource, Variable};

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
    /// What is at a path of a volume of which a part is mounted that is not known.
    Selected(Box<Selected<'r>>),
    /// It differs, whatever is not known.
    Different(Effect),
}

/// A file of a volume, where it depends on what is not known whether a container sees it.
pub(in crate::commands::diff) struct Selected<'r> {
    /// The part of the volume that is mounted, on both sides.
    pub(in crate::commands::diff) mounted: [Unknown; 2],
    /// The path in the volume.
    pub(in crate::commands::diff) path: String,
    pub(in crate::commands::diff) file: [PathTerm<'r>; 2],
    /// Whether a running container may see that it differs.
    pub(in crate::commands::diff) may_be_live: bool,
    /// Whether it does, wherever both sides have the file: a mount of the file is replaced by one of a file, and a mount of
    /// a directory that has it by one of a directory.
    pub(in crate::commands::diff) is_replaced: bool,
}

impl Selected<'_> {
    /// Where the mounts differ, that is another part.
    fn settle(&self, is_true: &dyn Fn(&Question) -> bool) -> SettledPart {
        let mounted = self.mounted.each_ref().map(|side| side.settled(is_true));
        let may_select = |side: &Option<Unknown>| {
            let side = side.as_ref();
            side.is_some_and(|side| side.may_select(&self.path))
        };
        if !mounted.iter().all(may_select) {
            return SettledPart::new(Sameness::Equal, Effect::Restart);
        }
        let [from, to] = self.file.each_ref().map(|side| side.settled(is_true));
        let effect = if self.is_replaced && from.is_some() && to.is_some() {
            Effect::Live
        } else {
            Effect::Restart
        };
        let mut part = same_file(from, to, effect);
        let is_known = |side: &Unknown| side.sources().next().is_none();
        let is_certain = mounted.iter().flatten().any(is_known) && !self.may_be_live;
        if part.sameness == Sameness::Different && !is_certain {
            part.sameness = Sameness::Unsure;
        }
        part
    }
}

/// A variable on one side; `None` where nothing sets it.
pub(in crate::commands::diff) struct VariableTerm {
    seen: Option<Unknown>,
    /// Without what only Services set.
    own: Option<Unknown>,
    /// Whether that counts as well.
    needs_services: bool,
}

impl VariableTerm {
    pub(in crate::commands::diff) fn of(
        side: &ContainerContent<'_>,
        name: &str,
        needs_services: bool,
    ) -> Self {
        let term = |found: Option<Cow<'_, Variable<'_>>>| Some(found?.value.clone().into_term());
        Self {
            seen: term(side.environment.look_up(name)),
            own: term(side.environment.own(name)),
            needs_services,
        }
    }

    /// Whether something other than a Service sets it, or a Service's counts.
    fn is_own(&self, is_true: &dyn Fn(&Question) -> bool) -> bool {
        let own = self.own.as_ref();
        self.needs_services || own.is_some_and(|own| own.settled(is_true).is_some())
    }

    fn settled(&self, is_true: &dyn Fn(&Question) -> bool) -> Option<Unknown> {
        self.seen.as_ref()?.settled(is_true)
    }
}

/// What a part is, for some answers.
pub(super) struct SettledPart {
    pub(super) sameness: Sameness,
    pub(super) effect: Effect,
    /// What must be equal for it to be the same, if that depends on what is left open.
    pub(super) sides: Option<[Unknown; 2]>,
}

impl SettledPart {
    fn new(sameness: Sameness, effect: Effect) -> Self {
        Self {
            sameness,
            effect,
            sides: None,
        }
    }

    fn of(from: Option<&Unknown>, to: Option<&Unknown>, effect: Effect) -> Self {
        let mut part = Self::new(Sameness::of(from, to), effect);
        if let (Sameness::Unsure, Some(from), Some(to)) = (part.sameness, from, to) {
            part.sides = Some([from.clone(), to.clone()]);
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
            Self::Selected(selected) => {
                let mounted = selected.mounted.iter().flat_map(Unknown::questions);
                let layers = selected.file.iter().flat_map(|side| &side.layers);
                mounted
                    .chain(layers.map(|(question, _)| question))
                    .collect()
            }
            Self::Different(_) => Vec::new(),
        }
    }

    /// What is left open in what it is made of.
    pub(super) fn sources(&self) -> Vec<&UnknownSource> {
        match self {
            Self::Variable(sides) => {
                let seen = sides.iter().filter_map(|side| side.seen.as_ref());
                seen.flat_map(Unknown::sources).collect()
            }
            Self::File(from, to, _) => from.sources().chain(to.sources()).collect(),
            Self::SubPath(sides) => sides.iter().flat_map(Unknown::sources).collect(),
            Self::Selected(selected) => {
                let mounted = selected.mounted.iter().flat_map(Unknown::sources);
                let files = selected.file.iter().flat_map(PathTerm::sources);
                mounted.chain(files).collect()
            }
            Self::Different(_) => Vec::new(),
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
            Self::Selected(selected) => selected.settle(is_true),
            Self::Different(effect) => SettledPart::new(Sameness::Different, *effect),
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

/// What the pod says of a file. A group that it belongs to may read it, whatever its mode (Kubernetes 1.36,
/// `pkg/volume/volume_linux.go`).
pub(in crate::commands::diff) fn permissions(
    one: &MountedFile<'_>,
) -> (u32, Option<u32>, Option<u32>) {
    let of_group = one.group.map_or(0, |_| 0o440);
    (one.file.mode | of_group, one.file.owner, one.group)
}

/// The effect of a file that differs, on a side where `mount` shows it.
pub(in crate::commands::diff) fn file_effect(sub_path: SubPathDiff, stays: bool) -> Effect {
    if sub_path.is_fixed() || stays {
        Effect::Restart
    } else {
        Effect::Live
    }
}
