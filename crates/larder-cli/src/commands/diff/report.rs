//! The texts that all forms for people share.

use std::collections::BTreeMap;

use super::{
    compare::{Comparison, LeftOut, PodDiff},
    container::{ContainerDiff, Remark, Unmet, Verdict, has_other_permissions},
    edits::Edit,
    lines::{DiffLine, unified},
    rollout::ReplacedBy,
    sub_paths::SubPathDiff,
};
use crate::{
    output::{count, first_names},
    rendered::{
        MountedFile, ShownMount,
        words::{self, shown_mount, size},
    },
};

/// Most containers that one line names.
const MAX_NAMED: usize = 5;
/// The reason of a restart for immutable objects.
const IMMUTABLE: &str = "an immutable object (the API server rejects this change; if it is deleted and recreated, \
                         running containers keep the old content)";
/// The text in place of a summary.
const NO_DIFFERENCE: &str = "No container sees a difference";

/// `needs a restart: variables, mounts`
pub(super) fn verdict(diff: &ContainerDiff<'_>) -> String {
    let replaced_by = diff.replaced_by.as_ref();
    let replaced_by = replaced_by.map_or_else(String::new, |by| format!("; {by}"));
    match &diff.verdict {
        Verdict::Same => "sees no difference".to_owned(),
        Verdict::Neither(error) => format!("would start on neither side: {error}"),
        Verdict::Unknown { possible, deciding } => {
            let words = possible.iter().map(|outcome| outcome.words());
            let (words, deciding): (Vec<_>, Vec<_>) =
                (words.collect(), deciding.iter().cloned().collect());
            let words = words.join(" or ");
            format!("{words}: {} decides{replaced_by}", deciding.join(", "))
        }
        Verdict::Live if diff.sub_paths == SubPathDiff::Updated => {
            format!("sees it without a restart, {}", diff.sub_paths.words())
        }
        Verdict::Live => "sees it without a restart".to_owned(),
        Verdict::Restart => {
            let sub_paths = diff.sub_paths.words();
            let mut reasons: Vec<_> = [
                (!diff.variables.is_empty(), "variables"),
                (!diff.mounts.is_empty(), "mounts"),
                (diff.sub_paths.is_fixed(), &*sub_paths),
                (
                    has_other_permissions(&diff.files),
                    "modes, owners or groups of files",
                ),
                (diff.is_filled_otherwise, "sources of a volume"),
                (!diff.immutable.is_empty(), IMMUTABLE),
            ]
            .iter()
            .filter(|(is_reason, _)| *is_reason)
            .map(|(_, reason)| *reason)
            .collect();
            if reasons.is_empty() {
                // The pod's own, or those of a container that runs only once.
                reasons.push("files that do not change while it runs");
            }
            format!("needs a restart: {}{replaced_by}", reasons.join(", "))
        }
        Verdict::Starts => "starts".to_owned(),
        Verdict::Fails(error) => format!("would not start: {error}"),
        Verdict::Removed => "removed".to_owned(),
    }
}

/// `would not start unless there is secret web-evn; did you mean "web-env"?`
pub(super) fn unless(unmet: &Unmet) -> String {
    let hint = unmet
        .hint
        .as_ref()
        .map(|name| format!("; did you mean {name:?}?"))
        .unwrap_or_default();
    format!("would not start unless there is {}{hint}", unmet.what)
}

/// What was not read, not compared, and not known: a line each.
pub(super) fn notes(comparison: &Comparison<'_>) -> Vec<String> {
    let mut containers: BTreeMap<(&Remark, Option<&str>), Vec<String>> = BTreeMap::new();
    for (pod, container, what) in &comparison.unknown {
        let maker = comparison
            .makers
            .get(&(pod.namespace.to_string(), what.to_string()));
        let container = format!("{pod} container {container}");
        let key = (what, maker.map(String::as_str));
        containers.entry(key).or_default().push(container);
    }
    let unknown = containers.into_iter().map(|((what, maker), containers)| {
        let containers = first_names(&containers, MAX_NAMED);
        let maker = maker.map(|maker| format!(", {maker}")).unwrap_or_default();
        let not_known = match what {
            Remark::Unknown(_) => "not known: ",
            Remark::Neither(_) => "",
        };
        format!("{not_known}{what}{maker} ({containers})")
    });
    let not_read = comparison
        .left_out
        .not_read
        .iter()
        .map(|(path, reason)| format!("not read: {path}: {reason}"));
    let not_compared = comparison
        .left_out
        .not_compared
        .iter()
        .map(|one| one.sentence.clone());
    let services = comparison.services.iter().flat_map(|(namespace, names)| {
        [
            ("get", &names.added),
            ("lose", &names.removed),
            ("get other values of", &names.changed),
        ]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(move |(verb, names)| {
            let names: Vec<_> = names.iter().cloned().collect();
            let variables = count(names.len(), "variable");
            let names = first_names(&names, MAX_NAMED);
            format!("new pods of namespace {namespace} {verb} {variables} of Services: {names}")
        })
    });
    not_read
        .chain(not_compared)
        .chain(services)
        .chain(unknown)
        .collect()
}

/// The words for the pods of each [`rank`], and for one container or many.
const WORDS: [(&str, &str, &str); 9] = [
    ("would not start", "would not start", "would not start"),
    (
        "would not start unless",
        "would not start unless something is there that no document has",
        "would not start unless something is there that no document has",
    ),
    ("may differ", "may differ", "may differ"),
    (
        "keeps the old value",
        "needs a restart and keeps the old value until somebody restarts it",
        "need a restart and keep the old value until somebody restarts them",
    ),
    (
        "rolls out by itself",
        "needs a restart and rolls out by itself",
        "need a restart and roll out by themselves",
    ),
    (
        "live",
        "sees it without a restart",
        "see it without a restart",
    ),
    ("starts", "starts", "start"),
    (
        "would start on neither side",
        "would start on neither side",
        "would start on neither side",
    ),
    ("removed", "is removed", "are removed"),
];

/// The rank of a container: what needs attention first. The last one needs none.
fn rank(diff: &ContainerDiff<'_>) -> usize {
    match &diff.verdict {
        Verdict::Fails(_) => 0,
        _ if !diff.unless.is_empty() => UNLESS,
        Verdict::Unknown { .. } => 2,
        Verdict::Restart
            if diff
                .replaced_by
                .as_ref()
                .is_some_and(ReplacedBy::needs_somebody) =>
        {
            3
        }
        Verdict::Restart => 4,
        Verdict::Live => 5,
        Verdict::Starts => 6,
        Verdict::Neither(_) => 7,
        Verdict::Removed => REMOVED,
        Verdict::Same => 9,
    }
}

/// The rank of what needs more than the documents have.
const UNLESS: usize = 1;
/// The rank of what is removed.
const REMOVED: usize = 8;

/// The containers of a pod, what needs attention first.
pub(super) fn containers<'d, 'r>(pod: &'d PodDiff<'r>) -> Vec<&'d ContainerDiff<'r>> {
    let mut containers: Vec<_> = pod.containers.iter().collect();
    containers.sort_by_key(|container| rank(container));
    containers
}

/// The pods, in the same order.
pub(super) fn pods<'d, 'r>(comparison: &'d Comparison<'r>) -> Vec<&'d PodDiff<'r>> {
    let mut pods: Vec<_> = comparison.pods.iter().collect();
    pods.sort_by_key(|pod| pod_rank(pod));
    pods
}

fn pod_rank(pod: &PodDiff<'_>) -> usize {
    pod.containers.iter().map(rank).min().unwrap_or(REMOVED)
}

/// Whether a container of the pod would not start, or only if something is there.
pub(super) fn may_fail(pod: &PodDiff<'_>) -> bool {
    pod_rank(pod) <= UNLESS
}

/// What is said of the pod in one word or two: of its container that needs most attention.
pub(super) fn state(pod: &PodDiff<'_>) -> &'static str {
    WORDS.get(pod_rank(pod)).map_or("", |(words, ..)| words)
}

/// `2 pods differ: 1 container needs a restart, 1 would not start; 1 unreferenced object differs`
pub(super) fn summary(comparison: &Comparison<'_>) -> String {
    let looked_at = not_looked_at(&comparison.left_out);
    if comparison.is_empty() {
        return match (looked_at, comparison.left_out.not_read.is_empty()) {
            (None, _) => format!("{NO_DIFFERENCE}."),
            (Some(rest), true) => format!("{NO_DIFFERENCE}; {rest}"),
            (Some(rest), false) => format!("Compared in part, without a difference; {rest}"),
        };
    }
    let containers: Vec<_> = WORDS
        .iter()
        .enumerate()
        .filter_map(|(place, (_, one, many))| {
            let all = comparison.pods.iter().flat_map(|pod| &pod.containers);
            let found = all.filter(|container| rank(container) == place).count();
            counted(found, one, many)
        })
        .collect();
    let pods = counted(comparison.pods.len(), "pod differs", "pods differ");
    let pods = pods.map(|pods| match &*containers {
        [] => pods,
        containers => format!("{pods} (containers: {})", containers.join(", ")),
    });
    let (one, many) = (
        "object that no compared container sees differs",
        "objects that no compared container sees differ",
    );
    let unseen = counted(comparison.unseen.len(), one, many);
    let (one, many) = ("unreferenced object differs", "unreferenced objects differ");
    let objects = counted(comparison.unreferenced.len(), one, many);
    pods.into_iter()
        .chain(unseen)
        .chain(objects)
        .chain(looked_at)
        .collect::<Vec<_>>()
        .join("; ")
}

/// `2 not read; not compared: 3 objects of other kinds`
fn not_looked_at(left_out: &LeftOut) -> Option<String> {
    let not_read = match left_out.not_read.len() {
        0 => None,
        count => Some(format!("{count} not read")),
    };
    let mut what: Vec<_> = left_out
        .not_compared
        .iter()
        .map(|one| one.what.clone())
        .collect();
    what.dedup();
    let not_compared =
        (!what.is_empty()).then(|| format!("not compared: {}", first_names(&what, MAX_NAMED)));
    let parts: Vec<_> = not_read.into_iter().chain(not_compared).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The count with the words for one or for many; `None` for zero.
fn counted(count: usize, one: &str, many: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {many}")),
    }
}

/// The difference between two contents of a file or a variable.
pub(super) enum ContentDiff {
    /// Values of Secrets, or bytes that are not text.
    Sizes(String),
    Lines(Vec<DiffLine>),
}

/// How two contents differ; they are hidden if one is a secret that is not to be shown.
pub(super) fn content(from: Option<&[u8]>, to: Option<&[u8]>, is_hidden: bool) -> ContentDiff {
    let (before, after) = (from.unwrap_or_default(), to.unwrap_or_default());
    let sizes = || match (from, to) {
        (Some(from), Some(to)) => format!("{} → {}", size(from.len()), size(to.len())),
        _ => size(before.len() + after.len()),
    };
    if is_hidden {
        return ContentDiff::Sizes(format!("<hidden, {}>", sizes()));
    }
    if before == after {
        return ContentDiff::Lines(Vec::new());
    }
    match (words::text(before), words::text(after)) {
        (Some(from), Some(to)) => ContentDiff::Lines(unified(from, to)),
        _ => ContentDiff::Sizes(format!("<binary, {}>", sizes())),
    }
}

/// A difference of two texts, as `from → to`, or the one text that both have.
pub(super) fn arrow(from: Option<String>, to: Option<String>) -> String {
    match (from, to) {
        (Some(from), Some(to)) if from != to => format!("{from} → {to}"),
        (from, to) => to.or(from).unwrap_or_default(),
    }
}

/// The mode of a file, its owner if it has one, and its group.
pub(super) fn permissions(one: &MountedFile<'_>) -> String {
    words::permissions(one.file.mode, one.file.owner, one.group)
}

/// The volumes of a mount on both sides.
pub(super) fn mount(edit: &Edit<ShownMount<'_>>) -> String {
    let (from, to) = edit.sides();
    let source = |mount: &ShownMount<'_>| shown_mount(*mount);
    let text = arrow(from.map(source), to.map(source));
    match edit {
        Edit::Changed(..) if !text.contains(" → ") => format!("{text}: its definition differs"),
        _ => text,
    }
}
