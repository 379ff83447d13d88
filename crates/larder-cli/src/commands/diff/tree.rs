//! Differences as trees, for people.

use std::{
    io::{self, Write},
    rc::Rc,
};

use larder_objects::{Kind, ObjectKey};

use super::{
    change::{Change, PodSides},
    compare::{Comparison, PodDiff},
    container::{ContainerDiff, Verdict},
    edits::Edit,
    report::{self, verdict},
    shared::AllShared,
};
use crate::{
    output::{Paint, Style, tree::Branch},
    rendered::words::heading,
};

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
    let notes = Branch::list("not compared", notes);
    differences(comparison, show_secrets, PodTrees::All).chain(notes)
}

/// Which pods have a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodTrees {
    All,
    /// Those of which the verdicts and the shared changes do not say all.
    WithOwnChanges,
}

/// The trees of what differs: pods that would not start, what several containers see, the other pods.
pub(super) fn differences<'d>(
    comparison: &'d Comparison<'_>,
    show_secrets: bool,
    which: PodTrees,
) -> impl Iterator<Item = Branch> + 'd {
    let objects = |title, objects: &[(Kind, ObjectKey)]| {
        let lines = objects.iter().map(|(kind, key)| {
            let kind = kind.object_type().kind;
            Branch::new().plain(format_args!("~ {kind} {key}"))
        });
        Branch::list(title, lines)
    };
    let unseen = "changed objects that pods reference and no compared container sees";
    let unseen = objects(unseen, &comparison.unseen);
    let unreferenced = objects(
        "changed objects that no pod references",
        &comparison.unreferenced,
    );
    let shared = Rc::new(AllShared::of(comparison));
    let failing = shared.pods().partition_point(|pod| report::may_fail(pod));
    let parts = [
        Part::Pods(0, failing),
        Part::Shared,
        Part::Pods(failing, shared.pods().len()),
    ];
    let trees = parts
        .into_iter()
        .flat_map(move |part| -> Box<dyn Iterator<Item = Branch> + 'd> {
            let shared = Rc::clone(&shared);
            match part {
                Part::Shared => {
                    let count = shared.group_count();
                    Box::new((0..count).map(move |number| shared.tree(number, show_secrets)))
                }
                Part::Pods(start, end) => Box::new((start..end).filter_map(move |place| {
                    let pod = shared.pods()[place];
                    let has_tree = which == PodTrees::All || has_own_changes(pod, &shared);
                    has_tree.then(|| tree_of(pod, &shared, show_secrets))
                })),
            }
        });
    trees.chain(unseen).chain(unreferenced)
}

/// Trees that stand together.
enum Part {
    /// Those of the pods from one place to another.
    Pods(usize, usize),
    Shared,
}

fn has_own_changes(pod: &PodDiff<'_>, shared: &AllShared<'_, '_>) -> bool {
    let sides = PodSides::of(pod);
    let mut changes = pod.containers.iter().flat_map(Change::all);
    !pod.hooks.is_empty() || changes.any(|change| !shared.has(change.key(sides)))
}

fn tree_of(pod: &PodDiff<'_>, shared: &AllShared<'_, '_>, show_secrets: bool) -> Branch {
    let sides = PodSides::of(pod);
    let source = sides.to.or(sides.from).map_or("", |pod| pod.source);
    let root = Branch::new().bold(pod.key);
    let root = match pod.sides {
        Edit::Added(_) => root.green("added"),
        Edit::Removed(_) => root.red("removed"),
        Edit::Changed(..) => root,
    };
    let containers = report::containers(pod)
        .into_iter()
        .map(|one| container(one, sides, shared, show_secrets));
    let hooks = pod.hooks.iter().map(|hook| {
        Branch::new()
            .yellow(format_args!("hook {} runs", hook.name))
            .plain(&hook.action)
            .dim(&hook.reason)
    });
    root.dim(source)
        .with(containers.chain(hooks))
        .in_state(report::state(pod))
}

fn container(
    diff: &ContainerDiff<'_>,
    sides: PodSides<'_>,
    shared: &AllShared<'_, '_>,
    show_secrets: bool,
) -> Branch {
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
    let own = Change::all(diff).filter(|change| !shared.has(change.key(sides)));
    let (variables, others): (Vec<_>, Vec<_>) =
        own.partition(|change| matches!(change, Change::Variable(..)));
    let shown = |change: &Change<'_, '_>| change.branch(sides, show_secrets, str::to_owned);
    branch.push_group(
        Branch::new()
            .plain("variables")
            .with(variables.iter().map(shown)),
    );
    branch.extend(others.iter().map(shown));
    branch.extend(shared.reference(diff, sides));
    branch
}
