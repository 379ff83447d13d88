//! The manifests of both sides.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use larder_objects::{
    Kind, ObjectKey, chain,
    manifest::{Loader, Manifest, ManifestError, Manifests, Problem},
};

use super::{
    compare::{ComparedSides, LeftOut, NotCompared},
    git, in_parallel,
};
use crate::{
    agent::{default_namespace, origin},
    args::DiffArgs,
    cluster, input,
    outcome::Failure,
    output,
};

/// Most paths of a side that are named.
const MAX_SHOWN: usize = 3;

/// Both sides, and what could not be read of them.
pub(super) struct Sides {
    pub(super) from: Manifests,
    pub(super) to: Manifests,
    pub(super) left_out: LeftOut,
    pub(super) compared: ComparedSides,
    /// What is not known of an API server's side.
    pub(super) cluster: Option<ClusterGaps>,
}

/// Objects of an API server that are not known.
pub(super) struct ClusterGaps {
    /// They could not be read.
    pub(super) not_read: HashSet<(Kind, ObjectKey)>,
    /// What applying the manifests makes of them.
    pub(super) not_applied: HashSet<(Kind, ObjectKey)>,
}

/// Loads both sides at the time `at`, and reports their problems.
///
/// # Errors
///
/// A side cannot be read at all.
pub(super) fn load(args: &DiffArgs, at: Timestamp) -> Result<Sides, Failure> {
    let is_stdin = |paths: &[PathBuf]| paths.iter().any(|path| path == Path::new("-"));
    if args.from.is_some() && is_stdin(&args.filenames) {
        let why = "-f - cannot be used with --from: git has no revision of standard input";
        return Err(Failure::unreadable(why));
    }
    if is_stdin(&args.from_file) && is_stdin(&args.to_file) {
        let why = "--from-file - cannot be used with --to-file -: standard input is only one side";
        return Err(Failure::unreadable(why));
    }
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    let namespace = default_namespace(args.reading.namespace.as_deref(), kubeconfig, context)?;
    let loader = || input::loader(&namespace, &args.reading).any_template();
    let mut sides = if kubeconfig.is_some() {
        of_cluster(args, loader, at)?
    } else if let Some(from) = &args.from {
        of_git(args, from, loader, at)?
    } else {
        let load = |paths: &[PathBuf]| input::load(loader(), paths);
        let (from, to) = in_parallel(|| load(&args.from_file), || load(&args.to_file));
        input::check(&from, args.reading.recursive)?;
        input::check(&to, args.reading.recursive)?;
        let names = (shown(&args.from_file), shown(&args.to_file));
        Sides::new(from, to, names, at)
    };
    // What was misspelled before is of no interest.
    for warning in &sides.to.warnings {
        output::note(format_args!("warning: {warning}"));
    }
    sides.note_left_out(args);
    for one in &sides.left_out.not_compared {
        output::note(&one.sentence);
    }
    Ok(sides)
}

/// What an API server has, and the manifests applied to it.
fn of_cluster(
    args: &DiffArgs,
    loader: impl Fn() -> Loader,
    at: Timestamp,
) -> Result<Sides, Failure> {
    let to = input::load(loader().keeping_written(), &args.filenames);
    input::check(&to, args.reading.recursive)?;
    let source = origin(args.kubeconfig.as_deref(), args.context.as_deref());
    let (cluster, missed) = cluster::sides(source, loader(), to)?;
    let names = (
        format!("the API server {}", missed.server),
        shown(&args.filenames),
    );
    let mut sides = Sides::new(cluster.from, cluster.to, names, at);
    sides.left_out.not_read = missed.reasons;
    sides.cluster = Some(ClusterGaps {
        not_read: missed.objects,
        not_applied: cluster.not_applied,
    });
    let makers = match sides.to.made.len() {
        1 => "1 document that makes objects".to_owned(),
        count => format!("{count} documents that make objects"),
    };
    let made = sides.to.made.iter().map(|made| {
        let (maker, kind) = (&made.maker, made.kind.singular());
        NotCompared {
            sentence: format!(
                "{maker} is not compared: the values of {kind} {} are those of the API server",
                made.key
            ),
            what: makers.clone(),
        }
    });
    sides.left_out.not_compared.extend(made);
    if cluster.unseen > 0 {
        let objects = output::count(cluster.unseen, "object");
        let (are, them) = match cluster.unseen {
            1 => ("is", "it"),
            _ => ("are", "these"),
        };
        sides.left_out.not_compared.push(NotCompared {
            sentence: format!(
                "{objects} of the manifests {are} not compared: no container in them sees {them}"
            ),
            what: format!("{objects} of the manifests that no container in them sees"),
        });
    }
    Ok(sides)
}

/// A revision, and another one or the working tree.
fn of_git(
    args: &DiffArgs,
    from: &str,
    loader: impl Fn() -> Loader + Sync,
    at: Timestamp,
) -> Result<Sides, Failure> {
    let revision =
        |revision: &str| git::load(loader(), &args.filenames, revision, args.reading.recursive);
    let to = || match &args.to {
        Some(to) => revision(to),
        None => Ok(git::load_working_tree(loader(), &args.filenames)),
    };
    let (from, to) = in_parallel(|| revision(from), to);
    let (from, to) = (from?, to?);
    // One side may have no file: the directory is new, or was removed.
    if from.manifests.files == 0 || to.manifests.nothing_read() {
        input::check(&to.manifests, args.reading.recursive)?;
    }
    let names = (
        from.name,
        format!("{} of {}", to.name, shown(&args.filenames)),
    );
    let mut sides = Sides::new(from.manifests, to.manifests, names, at);
    for path in from.absent.intersection(&to.absent) {
        let (path, why) = (path.display().to_string(), "neither side has it");
        output::note(format_args!("{path}: {why}"));
        sides.left_out.not_read.insert((path, why.to_owned()));
    }
    Ok(sides)
}

/// Paths, or the first of them.
fn shown(paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    output::first_names(&paths, MAX_SHOWN)
}

impl Sides {
    fn new(from: Manifests, to: Manifests, names: (String, String), at: Timestamp) -> Self {
        let compared = ComparedSides {
            from: names.0,
            to: names.1,
            at,
        };
        Self {
            from,
            to,
            left_out: LeftOut::default(),
            compared,
            cluster: None,
        }
    }

    /// Notes and reports what was not read, and what is not compared.
    fn note_left_out(&mut self, args: &DiffArgs) {
        let Self {
            from, to, left_out, ..
        } = self;
        for (one, other) in [(&*from, &*to), (&*to, &*from)] {
            let pods = in_doubt(one, other, !args.to_file.is_empty(), &left_out.not_read);
            left_out.in_doubt.extend(pods);
        }
        for (side, manifests) in [("from", from), ("to", to)] {
            for error in &manifests.errors {
                output::note(format_args!("{side}: {}", chain(error)));
                left_out.not_read.insert(input::not_read(error));
            }
        }
        let Self { from, to, .. } = self;
        let mut skipped = BTreeMap::new();
        for (kind, count) in from.skipped.iter().chain(&to.skipped) {
            let most = skipped.entry(kind.clone()).or_default();
            *most = (*count).max(*most);
        }
        let objects = output::count(skipped.values().sum(), "object");
        let skipped = input::skipped(&skipped).map(|sentence| NotCompared {
            sentence,
            what: format!("{objects} of other kinds"),
        });
        let unsearched = from.unsearched.union(&to.unsearched);
        let unsearched = unsearched.map(|path| NotCompared {
            sentence: input::unsearched_words(path),
            what: format!("subdirectories of {}", path.display()),
        });
        let reader = if args.kubeconfig.is_some() {
            "larder diff -f - --kubeconfig FILE"
        } else {
            "larder diff --from-file BEFORE.yaml --to-file -"
        };
        let paths = [&args.filenames[..], &args.to_file].concat();
        let built = input::built(&paths, reader).map(|sentence| NotCompared {
            sentence,
            what: "what is made of sources".to_owned(),
        });
        let excluded: BTreeSet<_> = from.excluded.union(&to.excluded).cloned().collect();
        let excluded = input::excluded(&excluded).map(|sentence| NotCompared {
            sentence,
            what: output::count(excluded.len(), "excluded file"),
        });
        let all = skipped
            .into_iter()
            .chain(excluded)
            .chain(unsearched)
            .chain(built);
        self.left_out.not_compared.extend(all);
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
    let pods = one
        .documents
        .iter()
        .filter(|document| matches!(document.manifest, Manifest::Pod(_)))
        .filter_map(|document| {
            let key = document.object.key();
            let workload = document.workload.as_ref();
            let kind = workload.map_or("Pod", |workload| &workload.kind);
            let name = workload.map_or(&*key.name, |workload| &workload.name);
            let workload = ObjectKey::new(key.namespace.clone(), name);
            let is_named = names.contains(&format!("Pod {key}"))
                || names.contains(&format!("{kind} {workload}"));
            let file = Path::new(&*document.origin.file);
            let has_path = |path: &&str| has_other_paths || file.starts_with(path);
            (is_named || paths.iter().any(has_path)).then_some(workload)
        });
    pods.collect()
}
