//! `larder run --check`: what is wrong with the configuration and the manifests, said before anything runs.
//!
//! They are read as `run` reads them, and nothing is started, locked or written.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use larder_agent::{
    annotations::{self, AnnotationProblem},
    config::Config,
};
use larder_objects::{
    Object, chain,
    manifest::{Loader, MadeObject, Manifest, Manifests},
};
use larder_on_change::parse::AllowedActions;

use super::{flags, origin::manifests_of};
use crate::{
    agent::load_config,
    args::RunArgs,
    outcome::partial_if,
    output::{self, count},
};

/// The namespace of manifests that name none.
const NAMESPACE: &str = "default";

/// Checks what `run` with these arguments would use.
pub(super) fn run(args: &RunArgs) -> ExitCode {
    let mut problems = Vec::new();
    let config = match load_config(args.place.config.as_deref(), &args.place, flags(args)) {
        Ok((config, warning)) => {
            // A kubelet's file has fields for the kubelet: they are named, and not wrong.
            if let Some(warning) = warning {
                output::note(format_args!("warning: {warning}"));
            }
            Some(config)
        }
        Err(failure) => {
            problems.push(format!("{:#}", failure.error));
            None
        }
    };
    let allowed = config.as_ref().map(|config| config.on_change.from_pods);
    for path in sources(args, config.as_ref()) {
        problems.extend(of_manifests(path, allowed.unwrap_or_default()));
    }
    problems.iter().for_each(output::note);
    if problems.is_empty() {
        output::note("no problem found");
    } else {
        let found = count(problems.len(), "problem");
        output::note(format_args!("{found} found"));
    }
    partial_if(!problems.is_empty())
}

/// The directories and files from which pods would come.
fn sources<'a>(args: &'a RunArgs, config: Option<&'a Config>) -> impl Iterator<Item = &'a Path> {
    let manifests = match config {
        Some(config) => manifests_of(args, config),
        None => args.manifests.as_ref(),
    };
    let static_pods = config.and_then(|config| config.static_pod_path.as_ref());
    manifests
        .into_iter()
        .chain(static_pods)
        .map(PathBuf::as_path)
}

/// The problems of the manifests at `path`, each with its place.
fn of_manifests(path: &Path, allowed: AllowedActions) -> Vec<String> {
    let mut loader = Loader::new(NAMESPACE);
    loader.path(path);
    let manifests = loader.finish();
    let warnings = manifests.warnings.iter().map(ToString::to_string);
    let errors = manifests.errors.iter().map(|error| chain(error));
    // Ciphertext is not delivered.
    let encrypted = manifests
        .made
        .iter()
        .filter_map(MadeObject::encrypted)
        .map(|error| chain(&error));
    let annotations = of_annotations(&manifests, allowed);
    let all = warnings.chain(errors).chain(encrypted);
    all.chain(annotations).collect()
}

fn of_annotations(manifests: &Manifests, allowed: AllowedActions) -> Vec<String> {
    let documents = manifests.documents.iter();
    let found = documents.flat_map(|document| {
        let found = match &document.manifest {
            Manifest::Pod(pod) => annotations::problems(pod, allowed),
            Manifest::ConfigMap(object) => of_object(object),
            Manifest::Secret(object) => of_object(object),
            _ => Vec::new(),
        };
        let origin = &document.origin;
        let found = found.into_iter();
        found.map(move |found| format!("{origin}: annotation {}: {}", found.key, found.problem))
    });
    found.collect()
}

fn of_object(object: &impl Object) -> Vec<AnnotationProblem> {
    annotations::problem_of_object(object.metadata())
        .into_iter()
        .collect()
}
