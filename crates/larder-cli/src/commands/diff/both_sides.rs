//! A container of both sides: what it is not made of the same.
//!
//! Names and paths that no document has are compared at those that stand for them ([`ANY_KEY`]).

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use larder_projection::{ANY_KEY, ObjectId, Question, Unknown, Variable};
use serde::Serialize;

use super::{
    edits::{Edits, edits},
    mounts::{is_filled_otherwise, is_same_mount, mounted_part},
    outcome::{DiffPart, Selected, permissions},
    sub_paths::is_below,
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
    /// What is asked besides of keys that no document names: each of them may be a variable or a file of its own.
    asked: BTreeSet<Question>,
}

pub(super) type VariableSides<'r> = (
    Cow<'r, str>,
    Option<Cow<'r, Variable<'r>>>,
    Option<Cow<'r, Variable<'r>>>,
);

impl<'s, 'r> BothSides<'s, 'r> {
    /// With what is true if both sides start.
    pub(super) fn new(
        from: &'s ContainerContent<'r>,
        to: &'s ContainerContent<'r>,
        implied: impl Iterator<Item = &'s Question>,
    ) -> Self {
        let asked = implied.cloned().collect();
        let mut sides = Self { from, to, asked };
        let differing = sides.questions();
        sides.asked.extend(differing);
        sides
    }

    /// What is asked by what is not made of the same.
    fn questions(&self) -> BTreeSet<Question> {
        let variables = self.variables();
        let values = variables.iter().flat_map(|(_, from, to)| [from, to]);
        let values = values.flatten().filter_map(|one| one.value.unknown());
        let mounts = self.from.mounts.iter().chain(self.to.mounts);
        let parts = mounts.filter_map(|mount| mount.unknown_sub_path.as_ref());
        let files = self.files();
        let files = files
            .values()
            .flat_map(|(from, to)| from.layers.iter().chain(&to.layers));
        let questions = values.chain(parts).flat_map(Unknown::questions);
        questions
            .chain(files.map(|(question, _)| question))
            .cloned()
            .collect()
    }

    /// The variables that are not made of the same, with what they are on both sides.
    pub(super) fn variables(&self) -> Vec<VariableSides<'r>> {
        let mut names: BTreeSet<_> = self
            .from
            .environment
            .iter()
            .chain(self.to.environment.iter())
            .map(|(name, _)| Cow::Borrowed(name))
            .collect();
        names.extend(self.asked_names().map(Cow::Owned));
        names.extend(
            self.from
                .environment
                .any_keys()
                .iter()
                .chain(self.to.environment.any_keys())
                .map(|any| Cow::Owned(any.any_name())),
        );
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

    /// The keys that are asked for, of objects whose keys are not known.
    fn asked_keys(&self) -> impl Iterator<Item = (&ObjectId, &str)> {
        self.asked.iter().filter_map(|need| match need {
            Question::HasKey(object, key) => Some((object, &**key)),
            Question::Exists(_) | Question::Fact(_) => None,
        })
    }

    /// The variables of such keys.
    fn asked_names(&self) -> impl Iterator<Item = String> {
        self.asked_keys().flat_map(|(object, key)| {
            [self.from, self.to]
                .into_iter()
                .flat_map(|side| side.environment.any_keys())
                .filter(move |any| any.object == *object)
                .map(move |any| format!("{}{key}", any.prefix))
        })
    }

    /// The paths of such keys.
    fn asked_paths(&self) -> impl Iterator<Item = String> {
        self.asked_keys().flat_map(|(object, key)| {
            [self.from, self.to]
                .into_iter()
                .flat_map(ContainerContent::any_files)
                .filter(move |(_, all)| all.iter().any(|any| any.keys.object == *object))
                .map(move |(root, _)| format!("{root}/{key}"))
        })
    }

    /// The paths that stand for those that no document names.
    fn any_paths(&self) -> impl Iterator<Item = String> {
        [self.from, self.to]
            .into_iter()
            .flat_map(|side| side.any_files().into_keys())
            .map(|root| format!("{root}/{ANY_KEY}"))
    }

    /// Whether a variable counts that only Services set: where the command line has its value, or the pod no longer asks
    /// for what it asked for.
    pub(super) fn needs_services(&self, name: &str) -> bool {
        let sides = [self.from, self.to];
        sides.iter().any(|side| side.command_refers_to(name))
            || self.from.has_service_links() != self.to.has_service_links()
    }

    /// Takes out the variables that only Services set: new pods get or lose them; no container restarts for them, unless it
    /// [needs](Self::needs_services) them.
    pub(super) fn without_services(
        &self,
        variables: Vec<VariableSides<'r>>,
        services: &mut ServiceVariables,
    ) -> Vec<VariableSides<'r>> {
        let is_own = |(name, ..): &VariableSides<'r>| {
            let mut sides = [self.from, self.to].into_iter();
            sides.any(|side| side.environment.own(name).is_some()) || self.needs_services(name)
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
            .chain(self.asked_paths())
            .chain(self.any_paths())
            .collect();
        let is_unknown = |path: &String| {
            [self.from, self.to]
                .iter()
                .any(|side| side.is_in_unknown_part(path))
        };
        let paths = paths.into_iter().filter(|path| !is_unknown(path));
        let sides = paths.map(|path| {
            let sides = (self.from.look_up(&path), self.to.look_up(&path));
            (path, sides)
        });
        sides
            .filter(|(_, (from, to))| !is_same_path(from, to))
            .collect()
    }

    /// The places in the second side's list of the mounts of volumes that are filled otherwise than on the first side. Each
    /// is compared once: it may have as many sources as files.
    pub(super) fn filled_otherwise(&self) -> BTreeSet<usize> {
        let before: BTreeMap<_, _> = self
            .from
            .mounts
            .iter()
            .map(|mount| (&*mount.mount_path, mount))
            .collect();
        let mounts = self.to.mounts.iter().filter(|to| {
            let from = before.get(&*to.mount_path);
            from.is_some_and(|from| is_filled_otherwise(from, to))
        });
        mounts.map(|mount| mount.index).collect()
    }

    pub(super) fn mounts(&self) -> Edits<&'r str, ShownMount<'r>> {
        let mounts = |content: &ContainerContent<'r>| {
            let mounts = content.all_mounts.iter();
            mounts
                .map(|mount| (mount.path(), *mount))
                .collect::<Vec<_>>()
        };
        let (from, to) = (mounts(self.from).into_iter(), mounts(self.to).into_iter());
        edits(from, to, is_same_mount)
    }

    /// What is not made of the same in volumes of which a part is mounted that is not known on a side.
    pub(super) fn unknown_parts<'p>(
        &self,
        may_be_live: impl Fn([&PathTerm<'r>; 2]) -> bool,
    ) -> Vec<DiffPart<'p, 'r>> {
        let may_be_live = &may_be_live;
        let roots = [self.from, self.to].into_iter();
        let roots: BTreeSet<_> = roots.flat_map(ContainerContent::unknown_parts).collect();
        let both = roots.into_iter().filter_map(|root| {
            let (from, to) = (self.from.volume_at(root)?, self.to.volume_at(root)?);
            let paths: BTreeSet<_> = from.paths().chain(to.paths()).collect();
            let mut others = self.to.mounts.iter();
            let has_mount_below = others.any(|mount| is_below(&mount.mount_path, root));
            let parts = paths.into_iter().map(move |path| {
                let file = [from, to].map(|side| side.look_up(&path));
                let may_be_live =
                    may_be_live(file.each_ref()) && !is_filled_otherwise(from.mount, to.mount);
                Selected {
                    mounted: [from, to].map(|side| mounted_part(side.mount)),
                    path,
                    file,
                    may_be_live,
                    is_replaced: may_be_live && !has_mount_below,
                }
            });
            Some(parts.filter(|part| !is_same_path(&part.file[0], &part.file[1])))
        });
        both.flatten()
            .map(|part| DiffPart::Selected(Box::new(part)))
            .collect()
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
