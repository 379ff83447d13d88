//! The summary that `larder run` prints once it serves: pods, volumes, and their paths.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use larder_agent::{
    agent::AgentHandle,
    status::{AgentOverview, Delivery, Phase, PodOverview, PodStatus},
};
use larder_console::{Format, Stream};
use serde_json::Map;
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::{
    commands::status::short_path,
    logging::limit::LineLimit,
    output::{Paint, Style, count, escaped, live},
};

/// Time after which the summary is printed, even if something is still missing.
const SUMMARY: Duration = Duration::from_millis(1500);
/// Time between two reports of a first pass that takes longer.
const PROGRESS: Duration = Duration::from_secs(5);
/// Time between two checks whether everything is delivered.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Pause before changes of pods are printed, in which more of them may come.
const SETTLE: Duration = Duration::from_millis(100);

/// Prints what is served, once everything is delivered or the wait is over. Then reports progress until the first pass
/// over all pods is done. After it, redraws what is served on a terminal that can show it as a whole; elsewhere, reports
/// each pod that comes, goes or waits.
pub(super) async fn summarize(agent: AgentHandle, manifests: Option<PathBuf>, limit: LineLimit) {
    // In both cases: the summary shows what is missing.
    let mut is_ready = is_ready_within(&agent, SUMMARY).await;
    let mut changes = agent.pod_changes();
    let style = Style::of_stdout();
    let whole =
        |overview: &AgentOverview| of(overview, agent.pod_statuses(), manifests.as_deref(), style);
    let mut shown = agent.overview();
    let text = whole(&shown);
    let display = if larder_console::format() == Format::Json {
        Display::Json
    } else if live::fits(&text) {
        Display::Live
    } else {
        // One that the terminal cannot hold would lose lines.
        Display::Lines
    };
    match display {
        Display::Live => live::draw(text),
        Display::Lines => print(text),
        Display::Json => {
            larder_console::report(headline(&shown, Style::PLAIN));
            news(&[], &shown.pods, &limit)
                .iter()
                .for_each(PodNews::report);
        }
    }
    while !is_ready {
        let overview = agent.overview();
        let waiting_for = overview.silent_sources.join(", ");
        let (tried, pods) = (overview.tried(), overview.pods.len());
        info!(waiting_for, tried, pods, "first pass under way");
        is_ready = is_ready_within(&agent, PROGRESS).await;
        if is_ready {
            info!("first pass done");
        }
    }
    while changes.changed().await.is_ok() {
        // Changes that belong together are one line.
        sleep(SETTLE).await;
        changes.mark_unchanged();
        let overview = agent.overview();
        let news = || news(&shown.pods, &overview.pods, &limit);
        match display {
            Display::Live => live::draw(whole(&overview)),
            Display::Lines => print(news().iter().map(|news| news.line(style)).collect()),
            Display::Json => news().iter().for_each(PodNews::report),
        }
        shown = overview;
    }
}

/// How what is served is shown.
#[derive(Clone, Copy)]
enum Display {
    /// As a whole, redrawn in place.
    Live,
    /// As a whole once, then by a line for each pod that comes, goes or waits.
    Lines,
    /// By a line for each pod, as those of the log.
    Json,
}

fn print(text: String) {
    // If it is dropped, its lines are counted.
    let _ = larder_console::write(Stream::Out, text.into_bytes());
}

/// Waits for the first pass over all pods, for this time at the longest. Returns whether it is done.
pub(super) async fn is_ready_within(agent: &AgentHandle, limit: Duration) -> bool {
    let ready = async {
        while !agent.is_ready() {
            sleep(POLL_INTERVAL).await;
        }
    };
    timeout(limit, ready).await.is_ok()
}

/// What is served, and where, in one line.
pub(super) fn headline(status: &AgentOverview, style: Style) -> String {
    // Beside a kubelet, the volumes are the kubelet's.
    let beside = status.beside.as_ref();
    let directory = beside.map_or(&status.root_dir, |beside| &beside.kubelet_root_dir);
    format!(
        "{} serves {} and {} under {}",
        style.paint(Paint::Bold, format_args!("node {}", status.node)),
        count(status.pods.len(), "pod"),
        count(status.pods.iter().map(|pod| pod.volumes).sum(), "volume"),
        escaped(directory),
    )
}

/// The summary, for people; with what to try next if the pods come from `manifests`.
pub(super) fn of(
    status: &AgentOverview,
    pods: impl IntoIterator<Item = PodStatus>,
    manifests: Option<&Path>,
    style: Style,
) -> String {
    let mut text = String::new();
    // Writing to a String does not fail; nor does it below.
    let _ = writeln!(text, "{}", headline(status, style));
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
        write_pod(&mut text, &pod, &status.root_dir, style);
    }
    if let Some(manifests) = manifests {
        write_next_steps(&mut text, manifests, &status.root_dir, style);
    }
    text
}

fn write_pod(text: &mut String, pod: &PodStatus, root_dir: &str, style: Style) {
    let path = short_path(root_dir, pod);
    let name = style.paint(Paint::Bold, format_args!("{}/{}", pod.namespace, pod.name));
    let _ = writeln!(text, "\n{name}  {}", style.paint(Paint::Dim, path));
    let width = pod
        .volumes
        .iter()
        .map(|volume| volume.name.len())
        .max()
        .unwrap_or(0);
    for volume in &pod.volumes {
        let state = match volume.delivery.phase {
            Phase::Delivered => style.paint(Paint::Green, count(volume.files, "file")),
            _ => style.paint(Paint::Red, undelivered(&volume.delivery)),
        };
        let (name, type_) = (escaped(&volume.name), escaped(&volume.type_));
        let _ = writeln!(text, "  {name:<width$}  {type_:<11}  {state}");
        let path = volume
            .path
            .strip_prefix(&*pod.path)
            .map_or(&*volume.path, |path| path.trim_start_matches('/'));
        let _ = writeln!(text, "  {:<width$}  {}", "", style.paint(Paint::Dim, path));
    }
    let containers = pod
        .containers
        .iter()
        .filter(|one| one.delivery.phase != Phase::Delivered);
    for container in containers {
        let state = style.paint(Paint::Red, undelivered(&container.delivery));
        let name = escaped(&container.name);
        let _ = writeln!(text, "  environment of {name}  {state}");
    }
}

fn write_next_steps(text: &mut String, manifests: &Path, root_dir: &str, style: Style) {
    let manifests = manifests.display();
    let next = [
        format!("edit a file in {manifests}, and the volumes follow; in another terminal:"),
        format!("  larder status --root-dir {root_dir}"),
        format!("  larder exec --root-dir {root_dir} --pod NAMESPACE/POD -- sh"),
        format!(
            "Ctrl-C stops, and leaves the volumes; larder clean --root-dir {root_dir} removes them"
        ),
    ];
    text.push('\n');
    for line in next {
        let _ = writeln!(text, "{}", style.paint(Paint::Dim, line));
    }
}

/// A pod that came, went, or is in another phase than before.
pub(super) struct PodNews<'a> {
    pod: &'a PodOverview,
    change: PodChange,
}

#[derive(Clone, Copy)]
enum PodChange {
    New,
    Changed,
    Gone,
}

/// The pods that came, went or are in another phase than before; as many as a log takes.
pub(super) fn news<'a>(
    before: &'a [PodOverview],
    now: &'a [PodOverview],
    limit: &LineLimit,
) -> Vec<PodNews<'a>> {
    let mut known: BTreeMap<_, _> = before.iter().map(|pod| (&pod.uid, pod)).collect();
    let mut all = Vec::new();
    for pod in now {
        let change = match known.remove(&pod.uid) {
            None => PodChange::New,
            Some(was)
                if was.delivery.phase == pod.delivery.phase
                    && was.delivery.reason == pod.delivery.reason =>
            {
                continue;
            }
            Some(_) => PodChange::Changed,
        };
        all.push(PodNews { pod, change });
    }
    let gone = before.iter().filter(|pod| known.contains_key(&pod.uid));
    all.extend(gone.map(|pod| PodNews {
        pod,
        change: PodChange::Gone,
    }));
    all.retain(|news| limit.admits(news.message(), &news.pod.key));
    all
}

impl PodNews<'_> {
    fn message(&self) -> &'static str {
        match self.change {
            PodChange::New => "pod new",
            PodChange::Changed => "pod changed",
            PodChange::Gone => "pod gone",
        }
    }

    /// A line for people.
    pub(super) fn line(&self, style: Style) -> String {
        let delivery = &self.pod.delivery;
        let state = match delivery.phase {
            _ if matches!(self.change, PodChange::Gone) => "gone".to_owned(),
            Phase::Delivered => {
                let volumes = count(self.pod.volumes, "volume");
                style.paint(Paint::Green, volumes + " delivered")
            }
            phase if delivery.reason.is_empty() => style.paint(Paint::Yellow, phase.as_str()),
            _ => style.paint(Paint::Red, undelivered(delivery)),
        };
        let sign = match self.change {
            PodChange::New => "+",
            PodChange::Changed => "~",
            PodChange::Gone => "-",
        };
        let name = style.paint(Paint::Bold, &self.pod.key);
        format!("{sign} {name}  {state}\n")
    }

    /// Prints it as a line of JSON.
    pub(super) fn report(&self) {
        let pod = self.pod;
        let delivery = &self.pod.delivery;
        let mut fields = Map::new();
        fields.insert("pod".to_owned(), pod.key.to_string().into());
        if !matches!(self.change, PodChange::Gone) {
            fields.insert("phase".to_owned(), delivery.phase.as_str().into());
            fields.insert("volumes".to_owned(), pod.volumes.into());
            if !delivery.reason.is_empty() {
                fields.insert("reason".to_owned(), delivery.reason.as_str().into());
            }
        }
        larder_console::report_fields(self.message(), fields);
    }
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
        let limit = LineLimit::default();
        let lines = |before: &[PodOverview], now: &[PodOverview]| -> String {
            let news = news(before, now, &limit);
            news.iter().map(|news| news.line(Style::PLAIN)).collect()
        };
        assert_eq!(
            lines(&before, &now),
            "~ demo/c  0 volumes delivered\n+ demo/d  Failing: secret \"x\" not found\n- demo/b  gone\n"
        );
        assert_eq!(lines(&now, &now), "");
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
    fn paths_beside_a_kubelet_are_the_kubelets() {
        let beside = json!({
            "identity": "", "rights": [], "kubeletVersion": "", "kubeletRootDir": "/var/lib/kubelet", "ttlSecs": 0,
            "dryRun": false, "problem": "",
        });
        let overview = AgentOverview {
            root_dir: "/var/lib/larder".to_owned(),
            beside: serde_json::from_value(beside).unwrap(),
            ..AgentOverview::default()
        };
        let pod = json!({
            "namespace": "demo", "name": "web", "uid": "u", "source": "api", "path": "/var/lib/kubelet/pods/u",
            "phase": "Delivered", "since": "2026-01-01T00:00:00Z", "volumes": [], "containers": [],
        });
        let pod = serde_json::from_value(pod).unwrap();
        let text = of(&overview, [pod], None, Style::PLAIN);
        assert!(text.contains("under /var/lib/kubelet\n"), "{text}");
        assert!(
            text.contains("demo/web  /var/lib/kubelet/pods/u\n"),
            "{text}"
        );
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
