//! Differences as trees, for people.

use std::{
    fmt,
    io::{self, Write},
};

use larder_projection::{Origin, Variable};

use super::{
    compare::{Comparison, ContainerDiff, Edit, PodDiff, Verdict},
    lines::DiffLine,
    report::{self, ContentDiff, arrow, content, permissions, sign, verdict},
};
use crate::{
    output::{
        Paint, Style,
        tree::{Branch, TableCell},
    },
    rendered::{
        MountedFile, RenderedPod,
        words::{self, heading, origin, size, value},
    },
};

/// Longest text of a variable that stays on its line.
const MAX_INLINE: usize = 60;

/// Writes one tree for each pod, one for the objects that no pod references, and one for what is not known; nothing
/// without any of these.
pub(super) fn write(
    out: &mut dyn Write,
    comparison: &Comparison<'_>,
    show_secrets: bool,
    style: Style,
) -> io::Result<()> {
    if comparison.is_empty() && report::notes(comparison).is_empty() {
        return Ok(());
    }
    for tree in trees(comparison, show_secrets) {
        writeln!(out, "{}", tree.render(style))?;
    }
    writeln!(
        out,
        "{}",
        style.paint(Paint::Bold, report::summary(comparison))
    )
}

/// The trees of a comparison, made one after the other: each may be as large as the objects that its pod references.
pub(super) fn trees<'d>(
    comparison: &'d Comparison<'_>,
    show_secrets: bool,
) -> impl Iterator<Item = Branch> + 'd {
    let notes = report::notes(comparison);
    let notes = notes.iter();
    let notes = notes.map(|note| Branch::new([TableCell::yellow(note)]));
    differences(comparison, show_secrets).chain(list("not compared", notes.collect()))
}

/// The trees of what differs.
pub(super) fn differences<'d>(
    comparison: &'d Comparison<'_>,
    show_secrets: bool,
) -> impl Iterator<Item = Branch> + 'd {
    let pods = report::pods(comparison).into_iter();
    let objects = comparison.unreferenced.iter();
    let objects = objects.map(|(kind, key)| {
        let kind = kind.object_type().kind;
        Branch::new([TableCell::plain(format!("~ {kind} {key}"))])
    });
    let title = "changed objects that no pod references";
    pods.map(move |pod| tree_of(pod, show_secrets))
        .chain(list(title, objects.collect()))
}

/// `None` if the list is empty.
fn list(title: &str, entries: Vec<Branch>) -> Option<Branch> {
    (!entries.is_empty()).then(|| Branch::with([TableCell::bold(title)], entries))
}

fn tree_of(pod: &PodDiff<'_>, show_secrets: bool) -> Branch {
    let (from, to) = pod.sides.sides();
    let source = to.or(from).map_or("", |pod| pod.source);
    let mut cells = vec![TableCell::bold(&pod.key)];
    match pod.sides {
        Edit::Added(_) => cells.push(TableCell::green("added")),
        Edit::Removed(_) => cells.push(TableCell::red("removed")),
        Edit::Changed(..) => {}
    }
    cells.push(TableCell::dim(source));
    let sides = BranchSides {
        from,
        to,
        show_secrets,
    };
    let containers = report::containers(pod).into_iter();
    let mut branches: Vec<_> = containers.map(|one| sides.container(one)).collect();
    branches.extend(pod.hooks.iter().map(|hook| {
        Branch::new([
            TableCell::yellow(format!("hook {} runs", hook.name)),
            TableCell::plain(&hook.action),
            TableCell::dim(&hook.reason),
        ])
    }));
    Branch::with(cells, branches)
}

/// A pod of both sides.
#[derive(Clone, Copy)]
struct BranchSides<'r> {
    from: Option<&'r RenderedPod<'r>>,
    to: Option<&'r RenderedPod<'r>>,
    show_secrets: bool,
}

impl BranchSides<'_> {
    fn container(self, diff: &ContainerDiff<'_>) -> Branch {
        let paint = match diff.verdict {
            Verdict::Same | Verdict::Unknown => TableCell::dim,
            Verdict::Live | Verdict::Starts => TableCell::green,
            Verdict::Restart => TableCell::yellow,
            Verdict::Fails(_) | Verdict::Removed => TableCell::red,
        };
        let heading = TableCell::bold(heading(&diff.container));
        let mut branch = Branch::new([heading, paint(verdict(diff))]);
        let variables = diff.variables.iter();
        let variables = variables.map(|(name, edit)| self.variable(name, edit));
        branch.push_group(Branch::with(
            [TableCell::plain("variables")],
            variables.collect(),
        ));
        let mounts = diff.mounts.iter().map(|(path, edit)| {
            let mount = TableCell::dim(report::mount(edit));
            Branch::new([signed(edit, format_args!("mount {path}")), mount])
        });
        branch.extend(mounts);
        let files = diff.files.iter();
        branch.extend(files.map(|(path, edit)| self.file(path, edit)));
        branch
    }

    fn variable(self, name: &str, edit: &Edit<&Variable<'_>>) -> Branch {
        let (from, to) = edit.sides();
        let sources = self.origins(name, from.map(|one| &one.origin), to.map(|one| &one.origin));
        let is_hidden = |one: &Variable<'_>| one.secret && !self.show_secrets;
        if from
            .into_iter()
            .chain(to)
            .any(|one| one.value.unknown().is_some())
        {
            let words = |one: &Variable<'_>| match one.value.unknown() {
                Some(unknown) => words::unknown(unknown, !is_hidden(one)),
                None if is_hidden(one) => format!("<hidden, {}>", size(one.value.len())),
                None => value(&one.value),
            };
            let values = TableCell::yellow(arrow(from.map(words), to.map(words)));
            return Branch::new([signed(edit, name), values, sources]);
        }
        let is_short = |one: &Variable<'_>| {
            !is_hidden(one) && one.value.len() <= MAX_INLINE && !one.value.contains(&b'\n')
        };
        if from.into_iter().chain(to).all(is_short) {
            let [from, to] = [from, to].map(|one| one.map(|one| value(&one.value)));
            let values = TableCell::plain(arrow(from, to));
            return Branch::new([signed(edit, name), values, sources]);
        }
        let mut change = content(
            from.map(|one| (&*one.value, is_hidden(one))),
            to.map(|one| (&*one.value, is_hidden(one))),
        );
        // A variable seldom ends with one.
        if let ContentDiff::Lines(lines) = &mut change {
            lines.retain(|line| *line != DiffLine::Unfinished);
        }
        with_change(signed(edit, name), None, sources, change)
    }

    fn file(self, path: &str, edit: &Edit<MountedFile<'_>>) -> Branch {
        let (from, to) = edit.sides();
        let name = path.rsplit('/').next().unwrap_or(path);
        let sources = self.origins(
            name,
            from.and_then(|file| file.origin),
            to.and_then(|file| file.origin),
        );
        let side = |file: MountedFile<'_>| file.is_secret() && !self.show_secrets;
        let unknown = |one: MountedFile<'_>| match one.file.data.unknown() {
            Some(unknown) => words::unknown(unknown, !side(one)),
            None => size(one.file.data.len()),
        };
        let both = || from.into_iter().chain(to);
        if both().any(|one| one.file.data.unknown().is_some()) {
            let text = TableCell::yellow(arrow(from.map(unknown), to.map(unknown)));
            let modes = TableCell::plain(arrow(from.map(permissions), to.map(permissions)));
            return Branch::new([signed(edit, path), modes, text, sources]);
        }
        let change = content(
            from.map(|one| (&*one.file.data, side(one))),
            to.map(|one| (&*one.file.data, side(one))),
        );
        let modes = TableCell::plain(arrow(from.map(permissions), to.map(permissions)));
        with_change(signed(edit, path), Some(modes), sources, change)
    }

    fn origins(self, name: &str, from: Option<&Origin<'_>>, to: Option<&Origin<'_>>) -> TableCell {
        let words = |pod: Option<&RenderedPod<'_>>, found: Option<&Origin<'_>>| {
            Some(origin(pod?, found?, name))
        };
        TableCell::dim(arrow(words(self.from, from), words(self.to, to)))
    }
}

/// A name in the color of its change, as git has it.
fn signed<T>(edit: &Edit<T>, name: impl fmt::Display) -> TableCell {
    let text = format!("{} {name}", sign(edit));
    match edit {
        Edit::Added(_) => TableCell::green(text),
        Edit::Removed(_) => TableCell::red(text),
        Edit::Changed(..) => TableCell::plain(text),
    }
}

fn with_change(
    name: TableCell,
    modes: Option<TableCell>,
    sources: TableCell,
    change: ContentDiff<'_>,
) -> Branch {
    let mut cells = vec![name];
    cells.extend(modes);
    let lines = match change {
        ContentDiff::None => Vec::new(),
        ContentDiff::Sizes(text) => {
            cells.push(TableCell::yellow(text));
            Vec::new()
        }
        ContentDiff::Lines(lines) => lines,
    };
    cells.push(sources);
    let lines = lines.iter().map(|line| match line {
        DiffLine::Place(text) => TableCell::cyan(text),
        DiffLine::Kept(text) => TableCell::plain(format_args!(" {text}")),
        DiffLine::Removed(text) => TableCell::red(format_args!("-{text}")),
        DiffLine::Added(text) => TableCell::green(format_args!("+{text}")),
        DiffLine::Unfinished => TableCell::dim("\\ no line feed at the end"),
    });
    Branch::new(cells).text(lines.collect())
}
