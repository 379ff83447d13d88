//! `larder render`: the variables and files that each container would see.
//!
//! | module | purpose |
//! | --- | --- |
//! | `tree` | prints rendered pods |
//! | `verdict` | whether they start, and their sum |
//! | `env` | the variables of one container as an env file |
//! | `files` | writes their volumes below a directory |

mod env;
mod files;
mod tree;
mod verdict;

use std::{collections::BTreeSet, process::ExitCode};

use anyhow::Context as _;
use larder_objects::manifest::Manifests;
use serde_json::Value;

use self::{
    env::EnvFile,
    verdict::{judged, sum},
};
use crate::{
    agent::{default_namespace, origin},
    args::{RenderArgs, RenderOutput},
    cluster, input,
    offline::{ClusterObjects, Offline, OfflinePod, Outside},
    outcome::{Failure, partial_if},
    output::{self, Style, html::write_page, json::write_json, yaml::write_yaml},
    rendered::{RenderedPod, document},
};

pub(super) fn run(args: &RenderArgs) -> Result<ExitCode, Failure> {
    if args.container.is_some() && args.output != RenderOutput::Env {
        let why = "-c selects the container of -o env: other formats have all containers";
        return Err(Failure::unreadable(why));
    }
    let (given, kubeconfig) = (
        &args.manifests.reading.namespace,
        args.kubeconfig.as_deref(),
    );
    let namespace = default_namespace(given.as_deref(), kubeconfig, args.context.as_deref())?;
    let manifests = input::read(&args.manifests, &namespace)?;
    let mut said = input::warnings(&manifests, &args.manifests.filenames);
    let warnings = said.len();
    said.extend(input::left_out(&manifests));
    let (offline, not_read) = objects(args, manifests)?;
    let pods = chosen(args, &offline, &namespace)?.into_iter();
    let pods: Vec<_> = pods.map(|pod| RenderedPod::new(pod, &offline)).collect();

    let has_warnings = || warnings > 0 || pods.iter().any(RenderedPod::deserves_a_look);
    let mut failed = !not_read.is_empty() || args.strict && has_warnings();
    let remarks = Remarks {
        said,
        warnings,
        not_read,
    };
    let is_whole = show(args, &pods, &remarks)?;
    if !is_whole && args.kubeconfig.is_none() {
        output::note_kubeconfig();
    }
    failed |= !is_whole;
    if let Some(dir) = &args.to {
        failed |= !files::write(dir, &pods)?;
    }
    Ok(partial_if(failed))
}

/// What is said besides the pods.
struct Remarks {
    /// What deserves a look in the manifests, and what was left out of them.
    said: Vec<String>,
    /// Number of the former.
    warnings: usize,
    /// What could not be read, with the reasons.
    not_read: BTreeSet<(String, String)>,
}

/// The objects of `manifests`, completed by an API server if one is given, and what could not be read.
fn objects(
    args: &RenderArgs,
    manifests: Manifests,
) -> Result<(Offline, BTreeSet<(String, String)>), Failure> {
    let mut not_read: BTreeSet<_> = manifests.errors.iter().map(input::not_read).collect();
    let cluster = match args.output {
        RenderOutput::Json | RenderOutput::Yaml if !args.assume_cluster => {
            ClusterObjects::FromManifests
        }
        _ => ClusterObjects::Assumed,
    };
    let mut offline = if let Some(kubeconfig) = &args.kubeconfig {
        let source = origin(Some(kubeconfig), args.context.as_deref());
        let known = manifests.errors.len();
        let (manifests, missed) = cluster::complete(source, manifests)?;
        for error in &manifests.errors[known..] {
            output::error(error);
            not_read.insert(input::not_read(error));
        }
        not_read.extend(missed.reasons);
        Offline::of_cluster(manifests, &missed.objects)
    } else {
        Offline::new(manifests, cluster)
    };
    if args.assume_missing {
        offline.take_outside(Outside::Assumed);
    }
    Ok((offline, not_read))
}

/// Prints the pods; returns `false` if something in what is printed fails.
fn show(args: &RenderArgs, pods: &[RenderedPod<'_>], remarks: &Remarks) -> Result<bool, Failure> {
    let json = || document(pods, &remarks.not_read, &remarks.said);
    let judged = || {
        let judged = judged(pods);
        let sum = sum(&judged, remarks.warnings, remarks.not_read.len());
        (judged, sum)
    };
    match args.output {
        RenderOutput::Env => {
            let pod = pods.first().context("no pod is chosen")?;
            let file = EnvFile::new(pod, env::chosen(pod, args.container.as_deref())?);
            output::results(|out| file.write(out))?;
            return Ok(file.is_whole());
        }
        RenderOutput::Json => output::results(|out| write_json(out, &json())),
        RenderOutput::Yaml => output::results(|out| write_yaml(out, &json())),
        RenderOutput::Tree => {
            let (judged, (paint, sum)) = judged();
            let style = Style::of_stdout();
            output::results(|out| tree::write(out, &judged, paint, sum, args.show_secrets, style))
        }
        RenderOutput::Html => {
            let (judged, (_, sum)) = judged();
            let shown = tree::Shown {
                secrets: args.show_secrets,
                contents: true,
            };
            let trees = tree::trees(&judged, shown)
                .chain(tree::not_read(&remarks.not_read))
                .chain(tree::warnings(&remarks.said));
            output::results(|out| write_page(out, "What containers see", &sum, "", trees))
        }
    }?;
    Ok(!pods.iter().any(RenderedPod::has_errors))
}

/// The report of `larder render -o json`, and its trees. For tests that hold them to a model.
pub fn render_report(manifests: Manifests, assume_missing: bool) -> (Value, String) {
    let mut offline = Offline::new(manifests, ClusterObjects::Assumed);
    if assume_missing {
        offline.take_outside(Outside::Assumed);
    }
    let pods = offline.pods.iter();
    let rendered: Vec<_> = pods.map(|pod| RenderedPod::new(pod, &offline)).collect();
    let json = serde_json::to_value(document(&rendered, &BTreeSet::new(), &[]));
    let judged = judged(&rendered);
    let trees = tree::trees(&judged, tree::Shown::default()).map(|tree| tree.render(Style::PLAIN));
    (json.unwrap_or_default(), trees.collect())
}

/// The requested pods.
fn chosen<'a>(
    args: &RenderArgs,
    offline: &'a Offline,
    namespace: &str,
) -> Result<Vec<&'a OfflinePod>, Failure> {
    let Some(wanted) = &args.pod else {
        if offline.pods.is_empty() {
            output::note("no pod in the manifests");
        }
        return Ok(offline.pods.iter().collect());
    };
    let position = offline.position(wanted, namespace)?;
    Ok(vec![&offline.pods[position]])
}
