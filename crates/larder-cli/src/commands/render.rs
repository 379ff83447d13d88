//! `larder render`: the variables and files that each container would see.
//!
//! | module | purpose |
//! | --- | --- |
//! | `tree` | prints rendered pods |
//! | `files` | writes their volumes below a directory |

mod files;
mod tree;

use crate::{
    agent::origin,
    args::{RenderArgs, RenderOutput},
    cluster, input,
    offline::{ClusterObjects, Offline, OfflinePod},
    outcome::{CommandOutcome, Failure},
    output::{self, Style, html::write_page, json::write_json, yaml::write_yaml},
    rendered::{RenderedPod, document},
};

pub(super) fn run(args: &RenderArgs) -> Result<CommandOutcome, Failure> {
    let input = input::read(&args.manifests)?;
    let mut failed = input.had_errors;
    let cluster = match args.output {
        RenderOutput::Json | RenderOutput::Yaml if !args.assume_cluster => {
            ClusterObjects::FromManifests
        }
        _ => ClusterObjects::Assumed,
    };
    let mut offline = if args.kubeconfig.is_some() {
        let source = origin(args.kubeconfig.as_deref(), args.context.as_deref());
        let known = input.manifests.errors.len();
        let (manifests, not_read) = cluster::complete(source, input.manifests)?;
        for error in &manifests.errors[known..] {
            output::error(error);
        }
        failed |= manifests.errors.len() > known || !not_read.reasons.is_empty();
        Offline::of_cluster(manifests, &not_read.objects)
    } else {
        Offline::new(input.manifests, cluster)
    };
    if args.assume_missing {
        offline.assume_missing(None);
    }
    let pods = chosen(args, &offline)?;
    let rendered: Vec<_> = pods
        .into_iter()
        .map(|pod| RenderedPod::new(pod, &offline))
        .collect();

    output::results(|out| match args.output {
        RenderOutput::Json => write_json(out, &document(&rendered)),
        RenderOutput::Yaml => write_yaml(out, &document(&rendered)),
        RenderOutput::Tree => tree::write(out, &rendered, args.show_secrets, Style::of_stdout()),
        RenderOutput::Html => {
            let trees = tree::trees(&rendered, args.show_secrets);
            let summary = tree::summary(&rendered);
            write_page(out, "What containers see", summary, trees, &[])
        }
    })?;
    failed |= rendered.iter().any(RenderedPod::has_errors);
    if let Some(dir) = &args.to {
        failed |= !files::write(dir, &rendered)?;
    }
    Ok(CommandOutcome::partial_if(failed))
}

/// The requested pods.
fn chosen<'a>(args: &RenderArgs, offline: &'a Offline) -> Result<Vec<&'a OfflinePod>, Failure> {
    let Some(wanted) = &args.pod else {
        if offline.pods.is_empty() {
            output::note("no pod in the manifests");
        }
        return Ok(offline.pods.iter().collect());
    };
    let namespace = &args.manifests.namespace;
    let mut pods = offline.pods.iter();
    match pods.find(|pod| wanted.names(&pod.pod.metadata, namespace)) {
        Some(pod) => Ok(vec![pod]),
        None => Err(offline
            .no_pod(wanted.namespace(namespace), wanted.name())
            .into()),
    }
}
