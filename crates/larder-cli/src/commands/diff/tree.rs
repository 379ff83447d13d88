//! Differences as trees, for people.

use std::{
    borrow::Cow,
    fmt,
    io::{self, Write},
};

use larder_objects::{Kind, ObjectKey};
use larder_projection::{Origin, Variable};

use super::{
    compare::{Comparison, PodDiff},
    container::{ContainerDiff, Verdict},
    edits::Edit,
    lines::UNFINISHED,
    report::{self, ContentDiff, arrow, content, permissions, verdict},
};
use crate::{
    output::{Paint, Style, tree::Branch},
    rendered::{
        MountedFile, RenderedPod,
        words::{self, heading, origin, size, variable_value},
    },
};

/// Longest text of a variable that stays on its line.
const MAX_INLINE: usize = 60;

/// Writes one tree for each pod, one for the objects that no pod references, and one for what is not known; nothing
/// without any of these.
pub(super) fn write(
    out: &mut dyn Write,
    title: Option<&str>,
    comparison: &Comparison<'_>,
    show_secrets: bool,
    style: Style,
) -> io::Result<()> {
    if let Some(title) = title {
        writeln!(out, "{}\n", style.paint(Paint::Bold, title))?;
    } else if comparison.is_empty() && report::notes(comparison).is_empty() {
        return Ok(());
    }
    for tree in trees(comparison, show_secrets) {
        writeln!(out, "{}", tree.render(style))?;
    }
    let summary = style.paint(Paint::Bold, report::summary(comparison));
    writeln!(out, "{summary}")
}

/// The trees of a comparison, made one after the other: each may be as large as the objects that its pod references.
pub(super) fn trees<'d>(
    comparison: &'d Comparison<'_>,
    show_secrets: bool,
) -> impl Iterator<Item = Branch> + 'd {
    let notes = report::notes(comparison);
    let notes = notes.iter().map(|note| Branch::new().yellow(note));
    differences(comparison, show_secrets).chain(Branch::list("not compared", notes))
}

/// The trees of what differs.
pub(super) fn differences<'d>(
    comparison: &'d Comparison<'_>,
    show_secrets: bool,
) -> impl Iterator<Item = Branch> + 'd {
    let pods = report::pods(comparison).into_iter();
    let objects = |title, objects: &[(Kind, ObjectKey)]| {
        let lines = objects.iter().map(|(kind, key)| {
            let kind = kind.object_type().kind;
            Branch::new().plain(format_args!("~ {kind} {key}"))
        });
        Branch::list(title, lines)
    };
    let unseen = "changed objects that pods reference and no container sees";
    pods.map(move |pod| tree_of(pod, show_secrets))
        .chain(objects(unseen, &comparison.unseen))
        .chain(objects(
            "changed objects that no pod references",
            &comparison.unreferenced,
        ))
}

fn tree_of(pod: &PodDiff<'_>, show_secrets: bool) -> Branch {
    let (from, to) = pod.sides.sides();
    let (from, to) = (from.copied(), to.copied());
    let source = to.or(from).map_or("", |pod| pod.source);
    let root = Branch::new().bold(&pod.key);
    let root = match pod.sides {
        Edit::Added(_) => root.green("added"),
        Edit::Removed(_) => root.red("removed"),
        Edit::Changed(..) => root,
    };
    let sides = BranchSides {
        from,
        to,
        show_secrets,
    };
    let containers = report::containers(pod).into_iter();
    let containers = containers.map(|one| sides.container(one));
    let hooks = pod.hooks.iter().map(|hook| {
        let line = Branch::new().yellow(format_args!("hook {} runs", hook.name));
        line.plain(&hook.action).dim(&hook.reason)
    });
    root.dim(source).with(containers.chain(hooks))
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
            Verdict::Same | Verdict::Neither(_) => Paint::Dim,
            Verdict::Live | Verdict::Starts => Paint::Green,
            Verdict::Restart | Verdict::Unknown { .. } => Paint::Yellow,
            Verdict::Fails(_) | Verdict::Removed => Paint::Red,
        };
        let mut branch = Branch::new().bold(heading(&diff.container));
        branch = branch.cell(paint, verdict(diff));
        branch.extend(
            diff.unless
                .iter()
                .map(|unmet| Branch::new().red(report::unless(unmet))),
        );
        let variables = diff.variables.iter();
        let variables = variables.map(|(name, edit)| self.variable(name, edit));
        branch.push_group(Branch::new().plain("variables").with(variables));
        branch.extend(diff.mounts.iter().map(|(path, edit)| {
            signed(edit, format_args!("mount {path}")).dim(report::mount(edit))
        }));
        let files = diff.files.iter();
        branch.extend(files.map(|(path, edit)| self.file(path, edit)));
        branch
    }

    fn variable(self, name: &str, edit: &Edit<Cow<'_, Variable<'_>>>) -> Branch {
        let (from, to) = edit.sides();
        let (from, to) = (from.map(|one| &**one), to.map(|one| &**one));
        let both = || from.into_iter().chain(to);
        let sources = |pod: Option<&RenderedPod<'_>>, one: Option<&Variable<'_>>| {
            Some(words::sources(pod?, one?, name))
        };
        let sources = arrow(sources(self.from, from), sources(self.to, to));
        let line = signed(edit, name);
        let is_hidden = |one: &Variable<'_>| one.secret && !self.show_secrets;
        let words = |one: &Variable<'_>| variable_value(one, is_hidden(one));
        let values = || arrow(from.map(words), to.map(words));
        if both().any(|one| one.value.unknown().is_some()) {
            return line.yellow(values()).dim(sources);
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

    fn file(self, path: &str, edit: &Edit<MountedFile<'_>>) -> Branch {
        let (from, to) = edit.sides();
        let name = path.rsplit('/').next().unwrap_or(path);
        let both = || from.into_iter().chain(to);
        let hides_source = both().any(MountedFile::has_secret_place) && !self.show_secrets;
        let before = from
            .and_then(|one| one.origin.as_deref())
            .filter(|_| !hides_source);
        let after = to
            .and_then(|one| one.origin.as_deref())
            .filter(|_| !hides_source);
        let sources = self.origins(name, before, after);
        let is_hidden = |file: &MountedFile<'_>| file.is_secret() && !self.show_secrets;
        let modes = arrow(from.map(permissions), to.map(permissions));
        let line = signed(edit, path).plain(modes);
        if both().any(|one| one.file.data.unknown().is_some()) {
            let words = |one: &MountedFile<'_>| match one.file.data.unknown() {
                Some(unknown) => words::unknown(unknown, !is_hidden(one)),
                None => size(one.file.data.len()),
            };
            let text = arrow(from.map(words), to.map(words));
            return line.yellow(text).dim(sources);
        }
        let (before, after) = (
            from.map(|one| &*one.file.data),
            to.map(|one| &*one.file.data),
        );
        let change = content(before, after, both().any(is_hidden));
        with_change(line, &sources, change)
    }

    fn origins(self, name: &str, from: Option<&Origin<'_>>, to: Option<&Origin<'_>>) -> String {
        let words = |pod: Option<&RenderedPod<'_>>, found: Option<&Origin<'_>>| {
            Some(origin(pod?, found?, name))
        };
        arrow(words(self.from, from), words(self.to, to))
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
