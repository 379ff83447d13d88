//! The manifests of both sides.

use std::{collections::BTreeSet, path::PathBuf};

use larder_objects::{
    chain,
    manifest::{Loader, Manifests},
};

use super::{cluster, git, in_parallel};
use crate::{args::DiffArgs, input, outcome::Failure, output};

/// Both sides, and what could not be read of them.
pub(super) struct Sides {
    pub(super) from: Manifests,
    pub(super) to: Manifests,
    /// Paths or objects that could not be read, and why.
    pub(super) not_read: BTreeSet<(String, String)>,
}

/// Loads both sides, and reports their problems.
///
/// # Errors
///
/// A side cannot be read at all.
pub(super) fn load(args: &DiffArgs) -> Result<Sides, Failure> {
    let loader = || Loader::new(args.namespace.as_str()).recursive(args.recursive);
    let load = |paths: &[PathBuf]| input::load(loader(), paths);
    let (from, to, mut not_read) = if args.kubeconfig.is_some() {
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
        (from, to, BTreeSet::new())
    } else {
        let (from, to) = in_parallel(|| load(&args.from_file), || load(&args.to_file));
        input::check(&from, args.recursive)?;
        input::check(&to, args.recursive)?;
        (from, to, BTreeSet::new())
    };
    // What was misspelled before is of no interest.
    for warning in &to.warnings {
        output::note(format_args!("warning: {warning}"));
    }
    for (side, manifests) in [("from", &from), ("to", &to)] {
        for error in &manifests.errors {
            let text = chain(error);
            output::note(format_args!("{side}: {text}"));
            let reason = text.strip_prefix(&format!("{}: ", error.path()));
            let reason = reason.unwrap_or(&text).to_owned();
            not_read.insert((error.path().to_owned(), reason));
        }
    }
    Ok(Sides { from, to, not_read })
}
