//! The differences of one container, and its verdict.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use larder_projection::{ANY_KEY, ContainerView, ObjectId, Origin, Question, Variable};

use super::{
    both_sides::{BothSides, ServiceVariables},
    edits::{Edit, Edits},
    mounts::mount_part,
    outcome::{DiffPart, Effect, Outcome, VariableTerm, file_effect, outcomes, permissions},
    rollout::{ReplacedBy, has_other_template},
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
    /// Whether files that differ are of volumes that are filled otherwise.
    pub(super) is_filled_otherwise: bool,
    /// The immutable objects whose changes are among the differences.
    pub(super) immutable: BTreeSet<String>,
    /// What is not known of it on a side.
    pub(super) unknown: BTreeSet<String>,
    /// What its start needs on the second side only, and no document has.
    pub(super) unless: Vec<Unmet>,
    /// Who replaces it so that it sees the difference; `None` if it need not be replaced, and is not.
    pub(super) replaced_by: Option<ReplacedBy>,
    /// Why it does not start on the second side, if it does not on the first either.
    fails_on_both: Option<String>,
    /// Whether the first side lacks it.
    is_new: bool,
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
    pod.containers
        .iter()
        .enumerate()
        .filter_map(|(index, (view, _))| {
            Some(ContainerState {
                view: *view,
                content: pod.content(index)?,
                start: pod.start(index),
            })
        })
}

/// What differs of a container that both sides have.
#[derive(Default)]
struct Differences<'p, 'r> {
    parts: Vec<DiffPart<'p, 'r>>,
    /// Each with the number of its part.
    variables: Vec<(usize, Cow<'r, str>, Edit<Cow<'r, Variable<'r>>>)>,
    files: Vec<(usize, String, Edit<MountedFile<'r>>)>,
    mounts: Vec<(usize, &'r str, Edit<ShownMount<'r>>)>,
}

/// What decides who sees that a file differs.
struct FileEffects<'e, 'r> {
    mounts: Edits<&'r str, ShownMount<'r>>,
    /// The result of [`SubPathDiff::shown`].
    shown: BTreeSet<&'r str>,
    /// Whether the pod asks for updates of files that are mounted by `subPath`.
    asks: bool,
    /// The immutable object that a file comes from, if that differs.
    pinned: &'e dyn Fn(&Origin<'_>) -> Option<String>,
    /// Whether what is at a path is of a volume that is filled otherwise.
    is_filled_otherwise: &'e dyn Fn(&str) -> bool,
    /// Whether the container runs as long as its pod.
    keeps_running: bool,
    /// Whether the template of the pod differs, which changes no pod that runs.
    has_other_template: bool,
}

/// The paths that do not have the same, with what is there on both sides.
type FileSides<'r> = BTreeMap<String, (PathTerm<'r>, PathTerm<'r>)>;

impl<'r> FileEffects<'_, 'r> {
    fn sub_path(&self, path: &str, (from, to): &(PathTerm<'r>, PathTerm<'r>)) -> SubPathDiff {
        let shown_sides = (from.shown(), to.shown());
        let has_other_mount = |path: &str| self.mounts.contains_key(path);
        SubPathDiff::of_file(path, &shown_sides, has_other_mount, &self.shown, self.asks)
    }

    fn of(&self, path: &str, sides: &(PathTerm<'r>, PathTerm<'r>)) -> Effect {
        let stays = self.stays([&sides.0, &sides.1]) || (self.is_filled_otherwise)(path);
        file_effect(self.sub_path(path, sides), stays)
    }

    /// Whether a running container keeps the file, however it is mounted.
    fn stays(&self, sides: [&PathTerm<'r>; 2]) -> bool {
        let mut files = sides.into_iter().flat_map(PathTerm::files);
        let is_of_template = |origin: &Origin<'_>| {
            self.has_other_template && matches!(origin, Origin::Field(_) | Origin::Resource { .. })
        };
        let is_kept = files.any(|file| {
            let origin = file.origin.as_deref();
            origin.is_some_and(|one| is_of_template(one) || (self.pinned)(one).is_some())
        });
        is_kept || !self.keeps_running
    }
}

impl<'p, 'r> Differences<'p, 'r> {
    fn of(
        sides: &BothSides<'_, 'r>,
        files: &'p FileSides<'r>,
        effects: &FileEffects<'_, 'r>,
        services: &mut ServiceVariables,
    ) -> Self {
        let mut found = Self::default();
        for (name, from, to) in sides.without_services(sides.variables(), services) {
            let needs_services = sides.needs_services(&name);
            let terms =
                [sides.from, sides.to].map(|side| VariableTerm::of(side, &name, needs_services));
            let part = found.add(DiffPart::Variable(Box::new(terms)));
            let edit = Edit::of(from, to);
            let name = Cow::Owned(name.replace(ANY_KEY, "*"));
            found.variables.extend(edit.map(|edit| (part, name, edit)));
        }
        for (path, sides) in files {
            let part = DiffPart::File(&sides.0, &sides.1, effects.of(path, sides));
            let part = found.add(part);
            let edit = Edit::of(sides.0.shown(), sides.1.shown());
            let path = path.replace(ANY_KEY, "*");
            found.files.extend(edit.map(|edit| (part, path, edit)));
        }
        for (path, edit) in &effects.mounts {
            let part = found.add(mount_part(edit));
            found.mounts.push((part, path, *edit));
        }
        let may_be_live = |sides: [&PathTerm<'r>; 2]| effects.asks && !effects.stays(sides);
        found.parts.extend(sides.unknown_parts(may_be_live));
        found
    }

    /// Adds a part, and returns its number.
    fn add(&mut self, part: DiffPart<'p, 'r>) -> usize {
        self.parts.push(part);
        self.parts.len() - 1
    }

    /// Keeps what may differ.
    fn retain(&mut self, may_differ: &[bool]) {
        self.variables.retain(|(part, ..)| may_differ[*part]);
        self.files.retain(|(part, ..)| may_differ[*part]);
        self.mounts.retain(|(part, ..)| may_differ[*part]);
    }
}

impl<'r> ContainerDiff<'r> {
    /// The differences of a container that is on the second side, of a pod `to`, which is also `from` if the first side has
    /// it.
    pub(super) fn new(
        before: Option<ContainerState<'r>>,
        mut after: ContainerState<'r>,
        from: Option<&'r RenderedPod<'r>>,
        to: &'r RenderedPod<'r>,
        services: &mut ServiceVariables,
    ) -> Self {
        after.start.add_outside(to.outside_beyond(from));
        let mut diff = Self::unchanged(&after);
        diff.is_new = before.is_none();
        let Some(before) = before else {
            diff.decide(None, &after, to, &[]);
            if !matches!(diff.verdict, Verdict::Fails(_)) {
                diff.show_all(&after.content);
            }
            return diff;
        };
        let implied = before.start.implied().union(after.start.implied());
        let sides = BothSides::new(&before.content, &after.content, implied);
        diff.unknown.extend(sides.from.unknown());
        let pinned = |origin: &Origin<'_>| from?.pinned(to, origin);
        let filled_otherwise = sides.filled_otherwise();
        let is_filled_otherwise = |path: &str| {
            let mount = sides.to.mount_of(path);
            mount.is_some_and(|(mount, _)| filled_otherwise.contains(&mount.index))
        };
        let effects = FileEffects {
            mounts: sides.mounts(),
            shown: SubPathDiff::shown(sides.to),
            asks: to.updates_sub_paths(),
            pinned: &pinned,
            is_filled_otherwise: &is_filled_otherwise,
            keeps_running: after.view.keeps_running(),
            has_other_template: from.is_some_and(|from| has_other_template(from, to)),
        };
        let files = sides.files();
        let mut found = Differences::of(&sides, &files, &effects, services);
        let may_differ = diff.decide(Some(&before.start), &after, to, &found.parts);
        found.retain(&may_differ);
        let paths = found.files.iter();
        let sub_paths =
            paths.filter_map(|(_, path, _)| Some(effects.sub_path(path, files.get(path)?)));
        diff.sub_paths = sub_paths.max().unwrap_or(SubPathDiff::None);
        let mut paths = found.files.iter();
        diff.is_filled_otherwise = paths.any(|(_, path, _)| is_filled_otherwise(path));
        match diff.verdict {
            Verdict::Starts => diff.show_all(&after.content),
            Verdict::Fails(_) => {}
            _ => diff.show(found, pinned),
        }
        diff
    }

    /// Sets the verdict, and returns whether each part may differ.
    fn decide(
        &mut self,
        before: Option<&Start>,
        after: &ContainerState<'r>,
        pod: &RenderedPod<'_>,
        parts: &[DiffPart<'_, 'r>],
    ) -> Vec<bool> {
        let outcomes = outcomes(before, &after.start, parts);
        self.unless = unless(before, after, pod);
        let fails_before = before.is_some_and(|start| start.error.is_some());
        self.fails_on_both = after.start.error.clone().filter(|_| fails_before);
        self.verdict = verdict(outcomes.possible, outcomes.deciding, &after.start);
        if let Verdict::Unknown { deciding, .. } = &self.verdict {
            self.unknown.extend(deciding.iter().cloned());
        }
        outcomes.may_differ
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
        unknown.extend(needs.map(Question::subject));
        Self {
            container: state.view,
            verdict: Verdict::Same,
            variables: Edits::new(),
            files: Edits::new(),
            mounts: Edits::new(),
            sub_paths: SubPathDiff::None,
            is_filled_otherwise: false,
            immutable: BTreeSet::new(),
            unknown,
            unless: Vec::new(),
            replaced_by: None,
            fails_on_both: None,
            is_new: false,
        }
    }

    /// Whether only a new pod shows the difference, in some way to fill in what is not known.
    pub(super) fn needs_new_pod(&self) -> bool {
        self.is_new
            || match &self.verdict {
                Verdict::Restart | Verdict::Fails(_) | Verdict::Removed => true,
                Verdict::Unknown { possible, .. } => {
                    possible.contains(&Outcome::Restart) || possible.contains(&Outcome::Fails)
                }
                Verdict::Same | Verdict::Neither(_) | Verdict::Live | Verdict::Starts => false,
            }
    }

    /// All that the container sees is new.
    fn show_all(&mut self, after: &ContainerContent<'r>) {
        self.variables = after
            .own_variables()
            .map(|(name, one)| (Cow::Borrowed(name), Edit::Added(Cow::Borrowed(one))))
            .collect();
        self.files = after
            .paths()
            .into_iter()
            .filter_map(|path| {
                let file = after.look_up(&path).shown()?;
                Some((path, Edit::Added(file)))
            })
            .collect();
        let mounts = after.all_mounts.iter();
        self.mounts = mounts
            .map(|mount| (mount.path(), Edit::Added(*mount)))
            .collect();
    }

    fn show(&mut self, found: Differences<'_, 'r>, pinned: impl Fn(&Origin<'_>) -> Option<String>) {
        let variables = found.variables.into_iter();
        self.variables = variables.map(|(_, name, edit)| (name, edit)).collect();
        let files = found.files.into_iter();
        self.files = files.map(|(_, path, edit)| (path, edit)).collect();
        let mounts = found.mounts.into_iter();
        self.mounts = mounts.map(|(_, path, edit)| (path, edit)).collect();
        let files = self.files.values().flat_map(Edit::values);
        let variables = self.variables.values().flat_map(Edit::values);
        self.immutable = files
            .flat_map(|file| [&file.origin, &file.fallback])
            .filter_map(|origin| origin.as_deref())
            .chain(variables.map(|variable| &variable.origin))
            .filter_map(pinned)
            .collect();
    }

    /// What is named of it, whether or not it differs.
    pub(super) fn remarks(&self) -> impl Iterator<Item = Remark> {
        self.unknown
            .iter()
            .cloned()
            .map(Remark::Unknown)
            .chain(self.fails_on_both.iter().cloned().map(Remark::Neither))
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
    let is_needed = |object: &ObjectId| before.needs(&Question::existence(object));
    let new = after.start.needs_beyond(before);
    let mut unmet: BTreeSet<_> = new
        .map(|need| {
            // Of an object that was needed before, or that is there, only the key is asked for.
            let what = match need {
                Question::HasKey(object, _) if is_needed(object) || pod.has_object(object) => {
                    need.to_string()
                }
                _ => need.subject(),
            };
            let hint = pod.similar(need);
            Unmet { what, hint }
        })
        .collect();
    let own = after.start.values_beyond(before);
    unmet.extend(own.map(|value| {
        let sources: BTreeSet<_> = value.sources().map(ToString::to_string).collect();
        let sources = sources.into_iter().collect::<Vec<_>>().join(" or ");
        // Another value counts where that is missing.
        let is_optional = !value.may_be_absent() && value.questions().next().is_some();
        let if_there = if is_optional { ", if that exists" } else { "" };
        let what = format!("a path in {sources}{if_there}");
        Unmet { what, hint: None }
    }));
    unmet.into_iter().collect()
}

/// Whether the mode, owner or group of a file differs.
pub(super) fn has_other_permissions(files: &Edits<String, MountedFile<'_>>) -> bool {
    let mut edits = files.values();
    edits
        .any(|edit| matches!(edit, Edit::Changed(from, to) if permissions(from) != permissions(to)))
}
