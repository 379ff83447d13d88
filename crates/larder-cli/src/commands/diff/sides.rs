//! The manifests of both sides.

use std::path::PathBuf;

use larder_objects::{
    chain,
    manifest::{Loader, Manifests},
};

use super::{cluster, git, in_parallel};
use crate::{args::DiffArgs, input, outcome::Failure, output};

/// Both sides, and whether a manifest of either had errors.
pub(super) struct Sides {
    pub(super) from: Manifests,
    pub(super) to: Manifests,
    pub(super) had_errors: bool,
}

/// Loads both sides, and reports their problems.
///
/// # Errors
///
/// A side cannot be read at all.
pub(super) fn load(args: &DiffArgs) -> Result<Sides, Failure> {
    let loader = || Loader::new(args.namespace.as_str()).recursive(args.recursive);
    let load = |paths: &[PathBuf]| input::load(loader(), paths);
    let (from, to, failed) = if args.kubeconfig.is_some() {
        let to = load(&args.filenames);
        input::check(&to, args.recursive)?;
        cluster::load(args, loader(), to)?
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
        (from, to, false)
    } else {
        let (from, to) = in_parallel(|| load(&args.from_file), || load(&args.to_file));
        input::check(&from, args.recursive)?;
        input::check(&to, args.recursive)?;
        (from, to, false)
    };
    // What was misspelled before is of no interest.
    for warning in &to.warnings {
        output::note(format_args!("warning: {warning}"));
    }
    for (side, manifests) in [("from", &from), ("to", &to)] {
        for error in &manifests.errors {
            output::note(format_args!("{side}: {}", chain(error)));
        }
    }
    let had_errors = failed || !from.errors.is_empty() || !to.errors.is_empty();
    Ok(Sides {
        from,
        to,
        had_errors,
    })
}
