//! What a difference means for a container, for each way to fill in what is not known.
//!
//! Two containers differ in parts: variables, files, mounts. Each part is a function of questions whose answers
//! are not known, and of values that are left open. All answers are tried; questions that decide nothing are not asked.
//!
//! Invariants:
//! 1. The verdicts of [`Outcomes`] are those of all answers that are possible: an object that has a key is there.
//! 2. What either side needs to start counts as there: the first side runs, and what only the second side needs is named
//!    beside the verdict. But such a condition is a difference by itself, so without another one the verdict is not `same`.
//! 3. Parts are compared one by one, but one value of what is not known must make all of them the same ([`exclusive`]).
//! 4. Beyond [`MAX_QUESTIONS`] questions, only what depends on none of them is certain.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use larder_projection::{Filling, Mount, Question, Sameness, Unknown, Variable};

use super::sub_paths::SubPathDiff;
use crate::rendered::{ContainerContent, MountedFile, PathTerm, ShownMount, Start};

/// Most questions of which all answers are tried.
const MAX_QUESTIONS: usize = 12;
/// Most parts that are computed, once for each way to answer.
const MAX_SETTLED: usize = 1 << 18;

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

/// Who sees that a part differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Live,
    Restart,
}

/// Something that may differ.
pub(super) enum DiffPart<'p, 'r> {
    /// A variable on both sides.
    Variable(Box<[VariableTerm; 2]>),
    /// What is at a path, and who sees that its content differs.
    File(&'p PathTerm<'r>, &'p PathTerm<'r>, Effect),
    /// It differs, whatever is not known.
    Different(Effect),
    /// It depends on values and names that are left open.
    Unsure(Effect, BTreeSet<String>),
}

/// A variable on one side; `None` where nothing sets it.
pub(super) struct VariableTerm {
    seen: Option<Unknown>,
    /// Without what only Services set.
    own: Option<Unknown>,
}

impl VariableTerm {
    pub(super) fn of(side: &ContainerContent<'_>, name: &str) -> Self {
        let term = |found: Option<Cow<'_, Variable<'_>>>| Some(found?.value.clone().into_term());
        Self {
            seen: term(side.environment.look_up(name)),
            own: term(side.environment.own(name)),
        }
    }

    /// Whether something other than a Service sets it.
    fn is_own(&self, is_true: &dyn Fn(&Question) -> bool) -> bool {
        self.own
            .as_ref()
            .is_some_and(|own| own.settled(is_true).is_some())
    }

    fn settled(&self, is_true: &dyn Fn(&Question) -> bool) -> Option<Unknown> {
        self.seen.as_ref()?.settled(is_true)
    }
}

/// What a part is, for some answers.
#[derive(Clone)]
struct SettledPart {
    sameness: Sameness,
    effect: Effect,
    /// The only way in which it is the same.
    filling: Option<Filling>,
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
}

impl DiffPart<'_, '_> {
    fn questions(&self, all: &mut BTreeSet<Question>) {
        match self {
            Self::Variable(sides) => {
                let seen = sides.iter().filter_map(|side| side.seen.as_ref());
                all.extend(seen.flat_map(Unknown::questions).cloned());
            }
            Self::File(from, to, _) => {
                for side in [from, to] {
                    all.extend(side.layers.iter().map(|(question, _)| question.clone()));
                }
            }
            Self::Different(_) | Self::Unsure(..) => {}
        }
    }

    /// What it is in each way, if no question decides it.
    fn settled(&self) -> Option<SettledPart> {
        let mut asked = BTreeSet::new();
        self.questions(&mut asked);
        asked.is_empty().then(|| self.settle(&|_| true))
    }

    /// What it is for these answers.
    fn settle(&self, is_true: &dyn Fn(&Question) -> bool) -> SettledPart {
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
            Self::Different(effect) => SettledPart::new(Sameness::Different, *effect),
            Self::Unsure(effect, _) => SettledPart::new(Sameness::Unsure, *effect),
        }
    }

    /// The sources of what it is made of.
    fn sources(&self, all: &mut BTreeSet<String>) {
        let add = |term: &Unknown| {
            all.extend(term.sources().map(|source| source.what.to_string()));
        };
        match self {
            Self::Variable(sides) => sides
                .iter()
                .filter_map(|side| side.seen.as_ref())
                .for_each(add),
            Self::File(from, to, _) => {
                let files = from.files().chain(to.files());
                files
                    .filter_map(|file| file.file.data.unknown())
                    .for_each(add);
            }
            Self::Different(_) => {}
            Self::Unsure(_, sources) => all.extend(sources.iter().cloned()),
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
    let data = |one: &MountedFile<'_>| one.file.data.clone().into_term();
    SettledPart::of(Some(&data(from)), Some(&data(to)), effect)
}

/// What the pod says of a file.
pub(super) fn permissions(one: &MountedFile<'_>) -> (u32, Option<u32>, Option<u32>) {
    (one.file.mode, one.file.owner, one.group)
}

/// The effect of a file that differs, on a side where `mount` shows it.
pub(super) fn file_effect(sub_path: SubPathDiff, is_pinned: bool) -> Effect {
    if sub_path.is_fixed() || is_pinned {
        Effect::Restart
    } else {
        Effect::Live
    }
}

/// Whether two mounts are the same, and whether that is certain.
pub(super) fn same_mount(from: &ShownMount<'_>, to: &ShownMount<'_>) -> Sameness {
    match (from, to) {
        (ShownMount::Own(from), ShownMount::Own(to)) => same_own_mount(from, to),
        (ShownMount::Token(from), ShownMount::Token(to)) if from == to => Sameness::Equal,
        _ => Sameness::Different,
    }
}

fn same_own_mount(from: &Mount<'_>, to: &Mount<'_>) -> Sameness {
    let mut known = to.clone();
    known.index = from.index;
    if *from == known {
        return Sameness::Equal;
    }
    known.sub_path.clone_from(&from.sub_path);
    known.unknown_sub_path.clone_from(&from.unknown_sub_path);
    known.needs.clone_from(&from.needs);
    known.secret_sub_path = from.secret_sub_path;
    if *from != known {
        return Sameness::Different;
    }
    let part = |mount: &Mount<'_>| match &mount.unknown_sub_path {
        Some(unknown) => Some(unknown.clone()),
        None => mount
            .sub_path
            .as_deref()
            .map(|path| Unknown::of_text(path.as_bytes())),
    };
    match (part(from), part(to)) {
        // Which value is there is one of the questions.
        (Some(from), Some(to)) if has_questions(&from) || has_questions(&to) => Sameness::Unsure,
        (from, to) => Sameness::of(from.as_ref(), to.as_ref()),
    }
}

fn has_questions(term: &Unknown) -> bool {
    term.questions().next().is_some()
}

/// What follows for a container that is on the second side. `from` is `None` if the first side lacks it.
pub(super) fn outcomes(from: Option<&Start>, to: &Start, parts: &[DiffPart<'_, '_>]) -> Outcomes {
    let starts = Starts { from, to };
    let open = starts.open_questions(parts);
    // Parts without a question are the same in each way.
    let settled: Vec<_> = parts.iter().map(DiffPart::settled).collect();
    let mut outcomes = Outcomes {
        possible: BTreeSet::new(),
        may_differ: vec![false; parts.len()],
        deciding: BTreeSet::new(),
    };
    if is_bounded(
        open.len(),
        settled.iter().filter(|known| known.is_none()).count(),
    ) {
        for bits in 0..1_u32 << open.len() {
            let is_true = |question: &Question| match open.binary_search(question) {
                Ok(place) => bits >> place & 1 == 1,
                Err(_) => true,
            };
            if is_possible(&open, &is_true) && starts.have_values(&is_true) {
                let settled = parts
                    .iter()
                    .zip(&settled)
                    .map(|(part, known)| known.clone().unwrap_or_else(|| part.settle(&is_true)));
                outcomes.note(&starts, &settled.collect::<Vec<_>>());
            }
        }
    } else {
        let unsure = SettledPart::new(Sameness::Unsure, Effect::Restart);
        let settled: Vec<_> = settled
            .into_iter()
            .map(|known| known.unwrap_or(unsure.clone()))
            .collect();
        outcomes.note(&starts, &settled);
    }
    if let Some(from) = starts.from
        && from.error.is_some()
        && to.error.is_some()
    {
        // Neither side shows the parts, only that they are made of something else.
        let differs = from != to || outcomes.may_differ.contains(&true);
        let outcome = if differs {
            Outcome::Neither
        } else {
            Outcome::Same
        };
        outcomes.possible = [outcome].into();
    }
    if outcomes.possible.iter().eq([&Outcome::Same]) {
        outcomes.possible.extend(starts.conditional());
    }
    if outcomes.possible.len() > 1 {
        outcomes.name_deciding(&starts, &open, parts);
    }
    outcomes
}

fn is_bounded(questions: usize, parts: usize) -> bool {
    questions <= MAX_QUESTIONS && parts.saturating_mul(1 << questions) <= MAX_SETTLED
}

/// Whether no answer contradicts another one.
fn is_possible(open: &Questions, is_true: &dyn Fn(&Question) -> bool) -> bool {
    open.iter().all(|question| match question {
        Question::HasKey(object, _) if is_true(question) => {
            is_true(&Question::Exists(object.clone()))
        }
        _ => true,
    })
}

/// Sorted.
type Questions = Vec<Question>;

/// The conditions of both starts.
struct Starts<'s> {
    from: Option<&'s Start>,
    to: &'s Start,
}

impl Starts<'_> {
    fn needs(&self) -> impl Iterator<Item = &Question> {
        self.from
            .iter()
            .flat_map(|from| &from.needs)
            .chain(&self.to.needs)
    }

    fn values(&self) -> impl Iterator<Item = &Unknown> {
        self.from
            .iter()
            .flat_map(|from| &from.values)
            .chain(&self.to.values)
    }

    /// The questions that decide a part, without those that a start answers.
    fn open_questions(&self, parts: &[DiffPart<'_, '_>]) -> Questions {
        let mut asked = BTreeSet::new();
        for part in parts {
            part.questions(&mut asked);
        }
        asked.extend(self.values().flat_map(Unknown::questions).cloned());
        for need in self.needs() {
            asked.remove(need);
            if let Some(object) = need.object() {
                asked.remove(&Question::Exists(object.clone()));
            }
        }
        asked.into_iter().collect()
    }

    /// Whether the values are there that a start needs.
    fn have_values(&self, is_true: &dyn Fn(&Question) -> bool) -> bool {
        self.values().all(|value| value.settled(is_true).is_some())
    }

    /// What follows from conditions of one side alone.
    fn conditional(&self) -> impl Iterator<Item = Outcome> {
        let from = self
            .from
            .filter(|from| from.error.is_none() && self.to.error.is_none());
        let has_more = |one: &Start, other: &Start| {
            let (mut needs, mut values) = (one.needs.iter(), one.values.iter());
            needs.any(|need| !other.needs(need))
                || values.any(|value| !other.values.contains(value))
        };
        let starts = from
            .filter(|from| has_more(from, self.to))
            .map(|_| Outcome::Starts);
        let fails = from
            .filter(|from| has_more(self.to, from))
            .map(|_| Outcome::Fails);
        starts.into_iter().chain(fails)
    }
}

impl Outcomes {
    /// Notes what follows of parts like these.
    fn note(&mut self, starts: &Starts<'_>, settled: &[SettledPart]) {
        for (may_differ, part) in self.may_differ.iter_mut().zip(settled) {
            *may_differ |= part.sameness != Sameness::Equal;
        }
        let has_error = starts.to.error.is_some();
        match starts.from.map(|from| from.error.is_some()) {
            // It starts on neither side, which is decided for all answers at once.
            Some(true) if has_error => {}
            Some(false) | None if has_error => self.possible.extend([Outcome::Fails]),
            Some(false) => self.possible.extend(seen(settled)),
            None | Some(true) => self.possible.extend([Outcome::Starts]),
        }
    }

    /// Names what decides: the questions, the conditions of a start that the other side lacks, and the values that may be
    /// equal or not.
    fn name_deciding(
        &mut self,
        starts: &Starts<'_>,
        open: &[Question],
        parts: &[DiffPart<'_, '_>],
    ) {
        self.deciding.extend(open.iter().map(Question::subject));
        let none = BTreeSet::new();
        let before = starts.from.map_or(&none, |from| &from.needs);
        let needs = before.symmetric_difference(&starts.to.needs);
        self.deciding.extend(needs.map(Question::subject));
        for (part, _) in parts
            .iter()
            .zip(&self.may_differ)
            .filter(|(_, differs)| **differs)
        {
            part.sources(&mut self.deciding);
        }
    }
}

/// What follows for a container that starts on both sides.
fn seen(settled: &[SettledPart]) -> Vec<Outcome> {
    let strongest = |wanted: Sameness| {
        settled
            .iter()
            .filter(|part| part.sameness == wanted)
            .map(|part| part.effect)
            .max()
    };
    let outcome = |effect| match effect {
        Effect::Live => Outcome::Live,
        Effect::Restart => Outcome::Restart,
    };
    let certain = strongest(Sameness::Different).max(exclusive(settled));
    let unsure = strongest(Sameness::Unsure);
    let mut possible = vec![certain.map_or(Outcome::Same, outcome)];
    possible.extend(unsure.filter(|unsure| Some(*unsure) > certain).map(outcome));
    possible
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
