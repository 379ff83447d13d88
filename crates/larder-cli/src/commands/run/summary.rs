//! The summary that `larder run` prints once it serves: pods, volumes, and their paths.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use larder_agent::status::{AgentOverview, Delivery, Phase, PodOverview, PodStatus};

use crate::{
    logging::limit::admits,
    output::{Paint, Style, count, escaped},
};

/// The summary, for people; with what to try next if the pods come from `manifests`.
pub(super) fn of(
    status: &AgentOverview,
    pods: impl IntoIterator<Item = PodStatus>,
    manifests: Option<&Path>,
    style: Style,
) -> String {
    let mut text = String::new();
    let volumes: usize = status.pods.iter().map(|pod| pod.volumes).sum();
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{} serves {} and {} under {}",
        style.paint(Paint::Bold, format_args!("node {}", status.node)),
        count(status.pods.len(), "pod"),
        count(volumes, "volume"),
        escaped(&status.root_dir),
    );
    if !status.silent_sources.is_empty() {
        let silent = format!("not reported yet: {}", status.silent_sources.join(", "));
        let _ = writeln!(text, "{}", style.paint(Paint::Yellow, silent));
    }
    if status.pods.is_empty() && status.silent_sources.is_empty() {
        let hint = match manifests {
            Some(_) => "no pod in the manifests is for this node".to_owned(),
            None => format!(
                "no pod has spec.nodeName {}; pods without a node are not served",
                status.node
            ),
        };
        let _ = writeln!(text, "{}", style.paint(Paint::Yellow, hint));
    }
    for pod in pods {
        let path = format!("{}/by-name/{}/{}", status.root_dir, pod.namespace, pod.name);
        let name = style.paint(Paint::Bold, format_args!("{}/{}", pod.namespace, pod.name));
        let _ = writeln!(text, "\n{name}  {}", style.paint(Paint::Dim, path));
        let widths = pod.volumes.iter().map(|volume| volume.name.len());
        let width = widths.max().unwrap_or(0);
        for volume in &pod.volumes {
            let state = match volume.delivery.phase {
                Phase::Delivered => style.paint(Paint::Green, count(volume.files, "file")),
                _ => style.paint(Paint::Red, undelivered(&volume.delivery)),
            };
            let (name, type_) = (escaped(&volume.name), escaped(&volume.type_));
            let _ = writeln!(text, "  {name:<width$}  {type_:<11}  {state}");
            let path = volume.path.strip_prefix(&*pod.path);
            let path = path.map_or(&*volume.path, |path| path.trim_start_matches('/'));
            let _ = writeln!(text, "  {:<width$}  {}", "", style.paint(Paint::Dim, path));
        }
        let containers = pod.containers.iter();
        let containers = containers.filter(|one| one.delivery.phase != Phase::Delivered);
        for container in containers {
            let state = style.paint(Paint::Red, undelivered(&container.delivery));
            let name = escaped(&container.name);
            let _ = writeln!(text, "  environment of {name}  {state}");
        }
    }
    if let Some(manifests) = manifests {
        let root = &status.root_dir;
        let manifests = manifests.display();
        let next = [
            format!("edit a file in {manifests}, and the volumes follow; in another terminal:"),
            format!("  larder status --root-dir {root}"),
            format!("  larder exec --root-dir {root} --pod NAMESPACE/POD -- sh"),
            format!(
                "Ctrl-C stops, and leaves the volumes; larder clean --root-dir {root} removes them"
            ),
        ];
        text.push('\n');
        for line in next {
            let _ = writeln!(text, "{}", style.paint(Paint::Dim, line));
        }
    }
    text
}

/// A line for each pod that came, went, or is in another phase than before, for people; as many as a log takes.
pub(super) fn changes(before: &[PodOverview], now: &[PodOverview], style: Style) -> String {
    let mut text = String::new();
    let mut known: BTreeMap<_, _> = before.iter().map(|pod| (&pod.uid, pod)).collect();
    for pod in now {
        let was = known.remove(&pod.uid);
        let (delivery, is_new) = (&pod.delivery, was.is_none());
        let is_same = was.is_some_and(|was| {
            was.delivery.phase == delivery.phase && was.delivery.reason == delivery.reason
        });
        if is_same || !admits("pod changed", &pod.key) {
            continue;
        }
        let state = match delivery.phase {
            Phase::Delivered => {
                style.paint(Paint::Green, count(pod.volumes, "volume") + " delivered")
            }
            phase if delivery.reason.is_empty() => style.paint(Paint::Yellow, phase.as_str()),
            _ => style.paint(Paint::Red, undelivered(delivery)),
        };
        let sign = if is_new { "+" } else { "~" };
        let name = style.paint(Paint::Bold, &pod.key);
        let _ = writeln!(text, "{sign} {name}  {state}");
    }
    let gone = before.iter().filter(|pod| known.contains_key(&pod.uid));
    for pod in gone.filter(|pod| admits("pod gone", &pod.key)) {
        let name = style.paint(Paint::Bold, &pod.key);
        let _ = writeln!(text, "- {name}  gone, its volumes removed");
    }
    text
}

fn undelivered(delivery: &Delivery) -> String {
    format!("{}: {}", delivery.phase.as_str(), delivery.reason)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use larder_objects::ObjectKey;
    use larder_pods::ResolvedPodUid;
    use serde_json::json;

    use super::*;

    fn pods(pods: &[(&str, Phase, &str)]) -> Vec<PodOverview> {
        let pods = pods.iter().map(|(name, phase, reason)| PodOverview {
            key: ObjectKey::new("demo", *name),
            uid: ResolvedPodUid::new(*name),
            delivery: Delivery::new(*phase, *reason, Timestamp::UNIX_EPOCH),
            volumes: 0,
        });
        pods.collect()
    }

    #[test]
    fn each_pod_that_comes_goes_or_waits_has_a_line() {
        let before = pods(&[
            ("a", Phase::Delivered, ""),
            ("b", Phase::Delivered, ""),
            ("c", Phase::Waiting, ""),
        ]);
        let now = pods(&[
            ("a", Phase::Delivered, ""),
            ("c", Phase::Delivered, ""),
            ("d", Phase::Failing, "secret \"x\" not found"),
        ]);
        assert_eq!(
            changes(&before, &now, Style::PLAIN),
            "~ demo/c  0 volumes delivered\n+ demo/d  Failing: secret \"x\" not found\n- demo/b  gone, its volumes removed\n"
        );
        assert_eq!(changes(&now, &now, Style::PLAIN), "");
    }

    #[test]
    fn a_node_without_pods_says_why() {
        let overview = AgentOverview {
            node: "n1".to_owned(),
            ..AgentOverview::default()
        };
        let text = of(&overview, [], None, Style::PLAIN);
        assert!(text.contains("no pod has spec.nodeName n1"), "{text}");
        // Those of manifests are bound to it.
        let text = of(&overview, [], Some(Path::new("m")), Style::PLAIN);
        assert!(!text.contains("pods without a node"), "{text}");
    }

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
        let overview = AgentOverview {
            node: evil.to_owned(),
            root_dir: evil.to_owned(),
            silent_sources: vec![evil.to_owned()],
            ..AgentOverview::default()
        };
        let pod = serde_json::from_value(status).unwrap();
        let text = of(&overview, [pod], Some(Path::new(evil)), Style::PLAIN);
        let acts = |character: char| character.is_control() && character != '\n';
        assert!(!text.contains(acts), "{text:?}");
    }
}
