//! The differences of one container, and its verdict.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use larder_projection::{ContainerView, ObjectId, Origin, Question, Sameness, Unknown, Variable};

use super::{
    both_sides::{BothSides, ServiceVariables},
    edits::{Edit, Edits},
    outcome::{DiffPart, Effect, Outcome, file_effect, outcomes, permissions, same_mount},
    sub_paths::SubPathDiff,
};
use crate::rendered::{ContainerContent, MountedFile, PathTerm, RenderedPod, ShownMount, Start};

/// The differences of one container.
pub(super) struct ContainerDiff<'r> {
    pub(super) container: ContainerView<'r>,
    pub(super) verdict: Verdict,
    pub(super) variables: Edits<Cow<'r, str>, Cow<'r, Variable<'r>>>,
    pub(super) files: Edits<String, MountedFile<'r>>,
    pub(super) mounts: Edits<&'r str, ShownMount<'r>>,
    pub(super) sub_paths: SubPathDiff,
    /// The immutable objects whose changes are among the differences.
    pub(super) immutable: BTreeSet<String>,
    /// What is not known of it on a side.
    pub(super) unknown: BTreeSet<String>,
    /// What its start needs on the second side only, and no document has.
    pub(super) unless: Vec<Unmet>,
    /// Why it does not start on the second side, if it does not on the first either.
    fails_on_both: Option<String>,
}

/// A condition that no document meets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unmet {
    /// `secret web-evn`
    pub(super) what: String,
    /// The name that is likely to be meant.
    pub(super) hint: Option<String>,
}

/// What is said of a container, whether or not it differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Remark {
    /// This is not known of it.
    Unknown(String),
    /// It would start on neither side, for this reason.
    Neither(String),
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(what) => f.write_str(what),
            Self::Neither(error) => write!(f, "would start on neither side: {error}"),
        }
    }
}

/// What a difference means for a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It sees what it saw.
    Same,
    /// It would start on neither side, for this reason on the second.
    Neither(String),
    /// A running container sees the difference.
    Live,
    /// Only a new start shows the difference.
    Restart,
    /// It is new, or did not start.
    Starts,
    /// It would not start, for this reason.
    Fails(String),
    /// One of several.
    Unknown {
        possible: BTreeSet<Outcome>,
        deciding: BTreeSet<String>,
    },
    /// The pod has it no longer.
    Removed,
}

/// A container on one side.
pub(super) struct ContainerState<'r> {
    pub(super) view: ContainerView<'r>,
    content: ContainerContent<'r>,
    start: Start,
}

pub(super) fn states<'r>(pod: &'r RenderedPod<'r>) -> impl Iterator<Item = ContainerState<'r>> {
    let containers = pod.containers.iter().enumerate();
    containers.filter_map(|(index, (view, _))| {
        Some(ContainerState {
            view: *view,
            content: pod.content(index)?,
            start: pod.start(index),
        })
    })
}

/// What differs of a container, if some of it is there on both sides.
#[derive(Default)]
struct Differences<'r> {
    /// Each with the number of its part.
    variables: Vec<(usize, Cow<'r, str>, Edit<Cow<'r, Variable<'r>>>)>,
    files: Vec<(usize, String, Edit<MountedFile<'r>>)>,
    mounts: Edits<&'r str, ShownMount<'r>>,
}

impl<'r> ContainerDiff<'r> {
    /// The differences of a container that is on the second side, of a pod `to`, which is also `from` if the first side has
    /// it.
    pub(super) fn new(
        before: Option<ContainerState<'r>>,
        after: ContainerState<'r>,
        from: Option<&'r RenderedPod<'r>>,
        to: &'r RenderedPod<'r>,
        services: &mut ServiceVariables,
    ) -> Self {
        let pinned = |origin: &Origin<'_>| from?.pinned(to, origin);
        let asks = to.updates_sub_paths();
        let comparison = before.as_ref().map(|before| BothSides {
            from: &before.content,
            to: &after.content,
        });
        let mut diff = Self::unchanged(&after);
        let from_start = before.as_ref().map(|before| &before.start);
        let Some(sides) = comparison else {
            let outcomes = outcomes(from_start, &after.start, &[]);
            diff.verdict = verdict(outcomes.possible, outcomes.deciding, &after.start);
            diff.unless = unless(None, &after, to);
            if !matches!(diff.verdict, Verdict::Fails(_)) {
                diff.show_all(&after.content);
            }
            return diff;
        };
        diff.unknown.extend(sides.from.unknown());
        let mounts = sides.mounts();
        let file_terms = sides.files();
        let shown = SubPathDiff::shown(sides.to);
        let sub_path = |path: &str, terms: &(PathTerm<'r>, PathTerm<'r>)| {
            let shown_sides = (terms.0.shown(), terms.1.shown());
            let has_other_mount = |path: &str| mounts.contains_key(path);
            SubPathDiff::of_file(path, &shown_sides, has_other_mount, &shown, asks)
        };
        let mut parts = Vec::new();
        let mut found = Differences::default();
        let variables = BothSides::without_services(sides.variables(), services);
        for (name, from, to) in variables {
            let term = |one: &Option<Cow<'r, Variable<'r>>>| {
                one.as_ref().map(|one| one.value.clone().into_term())
            };
            parts.push(DiffPart::Variable(term(&from), term(&to)));
            found
                .variables
                .extend(Edit::of(from, to).map(|edit| (parts.len() - 1, name, edit)));
        }
        for (path, terms) in &file_terms {
            let origins = terms
                .0
                .files()
                .chain(terms.1.files())
                .filter_map(|one| one.origin.as_deref());
            let is_pinned = origins.into_iter().any(|origin| pinned(origin).is_some());
            let effect = file_effect(sub_path(path, terms), is_pinned);
            parts.push(DiffPart::File(&terms.0, &terms.1, effect));
            let edit = Edit::of(terms.0.shown(), terms.1.shown());
            found
                .files
                .extend(edit.map(|edit| (parts.len() - 1, path.clone(), edit)));
        }
        for open in sides.names_left_open() {
            let part = parts.len();
            parts.push(open.part);
            let files = open.files.into_iter();
            found
                .files
                .extend(files.map(|(path, edit)| (part, path, edit)));
            let variables = open.variables.into_iter();
            found
                .variables
                .extend(variables.map(|(name, edit)| (part, Cow::Owned(name), edit)));
        }
        parts.extend(mounts.values().map(mount_part));
        found.mounts = mounts.clone();
        let outcomes = outcomes(from_start, &after.start, &parts);
        let may_differ = &outcomes.may_differ;
        found.variables.retain(|(part, ..)| may_differ[*part]);
        found.files.retain(|(part, ..)| may_differ[*part]);
        let paths = found
            .files
            .iter()
            .filter_map(|(_, path, _)| Some(sub_path(path, file_terms.get(path)?)));
        diff.sub_paths = paths.max().unwrap_or(SubPathDiff::None);
        diff.unless = unless(from_start, &after, to);
        let fails_before = from_start.is_some_and(|start| start.error.is_some());
        diff.fails_on_both = after.start.error.clone().filter(|_| fails_before);
        diff.verdict = verdict(outcomes.possible, outcomes.deciding, &after.start);
        if let Verdict::Unknown { deciding, .. } = &diff.verdict {
            diff.unknown.extend(deciding.iter().cloned());
        }
        if matches!(diff.verdict, Verdict::Starts) {
            diff.show_all(&after.content);
        } else if !matches!(diff.verdict, Verdict::Fails(_)) {
            diff.show(found, pinned);
        }
        diff
    }

    /// A container that the second side has no longer.
    pub(super) fn removed(before: ContainerState<'r>) -> Self {
        let mut diff = Self::unchanged(&before);
        diff.unknown.clear();
        diff.verdict = Verdict::Removed;
        diff
    }

    fn unchanged(state: &ContainerState<'r>) -> Self {
        let mut unknown = state.content.unknown();
        let needs = state.start.needs.iter();
        unknown.extend(needs.map(|need| need.object().to_string()));
        Self {
            container: state.view,
            verdict: Verdict::Same,
            variables: Edits::new(),
            files: Edits::new(),
            mounts: Edits::new(),
            sub_paths: SubPathDiff::None,
            immutable: BTreeSet::new(),
            unknown,
            unless: Vec::new(),
            fails_on_both: None,
        }
    }

    /// All that the container sees is new.
    fn show_all(&mut self, after: &ContainerContent<'r>) {
        let environment = after.environment.iter();
        self.variables = environment
            .map(|(name, one)| (Cow::Borrowed(name), Edit::Added(Cow::Borrowed(one))))
            .collect();
        let paths = after.paths().into_iter();
        let files = paths.filter_map(|path| {
            let file = after.look_up(&path).shown()?;
            Some((path, Edit::Added(file)))
        });
        self.files = files.collect();
        let mounts = after.all_mounts.iter();
        self.mounts = mounts
            .map(|mount| (mount.path(), Edit::Added(*mount)))
            .collect();
    }

    fn show(&mut self, found: Differences<'r>, pinned: impl Fn(&Origin<'_>) -> Option<String>) {
        let variables = found.variables.into_iter();
        self.variables = variables.map(|(_, name, edit)| (name, edit)).collect();
        let files = found.files.into_iter();
        self.files = files.map(|(_, path, edit)| (path, edit)).collect();
        self.mounts = found.mounts;
        let files = self.files.values().flat_map(Edit::values);
        let origins = files.filter_map(|file| file.origin.as_deref());
        let variables = self.variables.values().flat_map(Edit::values);
        let origins = origins.chain(variables.map(|variable| &variable.origin));
        self.immutable = origins.filter_map(pinned).collect();
    }

    /// What is named of it, whether or not it differs.
    pub(super) fn remarks(&self) -> impl Iterator<Item = Remark> {
        let unknown = self.unknown.iter().cloned().map(Remark::Unknown);
        unknown.chain(self.fails_on_both.iter().cloned().map(Remark::Neither))
    }
}

/// A mount that differs, or one of a part of a volume that may be the same.
fn mount_part<'p, 'r>(edit: &Edit<ShownMount<'r>>) -> DiffPart<'p, 'r> {
    let unknown = |mount: &ShownMount<'r>| match mount {
        ShownMount::Own(mount) => mount.unknown_sub_path.as_ref(),
        ShownMount::Token(_) => None,
    };
    match edit {
        Edit::Changed(from, to) if same_mount(from, to) == Sameness::Unsure => {
            let sources = [from, to].into_iter().filter_map(unknown);
            let sources = sources.flat_map(Unknown::sources);
            let sources = sources.map(|source| source.what.to_string());
            DiffPart::Unsure(Effect::Restart, sources.collect())
        }
        _ => DiffPart::Different(Effect::Restart),
    }
}

/// The verdict that holds in all ways.
fn verdict(possible: BTreeSet<Outcome>, deciding: BTreeSet<String>, after: &Start) -> Verdict {
    let error = || after.error.clone().unwrap_or_default();
    let mut outcomes = possible.iter();
    match (outcomes.next(), outcomes.next()) {
        (None, _) => Verdict::Same,
        (Some(only), None) => match only {
            Outcome::Same => Verdict::Same,
            Outcome::Live => Verdict::Live,
            Outcome::Restart => Verdict::Restart,
            Outcome::Starts => Verdict::Starts,
            Outcome::Fails => Verdict::Fails(error()),
            Outcome::Neither => Verdict::Neither(error()),
        },
        (Some(_), Some(_)) => Verdict::Unknown { possible, deciding },
    }
}

/// The conditions of a start that the first side does not have.
fn unless(before: Option<&Start>, after: &ContainerState<'_>, pod: &RenderedPod<'_>) -> Vec<Unmet> {
    let none = Start::default();
    let before = before.unwrap_or(&none);
    let is_needed = |object: &ObjectId| before.needs(&Question::Exists(object.clone()));
    let new = after.start.needs.iter().filter(|need| !before.needs(need));
    let unmet = new.map(|need| {
        let object = need.object();
        // Of an object that was needed before, only the key is new.
        let what = match need {
            Question::HasKey(..) if is_needed(object) => need.to_string(),
            _ => object.to_string(),
        };
        let hint = pod.similar_object(object.kind, &object.name);
        Unmet { what, hint }
    });
    let mut unmet: BTreeSet<_> = unmet.collect();
    let own = after
        .start
        .values
        .iter()
        .filter(|value| !before.values.contains(value));
    unmet.extend(own.filter_map(|value| {
        let what = value.sources().next()?.to_string();
        Some(Unmet { what, hint: None })
    }));
    unmet.into_iter().collect()
}

/// Whether the mode, owner or group of a file differs.
pub(super) fn has_other_permissions(files: &Edits<String, MountedFile<'_>>) -> bool {
    let mut edits = files.values();
    edits
        .any(|edit| matches!(edit, Edit::Changed(from, to) if permissions(from) != permissions(to)))
}
