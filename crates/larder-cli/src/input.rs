//! Loads the manifests of `-f`, and reports their problems.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use larder_objects::{
    chain,
    manifest::{Loader, ManifestError, Manifests},
};

use crate::{
    args::{ManifestArgs, PodName, ReadingArgs},
    outcome::Failure,
    output::{self, first_names},
};

/// Most paths that a line names.
const MAX_NAMED: usize = 5;

/// Reads the manifests; objects that name no namespace are of `namespace`. Each error is reported once; manifests without errors are returned.
///
/// # Errors
///
/// No manifest could be read at all.
pub(crate) fn read(args: &ManifestArgs, namespace: &str) -> Result<Manifests, Failure> {
    let loader = loader(namespace, &args.reading);
    let manifests = load(loader, &args.filenames);
    // A misspelled field often causes the error of the field that is then missing.
    for warning in &manifests.warnings {
        output::note(format_args!("warning: {warning}"));
    }
    for error in &manifests.errors {
        output::error(error);
    }
    explain_missing(&args.filenames);
    built(&args.filenames, "larder render -f -").for_each(output::note);
    check(&manifests, args.reading.recursive)?;
    let unsearched = manifests.unsearched.iter();
    unsearched.for_each(|path| output::note(unsearched_words(path)));
    left_out(&manifests).for_each(output::note);
    Ok(manifests)
}

/// A loader for commands that compare or show what manifests make.
pub(crate) fn loader(namespace: &str, reading: &ReadingArgs) -> Loader {
    Loader::new(namespace)
        .recursive(reading.recursive)
        .exclude(reading.exclude.clone())
        .by_workload()
}

/// The path of what could not be read, and the reason.
pub(crate) fn not_read(error: &ManifestError) -> (String, String) {
    let (path, text) = (error.path(), chain(error));
    let reason = text
        .strip_prefix(path)
        .and_then(|text| text.strip_prefix(": "))
        .unwrap_or(&text)
        .to_owned();
    (path.to_owned(), reason)
}

/// The manifests at these paths; `-` is standard input.
pub(crate) fn load(mut loader: Loader, paths: &[PathBuf]) -> Manifests {
    for path in paths {
        if path == Path::new("-") {
            loader.stdin(io::stdin().lock());
        } else {
            loader.path(path);
        }
    }
    loader.finish()
}

/// Checks that something was read.
///
/// # Errors
///
/// No manifest could be read at all.
pub(crate) fn check(manifests: &Manifests, recursive: bool) -> Result<(), Failure> {
    if manifests.files == 0 {
        let advice = if recursive {
            "no *.yaml, *.yml or *.json in the directory and its subdirectories"
        } else {
            "subdirectories are not searched (-R searches them)"
        };
        let excluded = excluded(&manifests.excluded);
        let advice = excluded.unwrap_or_else(|| advice.to_owned());
        return Err(Failure::unreadable(format!("read 0 files; {advice}")));
    }
    if manifests.nothing_read() {
        return Err(Failure::unreadable("no manifest could be read"));
    }
    Ok(())
}

/// Explains a path that was probably meant as the name of a pod: -f takes several paths.
fn explain_missing(filenames: &[PathBuf]) {
    for path in filenames.iter().skip(1).filter(|path| !path.exists()) {
        let name = path.to_string_lossy();
        if !name.contains('.') && name.parse::<PodName>().is_ok() {
            output::note(format_args!(
                "{name} was taken as a file, because -f takes several; if it is a pod, write --pod {name}"
            ));
        }
    }
}

/// What deserves a look in the manifests of `filenames`: fields that do not exist, what the API server rejects, directories
/// whose manifests another program makes, and those of which not all was read.
pub(crate) fn warnings(manifests: &Manifests, filenames: &[PathBuf]) -> Vec<String> {
    let warnings = manifests.warnings.iter().map(ToString::to_string);
    let built = built(filenames, "larder render -f -");
    let unsearched = manifests.unsearched.iter();
    let unsearched = unsearched.map(|path| unsearched_words(path));
    warnings.chain(built).chain(unsearched).collect()
}

/// `k8s has manifests in subdirectories, which are not searched (-R searches them)`
pub(crate) fn unsearched_words(directory: &Path) -> String {
    format!(
        "{} has manifests in subdirectories, which are not searched (-R searches them)",
        directory.display()
    )
}

/// What was left out of the manifests on purpose.
pub(crate) fn left_out(manifests: &Manifests) -> impl Iterator<Item = String> {
    skipped(&manifests.skipped)
        .into_iter()
        .chain(excluded(&manifests.excluded))
}

/// Names the program that makes manifests of a directory, and how its output gets to `reader`.
pub(crate) fn built(filenames: &[PathBuf], reader: &str) -> impl Iterator<Item = String> {
    let makers = [
        ("kustomization.yaml", "kustomize", "kubectl kustomize"),
        ("kustomization.yml", "kustomize", "kubectl kustomize"),
        ("Kustomization", "kustomize", "kubectl kustomize"),
        ("Chart.yaml", "Helm", "helm template"),
    ];
    filenames.iter().filter_map(move |path| {
        let (file, maker, command) = makers.iter().find(|(file, ..)| path.join(file).is_file())?;
        let path = path.display();
        Some(format!(
            "{path} has a {file}, so its manifests are made by {maker}: {command} {path} | {reader}"
        ))
    })
}

/// `skipped 3 objects of other kinds: 1 Role.rbac.authorization.k8s.io, 2 …`; `None` for none.
pub(crate) fn skipped(kinds: &BTreeMap<String, usize>) -> Option<String> {
    let objects = output::count(kinds.values().sum(), "object");
    let names = kinds
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect::<Vec<_>>()
        .join(", ");
    (!kinds.is_empty()).then(|| format!("skipped {objects} of other kinds: {names}"))
}

/// `--exclude left out 2 paths: k8s/flux-system, k8s/gen.yaml`; `None` for none.
pub(crate) fn excluded(paths: &BTreeSet<PathBuf>) -> Option<String> {
    let all: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let names = first_names(&all, MAX_NAMED);
    let paths = output::count(all.len(), "path");
    (!all.is_empty()).then(|| format!("--exclude left out {paths}: {names}"))
}
