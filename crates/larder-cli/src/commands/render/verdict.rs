//! Whether pods start, as far as ConfigMaps and Secrets decide it: a headline for each, and their sum.
//!
//! Invariant: a headline is green only if nothing in it deserves a look.

use std::collections::BTreeSet;

use larder_objects::chain;
use larder_projection::{ContainerKind, ContainerView, Unknown};

use crate::{
    output::{Paint, count, tree::Branch},
    rendered::{RenderedPod, words::heading},
};

/// A pod with its verdict.
pub(super) struct JudgedPod<'r, 'p> {
    pub(super) pod: &'r RenderedPod<'p>,
    start: PodStart,
    /// What deserves a look, each with its place.
    pub(super) warnings: Vec<(String, String)>,
}

/// Whether a pod starts.
enum PodStart {
    /// For these reasons it does not, each with the part that has it, and a hint.
    Fails(Vec<[String; 3]>),
    /// Only if these are there, which are not known.
    Depends(BTreeSet<String>),
    /// It does, but a reference that no container needs leads nowhere.
    Unmet,
    /// It does.
    Ready {
        /// Whether optional references lead nowhere.
        has_absent: bool,
    },
}

/// The pods with their verdicts, those first that do not start.
pub(super) fn judged<'r, 'p>(pods: &'r [RenderedPod<'p>]) -> Vec<JudgedPod<'r, 'p>> {
    let judged = pods.iter().map(|pod| JudgedPod {
        pod,
        start: PodStart::of(pod),
        warnings: pod.warnings(),
    });
    let mut judged: Vec<_> = judged.collect();
    judged.sort_by_key(|pod| !matches!(pod.start, PodStart::Fails(_)));
    judged
}

impl PodStart {
    fn of(pod: &RenderedPod<'_>) -> Self {
        let reasons = reasons(pod);
        let mut objects = BTreeSet::new();
        for (index, (container, _)) in pod.containers.iter().enumerate() {
            objects.extend(pod.missing_secrets(container));
            let start = pod.start(index);
            objects.extend(start.needs.iter().map(ToString::to_string));
            let sources = start.values.iter().flat_map(Unknown::sources);
            objects.extend(sources.map(ToString::to_string));
        }
        let is_unfilled = pod.volumes.values().any(|(_, filled)| filled.is_err())
            || pod.containers.iter().any(|(_, view)| view.is_err());
        if !reasons.is_empty() {
            Self::Fails(reasons)
        } else if !objects.is_empty() {
            Self::Depends(objects)
        } else if is_unfilled || pod.missing_pull_secrets().next().is_some() {
            Self::Unmet
        } else {
            let views = pod.containers.iter().flat_map(|(_, view)| view);
            let mut absent = views.map(|view| view.environment.absent().len());
            let filled = pod.volumes.values().flat_map(|(_, filled)| filled);
            let mut absent_files = filled.map(|filled| filled.absent.len());
            Self::Ready {
                has_absent: absent.any(|count| count > 0) || absent_files.any(|count| count > 0),
            }
        }
    }
}

impl JudgedPod<'_, '_> {
    /// The number of warnings, invalid hooks included.
    fn warned(&self) -> usize {
        let hooks = self.pod.hooks.iter();
        self.warnings.len() + hooks.filter(|found| found.hooks.is_err()).count()
    }

    /// The line below the pod's name.
    pub(super) fn headline(&self) -> Branch {
        match &self.start {
            PodStart::Fails(reasons) => {
                let reasons = reasons
                    .iter()
                    .map(|[part, why, hint]| Branch::new().red(part).plain(why).dim(hint));
                Branch::new().red("does not start").with(reasons)
            }
            PodStart::Depends(objects) => {
                let objects = objects.iter().map(|what| Branch::new().plain(what));
                let verdict = "starts if these are there, which are not known";
                Branch::new().yellow(verdict).with(objects)
            }
            PodStart::Unmet => {
                Branch::new().yellow("ready to start, but not every reference is met")
            }
            PodStart::Ready { has_absent } => match warned(self.warned()) {
                (Paint::Green, _) => {
                    let required = if *has_absent { "required " } else { "" };
                    let text = format!("ready to start: every {required}reference is met");
                    Branch::new().green(text)
                }
                (paint, more) => Branch::new().cell(paint, everything(*has_absent) + &more),
            },
        }
    }
}

fn is_ephemeral(container: &ContainerView<'_>) -> bool {
    container.kind == ContainerKind::Ephemeral
}

/// `3 pods, 1 does not start; 2 warnings`, and its color. `warnings` are those outside of pods; `not_read` is what could
/// not be read.
pub(super) fn sum(pods: &[JudgedPod<'_, '_>], warnings: usize, not_read: usize) -> (Paint, String) {
    let number = |is_it: fn(&PodStart) -> bool| pods.iter().filter(|pod| is_it(&pod.start)).count();
    let fails = number(|start| matches!(start, PodStart::Fails(_)));
    let depends = number(|start| matches!(start, PodStart::Depends(_)));
    let unmet = number(|start| matches!(start, PodStart::Unmet));
    let has_absent = number(|start| matches!(start, PodStart::Ready { has_absent: true })) > 0;
    let states: Vec<_> = [
        (fails, "does not start", "do not start"),
        (
            depends,
            "depends on what is not known",
            "depend on what is not known",
        ),
        (
            unmet,
            "has a reference that is not met",
            "have a reference that is not met",
        ),
    ]
    .into_iter()
    .filter(|(number, ..)| *number > 0)
    .map(|(number, one, many)| match number {
        1 => format!("1 {one}"),
        number => format!("{number} {many}"),
    })
    .collect();
    let state = match &*states {
        [] => everything(has_absent),
        states => states.join(", "),
    };
    let of_pods = pods.iter().map(JudgedPod::warned);
    let (paint, more) = warned(warnings + of_pods.sum::<usize>());
    let unread = match not_read {
        0 => String::new(),
        number => format!("; {number} not read"),
    };
    let paint = match (fails, states.len() + not_read) {
        (0, 0) => paint,
        (0, _) => Paint::Yellow,
        _ => Paint::Red,
    };
    (
        paint,
        format!("{}, {state}{more}{unread}", count(pods.len(), "pod")),
    )
}

fn everything(has_absent: bool) -> String {
    let required = if has_absent { "required " } else { "" };
    format!("every {required}ConfigMap and Secret is there")
}

/// The color of a headline with so many warnings, and its end.
fn warned(warnings: usize) -> (Paint, String) {
    match warnings {
        0 => (Paint::Green, String::new()),
        number => (Paint::Yellow, format!("; {}", count(number, "warning"))),
    }
}

/// Every reason why a pod does not start: the part that has it, the reason, and a hint.
fn reasons(pod: &RenderedPod<'_>) -> Vec<[String; 3]> {
    // Ephemeral containers are added to a pod that runs.
    let started = pod
        .containers
        .iter()
        .filter(|(container, _)| !is_ephemeral(container));
    let containers = started.filter_map(|(container, view)| {
        let error = view.as_ref().err()?;
        Some([heading(container), chain(error), pod.start_hint(error)])
    });
    // A volume that no container mounts is never set up, so its error is harmless.
    let volumes = pod
        .volumes
        .values()
        .filter(|(volume, _)| pod.is_used(volume))
        .filter_map(|(volume, projection)| {
            let error = projection.as_ref().err()?;
            let part = format!("volume {}", volume.name);
            Some([part, error.to_string(), pod.volume_hint(error)])
        });
    containers.chain(volumes).collect()
}
