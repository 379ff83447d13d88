//! The manifests of both sides.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::{Path, PathBuf},
};

use larder_objects::{
    Kind, ObjectKey, chain,
    manifest::{Loader, Manifest, ManifestError, Manifests, Problem},
};

use super::{compare::LeftOut, git, in_parallel};
use crate::{
    agent::{default_namespace, origin},
    args::DiffArgs,
    cluster, input,
    offline::maker_words,
    outcome::Failure,
    output,
};

/// Both sides, and what could not be read of them.
pub(super) struct Sides {
    pub(super) from: Manifests,
    pub(super) to: Manifests,
    pub(super) left_out: LeftOut,
    /// Of an API server's side: the objects that could not be read.
    pub(super) cluster: Option<HashSet<(Kind, ObjectKey)>>,
}

/// Loads both sides, and reports their problems.
///
/// # Errors
///
/// A side cannot be read at all.
pub(super) fn load(args: &DiffArgs) -> Result<Sides, Failure> {
    check_stdin(args)?;
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    let namespace = default_namespace(args.namespace.as_deref(), kubeconfig, context)?;
    let loader = || input::loader(&namespace, args.recursive, &args.exclude);
    let mut sides = if args.kubeconfig.is_some() {
        Sides::of_cluster(args, &loader)?
    } else if let Some(from) = &args.from {
        Sides::of_revisions(args, from, &loader)?
    } else {
        Sides::of_files(args, &loader)?
    };
    sides.report(!args.to_file.is_empty());
    Ok(sides)
}

fn check_stdin(args: &DiffArgs) -> Result<(), Failure> {
    let is_stdin = |paths: &[PathBuf]| paths.iter().any(|path| path == Path::new("-"));
    let why = if args.from.is_some() && is_stdin(&args.filenames) {
        "-f - cannot be used with --from: git has no revision of standard input"
    } else if is_stdin(&args.from_file) && is_stdin(&args.to_file) {
        "--from-file - cannot be used with --to-file -: standard input is only one side"
    } else {
        return Ok(());
    };
    Err(Failure::unreadable(why))
}

impl Sides {
    fn of(from: Manifests, to: Manifests) -> Self {
        Self {
            from,
            to,
            left_out: LeftOut::default(),
            cluster: None,
        }
    }

    /// What an API server has, and manifests.
    fn of_cluster(args: &DiffArgs, loader: &impl Fn() -> Loader) -> Result<Self, Failure> {
        let to = input::load(loader(), &args.filenames);
        input::check(&to, args.recursive)?;
        let source = origin(args.kubeconfig.as_deref(), args.context.as_deref());
        let ((from, to, unseen), missed) = cluster::sides(source, loader(), to)?;
        let mut sides = Self::of(from, to);
        let not_compared = &mut sides.left_out.not_compared;
        not_compared.extend(sides.to.made.iter().map(|made| {
            let maker = maker_words(&made.maker);
            format!(
                "{maker} is not compared: the values of {} {} are those of the API server",
                made.kind.singular(),
                made.key
            )
        }));
        if unseen > 0 {
            let objects = output::count(unseen, "object");
            let (are, them) = match unseen {
                1 => ("is", "it"),
                _ => ("are", "these"),
            };
            not_compared.push(format!(
                "{objects} of the manifests {are} not compared: no container in them sees {them}"
            ));
        }
        sides.left_out.not_read = missed.reasons;
        sides.cluster = Some(missed.objects);
        Ok(sides)
    }

    /// Files at the revision `from` of a git repository, and at another one or as they are.
    fn of_revisions(
        args: &DiffArgs,
        from: &str,
        loader: &(impl Fn() -> Loader + Sync),
    ) -> Result<Self, Failure> {
        let revision =
            |revision: &str| git::load(loader(), &args.filenames, revision, args.recursive);
        let to = || match &args.to {
            Some(to) => revision(to),
            None => Ok(git::load_working_tree(loader(), &args.filenames)),
        };
        let (from, to) = in_parallel(|| revision(from), to);
        let ((from, absent), (to, absent_to)) = (from?, to?);
        let mut sides = Self::of(from, to);
        for path in absent.intersection(&absent_to) {
            let (path, why) = (path.display().to_string(), "neither side has it");
            output::note(format_args!("{path}: {why}"));
            sides.left_out.not_read.insert((path, why.to_owned()));
        }
        // One side may have no file: the directory is new, or was removed.
        if sides.from.files == 0 || sides.to.nothing_read() {
            input::check(&sides.to, args.recursive)?;
        }
        Ok(sides)
    }

    fn of_files(args: &DiffArgs, loader: &(impl Fn() -> Loader + Sync)) -> Result<Self, Failure> {
        let load = |paths: &[PathBuf]| input::load(loader(), paths);
        let (from, to) = in_parallel(|| load(&args.from_file), || load(&args.to_file));
        input::check(&from, args.recursive)?;
        input::check(&to, args.recursive)?;
        Ok(Self::of(from, to))
    }

    /// Prints what is wrong with the sides, and records what of them is left out.
    fn report(&mut self, has_other_paths: bool) {
        let Self {
            from, to, left_out, ..
        } = self;
        // What was misspelled before is of no interest.
        for warning in &to.warnings {
            output::note(format_args!("warning: {warning}"));
        }
        for (one, other) in [(&*from, &*to), (&*to, &*from)] {
            let pods = in_doubt(one, other, has_other_paths, &left_out.not_read);
            left_out.in_doubt.extend(pods);
        }
        for (side, manifests) in [("from", &*from), ("to", &*to)] {
            for error in &manifests.errors {
                output::note(format_args!("{side}: {}", chain(error)));
                left_out.not_read.insert(input::not_read(error));
            }
        }
        let mut skipped = BTreeMap::new();
        for (kind, count) in from.skipped.iter().chain(&to.skipped) {
            let most = skipped.entry(kind.clone()).or_default();
            *most = (*count).max(*most);
        }
        left_out.not_compared.extend(input::skipped(&skipped));
        let excluded = from.excluded.union(&to.excluded).cloned().collect();
        left_out.not_compared.extend(input::excluded(&excluded));
        for sentence in &left_out.not_compared {
            output::note(sentence);
        }
    }
}

/// The pods of `one` that `other` may have in what could not be read of it: those that are `unread` or of a rejected
/// document, and those of the same file if no name is known. If the sides have other paths, that may be any file.
fn in_doubt(
    one: &Manifests,
    other: &Manifests,
    has_other_paths: bool,
    unread: &BTreeSet<(String, String)>,
) -> HashSet<ObjectKey> {
    let mut names: HashSet<_> = unread.iter().map(|(name, _)| name.clone()).collect();
    let mut paths = HashSet::new();
    for error in &other.errors {
        if let ManifestError::Document {
            subject, problem, ..
        } = error
            && let (Some(kind), Some(namespace), Some(name)) =
                (&subject.kind, &subject.namespace, &subject.name)
            && !matches!(problem, Problem::UnknownKind { .. })
        {
            names.insert(format!("{kind} {namespace}/{name}"));
        } else {
            paths.insert(error.path());
        }
    }
    let pods = one.documents.iter();
    let pods = pods.filter(|document| matches!(document.manifest, Manifest::Pod(_)));
    let pods = pods.filter_map(|document| {
        let key = document.object.key();
        let workload = document.workload.as_deref().unwrap_or_default();
        let (kind, name) = workload.split_once(' ').unwrap_or(("Pod", &key.name));
        let workload = ObjectKey::new(key.namespace.clone(), name);
        let is_named =
            names.contains(&format!("Pod {key}")) || names.contains(&format!("{kind} {workload}"));
        let file = Path::new(&*document.origin.file);
        let has_path = |path: &&str| has_other_paths || file.starts_with(path);
        (is_named || paths.iter().any(has_path)).then_some(workload)
    });
    pods.collect()
}
