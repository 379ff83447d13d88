//! The summary that `larder run` prints once it serves: pods, volumes, and their paths.

use std::fmt::Write as _;

use larder_agent::status::{AgentStatus, Phase};

use crate::output::{Style, escaped};

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
        escaped(&status.root_dir),
    );
    if !status.silent_sources.is_empty() {
        let _ = writeln!(
            text,
            "{}",
            style.yellow(format_args!(
                "not reported yet: {}",
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
                escaped(&volume.name),
                escaped(&volume.type_)
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
            let _ = writeln!(
                text,
                "  environment of {}  {state}",
                escaped(&container.name)
            );
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let evil = "x\u{1b}[2J\r";
        let delivery = json!({"phase": "Failing", "since": "2026-01-01T00:00:00Z", "reason": evil});
        let with = |mut value: serde_json::Value| {
            let fields = delivery.as_object().unwrap().clone();
            value.as_object_mut().unwrap().extend(fields);
            value
        };
        let status = with(json!({
            "namespace": evil, "name": evil, "uid": evil, "source": evil, "path": evil,
            "volumes": [with(json!({"name": evil, "type": evil, "path": evil, "files": 1}))],
            "containers": [with(json!({"name": evil, "path": evil}))],
        }));
        let status = serde_json::from_value(json!({
            "node": evil, "rootDir": evil, "started": "2026-01-01T00:00:00Z", "changeDetection": "Watch",
            "watchScope": "Object", "silentSources": [evil], "problems": [], "pods": [status], "objects": [],
        }));
        let text = of(&status.unwrap(), Style::PLAIN);
        let acts = |character: char| character.is_control() && character != '\n';
        assert!(!text.contains(acts), "{text:?}");
    }
}
