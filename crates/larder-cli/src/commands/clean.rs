//! `larder clean`: removes the files and mounts of a stopped agent.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use larder_agent::clean::Leftovers;
use larder_objects::chain;

use crate::{
    agent::client_config,
    args::CleanArgs,
    outcome::{Failure, partial_if},
    output,
};

pub(super) fn run(args: &CleanArgs) -> Result<ExitCode, Failure> {
    let root = client_config(&args.place)?.root_dir;
    let found = Leftovers::find(&root).map_err(|error| anyhow::anyhow!("{}", chain(&error)))?;
    let Some(found) = found else {
        let pods = root.join("pods");
        let root = root.display();
        if pods.exists() {
            let error = anyhow::anyhow!(
                "no agent has used {root}, so its pods are those of another program, such as a kubelet: nothing was \
                 removed"
            );
            return Err(error.into());
        }
        output::note(format_args!(
            "no agent has used {root}, so there is nothing to remove"
        ));
        return Ok(ExitCode::SUCCESS);
    };
    let verb = if args.dry_run {
        "would remove"
    } else {
        "removed"
    };
    // With the place of each.
    let mut found_lines = Vec::new();
    let pods = found.path().join("pods");
    for pod in &found.pods {
        let name = match &pod.name {
            Some((namespace, name)) => format!("{namespace}/{name}"),
            None => pod.uid.clone(),
        };
        let volumes = output::count(pod.volumes.len(), "volume");
        found_lines.push((format!("{verb} pod {name}: {volumes}"), pods.join(&pod.uid)));
    }
    for path in &found.others {
        found_lines.push((format!("{verb} {}", path.display()), path.clone()));
    }
    let root = found.path().to_owned();
    let shown = root.display();
    let lines = |found: Vec<(String, PathBuf)>| found.into_iter().map(|(line, _)| line);
    if args.dry_run {
        let mut lines: Vec<_> = lines(found_lines).collect();
        lines.push(format!("{verb} {shown} if nothing else is in it"));
        output::lines(&lines)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (errors, is_left) = found.remove();
    found_lines.retain(|(_, path)| path.symlink_metadata().is_err());
    let mut lines: Vec<_> = lines(found_lines).collect();
    lines.extend(match (errors.is_empty(), is_left) {
        (false, _) => None,
        (true, false) => Some(format!("{verb} {shown}")),
        (true, true) => Some(format!("kept {shown}: {}", why_kept(&root))),
    });
    output::lines(&lines)?;
    for error in &errors {
        output::error(error);
    }
    Ok(partial_if(!errors.is_empty()))
}

/// `it has other files: notes.txt`
fn why_kept(root: &Path) -> String {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match names.collect::<Vec<_>>().join(", ") {
        names if names.is_empty() => "it cannot be removed".to_owned(),
        names => format!("it has other files: {names}"),
    }
}
