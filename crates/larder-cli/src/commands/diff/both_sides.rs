//! A container of both sides: what it is not made of the same.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use larder_projection::{
    AnyFiles, AnyKeys, Environment, ObjectId, Question, Sameness, Unknown, Variable,
};
use serde::Serialize;

use super::{
    edits::{Edit, Edits, edits},
    outcome::{DiffPart, Effect, permissions, same_mount},
};
use crate::rendered::{ContainerContent, MountedFile, PathTerm, ShownMount};

/// Names of variables that only Services set.
#[derive(Debug, Default, Serialize)]
pub(super) struct ServiceVariables {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) added: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) changed: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) removed: BTreeSet<String>,
}

impl ServiceVariables {
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

/// A container of both sides.
pub(super) struct BothSides<'s, 'r> {
    pub(super) from: &'s ContainerContent<'r>,
    pub(super) to: &'s ContainerContent<'r>,
    /// What either side needs to start.
    pub(super) needs: BTreeSet<&'s Question>,
}

pub(super) type VariableSides<'r> = (
    Cow<'r, str>,
    Option<Cow<'r, Variable<'r>>>,
    Option<Cow<'r, Variable<'r>>>,
);

impl<'r> BothSides<'_, 'r> {
    /// The variables that are not made of the same, with what they are on both sides.
    pub(super) fn variables(&self) -> Vec<VariableSides<'r>> {
        let names = self
            .from
            .environment
            .iter()
            .chain(self.to.environment.iter());
        let mut names: BTreeSet<_> = names.map(|(name, _)| Cow::Borrowed(name)).collect();
        names.extend(self.needed_names().map(Cow::Owned));
        let sides = names.into_iter().map(|name| {
            let (from, to) = (self.from.environment, self.to.environment);
            let (from, to) = (from.look_up(&name), to.look_up(&name));
            (name, from, to)
        });
        let value = |one: &Option<Cow<'r, Variable<'r>>>| one.as_ref().map(|one| one.value.clone());
        sides
            .filter(|(_, from, to)| value(from) != value(to))
            .collect()
    }

    /// The keys that a start needs, of objects whose keys are not known.
    fn needed_keys(&self) -> impl Iterator<Item = (&ObjectId, &str)> {
        self.needs.iter().filter_map(|need| match need {
            Question::HasKey(object, key) => Some((object, &**key)),
            Question::Exists(_) | Question::Fact(_) => None,
        })
    }

    /// The variables of such keys.
    fn needed_names(&self) -> impl Iterator<Item = String> {
        self.needed_keys().flat_map(|(object, key)| {
            let all = [self.from, self.to].into_iter();
            let all = all.flat_map(|side| side.environment.any_keys());
            let of_object = all.filter(move |any| any.object == *object);
            of_object.map(move |any| format!("{}{key}", any.prefix))
        })
    }

    /// The paths of such keys.
    fn needed_paths(&self) -> impl Iterator<Item = String> {
        self.needed_keys().flat_map(|(object, key)| {
            let all = [self.from, self.to].into_iter();
            let all = all.flat_map(ContainerContent::any_files);
            let of_object =
                all.filter(move |(_, all)| all.iter().any(|any| any.keys.object == *object));
            of_object.map(move |(root, _)| format!("{root}/{key}"))
        })
    }

    /// Takes out the variables that only Services set: new pods get or lose them; no container restarts for them.
    pub(super) fn without_services(
        &self,
        variables: Vec<VariableSides<'r>>,
        services: &mut ServiceVariables,
    ) -> Vec<VariableSides<'r>> {
        let is_own = |(name, ..): &VariableSides<'r>| {
            let mut sides = [self.from, self.to].into_iter();
            sides.any(|side| side.environment.own(name).is_some())
        };
        let (own, of_services): (Vec<_>, Vec<_>) = variables.into_iter().partition(is_own);
        for (name, from, to) in of_services {
            let names = match (from, to) {
                (_, None) => &mut services.removed,
                (None, Some(_)) => &mut services.added,
                (Some(_), Some(_)) => &mut services.changed,
            };
            names.insert(name.into_owned());
        }
        own
    }

    /// The paths that do not have the same, with what is there on both sides.
    pub(super) fn files(&self) -> BTreeMap<String, (PathTerm<'r>, PathTerm<'r>)> {
        let paths: BTreeSet<_> = self
            .from
            .paths()
            .into_iter()
            .chain(self.to.paths())
            .chain(self.needed_paths())
            .collect();
        let sides = paths.into_iter().map(|path| {
            let sides = (self.from.look_up(&path), self.to.look_up(&path));
            (path, sides)
        });
        sides
            .filter(|(_, (from, to))| !is_same_path(from, to))
            .collect()
    }

    pub(super) fn mounts(&self) -> Edits<&'r str, ShownMount<'r>> {
        let mounts = |content: &ContainerContent<'r>| {
            let mounts = content.all_mounts.iter();
            mounts
                .map(|mount| (mount.path(), *mount))
                .collect::<Vec<_>>()
        };
        let (from, to) = (mounts(self.from).into_iter(), mounts(self.to).into_iter());
        edits(from, to, |from, to| same_mount(from, to) == Sameness::Equal)
    }

    /// What may differ in names that only unknown objects have, and in parts of volumes that are not known.
    pub(super) fn names_left_open<'p>(&self) -> Vec<LeftOpen<'p, 'r>> {
        let mut open = Vec::new();
        open.extend(self.open_variables());
        open.extend(self.open_files());
        let (from, to) = (self.from.unknown_parts(), self.to.unknown_parts());
        for (path, (mount, before)) in &from {
            let Some((_, after)) = to.get(path) else {
                continue;
            };
            let is_same = before.payload == after.payload
                && before.any_keys() == after.any_keys()
                && before.paths().eq(after.paths());
            if !is_same {
                let sources = mount.unknown_sub_path.iter().flat_map(Unknown::sources);
                let sources = sources.map(|source| source.what.to_string());
                open.push(LeftOpen::of(Effect::Restart, sources.collect()));
            }
        }
        open
    }

    fn open_variables<'p>(&self) -> Option<LeftOpen<'p, 'r>> {
        let (from, to) = (self.from.environment, self.to.environment);
        if AnyKeys::are_equivalent(from.any_keys(), to.any_keys()) {
            return None;
        }
        let all = from.any_keys().iter().chain(to.any_keys());
        let objects = all.map(|keys| keys.object.to_string()).collect();
        // `DB_*`, which no key can be, stands for all of them.
        let shown = |environment: &'r Environment<'r>| {
            let names = environment.opaque().into_keys();
            let found = names.map(|name| (name.clone(), environment.look_up(&name)));
            found
                .filter_map(|(name, one)| Some((name, one?)))
                .collect::<Vec<_>>()
        };
        let (from, to) = (shown(from).into_iter(), shown(to).into_iter());
        Some(LeftOpen {
            variables: edits(from, to, |from: &Cow<'_, Variable<'_>>, to| {
                from.value == to.value
            }),
            ..LeftOpen::of(Effect::Restart, objects)
        })
    }

    fn open_files<'p>(&self) -> Vec<LeftOpen<'p, 'r>> {
        let (from, to) = (self.from.any_files(), self.to.any_files());
        let (before, after) = (self.from.shown_any_files(), self.to.shown_any_files());
        let paths: BTreeSet<_> = from.keys().chain(to.keys()).copied().collect();
        let open = paths.into_iter().filter_map(|path| {
            let side = |files: &BTreeMap<_, _>| files.get(path).copied().unwrap_or_default();
            let (from, to) = (side(&from), side(&to));
            let keys = |files: &[AnyFiles<'r>]| -> Vec<_> {
                files.iter().map(|all| all.keys.clone()).collect()
            };
            let permissions =
                |files: &[AnyFiles<'_>]| files.first().map(|all| (all.file.mode, all.file.owner));
            let is_same = AnyKeys::are_equivalent(&keys(from), &keys(to));
            if is_same && permissions(from) == permissions(to) {
                return None;
            }
            let objects = from.iter().chain(to).map(|all| all.keys.object.to_string());
            let effect = if is_same {
                Effect::Restart
            } else {
                Effect::Live
            };
            let shown = format!("{path}/*");
            let edit = Edit::of(before.get(&shown).cloned(), after.get(&shown).cloned());
            Some(LeftOpen {
                files: edit.into_iter().map(|edit| (shown.clone(), edit)).collect(),
                ..LeftOpen::of(effect, objects.collect())
            })
        });
        open.collect()
    }
}

/// Something that may differ in names that are left open, and how it is shown.
pub(super) struct LeftOpen<'p, 'r> {
    pub(super) part: DiffPart<'p, 'r>,
    pub(super) files: Edits<String, MountedFile<'r>>,
    pub(super) variables: Edits<String, Cow<'r, Variable<'r>>>,
}

impl LeftOpen<'_, '_> {
    fn of(effect: Effect, sources: BTreeSet<String>) -> Self {
        Self {
            part: DiffPart::Unsure(effect, sources),
            files: Edits::new(),
            variables: Edits::new(),
        }
    }
}

/// Whether two paths have the same, made of the same.
fn is_same_path<'r>(from: &PathTerm<'r>, to: &PathTerm<'r>) -> bool {
    let is_same = |one: &MountedFile<'r>, other: &MountedFile<'r>| {
        one.file.data == other.file.data
            && permissions(one) == permissions(other)
            && !one.is_other_token(other)
    };
    let is_same_below = match (&from.below, &to.below) {
        (None, None) => true,
        (Some(from), Some(to)) => is_same(from, to),
        _ => false,
    };
    let mut layers = from.layers.iter().zip(&to.layers);
    is_same_below
        && from.layers.len() == to.layers.len()
        && layers.all(|(from, to)| from.0 == to.0 && is_same(&from.1, &to.1))
}
