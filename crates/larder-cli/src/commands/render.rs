//! `larder render`: the variables and files that each container would see.
//!
//! | module | purpose |
//! | --- | --- |
//! | `tree` | prints rendered pods |
//! | `files` | writes their volumes below a directory |

mod files;
mod tree;

use std::{collections::BTreeSet, process::ExitCode};

use larder_objects::manifest::Manifests;
use serde_json::Value;

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
    let (given, kubeconfig) = (&args.manifests.namespace, args.kubeconfig.as_deref());
    let namespace = default_namespace(given.as_deref(), kubeconfig, args.context.as_deref())?;
    let manifests = input::read(&args.manifests, &namespace)?;
    let warnings = input::warnings(&manifests, &args.manifests.filenames);
    let mut not_read: BTreeSet<_> = manifests.errors.iter().map(input::not_read).collect();
    let cluster = match args.output {
        RenderOutput::Json | RenderOutput::Yaml if !args.assume_cluster => {
            ClusterObjects::FromManifests
        }
        _ => ClusterObjects::Assumed,
    };
    let mut offline = if args.kubeconfig.is_some() {
        let source = origin(kubeconfig, args.context.as_deref());
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
    let pods = chosen(args, &offline, &namespace)?.into_iter();
    let rendered: Vec<_> = pods.map(|pod| RenderedPod::new(pod, &offline)).collect();

    output::results(|out| match args.output {
        RenderOutput::Json => write_json(out, &document(&rendered, &not_read, &warnings)),
        RenderOutput::Yaml => write_yaml(out, &document(&rendered, &not_read, &warnings)),
        RenderOutput::Tree => tree::write(out, &rendered, args.show_secrets, Style::of_stdout()),
        RenderOutput::Html => {
            let trees = tree::trees(&rendered, args.show_secrets, true);
            let trees = trees.chain(tree::not_read(&not_read));
            let trees = trees.chain(tree::warnings(&warnings));
            let summary = tree::summary(&rendered);
            write_page(out, "What containers see", summary, trees, &[])
        }
    })?;
    let mut failed = !not_read.is_empty() || rendered.iter().any(RenderedPod::has_errors);
    if let Some(dir) = &args.to {
        failed |= !files::write(dir, &rendered)?;
    }
    Ok(partial_if(failed))
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
    let trees = tree::trees(&rendered, false, false).map(|tree| tree.render(Style::PLAIN));
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
