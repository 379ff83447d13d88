//! One difference of a container: what identifies it in every container that sees it, and its tree.

use std::{
    borrow::Cow,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use larder_projection::{Origin, Unknown, Variable};

use super::{
    compare::PodDiff,
    container::ContainerDiff,
    edits::Edit,
    lines::UNFINISHED,
    report::{self, ContentDiff, arrow, content, permissions},
};
use crate::{
    output::{Paint, tree::Branch},
    rendered::{
        MountedFile, RenderedPod, ShownMount,
        words::{self, size, variable_value},
    },
};

/// Longest text of a variable that stays on its line.
const MAX_INLINE: usize = 60;

/// Identifies a difference in every container that sees it: two hashes of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ChangeKey(u64, u64);

impl ChangeKey {
    /// The key of what `write` writes.
    pub(super) fn of(write: impl Fn(&mut DefaultHasher)) -> Self {
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            write(&mut hasher);
            hasher.finish()
        };
        Self(hash(0), hash(1))
    }
}

/// A pod of both sides.
#[derive(Clone, Copy)]
pub(super) struct PodSides<'r> {
    pub(super) from: Option<&'r RenderedPod<'r>>,
    pub(super) to: Option<&'r RenderedPod<'r>>,
}

impl<'r> PodSides<'r> {
    pub(super) fn of(pod: &PodDiff<'r>) -> Self {
        let (from, to) = pod.sides.sides();
        let (from, to) = (from.copied(), to.copied());
        Self { from, to }
    }

    /// What the documents of both sides have of something, whose source `origin` selects; `None` if that is the same, or
    /// one of a Secret.
    fn stated<'t, T>(
        self,
        edit: &'t Edit<T>,
        origin: impl Fn(&'t T) -> Option<&'t Origin<'t>>,
    ) -> Option<(&'t [u8], &'t [u8])>
    where
        'r: 't,
    {
        let Edit::Changed(from, to) = edit else {
            return None;
        };
        let from = self.from?.stated(origin(from)?)?;
        let to = self.to?.stated(origin(to)?)?;
        (from != to).then_some((from, to))
    }
}

/// One difference of a container.
pub(super) enum Change<'d, 'r> {
    Variable(&'d str, &'d Edit<Cow<'r, Variable<'r>>>),
    Mount(&'d str, &'d Edit<ShownMount<'r>>),
    File(&'d str, &'d Edit<MountedFile<'r>>),
}

/// The last part of a path.
pub(super) fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

impl<'d, 'r> Change<'d, 'r> {
    /// All of a container, in the order in which they are shown.
    pub(super) fn all(diff: &'d ContainerDiff<'r>) -> impl Iterator<Item = Self> {
        let variables = diff
            .variables
            .iter()
            .map(|(name, edit)| Self::Variable(name, edit));
        let mounts = diff
            .mounts
            .iter()
            .map(|(path, edit)| Self::Mount(path, edit));
        let files = diff.files.iter().map(|(path, edit)| Self::File(path, edit));
        variables.chain(mounts).chain(files)
    }

    /// The same for the same difference of another container.
    pub(super) fn key(&self, sides: PodSides<'_>) -> ChangeKey {
        let namespace = sides.to.or(sides.from).map_or("", RenderedPod::namespace);
        ChangeKey::of(|hasher| {
            namespace.hash(hasher);
            match self {
                Self::Variable(name, edit) => {
                    name.hash(hasher);
                    for one in [edit.sides().0, edit.sides().1] {
                        let content =
                            one.map(|one| (&one.value[..], one.value.unknown().map(Unknown::text)));
                        content.hash(hasher);
                    }
                    self.sources(sides).hash(hasher);
                }
                Self::Mount(path, edit) => (path, report::mount(edit)).hash(hasher),
                Self::File(path, edit) => {
                    file_name(path).hash(hasher);
                    for one in [edit.sides().0, edit.sides().1] {
                        let data = |one: &'d MountedFile<'r>| &one.file.data;
                        let content = one.map(|one| {
                            (
                                permissions(one),
                                &data(one)[..],
                                data(one).unknown().map(Unknown::text),
                            )
                        });
                        content.hash(hasher);
                    }
                    self.sources(sides).hash(hasher);
                }
            }
        })
    }

    /// What it is made of on both sides, in one text.
    fn sources(&self, sides: PodSides<'_>) -> String {
        let (from, to) = self.sources_of_sides(sides);
        arrow(from, to)
    }

    /// What it is made of on each side.
    pub(super) fn sources_of_sides(&self, sides: PodSides<'_>) -> (Option<String>, Option<String>) {
        match self {
            Self::Variable(name, edit) => {
                let words = |pod: Option<&RenderedPod<'_>>, one: Option<&Cow<'_, Variable<'_>>>| {
                    let (pod, one) = (pod?, one?);
                    let fallback = one.fallback.as_deref();
                    Some(words::sources(pod, &one.origin, fallback, name))
                };
                let (from, to) = edit.sides();
                (words(sides.from, from), words(sides.to, to))
            }
            Self::Mount(..) => (None, None),
            Self::File(path, edit) => {
                let name = file_name(path);
                let words = |pod: Option<&RenderedPod<'_>>, one: Option<&MountedFile<'_>>| {
                    let (pod, one) = (pod?, one?);
                    let (own, fallback) = (one.origin.as_deref()?, one.fallback.as_deref());
                    Some(words::sources(pod, own, fallback, &name))
                };
                let (from, to) = edit.sides();
                (words(sides.from, from), words(sides.to, to))
            }
        }
    }

    /// Its tree; `named` makes of the path of a file what is shown.
    pub(super) fn branch(
        &self,
        sides: PodSides<'_>,
        show_secrets: bool,
        named: fn(&str) -> String,
    ) -> Branch {
        match self {
            Self::Variable(name, edit) => self.variable(name, edit, sides, show_secrets),
            Self::Mount(path, edit) => {
                signed(edit, format_args!("mount {path}")).dim(report::mount(edit))
            }
            Self::File(path, edit) => self.file(&named(path), edit, sides, show_secrets),
        }
    }

    fn variable(
        &self,
        name: &str,
        edit: &Edit<Cow<'_, Variable<'_>>>,
        sides: PodSides<'_>,
        show_secrets: bool,
    ) -> Branch {
        let (from, to) = edit.sides();
        let (from, to) = (from.map(|one| &**one), to.map(|one| &**one));
        let both = || from.into_iter().chain(to);
        let sources = self.sources(sides);
        let line = signed(edit, name);
        let is_hidden = |one: &Variable<'_>| one.secret && !show_secrets;
        let words = |one: &Variable<'_>| variable_value(one, is_hidden(one));
        let values = || arrow(from.map(words), to.map(words));
        if both().any(|one| one.value.unknown().is_some()) {
            let line = line.yellow(values());
            if !both().any(is_hidden) {
                return line.dim(sources);
            }
            let own = sides.stated(edit, |one| Some(&one.origin));
            let fallback = sides.stated(edit, |one| one.fallback.as_deref());
            let line = [("", own), ("else ", fallback)]
                .into_iter()
                .filter_map(|(before, texts)| Some((before, texts?)))
                .fold(line, |line, (before, (from, to))| {
                    line.plain(format_args!(
                        "{before}{} → {}",
                        words::value(from),
                        words::value(to)
                    ))
                });
            return line.dim(sources);
        }
        let is_short = |one: &Variable<'_>| {
            !is_hidden(one) && one.value.len() <= MAX_INLINE && !one.value.contains(&b'\n')
        };
        if both().all(is_short) {
            return line.plain(values()).dim(sources);
        }
        let (before, after) = (from.map(|one| &*one.value), to.map(|one| &*one.value));
        let mut change = content(before, after, both().any(is_hidden));
        // A variable seldom ends with a line feed.
        if let ContentDiff::Lines(lines) = &mut change {
            lines.retain(|(_, line)| line != UNFINISHED);
        }
        with_change(line, &sources, change)
    }

    fn file(
        &self,
        shown: &str,
        edit: &Edit<MountedFile<'_>>,
        sides: PodSides<'_>,
        show_secrets: bool,
    ) -> Branch {
        let (from, to) = edit.sides();
        let both = || from.into_iter().chain(to);
        let hides_source = both().any(MountedFile::has_secret_place) && !show_secrets;
        let sources = if hides_source {
            String::new()
        } else {
            self.sources(sides)
        };
        let is_hidden = |file: &MountedFile<'_>| file.secret && !show_secrets;
        let modes = arrow(from.map(permissions), to.map(permissions));
        let line = signed(edit, shown).plain(modes);
        if both().any(|one| one.file.data.unknown().is_some()) {
            let fallback = sides.stated(edit, |one| one.fallback.as_deref());
            let words = |one: &MountedFile<'_>| match one.file.data.unknown() {
                Some(unknown) => words::unknown(unknown, fallback.is_none() && !is_hidden(one)),
                None => size(one.file.data.len()),
            };
            let line = line.yellow(arrow(from.map(words), to.map(words)));
            return match fallback {
                Some((from, to)) => {
                    with_change(line, &sources, content(Some(from), Some(to), false))
                }
                None => line.dim(sources),
            };
        }
        let (before, after) = (
            from.map(|one| &*one.file.data),
            to.map(|one| &*one.file.data),
        );
        let change = content(before, after, both().any(is_hidden));
        with_change(line, &sources, change)
    }
}

/// A name with the sign of its change, and in the color that git gives it.
fn signed<T>(edit: &Edit<T>, name: impl fmt::Display) -> Branch {
    let (paint, sign) = match edit {
        Edit::Added(_) => (Paint::Green, '+'),
        Edit::Removed(_) => (Paint::Red, '-'),
        Edit::Changed(..) => (Paint::Plain, '~'),
    };
    Branch::new().cell(paint, format_args!("{sign} {name}"))
}

fn with_change(line: Branch, sources: &str, change: ContentDiff) -> Branch {
    match change {
        ContentDiff::Sizes(text) => line.yellow(text).dim(sources),
        ContentDiff::Lines(lines) => line.dim(sources).text(lines),
    }
}
