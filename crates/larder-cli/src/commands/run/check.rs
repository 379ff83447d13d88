//! `larder run --check`: what is wrong with the configuration, the kubeconfig and the manifests, said before anything runs.
//!
//! They are read as `run` reads them, with the record of what it has accepted if there is one, and nothing is started,
//! locked or written.

use std::{io, path::Path, process::ExitCode};

use larder_agent::{
    annotations::{self, AnnotationProblem},
    config::Config,
    root_dir::RootDir,
};
use larder_objects::{
    Object, escaped,
    manifest::{Document, Manifest},
};
use larder_on_change::parse::AllowedActions;
use larder_pods::{source::FileSource, static_pod::StaticPods};

use super::{
    beside, flags,
    origin::{self, manifests_of},
};
use crate::{
    agent::load_config,
    args::RunArgs,
    outcome::{Failure, partial_if},
    output::{self, count},
    runtime::block_on,
};

/// Checks what `run` with these arguments would use.
pub(super) fn run(args: &RunArgs) -> ExitCode {
    let mut problems = Vec::new();
    let text = |failure: Failure| format!("{:#}", failure.error);
    let mut config = match load_config(args.place.config.as_deref(), &args.place, flags(args)) {
        Ok((config, warning)) => {
            // A kubelet's file has fields for the kubelet: they are named, and not wrong.
            if let Some(warning) = warning {
                output::note(format_args!("warning: {warning}"));
            }
            Some(config)
        }
        Err(failure) => {
            problems.push(text(failure));
            None
        }
    };
    let kubelet = config
        .as_mut()
        .map(|config| beside::find_kubelet(args, config));
    let not_found = kubelet.and_then(Result::err).map(text);
    let finds_kubelet = not_found.is_none();
    problems.extend(not_found);
    let allowed = config.as_ref().map(|config| config.on_change.from_pods);
    let allowed = allowed.unwrap_or_default();
    let manifests = match &config {
        Some(config) => manifests_of(args, config),
        None => args.manifests.as_ref(),
    };
    if let Some(path) = manifests {
        let root = config.as_ref().map(|config| &*config.root_dir);
        problems.extend(of_manifests(path, root, allowed));
    } else if let (Some(config), true) = (&config, finds_kubelet) {
        let origin = async { Ok(origin::check(args, config).await) };
        let checked = block_on(origin).and_then(|checked| checked);
        problems.extend(checked.err().map(text));
    }
    problems.extend(config.iter().flat_map(of_static_pods));
    problems.iter().for_each(output::note);
    if problems.is_empty() {
        output::note("no problem found");
    } else {
        let found = count(problems.len(), "problem");
        output::note(format_args!("{found} found"));
    }
    partial_if(!problems.is_empty())
}

/// The problems of the static pods, as their source would report them.
fn of_static_pods(config: &Config) -> Vec<String> {
    // Beside a kubelet, they are the kubelet's.
    let path = config.static_pod_path.as_ref();
    let Some(path) = path.filter(|_| config.beside.is_none()) else {
        return Vec::new();
    };
    let made = StaticPods::new(&config.node_name, config.static_pod_api_references);
    let (pods, problems) = FileSource::new(path, config.file_check_frequency, made).read();
    let annotations = pods.iter().flat_map(|pod| {
        let origin = format!("static pod {}", pod.key());
        let found = annotations::problems(&pod.decode(), config.on_change.from_pods);
        of_annotations(origin, found)
    });
    let problems = problems.iter().map(ToString::to_string);
    problems.chain(annotations).collect()
}

/// Reads the manifests at `path` as an agent with this record of what was accepted would at its start.
#[cfg(feature = "manifests")]
fn read(path: &Path, record: Option<&Path>) -> io::Result<(Vec<Document>, Vec<String>)> {
    let checked = larder_manifests::check(path, record)?;
    Ok((checked.documents, checked.problems))
}

#[cfg(not(feature = "manifests"))]
fn read(_: &Path, _: Option<&Path>) -> io::Result<(Vec<Document>, Vec<String>)> {
    Err(io::Error::other(super::embedded::NONE))
}

/// The problems of the manifests at `path`, each with its place.
fn of_manifests(path: &Path, root: Option<&Path>, allowed: AllowedActions) -> Vec<String> {
    let record = root.map(|root| root.join(RootDir::ACCEPTED));
    let (documents, problems) = match read(path, record.as_deref()) {
        Ok(read) => read,
        Err(error) => {
            let path = escaped(&path.to_string_lossy()).into_owned();
            return vec![format!("cannot read the manifests of {path}: {error}")];
        }
    };
    let annotations = documents.iter().flat_map(|document| {
        let found = match &document.manifest {
            Manifest::Pod(pod) => annotations::problems(pod, allowed),
            Manifest::ConfigMap(object) => of_object(object),
            Manifest::Secret(object) => of_object(object),
            _ => Vec::new(),
        };
        of_annotations(document.origin.to_string(), found)
    });
    problems.into_iter().chain(annotations).collect()
}

fn of_annotations(origin: String, found: Vec<AnnotationProblem>) -> impl Iterator<Item = String> {
    let found = found.into_iter();
    found.map(move |found| format!("{origin}: annotation {}: {}", found.key, found.problem))
}

fn of_object(object: &impl Object) -> Vec<AnnotationProblem> {
    annotations::problem_of_object(object.metadata())
        .into_iter()
        .collect()
}
