//! The manifests of both sides.

use std::{
    collections::{BTreeSet, HashSet},
    path::{Path, PathBuf},
};

use larder_objects::{
    Kind, ObjectKey, chain,
    manifest::{Loader, Manifests},
};

use super::{git, in_parallel};
use crate::{agent::origin, args::DiffArgs, cluster, input, outcome::Failure, output};

/// Both sides, and what could not be read of them.
pub(super) struct Sides {
    pub(super) from: Manifests,
    pub(super) to: Manifests,
    /// Paths or objects that could not be read, and why.
    pub(super) not_read: BTreeSet<(String, String)>,
    /// Of an API server's side: the objects that could not be read.
    pub(super) cluster: Option<HashSet<(Kind, ObjectKey)>>,
}

/// Loads both sides, and reports their problems.
///
/// # Errors
///
/// A side cannot be read at all.
pub(super) fn load(args: &DiffArgs) -> Result<Sides, Failure> {
    let is_stdin = |paths: &[PathBuf]| paths.iter().any(|path| path == Path::new("-"));
    if args.from.is_some() && is_stdin(&args.filenames) {
        let why = "-f - cannot be used with --from: git has no revision of standard input";
        return Err(Failure::unreadable(why));
    }
    if is_stdin(&args.from_file) && is_stdin(&args.to_file) {
        let why = "--from-file - cannot be used with --to-file -: standard input is only one side";
        return Err(Failure::unreadable(why));
    }
    let loader = || Loader::new(args.namespace.as_str()).recursive(args.recursive);
    let load = |paths: &[PathBuf]| input::load(loader(), paths);
    let (mut not_read, mut cluster) = (BTreeSet::new(), None);
    let (from, to) = if args.kubeconfig.is_some() {
        let to = load(&args.filenames);
        input::check(&to, args.recursive)?;
        let source = origin(args.kubeconfig.as_deref(), args.context.as_deref());
        let (sides, missed) = cluster::sides(source, loader(), to)?;
        not_read = missed.reasons;
        cluster = Some(missed.objects);
        sides
    } else if let Some(from) = &args.from {
        let revision =
            |revision: &str| git::load(loader(), &args.filenames, revision, args.recursive);
        let to = || match &args.to {
            Some(to) => revision(to),
            None => Ok(load(&args.filenames)),
        };
        let (from, to) = in_parallel(|| revision(from), to);
        let (from, to) = (from?, to?);
        // One side may have no file: the directory is new, or was removed.
        if from.files == 0 || to.nothing_read() {
            input::check(&to, args.recursive)?;
        }
        (from, to)
    } else {
        let (from, to) = in_parallel(|| load(&args.from_file), || load(&args.to_file));
        input::check(&from, args.recursive)?;
        input::check(&to, args.recursive)?;
        (from, to)
    };
    // What was misspelled before is of no interest.
    for warning in &to.warnings {
        output::note(format_args!("warning: {warning}"));
    }
    for (side, manifests) in [("from", &from), ("to", &to)] {
        for error in &manifests.errors {
            output::note(format_args!("{side}: {}", chain(error)));
            not_read.insert(input::not_read(error));
        }
    }
    Ok(Sides {
        from,
        to,
        not_read,
        cluster,
    })
}
