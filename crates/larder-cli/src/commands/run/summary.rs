//! What `larder run` tells once it serves: which pods, which volumes, and where.

use std::fmt::Write as _;

use larder_agent::status::{AgentStatus, Phase};

use crate::output::Style;

/// The summary, for people.
pub(super) fn of(status: &AgentStatus, style: Style) -> String {
    let mut text = String::new();
    let volumes: usize = status.pods.iter().map(|pod| pod.volumes.len()).sum();
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{} serves {} and {} under {}",
        style.bold(format_args!("node {}", status.node)),
        count(status.pods.len(), "pod"),
        count(volumes, "volume"),
        status.root_dir,
    );
    if !status.silent_sources.is_empty() {
        let _ = writeln!(
            text,
            "{}",
            style.yellow(format_args!(
                "no word yet from: {}",
                status.silent_sources.join(", ")
            ))
        );
    }
    for pod in &status.pods {
        let path = format!("{}/by-name/{}/{}", status.root_dir, pod.namespace, pod.name);
        let _ = writeln!(
            text,
            "\n{}  {}",
            style.bold(format_args!("{}/{}", pod.namespace, pod.name)),
            style.dim(path)
        );
        let width = pod
            .volumes
            .iter()
            .map(|volume| volume.name.len())
            .max()
            .unwrap_or(0);
        for volume in &pod.volumes {
            let state = match volume.delivery.phase {
                Phase::Delivered => style.green(count(volume.files, "file")),
                phase => style.red(format_args!(
                    "{}: {}",
                    phase.as_str(),
                    volume.delivery.reason
                )),
            };
            let _ = writeln!(
                text,
                "  {:<width$}  {:<11}  {state}",
                volume.name, volume.type_
            );
            let _ = writeln!(text, "  {:<width$}  {}", "", style.dim(&volume.path));
        }
        for container in pod
            .containers
            .iter()
            .filter(|container| container.delivery.phase != Phase::Delivered)
        {
            let delivery = &container.delivery;
            let state = style.red(format_args!(
                "{}: {}",
                delivery.phase.as_str(),
                delivery.reason
            ));
            let _ = writeln!(text, "  environment of {}  {state}", container.name);
        }
    }
    text
}

fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}
