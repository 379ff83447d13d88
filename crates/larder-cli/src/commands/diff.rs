//! `larder diff`: what changes for each container between two sets of manifests.
//!
//! ```text
//!  sides ─► two sets of manifests ─► rendered pods, as `larder render` has them ─► compare ─► output
//!   files, git, API server
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | `sides` | loads the manifests of both sides |
//! | `git` | manifests of a git revision |
//! | `compare` | the pods and objects that differ |
//! | `container`, `both_sides` | the differences of a container, and its verdict |
//! | `changed_objects` | the ConfigMaps and Secrets that differ |
//! | `edits` | differences between two sets |
//! | `outcome` | what differences mean, for each way to fill in what is not known |
//! | `gate` | the exit code |
//! | `mounts` | mounts that differ |
//! | `sub_paths` | whether files that are mounted by `subPath` follow |
//! | `hooks` | the hooks that would run |
//! | `change` | one difference of a container, and its tree |
//! | `shared` | differences that several containers see, shown once |
//! | `rollout` | whether a workload replaces its pods by itself |
//! | `lines` | differences of texts, line by line |
//! | `report` | texts that the trees and Markdown share |
//! | `tree`, `json`, `markdown` | the output |
//!
//! Invariants:
//! 1. Both sides are computed by [`RenderedPod`], and only compared here.
//! 2. Without `--show-secrets`, no byte of a Secret is printed.
//! 3. Every output names what is not known, and what was not read.

mod both_sides;
mod change;
mod changed_objects;
mod compare;
mod container;
mod edits;
mod gate;
mod git;
mod hooks;
mod json;
mod lines;
mod markdown;
mod mounts;
mod outcome;
mod report;
mod rollout;
mod shared;
mod sides;
mod sub_paths;
mod tree;

use std::{
    collections::HashSet,
    panic::resume_unwind,
    path::Path,
    process::ExitCode,
    thread::{self, ScopedJoinHandle},
};

use jiff::Timestamp;
use larder_objects::manifest::{Loader, MadeObject, Manifests, Ownership};
use parking_lot::Mutex;
use serde_json::Value;

use self::{
    compare::{ComparedSides, Comparison, LeftOut},
    json::Report,
    sides::ClusterGaps,
};
use crate::{
    args::{DiffArgs, DiffOutput},
    offline::{ClusterObjects, Offline, Outside},
    outcome::Failure,
    output::{self, Style, html::write_page, json::write_json, yaml::write_yaml},
    rendered::RenderedPod,
};

pub(super) fn run(args: &DiffArgs) -> Result<ExitCode, Failure> {
    // Exit code 1 means that there are differences.
    let exit_code = ExitCode::from(2);
    print(args).map_err(|failure| Failure {
        exit_code,
        ..failure
    })
}

/// The manifests of a directory in a git revision, as `larder diff -R` reads them; `None` if git has no such revision. For
/// tests of trees.
pub fn manifests_of_revision(directory: &Path, revision: &str) -> Option<Manifests> {
    let loader = Loader::new("default").recursive(true);
    let read = git::load(loader, &[directory.to_owned()], revision, true).ok()?;
    Some(read.manifests)
}

fn print(args: &DiffArgs) -> Result<ExitCode, Failure> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place: the time of the comparison"
    )]
    let now = Timestamp::now();
    let sides = sides::load(args, now)?;
    let (from, to) = worlds(sides.from, sides.to, sides.cluster.as_ref());
    let (from_pods, to_pods) = in_parallel(|| rendered(&from), || rendered(&to));
    let (left_out, compared) = (sides.left_out, sides.compared);
    let comparison = Comparison::new(&from, &from_pods, &to, &to_pods, left_out, compared);
    let title = args.title.as_deref();
    output::results(|out| match args.output {
        DiffOutput::Json => write_json(out, &Report::new(&comparison, args.show_secrets)),
        DiffOutput::Yaml => write_yaml(out, &Report::new(&comparison, args.show_secrets)),
        DiffOutput::Tree => {
            let style = Style::of_stdout();
            tree::write(out, title, &comparison, args.show_secrets, style)
        }
        DiffOutput::Markdown => {
            let most = args.max_bytes;
            markdown::write(out, title, &comparison, args.show_secrets, most)
        }
        DiffOutput::Html => {
            let (summary, sides) = (report::summary(&comparison), comparison.sides.to_string());
            let trees = tree::trees(&comparison, args.show_secrets);
            let title = title.unwrap_or("What changes");
            write_page(out, title, &summary, &sides, trees)
        }
    })?;
    Ok(gate::exit_code(&comparison, &args.fail_on))
}

/// Both sides, with what is not known of them; `cluster` has what is not known of an API server's.
fn worlds(from: Manifests, mut to: Manifests, cluster: Option<&ClusterGaps>) -> (Offline, Offline) {
    if cluster.is_none() {
        let left = left_behind(&from, &to);
        to.made.extend(left);
    }
    let world = |side, not_applied: &_| match cluster {
        Some(gaps) => Offline::of_applied(side, &gaps.not_read, not_applied),
        None => Offline::new(side, ClusterObjects::Assumed),
    };
    let none = HashSet::new();
    let not_applied = cluster.map_or(&none, |gaps| &gaps.not_applied);
    let (mut from, mut to) = in_parallel(|| world(from, &none), || world(to, not_applied));
    // An object that neither an API server nor the manifests have is missing.
    if cluster.is_none() {
        from.take_outside(Outside::Perhaps { other: &to });
        to.take_outside(Outside::Perhaps { other: &from });
    }
    (from, to)
}

/// What makers of the first side leave behind that the second one has no longer.
fn left_behind(from: &Manifests, to: &Manifests) -> Vec<MadeObject> {
    let id = |made: &MadeObject| (made.maker.clone(), made.kind, made.key.clone());
    let stays: Vec<_> = to.made.iter().map(id).collect();
    let left = from.made.iter();
    let left = left.filter(|made| made.ownership != Ownership::Owned && !stays.contains(&id(made)));
    left.cloned().collect()
}

/// The report of `larder diff -o json --show-secrets`. For tests that hold it to a model.
pub fn diff_report(from: Manifests, to: Manifests) -> Value {
    let (from, to) = worlds(from, to, None);
    let (from_pods, to_pods) = (rendered(&from), rendered(&to));
    let (left_out, compared) = (LeftOut::default(), ComparedSides::default());
    let comparison = Comparison::new(&from, &from_pods, &to, &to_pods, left_out, compared);
    serde_json::to_value(Report::new(&comparison, true)).unwrap_or_default()
}

fn rendered(world: &Offline) -> Vec<RenderedPod<'_>> {
    world
        .pods
        .iter()
        .map(|pod| RenderedPod::new(pod, world))
        .collect()
}

/// The results of both, computed at the same time if the system has a thread for that, else one after the other.
fn in_parallel<A: Send, B>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
    // Where the system refuses a thread, what it was to run is left here.
    let one = Mutex::new(Some(one));
    let run = || one.lock().take().map(|one| one());
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, run);
        let other = other();
        let joined = thread.ok().map(ScopedJoinHandle::join);
        let one = match joined {
            Some(result) => result.unwrap_or_else(|panic| resume_unwind(panic)),
            None => run(),
        };
        (one.expect("it runs once"), other)
    })
}
