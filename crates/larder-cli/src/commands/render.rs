//! `larder render`: the variables and files that each container would see.
//!
//! | module | purpose |
//! | --- | --- |
//! | `tree` | prints rendered pods |
//! | `files` | writes their volumes below a directory |

mod files;
mod tree;

use crate::{
    args::{RenderArgs, RenderOutput},
    input,
    offline::{ClusterObjects, Offline, OfflinePod},
    outcome::{CommandOutcome, Failure},
    output::{self, Style, html::write_page},
    rendered::{RenderedPod, write_json},
};

pub(super) fn run(args: &RenderArgs) -> Result<CommandOutcome, Failure> {
    let input = input::read(&args.manifests)?;
    let cluster = match args.output {
        RenderOutput::Json if !args.assume_cluster => ClusterObjects::FromManifests,
        _ => ClusterObjects::Assumed,
    };
    let mut offline = Offline::new(input.manifests, cluster);
    if args.assume_missing {
        offline.assume_missing(None);
    }
    let pods = chosen(args, &offline)?;
    let rendered: Vec<_> = pods
        .into_iter()
        .map(|pod| RenderedPod::new(pod, &offline))
        .collect();

    output::results(|out| match args.output {
        RenderOutput::Json => write_json(out, &rendered),
        RenderOutput::Tree => tree::write(out, &rendered, args.show_secrets, Style::of_stdout()),
        RenderOutput::Html => {
            let trees = tree::trees(&rendered, args.show_secrets);
            let summary = tree::summary(&rendered);
            write_page(out, "What containers see", summary, trees, &[])
        }
    })?;
    let mut failed = input.had_errors || rendered.iter().any(RenderedPod::has_errors);
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
