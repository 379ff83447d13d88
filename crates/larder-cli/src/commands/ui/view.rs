//! The status of an agent as cards of a page: what changed last, a card for each pod, and the objects.

use std::collections::{HashMap, VecDeque};

use jiff::Timestamp;
use larder_agent::status::{
    AgentStatus, ContainerStatus, Delivery, HookStatus, Phase, PodStatus, VolumeStatus,
};

use crate::{
    commands::status::is_failing,
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
        let mut pods: Vec<_> = status.pods.iter().map(|pod| (state(pod), pod)).collect();
        // Stable, so pods of one state keep their order.
        pods.sort_by_key(|(state, _)| *state);
        let settled = pods.partition_point(|((rank, _), _)| *rank < SETTLED);
        let card = |(state, pod): &(PodState, &PodStatus)| {
            Card::new(format!("pod-{}", pod.uid), &pod_tree(pod, *state))
        };
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

    /// The same, while no agent answers.
    pub(super) fn without_agent(&self, reason: &str) -> Self {
        Self {
            summary: format!("no agent answers, trying again: {reason}"),
            cards: self.cards.clone(),
        }
    }
}

/// The rank of a pod, the most urgent first, and what it is counted as.
type PodState = (u8, &'static str);

/// The first rank of pods that need no look.
const SETTLED: u8 = 5;

fn state(pod: &PodStatus) -> PodState {
    match pod.delivery.phase {
        Phase::Failing => (0, "failing"),
        Phase::Delivered if pod.on_change.iter().any(is_failing) => (1, "with a failing hook"),
        Phase::Waiting => (2, "waiting"),
        Phase::Held => (3, "held"),
        Phase::Removing => (4, "removing"),
        Phase::Delivered => (SETTLED, "delivered"),
        Phase::Excluded => (6, "excluded"),
        Phase::Ended => (7, "ended"),
    }
}

fn problems(status: &AgentStatus) -> Branch {
    let silent = status.silent_sources.iter();
    let silent = silent.map(|source| format!("{source} has not reported its pods yet"));
    let problems = silent.chain(status.problems.iter().cloned());
    let problems = problems.map(|problem| Branch::new().yellow(problem));
    Branch::new().red("Problems").with(problems)
}

/// A pod that needs no look is one line, until its reader opens it.
fn pod_tree(pod: &PodStatus, (rank, state): PodState) -> Branch {
    let name = format!("{}/{}", pod.namespace, pod.name);
    let mut tree = delivery(Branch::new().bold(name), &pod.delivery).plain(&pod.delivery.reason);
    if let Some(deleted) = pod.deletion_timestamp {
        tree = tree.yellow("deletion requested").age("", deleted);
    }
    let volumes = pod.volumes.iter().map(volume);
    let containers = pod.containers.iter().map(container);
    let hooks = pod.on_change.iter().map(hook);
    let children = volumes.chain(containers).chain(hooks);
    let tree = tree.with(children).in_state(state);
    if rank < SETTLED { tree } else { tree.folded() }
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
        Phase::Held | Phase::Waiting | Phase::Removing => Paint::Yellow,
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
        let line = Branch::new().plain(name).plain(&object.state);
        line.dim(freshness)
            .dim(format!("for {}", object.pods.join(", ")))
            .red(&object.error)
    });
    Branch::new().bold("Objects").with(objects)
}

/// The last changes of content, newest first.
#[derive(Debug, Default)]
pub(super) struct ChangeFeed {
    /// The last change of each part, by UID of its pod and name.
    swaps: HashMap<(String, String), Timestamp>,
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
                if self.swaps.get(&key) != Some(&swap) {
                    let millis = now.as_millisecond().saturating_sub(swap.as_millisecond());
                    found.push(ContentChange {
                        time: swap,
                        pod: format!("{}/{}", pod.namespace, pod.name),
                        part,
                        latency: match verified {
                            Some(verified) => format!("verified after {verified} ms"),
                            // An older change was only found now.
                            None if millis > 10_000 => String::new(),
                            None => format!("on this page after {} ms", millis.max(0)),
                        },
                    });
                }
                swaps.insert(key, swap);
            }
        }
        self.swaps = swaps;
        found.sort_by_key(|change| change.time);
        for change in found {
            self.changes.push_front(change);
        }
        self.changes.truncate(MAX_CHANGES);
    }

    fn tree(&self) -> Branch {
        let changes = self.changes.iter().map(|change| {
            let line = Branch::new().age("", change.time).plain(&change.pod);
            line.plain(&change.part).dim(&change.latency)
        });
        let mut tree = Branch::new().bold("Changes").with(changes);
        if self.changes.is_empty() {
            tree.push(Branch::new().dim("none since the agent started"));
        }
        tree
    }
}
