//! The status of an agent as cards of a page: what changed last, a card for each pod, and the objects.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use larder_agent::status::{
    AgentStatus, ContainerStatus, Delivery, HookStatus, Phase, PodStatus, VolumeStatus,
};

use crate::{
    commands::status::{Urgency, most_urgent_first},
    output::{Paint, age, count, html::Card, tree::Branch},
};

/// Number of changes in the feed.
const MAX_CHANGES: usize = 5;

/// What the page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) summary: String,
    pub(super) cards: Vec<Card>,
}

impl View {
    pub(super) fn new(status: &AgentStatus, feed: &ChangeFeed, now: Timestamp) -> Self {
        let mut cards = Vec::new();
        if !status.problems.is_empty() || !status.silent_sources.is_empty() {
            cards.push(Card::new("problems", &problems(status)));
        }
        let pods = most_urgent_first(&status.pods);
        let settled = pods.partition_point(|pod| Urgency::of(pod).needs_look());
        let card = |pod: &&PodStatus| Card::new(format!("pod-{}", pod.uid), &pod_tree(pod));
        cards.extend(pods[..settled].iter().map(card));
        cards.push(Card::new("changes", &feed.tree()));
        cards.extend(pods[settled..].iter().map(card));
        if !status.objects.is_empty() {
            cards.push(Card::new("objects", &objects(status).folded()));
        }
        Self {
            summary: format!(
                "node {}: {}; agent of {}, started {} ago",
                status.node,
                count(status.pods.len(), "pod"),
                status.root_dir,
                age(status.started, now)
            ),
            cards,
        }
    }

    /// The last cards, while no agent answers.
    pub(super) fn without_agent(&self, reason: &str) -> Self {
        Self {
            summary: format!("no agent answers, trying again: {reason}"),
            cards: self.cards.clone(),
        }
    }
}

fn problems(status: &AgentStatus) -> Branch {
    let silent = status
        .silent_sources
        .iter()
        .map(|source| format!("{source} has not reported its pods yet"));
    let problems = silent
        .chain(status.problems.iter().cloned())
        .map(|problem| Branch::new().yellow(problem));
    Branch::new().red("Problems").with(problems)
}

/// A pod that needs no look is one line, until its reader opens it.
fn pod_tree(pod: &PodStatus) -> Branch {
    let urgency = Urgency::of(pod);
    let name = format!("{}/{}", pod.namespace, pod.name);
    let mut tree = delivery(Branch::new().bold(name), &pod.delivery).plain(&pod.delivery.reason);
    if let Some(deleted) = pod.deletion_timestamp {
        tree = tree.yellow("deletion requested").age("", deleted);
    }
    let volumes = pod.volumes.iter().map(volume);
    let containers = pod.containers.iter().map(container);
    let hooks = pod.on_change.iter().map(hook);
    let children = volumes.chain(containers).chain(hooks);
    let tree = tree.with(children).in_state(urgency.name());
    if urgency.needs_look() {
        tree
    } else {
        tree.folded()
    }
}

/// The columns are those of [`container`] and [`hook`], so that they line up.
fn volume(volume: &VolumeStatus) -> Branch {
    let line = Branch::new().plain(format!("volume {}", volume.name));
    delivery(line.dim(&volume.type_), &volume.delivery)
        .plain(count(volume.files, "file"))
        .age("last change", volume.last_swap)
        .yellow(stale(volume.stale_as_of))
        .plain(&volume.delivery.reason)
}

fn container(container: &ContainerStatus) -> Branch {
    let outdated = container.outdated.iter().map(|outdated| {
        let name = format!("{} {}", outdated.kind, outdated.name);
        Branch::new()
            .yellow(format!("needs a restart to see {name}"))
            .dim(&outdated.object)
            .age("for", outdated.since)
    });
    let line = Branch::new().plain(format!("variables of {}", container.name));
    delivery(line.dim(""), &container.delivery)
        .dim("")
        .age("last change", container.last_swap)
        .yellow(stale(container.stale_as_of))
        .plain(&container.delivery.reason)
        .with(outdated)
}

fn hook(hook: &HookStatus) -> Branch {
    let state = match hook.state.as_str() {
        "Idle" => Paint::Green,
        "Waiting" | "Running" => Paint::Yellow,
        _ => Paint::Red,
    };
    Branch::new()
        .plain(format!("hook {}", hook.name))
        .dim(&hook.action)
        .cell(state, &hook.state)
        .age("for", hook.since)
        .dim("")
        .age("last success", hook.last_success)
        .dim("")
        .plain(&hook.reason)
}

/// `line` with the phase and its time.
fn delivery(line: Branch, delivery: &Delivery) -> Branch {
    let paint = match delivery.phase {
        Phase::Delivered => Paint::Green,
        Phase::Ended | Phase::Excluded => Paint::Dim,
        Phase::Failing => Paint::Red,
        Phase::Held | Phase::Stale | Phase::Waiting | Phase::Removing => Paint::Yellow,
    };
    line.cell(paint, delivery.phase.as_str())
        .age("for", delivery.since)
}

fn stale(as_of: Option<Timestamp>) -> String {
    as_of.map_or_else(String::new, |time| {
        format!("from a checkpoint of {time:.0}")
    })
}

fn objects(status: &AgentStatus) -> Branch {
    let objects = status.objects.iter().map(|object| {
        let name = format!("{} {}/{}", object.kind, object.namespace, object.name);
        let freshness = match object.age_secs {
            0 => "synced now".to_owned(),
            secs => format!("synced {secs} s ago"),
        };
        Branch::new()
            .plain(name)
            .plain(&object.state)
            .dim(freshness)
            .dim(format!("for {}", object.pods.join(", ")))
            .red(&object.error)
    });
    Branch::new().bold("Objects").with(objects)
}

/// The last changes of content, newest first.
#[derive(Debug, Default)]
pub(super) struct ChangeFeed {
    /// The last change of each part, by UID of its pod and name; `None` before the first status.
    swaps: Option<HashMap<(String, String), Timestamp>>,
    changes: VecDeque<ContentChange>,
}

#[derive(Debug)]
struct ContentChange {
    time: Timestamp,
    pod: String,
    part: String,
    /// From the change of the files to this page, or beside a kubelet from the object's change to the verified files.
    latency: String,
}

impl ChangeFeed {
    /// Notes the parts of `status` that have changed since the last status.
    pub(super) fn note(&mut self, status: &AgentStatus, now: Timestamp) {
        let mut swaps = HashMap::new();
        let mut found = Vec::new();
        for pod in &status.pods {
            let volumes = pod.volumes.iter().map(|volume| {
                let part = format!("volume {}", volume.name);
                (part, volume.last_swap, volume.verified_in_ms)
            });
            let containers = pod.containers.iter().map(|container| {
                let part = format!("variables of {}", container.name);
                (part, container.last_swap, None)
            });
            for (part, swap, verified) in volumes.chain(containers) {
                let Some(swap) = swap else { continue };
                let key = (pod.uid.clone(), part.clone());
                let before = self.swaps.as_ref().map(|swaps| swaps.get(&key));
                if before.flatten() != Some(&swap) {
                    let millis = now.as_millisecond().saturating_sub(swap.as_millisecond());
                    found.push(ContentChange {
                        time: swap,
                        pod: format!("{}/{}", pod.namespace, pod.name),
                        part,
                        latency: match verified {
                            Some(verified) => format!("verified after {verified} ms"),
                            // The page did not see it, or no agent answered for a while.
                            None if before.is_none() || millis > 10_000 => String::new(),
                            None => format!("on this page after {} ms", millis.max(0)),
                        },
                    });
                }
                swaps.insert(key, swap);
            }
        }
        self.swaps = Some(swaps);
        found.sort_by_key(|change| change.time);
        for change in found {
            self.changes.push_front(change);
        }
        self.changes.truncate(MAX_CHANGES);
    }

    fn tree(&self) -> Branch {
        let changes = self.changes.iter().map(|change| {
            Branch::new()
                .age("", change.time)
                .plain(&change.pod)
                .plain(&change.part)
                .dim(&change.latency)
        });
        let mut tree = Branch::new().bold("Changes").with(changes);
        if self.changes.is_empty() {
            tree.push(Branch::new().dim("none since the agent started"));
        }
        tree
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn latency_is_that_of_changes_that_the_page_saw() {
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let status = |swap: &str| -> AgentStatus {
            serde_json::from_value(json!({
                "node": "n1", "rootDir": "/r", "started": "2026-01-01T00:00:00Z", "changeDetection": "Watch",
                "watchScope": "Object", "silentSources": [], "problems": [], "objects": [],
                "pods": [{
                    "namespace": "prod", "name": "web", "uid": "u", "source": "api", "path": "/r", "containers": [],
                    "phase": "Delivered", "since": "2026-01-01T00:00:00Z",
                    "volumes": [{
                        "name": "cfg", "type": "configMap", "path": "/r/cfg", "files": 1, "lastSwap": swap,
                        "phase": "Delivered", "since": "2026-01-01T00:00:00Z",
                    }],
                }],
            }))
            .unwrap()
        };
        let mut feed = ChangeFeed::default();
        // The change was a second before the page was opened.
        feed.note(
            &status("2026-01-01T00:00:01Z"),
            time("2026-01-01T00:00:02Z"),
        );
        assert_eq!(feed.changes[0].latency, "");
        feed.note(
            &status("2026-01-01T00:00:03Z"),
            time("2026-01-01T00:00:03.2Z"),
        );
        assert_eq!(feed.changes[0].latency, "on this page after 200 ms");
    }
}
